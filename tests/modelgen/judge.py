"""Right or wrong: what a device gave, against float64, within the running errors of the operators.

The bounds are those of `gpuedge.opset.errors`, for these very numbers. They add errors of different
origin as independent ones, so that a float may lie `FACTOR` of them away, as in the cross-check of
`gpuedge.runtime.crosscheck`. What float32 computes without rounding must be that very number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuedge.graph.expand import expand
from gpuedge.graph.ir import Graph
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset.bounds import TINY, Num
from gpuedge.opset.errors import allowed, exact, tensor_errors
from gpuedge.runtime.crosscheck import BIAS, HALF_ULP
from modelgen.case import Case
from modelgen.meanings import Array

VAGUE = 0.01
"""A bound beyond this share of the largest number says little."""


@dataclass(frozen=True)
class Verdict:
    """What is wrong with the outputs, if anything, and whether that means much.

    Attributes
    ----------
    why : str
        Empty if all is right.
    worst : float
        The largest error in units of its bound.
    is_vague : bool
        Whether half of an output has bounds that are wide.
    """

    why: str
    worst: float = 0.0
    is_vague: bool = False


def graph_of(case: Case) -> Graph:
    """Return the graph as planning sees it, without folding what it need not know."""
    model = OnnxModel.load(case.proto())
    return model.specialise({n: a.shape for n, a in case.feeds.items()}, rewrites=False)


def running_errors(case: Case, *, in_half: bool = False) -> dict[str, Num]:
    """Return every value as the descriptions of the operators have it, and its error bound.

    `in_half`: of arithmetic in float16.
    """
    graph = graph_of(case)
    known = {**graph.constants, **{n: case.feeds[n] for n in graph.inputs}}
    values = {n: exact(a) for n, a in known.items()}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            tensors = expand(node, graph, is_half=in_half)
            numbers = tensor_errors(tensors, values, HALF_ULP if in_half else BIAS)
            values.update((n, _known(v)) for n, v in zip(node.outputs, numbers, strict=False) if n)
    return values


def _known(x: Num) -> Num:
    """Return a value with an infinite bound where nothing is known."""
    return Num(x.v, np.where(np.isnan(x.e), np.inf, x.e))


def judge(case: Case, outputs: Mapping[str, Array], *, in_half: bool = False) -> Verdict:
    """Compare the outputs with float64; `in_half`: of arithmetic in float16."""
    errors, worst, is_vague = running_errors(case, in_half=in_half), 0.0, False
    exact_ones = set() if in_half else case.exact
    for name in case.outputs:
        want, got, bound = case.values[name], outputs[name], errors[name]
        dtype = "float32" if want.dtype.kind == "f" else want.dtype.name
        if got.shape != want.shape or got.dtype != dtype:
            return Verdict(f"{name} is {got.dtype}{list(got.shape)}, not {dtype}"
                           f"{list(want.shape)}")  # fmt: skip
        if bound.v.shape != want.shape or not _near(bound.v, want, bound.e):
            return Verdict(f"{name}: the description differs from float64")
        most = np.zeros(want.shape)
        if name not in exact_ones:
            most = allowed(bound, is_whole=want.dtype.kind != "f")
        if want.dtype.kind == "f" and name not in exact_ones:
            most = most + TINY
            is_vague |= bool(np.median(most) > VAGUE * np.abs(want).max())
        away = np.abs(got.astype(np.float64) - want)
        is_wrong = ~(away <= most) & np.isfinite(most)
        if is_wrong.any():
            return Verdict(_said(name, got, want, most, is_wrong), np.inf)
        known = most > 0
        worst = max(worst, float(np.max(away[known] / most[known], initial=0.0)))
    return Verdict("", worst, is_vague)


def _near(a: Array, b: Array, e: Array) -> bool:
    """Tell whether a description means what float64 says; its constants are float32."""
    return bool((np.abs(a - b) <= e + 1e-6 * np.maximum(1.0, np.abs(b))).all())


def _said(name: str, got: Array, want: Array, most: Array, is_wrong: Array) -> str:
    at = np.unravel_index(int(np.argmax(is_wrong)), is_wrong.shape)
    place = ", ".join(str(int(i)) for i in at)
    return (
        f"{name}: {int(is_wrong.sum())} of {is_wrong.size} are wrong, such as [{place}]: "
        f"{got[at]:.9g} instead of {want[at]:.9g} (allowed: {most[at]:.2g})"
    )
