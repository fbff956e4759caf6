"""Operators of ONNX that have no public function, as models of one node through `Session`.

Operands come as inputs of the model or as its constants: a device meets both. The values are
float64 numpy by the definition of each operator; the bounds are running errors of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance import oracle
from gpuedge.conformance.case import Case, Spec
from gpuedge.conformance.data import WHOLE, fill, weights
from gpuedge.conformance.functions import elementwise
from gpuedge.conformance.layers import Shape, dims, pick
from gpuedge.conformance.shaping import operand
from gpuedge.conformance.units import broadcastable, spread
from gpuedge.graph.build import NEWER
from gpuedge.graph.expand import infer
from gpuedge.graph.ir import OPSET, Graph, Node, type_of
from gpuedge.graph.writer import to_bytes
from gpuedge.opset.bounds import TINY, ULP, Array, Num, U

Parts = tuple[dict[str, Array], dict[str, Array], Callable[[], Sequence[Num]]]
"""Inputs of the model, its constants, and what its outputs must be."""


@dataclass(frozen=True)
class OneNode:
    """A model of one node.

    Attributes
    ----------
    onnx : str
        ONNX name of the operator.
    text : str
        The rest of the case's name.
    make : callable
        Takes a generator, the kind of data and the dtype.
    attrs : mapping
        Attributes of the node.
    outputs : int
        How many it has; they are compared as one row of numbers.
    """

    onnx: str
    text: str
    make: Callable[[np.random.Generator, str, str], Parts]
    attrs: Mapping[str, Any]
    outputs: int = 1

    @property
    def op(self) -> str:
        """Such as ``onnx-gather``."""
        return f"onnx-{self.onnx.lower()}"

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        feeds, constants, wanted = self.make(rng, data, dtype)
        model = self._model(feeds, constants)

        def call(device: Any) -> Array:
            found = list(run_model(model, feeds, device).values())
            return found[0] if self.outputs == 1 else np.concatenate([f.ravel() for f in found])

        def reference(_: Any) -> Num:
            found = wanted()
            if self.outputs == 1:
                return found[0]
            rows = [np.concatenate([part[i].ravel() for part in map(tuple, found)]) for i in (0, 1)]
            return Num(rows[0], rows[1])

        return Case(call, reference, f"{self.onnx} {self.text}")

    def _model(self, feeds: Mapping[str, Array], constants: Mapping[str, Array]) -> bytes:
        types = {name: type_of(array) for name, array in {**feeds, **constants}.items()}
        versions = {"": NEWER.get(self.onnx, OPSET)}
        outputs = tuple(f"out{i}" for i in range(self.outputs))
        # operands are named by their place, so sorting gives the order of the node's inputs
        node = Node(self.onnx, tuple(sorted(types)), outputs, dict(self.attrs), self.onnx)
        known = Graph((), tuple(feeds), (), types, dict(constants), versions)
        types |= dict(zip(outputs, infer(node, known), strict=True))
        return to_bytes(Graph((node,), tuple(feeds), outputs, types, dict(constants), versions))


def run_model(model: bytes, feeds: Mapping[str, Array], device: Any) -> dict[str, Array]:
    """Run a model on a device that was asked for by name, and never on the CPU in its place."""
    policy = replace(getattr(device, "policy", None) or gpuedge.Policy(), crosscheck=0)
    with gpuedge.Session(model, device=device, policy=policy, fallback="error") as session:
        return dict(session.run(dict(feeds)))


def _split(
    operands: Sequence[Array], constant: Sequence[int]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Name operands by their place; those at `constant` places become constants of the model."""
    both: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
    for i, array in enumerate(operands):
        both[i in constant][f"in{i}"] = array
    return both


def gather(
    shape: Shape, axis: int, indices: Any, *, constant: bool = False, dtype: str = "int64"
) -> OneNode:
    """Elements picked along an axis: `indices` as they are, or a shape to draw them in."""

    def make(rng: np.random.Generator, data: str, kind: str) -> Parts:
        x = operand(rng, shape, data, kind)
        extent = shape[axis]
        drawn = rng.integers(-extent, extent, indices) if isinstance(indices, tuple) else indices
        where = np.asarray(drawn, dtype)
        feeds, constants = _split([x, where], [1] if constant else [])
        return feeds, constants, lambda: [oracle.moved(lambda a: np.take(a, where, axis), x)]

    said = dims(indices) if isinstance(indices, tuple) else "given"
    how = f"{'constant' if constant else 'runtime'}-{dtype}"
    return OneNode("Gather", f"{dims(shape)}-axis{axis}-{said}-{how}", make, {"axis": axis})


