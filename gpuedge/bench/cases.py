"""What is timed: a model with inputs and right outputs, or a Python function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from gpuedge.bench.graphs import GRAPHS, inputs_of
from gpuedge.bench.spec import (
    ITERATIONS,
    WARM_UP,
    BenchSpec,
    SpecFile,
    SpecPlaces,
    SpecTest,
    chosen,
    locate,
    of_shapes,
    read_spec,
)
from gpuedge.core.errors import GpuEdgeError, InputError
from gpuedge.core.text import nearest, shown
from gpuedge.graph.cost import count
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.packed import read_model
from gpuedge.graph.writer import to_bytes
from gpuedge.oracle import nodes as oracle
from gpuedge.runtime.golden import golden
from gpuedge.runtime.inputs import check_inputs, given_shapes
from gpuedge.safety.paths import check_readable

MOST_EXACT = 2e9
"""Operations up to which the right outputs are computed in float64, which takes seconds."""

CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A Python function: ``module:function``."""

TEXT = ".txt"
"""What numbers in text have: one after another, as FAI-PEP keeps tensors."""

GOLDEN, EXACT, CPU32 = "golden outputs", "float64", "the CPU path in float32"
"""What outputs are compared with."""


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One thing to time.

    Attributes
    ----------
    name : str
        By which results are found again.
    call : str
        ``module:function``, which takes no argument; empty for a model.
    source : Path or None
        The model's file; None for a fixed graph.
    shapes : mapping
        Of inputs that the model leaves open.
    inputs, outputs : mapping of str to Path
        Files of inputs, and of golden outputs.
    """

    name: str
    call: str = ""
    source: Path | None = None
    graph: str = ""
    shapes: Mapping[str, tuple[int, ...]] | None = None
    inputs: Mapping[str, Path] | None = None
    outputs: Mapping[str, Path] | None = None
    iterations: int = ITERATIONS
    warm_up: int = WARM_UP


@dataclass(frozen=True, slots=True)
class ReadyCase:
    """A case with its files written, for the processes that are timed.

    Attributes
    ----------
    model, feeds : str
        The files; empty for a function.
    names : tuple of str
        Inputs, in the order of the arrays in `feeds`.
    wanted : dict of str to ndarray
        Right outputs.
    reference : str
        What made them.
    work : dict of str to float or None
        What one run costs, counted from the graph: ``flops``, ``bytes_moved``, ``bytes_in``,
        ``bytes_out``, ``launches``.
    """

    case: BenchCase
    model: str = ""
    feeds: str = ""
    names: tuple[str, ...] = ()
    wanted: Mapping[str, Array] | None = None
    reference: str = ""
    work: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class SkippedCase:
    """A test of a specification that cannot run here, and why."""

    name: str
    why: str


def cases_of(
    text: str, places: SpecPlaces, strings: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[BenchCase | SkippedCase]:  # fmt: skip
    """Yield the cases that an argument names.

    Parameters
    ----------
    text : str
        A specification (``.json``, or ``.json#TEST`` for one test of it), a model file, the name of
        a fixed graph (`gpuedge.bench.graphs`), or ``module:function``.
    places : SpecPlaces
    strings : mapping of str to str, optional
        FAI-PEP's string map.
    shapes : mapping of str to tuple of int, optional
        Of inputs of models, before those of specifications.

    Raises
    ------
    InputError (GE-203)
    """
    path, _, only = text.partition("#")
    if path.lower().endswith(".json"):
        spec = read_spec(Path(path), strings)
        for test in chosen(spec.tests, only):
            yield _of_spec(spec, test, places, shapes or {})
    elif text in GRAPHS:
        yield BenchCase(text, graph=text)
    elif CALL.fullmatch(text) and not Path(text).exists():
        yield BenchCase(text, call=text)
    elif Path(text).suffix.lower() in (".onnx", ".gpuedge") or Path(text).exists():
        check_readable(text, "model")
        yield BenchCase(of_shapes(Path(text).stem, shapes or {}), source=Path(text), shapes=shapes)
    else:
        raise InputError(
            f"{shown(text)} is nothing that can be timed.",
            known="a specification (.json), a model (.onnx), MODULE:FUNCTION, or a fixed graph: "
            + ", ".join(GRAPHS),
            hint=nearest(text, GRAPHS),
        )


def _of_spec(
    spec: BenchSpec, test: SpecTest, places: SpecPlaces, shapes: Mapping[str, tuple[int, ...]]
) -> BenchCase | SkippedCase:
    name = f"{spec.name}/{test.name}"
    if test.skipped or spec.model is None:
        return SkippedCase(name, test.skipped)

    def found(files: Mapping[str, SpecFile]) -> dict[str, Path]:
        return {n: locate(file, spec.path, places) for n, file in files.items()}

    return BenchCase(
        of_shapes(name, shapes), source=locate(spec.model, spec.path, places),
        shapes={**test.shapes, **shapes}, inputs=found(test.inputs), outputs=found(test.outputs),
        iterations=test.iterations, warm_up=test.warm_up,
    )  # fmt: skip


def prepared(case: BenchCase, folder: Path) -> ReadyCase:
    """Write a case's model and inputs into a folder, and work out its right outputs.

    Raises
    ------
    InputError (GE-203), ShapeError (GE-201), DTypeError (GE-202), ModelError (GE-5xx)
        The model or its inputs.
    """
    if case.call:
        return ReadyCase(case)
    feeds = folder / "inputs.npz"
    if case.source is None:
        graph = GRAPHS[case.graph]()
        arrays = inputs_of(graph)
        model = folder / "model.onnx"
        model.write_bytes(to_bytes(graph))
        known: dict[str, Array] = {}
    else:
        model = case.source.absolute()
        graph, arrays, known = _of_model(case)
    np.savez(feeds, *arrays.values())
    work = count(graph)
    flops = sum(work["flops"].values())
    names = ("bytes_moved", "bytes_in", "bytes_out", "launches")
    costs = {"flops": flops, **{n: float(work[n]) for n in names}}  # type: ignore[literal-required]
    wanted, reference = _right(case, graph, arrays, known, flops)
    return ReadyCase(case, str(model), str(feeds), tuple(arrays), wanted, reference, costs)


def _of_model(case: BenchCase) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """Return a model's graph, its inputs, and the outputs that the CPU makes of them."""
    model = read_model(str(case.source))
    files = case.inputs or {}
    given = {n: _array(path, n) for n, path in files.items()}
    shapes = {n: a.shape for n, a in given.items() if files[n].suffix != TEXT}
    graph = model.specialise(given_shapes(shapes | dict(case.shapes or {}), model))
    for n, path in files.items():
        if path.suffix == TEXT and n in graph.types:  # which has neither a dtype nor a shape
            kind = graph.types[n]
            given[n] = _shaped(given[n].astype(kind.dtype), kind.shape, path)
    inputs = check_inputs(given, model) if given else None
    full = tuple(graph.shape(name) for name in graph.inputs)
    arrays, why = golden(model, model.with_shapes(full), inputs)
    if why:
        raise InputError(
            f"No inputs were found that {case.source} takes.", known=why,
            hint="a specification with files of inputs: docs/benchmarking.md",
        )  # fmt: skip
    return graph, {n: arrays[n] for n in graph.inputs}, {n: arrays[n] for n in graph.outputs}


def _array(path: Path, name: str) -> Array:
    """Return the array in a .npy, .npz or .txt file; pickled objects are never loaded."""
    try:
        if path.suffix == TEXT:
            return np.loadtxt(path, np.float64, ndmin=1)
        found = np.load(path, allow_pickle=False)
        return found[name] if isinstance(found, np.lib.npyio.NpzFile) else np.asarray(found)
    except Exception as error:  # numpy's parsers raise whatever they raise
        raise InputError(f"{path} holds no array of numbers that is read: {error}.") from None


def _shaped(array: Array, shape: tuple[int, ...], path: Path) -> Array:
    if array.size != prod(shape):
        raise InputError(
            f"{path} does not fit the model.",
            known=f"it holds {array.size} numbers, and {'x'.join(map(str, shape))} are needed",
        )
    return array.reshape(shape)


def _right(
    case: BenchCase, graph: Graph, arrays: Mapping[str, Array], known: Mapping[str, Array],
    flops: float,
) -> tuple[dict[str, Array], str]:  # fmt: skip
    """Return the right outputs: golden ones, else float64's, else those of the CPU."""
    if case.outputs:
        unknown = sorted(set(case.outputs) - set(graph.outputs))
        if unknown:
            raise InputError(
                f"The model has no output {shown(unknown[0])}.",
                known=f"it has {', '.join(graph.outputs)}",
            )
        return {
            n: _shaped(_array(path, n), graph.shape(n), path) for n, path in case.outputs.items()
        }, GOLDEN
    if flops <= MOST_EXACT or not known:
        try:
            values = oracle.evaluate(graph, arrays)
            return {n: np.asarray(getattr(values[n], "v", values[n])) for n in graph.outputs}, EXACT
        except (GpuEdgeError, ValueError):  # an operator that it does not know
            pass
    return dict(known), CPU32


def error_of(found: Mapping[str, Any], wanted: Mapping[str, Array]) -> tuple[float, float] | None:
    """Return the largest difference, and the largest relative to the largest number wanted.

    None where there is nothing to compare; infinity where sizes differ or NaN stands in one only.
    """
    worst = (0.0, 0.0)
    for name, right in wanted.items():
        got = np.asarray(found.get(name, np.zeros(0)))
        if got.size != right.size:
            return np.inf, np.inf
        got = got.reshape(right.shape)
        if right.dtype.kind not in "biufc":
            apart = float((got != right).any())
            worst = max(worst[0], apart), max(worst[1], apart)
            continue
        with np.errstate(all="ignore"):
            far = np.abs(got.astype(np.float64) - right.astype(np.float64))
            far[(got == right) | (np.isnan(got) & np.isnan(right))] = 0.0
        far = np.where(np.isnan(far), np.inf, far)
        largest = float(np.abs(right[np.isfinite(right)].astype(np.float64)).max(initial=0.0))
        most = float(far.max(initial=0.0))
        worst = max(worst[0], most), max(worst[1], most / max(largest, 1e-30))
    return worst if wanted else None
