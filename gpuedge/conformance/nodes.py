"""Operators of ONNX that have no public function, as models of one node through `Session`.

Operands come as inputs of the model or as its constants: a device meets both. The values are
float64 numpy by the definition of each operator; the bounds are running errors of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance import oracle
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
from gpuedge.conformance.functions import elementwise
from gpuedge.graph.build import NEWER
from gpuedge.graph.expand import infer
from gpuedge.graph.ir import OPSET, Graph, Node, type_of
from gpuedge.graph.writer import to_bytes
from gpuedge.opset.bounds import TINY, ULP, Array, Num, U

Draw = Callable[[np.random.Generator, str, str], Sequence[Array]]
"""Takes a generator, the kind of data and the dtype; returns the operands in their order."""

Meaning = Callable[..., Num]
"""Takes the operands and, by name, whether sums of them are exact (`whole`)."""


def one_node(
    onnx: str,
    text: str,
    draw: Draw,
    meanings: Sequence[Meaning],
    attrs: Mapping[str, Any] | None = None,
    *,
    constant: Sequence[int] = (),
) -> Case:
    """Return a model of one node, with a meaning for each of its outputs.

    Operands at the places `constant` are constants of the model. Several outputs are compared as
    one row of numbers.
    """

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        given = {f"in{i}": array for i, array in enumerate(draw(rng, data, dtype))}
        constants = {f"in{i}": given[f"in{i}"] for i in constant}
        feeds = {name: array for name, array in given.items() if name not in constants}
        model = _model(onnx, given, constants, attrs or {}, len(meanings))

        def call(device: Any) -> Array:
            found = list(run_model(model, feeds, device).values())
            return found[0] if len(found) == 1 else np.concatenate([f.ravel() for f in found])

        def reference(_: Any) -> Num:
            found = [one(*given.values(), whole=data in WHOLE) for one in meanings]
            if len(found) == 1:
                return found[0]
            return Num(*(np.concatenate([part.ravel() for part in s]) for s in zip(*found)))  # noqa: B905

        return Built(call, reference)

    return Case(f"onnx-{onnx.lower()}", text, make)


def _model(
    onnx: str,
    given: Mapping[str, Array],
    constants: Mapping[str, Array],
    attrs: Mapping[str, Any],
    outputs: int,
) -> bytes:
    types = {name: type_of(array) for name, array in given.items()}
    names, out = tuple(given), tuple(f"out{i}" for i in range(outputs))
    inputs = tuple(name for name in names if name not in constants)
    node = Node(onnx, names, out, dict(attrs), onnx)
    known = Graph((), inputs, (), types, dict(constants), {"": NEWER.get(onnx, OPSET)})
    types |= dict(zip(out, infer(node, known), strict=True))
    return to_bytes(replace(known, nodes=(node,), outputs=out, types=types))


def run_model(model: bytes, feeds: Mapping[str, Array], device: Any) -> dict[str, Array]:
    """Run a model on a device that was asked for by name, and never on the CPU in its place."""
    policy = replace(getattr(device, "policy", None) or gpuedge.Policy(), crosscheck=0)
    with gpuedge.Session(model, device=device, policy=policy, fallback="error") as session:
        return dict(session.run(dict(feeds)))


def gather(
    shape: Shape, axis: int, indices: Any, *, constant: bool = False, dtype: str = "int64"
) -> Case:
    """Elements picked along an axis: `indices` as they are, or a shape to draw them in."""

    def draw(rng: np.random.Generator, data: str, kind: str) -> list[Array]:
        x, extent = operand(rng, shape, data, kind), shape[axis]
        drawn = rng.integers(-extent, extent, indices) if isinstance(indices, tuple) else indices
        return [x, np.asarray(drawn, dtype)]

    def meaning(x: Array, where: Array, whole: bool) -> Num:
        return oracle.moved(lambda a: np.take(a, where, axis), x)

    said = dims(indices) if isinstance(indices, tuple) else "given"
    text = f"{dims(shape)}-axis{axis}-{said}-{'constant' if constant else 'runtime'}-{dtype}"
    return one_node(
        "Gather", text, draw, [meaning], {"axis": axis}, constant=[1] if constant else []
    )


def layer_norm(shape: Shape, axis: int, *, bias: bool = True, outputs: int = 1) -> Case:
    """Rows centred and scaled; the further outputs are their mean and inverse deviation."""
    along = tuple(range(axis % len(shape), len(shape)))

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Array]:
        return [fill(rng, s, data) for s in (shape, *((shape[axis:],) * (1 + bias)))]

    def parts(x: Array) -> tuple[Num, Num, Num]:
        middle = oracle.mean(Num.of(x), along)
        centred = Num.of(x) - middle
        return centred, middle, 1.0 / (oracle.mean(centred * centred, along) + 1e-3).sqrt()

    def scaled(x: Array, scale: Array, *shift: Array, whole: bool) -> Num:
        centred, _, inverse = parts(x)
        return reduce(add, map(Num.of, shift), centred * inverse * Num.of(scale))

    meanings: list[Meaning] = [
        scaled, lambda x, *_, whole: parts(x)[1], lambda x, *_, whole: parts(x)[2],
    ]  # fmt: skip
    text = f"{dims(shape)}-axis{axis}{'-b' if bias else ''}-outputs{outputs}"
    attrs = {"axis": axis, "epsilon": 1e-3}
    return one_node("LayerNormalization", text, draw, meanings[:outputs], attrs)


def cumsum(shape: Shape, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Case:
    """Running sums; the bound is that of summing pairs, ceil(log2(n)) + 1 roundings."""

    def running(a: Array) -> Array:
        a = np.flip(np.asarray(a, np.float64), axis) if reverse else np.asarray(a, np.float64)
        total = np.cumsum(a, axis)
        total = total - a if exclusive else total
        return np.asarray(np.flip(total, axis) if reverse else total)

    def meaning(x: Array, _: Array, whole: bool) -> Num:
        roundings = 0 if whole else math.ceil(math.log2(shape[axis])) + 1
        return Num(running(x), roundings * U * running(np.abs(x)) + bool(roundings) * TINY)

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Array]:
        return [fill(rng, shape, data), np.asarray(axis, np.int64)]

    flags = f"{'-exclusive' if exclusive else ''}{'-reverse' if reverse else ''}"
    attrs = {"exclusive": int(exclusive), "reverse": int(reverse)}
    return one_node(
        "CumSum", f"{dims(shape)}-axis{axis}{flags}", draw, [meaning], attrs, constant=[1]
    )


def reduction(onnx: str, shape: Shape, axes: Shape, *, keep: bool = True) -> Case:
    """A sum, mean or extreme along axes."""
    how: dict[str, Any] = {"axis": tuple(axes), "keepdims": keep}
    terms = math.prod(shape[a] for a in axes)

    def meaning(x: Array, _: Array, whole: bool) -> Num:
        exact = x.astype(np.float64)
        if onnx in ("ReduceMax", "ReduceMin"):
            return Num.of(exact.max(**how) if onnx == "ReduceMax" else exact.min(**how))
        count = terms if onnx == "ReduceMean" else 1
        own = 0 if whole else (terms * ULP * np.abs(exact).sum(**how) + TINY) / count
        value = np.asarray(exact.sum(**how)) / count
        return Num(value, own + (2.5 * ULP * np.abs(value) if count > 1 else 0 * value))

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Array]:
        return [fill(rng, shape, data), np.asarray(axes, np.int64)]

    text = f"{dims(shape)}-axes{'.'.join(map(str, axes))}{'' if keep else '-dropped'}"
    return one_node(onnx, text, draw, [meaning], {"keepdims": int(keep)}, constant=[1])


def function(onnx: str, alpha: float, meaning: Callable[[Num, float], Num]) -> Case:
    """A function of one element with a parameter."""
    return one_node(
        onnx,
        f"1003-alpha{alpha:g}",
        lambda rng, *_: [spread(rng, -20, 20, 1003)],
        [lambda x, whole: meaning(Num.of(x), alpha)],
        {"alpha": alpha},
    )


def batch_norm(shape: Shape, constant: tuple[int, ...] = ()) -> Case:
    """Normalisation whose statistics come with each call."""

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Array]:
        given = [fill(rng, shape, data), *(fill(rng, shape[1:2], "normal") for _ in range(3))]
        return [*given, rng.uniform(0.25, 4, shape[1]).astype(np.float32)]

    def meaning(x: Array, *statistics: Array, whole: bool) -> Num:
        column = (-1,) + (1,) * (len(shape) - 2)
        scale, shift, middle, variance = (Num.of(p.reshape(column)) for p in statistics)
        return (Num.of(x) - middle) * (scale / (variance + 1e-3).sqrt()) + shift

    said = f"-constant{'.'.join(map(str, constant))}" if constant else ""
    text = f"{dims(shape)}{said}"
    return one_node(
        "BatchNormalization", text, draw, [meaning], {"epsilon": 1e-3}, constant=constant
    )


def variadic(onnx: str, shapes: tuple[Shape, ...], constant: tuple[int, ...] = ()) -> Case:
    """A sum, mean or extreme of any number of operands that broadcast."""

    def meaning(*given: Array, whole: bool) -> Num:
        nums = [Num.of(g) for g in given]
        if onnx in ("Max", "Min"):
            name = {"Max": "maximum", "Min": "minimum"}[onnx]
            return reduce(lambda a, b: elementwise(name, a, b), nums)
        total = reduce(add, nums)
        if whole or len(nums) == 1:
            total = Num(total.v, np.zeros_like(total.v))
        return total / float(len(nums)) if onnx == "Mean" else total

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Array]:
        return [fill(rng, s, data) for s in shapes]

    return one_node(onnx, "-".join(map(dims, shapes)), draw, [meaning], {}, constant=constant)


def conv(x: Shape, w: Shape, **attrs: Any) -> Case:
    """A convolution whose weights come with each call and whose bias is constant."""
    named = {"stride": attrs.get("strides", (1, 1)), "pads": attrs.get("pads", (0,) * 4),
             "groups": attrs.get("group", 1)}  # fmt: skip

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Array]:
        return [fill(rng, x, data), weights(rng, w, data), weights(rng, w[:1], data)]

    def meaning(*given: Array, whole: bool) -> Num:
        return oracle.conv2d(*given, whole=whole, **named)

    said = "".join(f"-{name}{np.ravel(value)[0]}" for name, value in attrs.items())
    text = f"{dims(x)}-{dims(w)}{said}-runtime-weights"
    return one_node("Conv", text, draw, [meaning], attrs, constant=[2])


def thresholded(x: Num, alpha: float) -> Num:
    """What is above a threshold, else zero."""
    return Num(np.where(x.v > np.float32(alpha), x.v, 0.0), x.e)


def swish(x: Num, alpha: float) -> Num:
    """Return x times the logistic function of alpha x."""
    return elementwise("swish", x, alpha=alpha)


GATHERS = (
    gather((7, 5), 0, (4,)), gather((7, 5), 1, (3, 2)), gather((2, 3, 4, 5), 2, (6,)),
    gather((2, 3, 4, 5), -3, (2, 2), constant=True), gather((9, 4), 0, 2), gather((9, 4), 0, -1),
    gather((3, 8), 1, -8, constant=True), gather((11,), 0, (5,), dtype="int32"),
    gather((5003, 3), 0, (40,)), gather((6, 4), 0, [-1, 0, 5, -6, 5], constant=True),
)  # fmt: skip

NORMALISED = (
    layer_norm((4, 7), -1), layer_norm((2, 3, 8), -1, bias=False), layer_norm((2, 3, 4, 5), 2),
    layer_norm((3, 64), -1, outputs=3), layer_norm((2, 5, 6), 1, bias=False, outputs=2),
    layer_norm((2, 3, 4), 0), batch_norm((2, 5, 3, 4)), batch_norm((3, 7)),
    batch_norm((1, 4, 9), (1, 3)),
)  # fmt: skip

RUNNING = tuple(
    cumsum(shape, axis, exclusive=exclusive, reverse=reverse)
    for shape, axis in (((13,), 0), ((3, 37), 1), ((5, 4, 3), -3))
    for exclusive in (False, True)
    for reverse in (False, True)
)

REDUCED = tuple(
    reduction(f"Reduce{what}", shape, axes, keep=keep)
    for what in ("Sum", "Mean", "Max", "Min")
    for shape, axes, keep in (
        ((7, 33), (1,), True), ((3, 5, 4), (0, 2), False), ((2, 3, 4, 5), (-1,), False),
    )
)  # fmt: skip

FILTERED = (
    conv((1, 5, 7, 6), (4, 5, 3, 3), pads=(1, 1, 1, 1)), conv((2, 8, 5, 5), (6, 8, 1, 1)),
    conv((1, 7, 9, 8), (7, 1, 3, 3), group=7, strides=(2, 2)),
)  # fmt: skip

PARAMETRISED = (
    *(function("ThresholdedRelu", alpha, thresholded) for alpha in (1.0, 0.3, -2.5)),
    *(function("Swish", alpha, swish) for alpha in (1.0, 0.7, 1.702)),
)


def cases(scale: int) -> Iterator[Case]:
    """Yield the cases, more of the drawn ones for a larger `scale`."""
    for one in (*GATHERS, *RUNNING, *REDUCED, *FILTERED):
        yield from (replace(one, data=data) for data in ("integers", "normal"))
    for one in GATHERS[:2]:
        yield from (replace(one, dtype=dtype, data="integers") for dtype in ("uint8", "int8"))
    yield from (*NORMALISED, *PARAMETRISED)
    for onnx in ("Sum", "Mean", "Max", "Min"):
        for count in range(1, 7):
            for number in range(scale):
                rng = np.random.default_rng([count, number])
                shapes = broadcastable(rng, count, 1)
                constant = (count - 1,) if count > 2 and pick(rng, (False, True)) else ()
                data = ("integers", "normal")[(count + number) % 2]
                yield replace(variadic(onnx, shapes, constant), data=data)