def _mean(x: Num, axes: tuple[int, ...]) -> Num:
    """Return the mean along axes: a sum in any order, and a division."""
    count = math.prod(x.v.shape[a] for a in axes)
    size = (np.abs(x.v) + x.e).mean(axes, keepdims=True)
    own = (count + 4) * ULP * size + TINY
    return Num(x.v.mean(axes, keepdims=True), x.e.mean(axes, keepdims=True) + own)


def layer_norm(shape: Shape, axis: int, *, bias: bool = True, outputs: int = 1) -> OneNode:
    """Rows centred and scaled; the further outputs are their mean and inverse deviation."""

    def make(rng: np.random.Generator, data: str, kind: str) -> Parts:
        x, tail = fill(rng, shape, data), shape[axis:]
        given = [x, *(fill(rng, tail, data) for _ in range(1 + bias))]

        def wanted() -> list[Num]:
            along = tuple(range(axis % len(shape), len(shape)))
            middle = _mean(Num.of(x), along)
            centred = Num.of(x) - middle
            inverse = 1.0 / (_mean(centred * centred, along) + 1e-3).sqrt()
            result = centred * inverse * Num.of(given[1])
            result = result + Num.of(given[2]) if bias else result
            return [result, middle, inverse][:outputs]

        feeds, constants = _split(given, [])
        return feeds, constants, wanted

    text = f"{dims(shape)}-axis{axis}{'-b' if bias else ''}-outputs{outputs}"
    attrs = {"axis": axis, "epsilon": 1e-3}
    return OneNode("LayerNormalization", text, make, attrs, outputs)


def cumsum(shape: Shape, axis: int, *, exclusive: bool = False, reverse: bool = False) -> OneNode:
    """Running sums; the bound is that of summing pairs, ceil(log2(n)) + 1 roundings."""

    def make(rng: np.random.Generator, data: str, kind: str) -> Parts:
        x = fill(rng, shape, data)

        def running(a: Array) -> Array:
            a = np.flip(np.asarray(a, np.float64), axis) if reverse else np.asarray(a, np.float64)
            total = np.cumsum(a, axis)
            total = total - a if exclusive else total
            return np.asarray(np.flip(total, axis) if reverse else total)

        def wanted() -> list[Num]:
            roundings = 0 if data in WHOLE else math.ceil(math.log2(shape[axis])) + 1
            return [Num(running(x), roundings * U * running(np.abs(x)) + bool(roundings) * TINY)]

        feeds, constants = _split([x, np.asarray(axis, np.int64)], [1])
        return feeds, constants, wanted

    flags = f"{'-exclusive' if exclusive else ''}{'-reverse' if reverse else ''}"
    attrs = {"exclusive": int(exclusive), "reverse": int(reverse)}
    return OneNode("CumSum", f"{dims(shape)}-axis{axis}{flags}", make, attrs)


def reduction(onnx: str, shape: Shape, axes: Shape, *, keep: bool = True) -> OneNode:
    """A sum, mean or extreme along axes."""

    def make(rng: np.random.Generator, data: str, kind: str) -> Parts:
        x = fill(rng, shape, data)
        how: dict[str, Any] = {"axis": tuple(axes), "keepdims": keep}

        def wanted() -> list[Num]:
            exact = x.astype(np.float64)
            if onnx in ("ReduceMax", "ReduceMin"):
                return [Num.of(exact.max(**how) if onnx == "ReduceMax" else exact.min(**how))]
            count = math.prod(shape[a] for a in axes) if onnx == "ReduceMean" else 1
            terms = 0 if data in WHOLE else math.prod(shape[a] for a in axes)
            own = (terms * ULP * np.abs(exact).sum(**how) + bool(terms) * TINY) / count
            value = np.asarray(exact.sum(**how)) / count
            return [Num(value, own + (2.5 * ULP * np.abs(value) if count > 1 else 0))]

        feeds, constants = _split([x, np.asarray(axes, np.int64)], [1])
        return feeds, constants, wanted

    text = f"{dims(shape)}-axes{'.'.join(map(str, axes))}{'' if keep else '-dropped'}"
    return OneNode(onnx, text, make, {"keepdims": int(keep)})


