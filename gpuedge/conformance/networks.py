"""Small networks as ONNX models: what fusion, layouts and memory make of several nodes at once.

Each is written twice: as nodes of a model that goes through `gpuedge.Session`, and as float64 steps
of the oracle. What the planner fuses keeps its precision; what it stores in between is rounded by
the storage, so references store where a node of its own begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuedge.conformance import oracle
from gpuedge.conformance.case import Case
from gpuedge.conformance.data import WHOLE, fill, weights
from gpuedge.conformance.functions import elementwise
from gpuedge.conformance.nodes import run_model
from gpuedge.conformance.storing import Keeper
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.graph.writer import to_bytes
from gpuedge.opset.bounds import Array, Num

Feeds = dict[str, Array]
Make = Callable[[np.random.Generator, str], tuple[bytes, Feeds, Callable[[Keeper, bool], Num]]]
"""Returns a model with one output, its inputs and its reference (storage, whole numbers)."""


def _model(
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    nodes: Callable[[GraphBuilder], str],
) -> bytes:
    builder = GraphBuilder()
    for name, array in inputs.items():
        builder.input(name, TensorType("float32", array.shape))
    for name, array in constants.items():
        builder.constant(name, array)
    builder.output(nodes(builder))
    return to_bytes(builder.build())


def _residual(rng: np.random.Generator, data: str) -> Any:
    """relu(conv(x) + bias + x): the block that networks are made of."""
    x = fill(rng, (1, 6, 7, 9), data)
    w, b = weights(rng, (6, 6, 3, 3), data), weights(rng, (6,), data)

    def nodes(g: GraphBuilder) -> str:
        conv = g.add("Conv", ["x", "w", "b"], {"pads": (1, 1, 1, 1)})
        return g.add("Relu", [g.add("Add", [conv, "x"])])

    def reference(keep: Keeper, whole: bool) -> Num:
        conv = oracle.conv2d(keep(x), keep(w), keep(b), pads=(1, 1, 1, 1), whole=whole)
        return elementwise("relu", elementwise("add", conv, keep(x)))

    return _model({"x": x}, {"w": w, "b": b}, nodes), {"x": x}, reference


def _branches(rng: np.random.Generator, data: str) -> Any:
    """Two convolutions of one input, joined along the channels, and pooled."""
    x = fill(rng, (2, 3, 8, 6), data)
    p, q = weights(rng, (5, 3, 1, 1), data), weights(rng, (2, 3, 3, 3), data)

    def nodes(g: GraphBuilder) -> str:
        left = g.add("Relu", [g.add("Conv", ["x", "p"])])
        right = g.add("Conv", ["x", "q"], {"pads": (1, 1, 1, 1)})
        joined = g.add("Concat", [left, right], {"axis": 1})
        return g.add("MaxPool", [joined], {"kernel_shape": (2, 2), "strides": (2, 2)})

    def reference(keep: Keeper, whole: bool) -> Num:
        left = elementwise("relu", oracle.conv2d(keep(x), keep(p), whole=whole))
        right = oracle.conv2d(keep(x), keep(q), pads=(1, 1, 1, 1), whole=whole)
        joined = keep.kept(oracle.concat([keep.kept(left), keep.kept(right)], 1))
        return oracle.pool2d("max", joined, (2, 2), (2, 2))

    return _model({"x": x}, {"p": p, "q": q}, nodes), {"x": x}, reference


def _separable(rng: np.random.Generator, data: str) -> Any:
    """Depthwise, pointwise, and an activation after each: a mobile block with a stride."""
    x = fill(rng, (1, 9, 9, 7), data)
    d, p = weights(rng, (9, 1, 3, 3), data), weights(rng, (10, 9, 1, 1), data)
    six = {"lo": np.float32(0), "hi": np.float32(6)}

    def nodes(g: GraphBuilder) -> str:
        how = {"group": 9, "pads": (1, 1, 1, 1), "strides": (2, 2)}
        deep = g.add("Clip", [g.add("Conv", ["x", "d"], how), "lo", "hi"])
        return g.add("Clip", [g.add("Conv", [deep, "p"]), "lo", "hi"])

    def reference(keep: Keeper, whole: bool) -> Num:
        deep = oracle.conv2d(
            keep(x), keep(d), groups=9, pads=(1, 1, 1, 1), stride=(2, 2), whole=whole
        )
        deep = keep.kept(elementwise("relu6", deep))
        return elementwise("relu6", oracle.conv2d(deep, keep(p), whole=whole))

    return _model({"x": x}, {"d": d, "p": p, **six}, nodes), {"x": x}, reference


def _perceptron(rng: np.random.Generator, data: str) -> Any:
    """Three layers of Gemm with relu between them, after flattening an image."""
    x = fill(rng, (3, 2, 3, 4), data)
    sizes = (24, 17, 9, 5)
    w = {f"w{i}": weights(rng, sizes[i : i + 2], data) * np.float32(0.5) for i in range(3)}
    b = {f"b{i}": weights(rng, sizes[i + 1 : i + 2], data) for i in range(3)}

    def nodes(g: GraphBuilder) -> str:
        value = g.add("Flatten", ["x"])
        for i in range(3):
            value = g.add("Gemm", [value, f"w{i}", f"b{i}"])
            value = g.add("Relu", [value]) if i < 2 else value
        return value

    def reference(keep: Keeper, whole: bool) -> Num:
        value = oracle.moved(lambda a: a.reshape(3, -1), keep(x))
        for i in range(3):
            value = oracle.gemm(value, keep(w[f"w{i}"]), keep(b[f"b{i}"]), whole=whole)
            value = keep.kept(elementwise("relu", value)) if i < 2 else value
        return value

    return _model({"x": x}, {**w, **b}, nodes), {"x": x}, reference


def _classifier(rng: np.random.Generator, data: str) -> Any:
    """Convolution, pooling, a fully connected layer and softmax."""
    x = fill(rng, (2, 1, 8, 8), data)
    w, v = weights(rng, (6, 1, 3, 3), data), weights(rng, (24, 10), data) * np.float32(0.125)

    def nodes(g: GraphBuilder) -> str:
        conv = g.add("Relu", [g.add("Conv", ["x", "w"])])
        pooled = g.add("AveragePool", [conv], {"kernel_shape": (3, 3), "strides": (3, 3)})
        return g.add("Softmax", [g.add("MatMul", [g.add("Flatten", [pooled]), "v"])], {"axis": 1})

    def reference(keep: Keeper, whole: bool) -> Num:
        conv = keep.kept(elementwise("relu", oracle.conv2d(keep(x), keep(w), whole=whole)))
        pooled = keep.kept(oracle.pool2d("avg", conv, (3, 3), (3, 3)))
        flat = oracle.moved(lambda a: a.reshape(2, -1), pooled)
        return oracle.softmax(keep.kept(oracle.matmul(flat, keep(v), whole=False)), 1)

    return _model({"x": x}, {"w": w, "v": v}, nodes), {"x": x}, reference


def _row(rng: np.random.Generator, data: str) -> Any:
    """A convolution along one axis only, with a stride and dilation."""
    x = fill(rng, (2, 5, 23), data)
    w, b = weights(rng, (6, 5, 3), data), weights(rng, (6,), data)

    def nodes(g: GraphBuilder) -> str:
        how = {"strides": (2,), "dilations": (3,), "pads": (2, 1)}
        return g.add("Conv", ["x", "w", "b"], how)

    def reference(keep: Keeper, whole: bool) -> Num:
        image = oracle.moved(lambda a: a[:, :, None], keep(x))
        rows = oracle.moved(lambda a: a[:, :, None], keep(w))
        out = oracle.conv2d(
            image, rows, keep(b), stride=(1, 2), dilation=(1, 3), pads=(0, 2, 0, 1), whole=whole
        )
        return oracle.moved(lambda a: a[:, :, 0], out)

    return _model({"x": x}, {"w": w, "b": b}, nodes), {"x": x}, reference


def _row_back(rng: np.random.Generator, data: str) -> Any:
    """A transposed convolution along one axis."""
    x, w = fill(rng, (1, 4, 9), data), weights(rng, (4, 3, 4), data)

    def nodes(g: GraphBuilder) -> str:
        return g.add("ConvTranspose", ["x", "w"], {"strides": (3,), "pads": (1, 0)})

    def reference(keep: Keeper, whole: bool) -> Num:
        image = oracle.moved(lambda a: a[:, :, None], keep(x))
        rows = oracle.moved(lambda a: a[:, :, None], keep(w))
        out = oracle.conv_transpose2d(image, rows, stride=(1, 3), pads=(0, 1, 0, 0), whole=whole)
        return oracle.moved(lambda a: a[:, :, 0], out)

    return _model({"x": x}, {"w": w}, nodes), {"x": x}, reference


def _attention(rng: np.random.Generator, data: str) -> Any:
    """softmax(q k^T / 2) v in batches: two products, a transpose and a row reduction."""
    q, k, v = (fill(rng, (2, 3, 5, 4), data) for _ in range(3))
    half = {"half": np.float32(0.5)}

    def nodes(g: GraphBuilder) -> str:
        turned = g.add("Transpose", ["k"], {"perm": (0, 1, 3, 2)})
        scores = g.add("Mul", [g.add("MatMul", ["q", turned]), "half"])
        return g.add("MatMul", [g.add("Softmax", [scores], {"axis": -1}), "v"])

    def reference(keep: Keeper, whole: bool) -> Num:
        turned = oracle.moved(lambda a: a.swapaxes(-1, -2), keep(k))
        scores = oracle.matmul(keep(q), keep.kept(turned)) * 0.5
        return oracle.matmul(keep.kept(oracle.softmax(keep.kept(scores), -1)), keep(v))

    return _model({"q": q, "k": k, "v": v}, half, nodes), {"q": q, "k": k, "v": v}, reference


NETWORKS: dict[str, Make] = {
    "residual": _residual, "branches": _branches, "separable": _separable,
    "perceptron": _perceptron, "classifier": _classifier, "conv1d": _row,
    "conv-transpose1d": _row_back, "attention": _attention,
}  # fmt: skip
"""Models by name."""

EXACT = frozenset({"residual", "branches", "separable", "perceptron", "conv1d", "conv-transpose1d"})
"""Networks that are exact on whole numbers."""


@dataclass(frozen=True)
class Network:
    """A model of `NETWORKS` through `gpuedge.Session`."""

    name: str

    op = "network"

    @property
    def text(self) -> str:
        """The name."""
        return self.name

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        model, feeds, reference = NETWORKS[self.name](rng, data)
        whole = data in WHOLE and self.name in EXACT

        def call(device: Any) -> Array:
            return next(iter(run_model(model, feeds, device).values()))

        return Case(call, lambda keep: reference(keep, whole), f"network {self.name}")
