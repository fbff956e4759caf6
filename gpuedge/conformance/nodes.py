"""Operators of ONNX that have no public function, as models of one node through `Session`.

Operands come as inputs of the model or as its constants: a device meets both. What they must give
says `gpuedge.oracle.nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance.case import Built, Case
from gpuedge.conformance.data import (
    WHOLE,
    Shape,
    broadcastable,
    dims,
    fill,
    operand,
    pick,
    spread,
    weights,
)
from gpuedge.graph.build import NEWER
from gpuedge.graph.expand import infer
from gpuedge.graph.ir import OPSET, Graph, Node, type_of
from gpuedge.graph.writer import to_bytes
from gpuedge.opset.bounds import Array, Num
from gpuedge.oracle.nodes import evaluate

Draw = Callable[[np.random.Generator, str, str], Array]
"""Takes a generator, the kind of data and the dtype of the case."""

# --- models of one node --------------------------------------------------------------------------


def runs_of(
    model: bytes, feeds: Mapping[str, Array], device: Any
) -> Generator[dict[str, Array], None, None]:
    """Run a model on a device that was asked for by name, and never on the CPU in its place."""
    policy = replace(getattr(device, "policy", None) or gpuedge.Policy(), crosscheck=0)
    with gpuedge.Session(model, device=device, policy=policy, fallback="error") as session:
        while True:
            yield dict(session.run(dict(feeds)))


def run_model(model: bytes, feeds: Mapping[str, Array], device: Any) -> dict[str, Array]:
    """Run a model once."""
    with closing(runs_of(model, feeds, device)) as runs:
        return next(runs)


def node(
    onnx: str,
    text: str,
    *operands: Shape | Array | Draw | None,
    constant: Sequence[int] = (),
    outputs: int | Sequence[int] = 1,
    then: tuple[str, Array] | None = None,
    domain: str = "",
    **attrs: Any,
) -> Case:
    """Return a model of one node.

    An operand is a shape to fill, an array, what draws one, or None where it is absent; those at
    the places `constant` are constants of the model. Outputs are counted, or their places given;
    several are compared as one row of numbers. `then`: an operator that follows, and its second
    operand, a constant.
    """
    places = range(outputs) if isinstance(outputs, int) else outputs
    written = tuple(f"out{i}" if i in places else "" for i in range(max(places) + 1))

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        drawn = [
            fill(rng, source, data) if isinstance(source, tuple)
            else source(rng, data, dtype) if callable(source) else source
            for source in operands
        ]  # fmt: skip
        read = tuple("" if array is None else f"in{i}" for i, array in enumerate(drawn))
        given = {n: a for n, a in zip(read, drawn, strict=True) if a is not None}
        constants = {f"in{i}": given[f"in{i}"] for i in constant}
        feeds = {name: array for name, array in given.items() if name not in constants}
        out = tuple(name for name in written if name)
        types = {name: type_of(array) for name, array in given.items()}
        steps = [Node(onnx, read, written, dict(attrs), onnx, domain)]
        if then is not None:
            given["by"] = constants["by"] = then[1]
            types["by"] = type_of(then[1])
            steps.append(Node(then[0], (out[0], "by"), ("then",), {}, then[0]))
            out = ("then",)
        opset = {"": NEWER.get(onnx, OPSET), **({domain: 1} if domain else {})}
        known = Graph(tuple(steps), tuple(feeds), out, types, constants, opset)
        for step in steps:
            kinds = zip(step.outputs, infer(step, known), strict=False)
            types |= {name: kind for name, kind in kinds if name and kind}
        model = to_bytes(known)

        def runs(device: Any) -> Generator[Array, None, None]:
            with closing(runs_of(model, feeds, device)) as every:
                for results in every:
                    arrays = [results[n] for n in out]
                    yield _row(arrays) if out[1:] else arrays[0]

        def reference(_: Any) -> Num:
            values = evaluate(known, given, whole=data in WHOLE)
            parts = [Num.of(values[n]) for n in out]
            if not out[1:]:
                return parts[0]
            flat = ([part.v.ravel() for part in parts], [part.e.ravel() for part in parts])
            return Num(*map(np.concatenate, flat))

        return Built(runs, reference)

    return Case(f"{'ort' if domain else 'onnx'}-{onnx.lower()}", text, make)


def _row(arrays: Sequence[Array]) -> Array:
    """Return results as one row of numbers; places beside floats are small enough to be floats."""
    row = np.concatenate([array.ravel() for array in arrays])
    return row.astype(np.float32) if row.dtype == np.float64 else row


def gather(
    shape: Shape, axis: int, indices: Any, *, constant: bool = False, dtype: str = "int64"
) -> Case:
    """Elements picked along an axis: `indices` as they are, or a shape to draw them in."""
    is_drawn, extent = isinstance(indices, tuple), shape[axis]

    def where(rng: np.random.Generator, *_: str) -> Array:
        places = rng.integers(-extent, extent, indices) if is_drawn else indices
        return np.asarray(places, dtype)

    said = dims(indices) if is_drawn else "given"
    text = f"{dims(shape)}-axis{axis}-{said}-{'constant' if constant else 'runtime'}-{dtype}"
    return node(
        "Gather", text, lambda rng, *kind: operand(rng, shape, *kind), where,
        constant=[1] if constant else [], axis=axis,
    )  # fmt: skip


def layer_norm(shape: Shape, axis: int, *, bias: bool = True, outputs: int = 1) -> Case:
    """Rows centred and scaled; the further outputs are their mean and inverse deviation."""
    text = f"{dims(shape)}-axis{axis}{'-b' if bias else ''}-outputs{outputs}"
    operands = (shape, *(shape[axis:],) * (1 + bias))
    return node("LayerNormalization", text, *operands, outputs=outputs, axis=axis, epsilon=1e-3)


def cumsum(shape: Shape, axis: int, exclusive: int, reverse: int) -> Case:
    """Running sums."""
    flags = f"{'-exclusive' if exclusive else ''}{'-reverse' if reverse else ''}"
    text, along = f"{dims(shape)}-axis{axis}{flags}", np.asarray(axis, np.int64)
    return node("CumSum", text, shape, along, constant=[1], exclusive=exclusive, reverse=reverse)


def reduction(onnx: str, shape: Shape, axes: Shape, keepdims: int) -> Case:
    """A sum, mean or extreme along axes."""
    text = f"{dims(shape)}-axes{'.'.join(map(str, axes))}{'' if keepdims else '-dropped'}"
    return node(onnx, text, shape, np.asarray(axes, np.int64), constant=[1], keepdims=keepdims)


def batch_norm(shape: Shape, constant: tuple[int, ...] = ()) -> Case:
    """Normalisation whose statistics come with each call."""
    said = f"-constant{'.'.join(map(str, constant))}" if constant else ""
    column: Draw = lambda rng, *_: fill(rng, shape[1:2], "normal")  # noqa: E731
    variance: Draw = lambda rng, *_: rng.uniform(0.25, 4, shape[1]).astype(np.float32)  # noqa: E731
    return node(
        "BatchNormalization", dims(shape) + said, shape, *(column,) * 3, variance,
        constant=constant, epsilon=1e-3,
    )  # fmt: skip


def conv(x: Shape, w: Shape, **attrs: Any) -> Case:
    """A convolution whose weights come with each call and whose bias is constant."""
    said = "".join(f"-{name}{np.ravel(value)[0]}" for name, value in attrs.items())
    text = f"{dims(x)}-{dims(w)}{said}-runtime-weights"
    drawn = (lambda rng, data, _, s=s: weights(rng, s, data) for s in (w, w[:1]))
    return node("Conv", text, x, *drawn, constant=[2], **attrs)


GATHERS = (
    gather((7, 5), 0, (4,)), gather((7, 5), 1, (3, 2)),
    gather((2, 3, 4, 5), -3, (2, 2), constant=True), gather((9, 4), 0, -1),
    gather((3, 8), 1, -8, constant=True), gather((11,), 0, (5,), dtype="int32"),
    gather((5003, 3), 0, (40,)), gather((6, 4), 0, [-1, 0, 5, -6, 5], constant=True),
)  # fmt: skip

SUMS = (
    *(
        cumsum(shape, axis, exclusive, reverse)
        for shape, axis in (((13,), 0), ((3, 37), 1), ((5, 4, 3), -3))
        for exclusive in (0, 1) for reverse in (0, 1)
    ),
    *(
        reduction(f"Reduce{what}", *how)
        for what in ("Sum", "Mean", "Max", "Min")
        for how in (((7, 33), (1,), 1), ((3, 5, 4), (0, 2), 0), ((2, 3, 4, 5), (-1,), 0))
    ),
    conv((1, 5, 7, 6), (4, 5, 3, 3), pads=(1, 1, 1, 1)), conv((2, 8, 5, 5), (6, 8, 1, 1)),
    conv((1, 7, 9, 8), (7, 1, 3, 3), group=7, strides=(2, 2)),
)  # fmt: skip

NORMALISED = (
    layer_norm((4, 7), -1), layer_norm((2, 3, 8), -1, bias=False), layer_norm((2, 3, 4, 5), 2),
    layer_norm((3, 64), -1, outputs=3), layer_norm((2, 5, 6), 1, bias=False, outputs=2),
    layer_norm((2, 3, 4), 0), batch_norm((2, 5, 3, 4)), batch_norm((3, 7)),
    batch_norm((1, 4, 9), (1, 3)),
)  # fmt: skip

PARAMETRISED = tuple(
    node(onnx, f"1003-alpha{alpha:g}", lambda rng, *_: spread(rng, -20, 20, 1003), alpha=alpha)
    for onnx, alphas in (("ThresholdedRelu", (1.0, 0.3, -2.5)), ("Swish", (1.0, 0.7, 1.702)))
    for alpha in alphas
)


def cases(scale: int) -> Iterator[Case]:
    """Yield the cases, more of the drawn ones for a larger `scale`."""
    yield from GATHERS
    for listed in SUMS:
        yield from (replace(listed, data=data) for data in ("integers", "normal"))
    for listed in GATHERS[:2]:
        yield from (replace(listed, dtype=dtype, data="integers") for dtype in ("uint8", "int8"))
    yield from (*NORMALISED, *PARAMETRISED)
    for onnx in ("Sum", "Mean", "Max", "Min"):
        for count in range(1, 7):
            for number in range(scale):
                rng = np.random.default_rng([count, number])
                shapes = broadcastable(rng, count, 1)
                constant = (count - 1,) if count > 2 and pick(rng, (False, True)) else ()
                drawn = node(onnx, "-".join(map(dims, shapes)), *shapes, constant=constant)
                yield replace(drawn, data=("integers", "normal")[(count + number) % 2])