def function(onnx: str, alpha: float, reference: Callable[[Num], Num]) -> OneNode:
    """A function of one element with a parameter."""

    def make(rng: np.random.Generator, data: str, kind: str) -> Parts:
        x = spread(rng, -20, 20, 1003)
        return {"in0": x}, {}, lambda: [reference(Num.of(x))]

    return OneNode(onnx, f"1003-alpha{alpha:g}", make, {"alpha": alpha})


def batch_norm(shape: Shape, constant: tuple[int, ...] = ()) -> OneNode:
    """Normalisation whose statistics come with each call."""

    def make(rng: np.random.Generator, data: str, kind: str) -> Parts:
        x = fill(rng, shape, data)
        given = [x, *(fill(rng, shape[1:2], "normal") for _ in range(3))]
        given.append(rng.uniform(0.25, 4, shape[1]).astype(np.float32))

        def wanted() -> list[Num]:
            column = (-1,) + (1,) * (len(shape) - 2)
            scale, shift, middle, variance = (Num.of(p.reshape(column)) for p in given[1:])
            return [(Num.of(x) - middle) * (scale / (variance + 1e-3).sqrt()) + shift]

        feeds, constants = _split(given, constant)
        return feeds, constants, wanted

    said = f"-constant{'.'.join(map(str, constant))}" if constant else ""
    return OneNode("BatchNormalization", f"{dims(shape)}{said}", make, {"epsilon": 1e-3})


def variadic(onnx: str, shapes: tuple[Shape, ...], constant: tuple[int, ...] = ()) -> OneNode:
    """A sum, mean or extreme of any number of operands that broadcast."""

    def make(rng: np.random.Generator, data: str, kind: str) -> Parts:
        given = [fill(rng, s, data) for s in shapes]

        def wanted() -> list[Num]:
            nums = [Num.of(g) for g in given]
            if onnx in ("Max", "Min"):
                name = {"Max": "maximum", "Min": "minimum"}[onnx]
                return [reduce(lambda a, b: elementwise(name, a, b), nums)]
            total = reduce(add, nums)
            if data in WHOLE or len(nums) == 1:
                total = Num(total.v, np.zeros_like(total.v))
            return [total / float(len(nums)) if onnx == "Mean" else total]

        feeds, constants = _split(given, constant)
        return feeds, constants, wanted

    return OneNode(onnx, "-".join(map(dims, shapes)), make, {})


def conv(x: Shape, w: Shape, **attrs: Any) -> OneNode:
    """A convolution whose weights come with each call and whose bias is constant."""

    def make(rng: np.random.Generator, data: str, kind: str) -> Parts:
        given = [fill(rng, x, data), weights(rng, w, data), weights(rng, w[:1], data)]

        def wanted() -> list[Num]:
            named = {"stride": attrs.get("strides", (1, 1)), "pads": attrs.get("pads", (0,) * 4),
                     "groups": attrs.get("group", 1), "whole": data in WHOLE}  # fmt: skip
            return [oracle.conv2d(*given, **named)]

        feeds, constants = _split(given, [2])
        return feeds, constants, wanted

    said = "".join(f"-{name}{np.ravel(value)[0]}" for name, value in attrs.items())
    return OneNode("Conv", f"{dims(x)}-{dims(w)}{said}-runtime-weights", make, attrs)


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

PARAMETRISED = tuple(
    function("ThresholdedRelu", a, lambda x, a=a: Num(np.where(x.v > np.float32(a), x.v, 0.0), x.e))  # type: ignore[misc]
    for a in (1.0, 0.3, -2.5)
) + tuple(
    function("Swish", a, lambda x, a=a: elementwise("swish", x, alpha=a))  # type: ignore[misc]
    for a in (1.0, 0.7, 1.702)
)


def specs(scale: int) -> Iterator[Spec]:
    """Yield the cases, more of the drawn ones for a larger `scale`."""
    for one in (*GATHERS, *RUNNING, *REDUCED, *FILTERED):
        yield Spec(one, data="integers")
        yield Spec(one, data="normal")
    yield from (Spec(one, dtype, "integers") for one in GATHERS[:2] for dtype in ("uint8", "int8"))
    yield from (Spec(one) for one in (*NORMALISED, *PARAMETRISED))
    for onnx in ("Sum", "Mean", "Max", "Min"):
        for count in range(1, 7):
            for number in range(scale):
                rng = np.random.default_rng([count, number])
                shapes = broadcastable(rng, count, 1)
                constant = (count - 1,) if count > 2 and pick(rng, (False, True)) else ()
                one = variadic(onnx, shapes, constant)
                yield Spec(one, data=("integers", "normal")[(count + number) % 2])
