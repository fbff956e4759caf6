"""Small networks as ONNX models: what fusion, layouts and memory make of several nodes at once.

Each is described once; the description writes the model that goes through `gpuedge.Session`, and
computes the float64 steps of the oracle. What the planner fuses keeps its precision; what it stores
in between is rounded by the storage, so descriptions say where a node of its own begins (`stored`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuedge.conformance.case import Built, Case
from gpuedge.conformance.data import WHOLE, Shape, fill, weights
from gpuedge.conformance.nodes import MEANINGS, run_model
from gpuedge.conformance.storing import KEEPERS, Keeper
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.graph.writer import to_bytes
from gpuedge.opset.bounds import Array, Num

Feeds = dict[str, Array]


Value = tuple[str, Num]
"""A value of a network: its name in the model, and what it must be."""


class Net:
    """A network being described: a model, and what its values must be on a storage."""

    def __init__(self, inputs: Feeds, constants: Feeds, keep: Keeper, whole: bool) -> None:
        self.builder = GraphBuilder()
        self._keep, self._whole = keep, whole
        for name, array in inputs.items():
            self.builder.input(name, TensorType("float32", array.shape))
        for name, array in constants.items():
            self.builder.constant(name, array)
        self.values: dict[str, Value] = {
            n: (n, keep(a)) for n, a in {**inputs, **constants}.items()
        }

    def __call__(self, onnx: str, *operands: Value | str, **attrs: Any) -> Value:
        """Add a node; inputs and constants go by name."""
        given = [self.values[o] if isinstance(o, str) else o for o in operands]
        name = self.builder.add(onnx, [of for of, _ in given], attrs)
        found = MEANINGS[onnx](*(num for _, num in given), whole=self._whole, **attrs)
        assert isinstance(found, Num)  # no network has nodes of several outputs
        return name, found

    def stored(self, onnx: str, *operands: Value | str, **attrs: Any) -> Value:
        """Add a node whose result is stored."""
        name, num = self(onnx, *operands, **attrs)
        return name, self._keep(num)


def _residual(net: Net) -> Value:
    """relu(conv(x) + bias + x): the block that networks are made of."""
    return net("Relu", net("Add", net("Conv", "x", "w", "b", pads=(1, 1, 1, 1)), "x"))


def _branches(net: Net) -> Value:
    """Two convolutions of one input, joined along the channels, and pooled."""
    left = net.stored("Relu", net("Conv", "x", "p"))
    right = net.stored("Conv", "x", "q", pads=(1, 1, 1, 1))
    joined = net.stored("Concat", left, right, axis=1)
    return net("MaxPool", joined, kernel_shape=(2, 2), strides=(2, 2))


def _separable(net: Net) -> Value:
    """Depthwise, pointwise, and an activation after each: a mobile block with a stride."""
    deep = net("Conv", "x", "d", group=9, pads=(1, 1, 1, 1), strides=(2, 2))
    return net("Clip", net("Conv", net.stored("Clip", deep, "lo", "hi"), "p"), "lo", "hi")


def _perceptron(net: Net) -> Value:
    """Three layers of Gemm with relu between them, after flattening an image."""
    value = net("Flatten", "x")
    for i in range(2):
        value = net.stored("Relu", net("Gemm", value, f"w{i}", f"b{i}"))
    return net("Gemm", value, "w2", "b2")


def _classifier(net: Net) -> Value:
    """Convolution, pooling, a fully connected layer and softmax."""
    conv = net.stored("Relu", net("Conv", "x", "w"))
    pooled = net.stored("AveragePool", conv, kernel_shape=(3, 3), strides=(3, 3))
    return net("Softmax", net.stored("MatMul", net("Flatten", pooled), "v"), axis=1)


def _row(net: Net) -> Value:
    """A convolution along one axis only, with a stride and dilation."""
    return net("Conv", "x", "w", "b", strides=(2,), dilations=(3,), pads=(2, 1))


def _row_back(net: Net) -> Value:
    """A transposed convolution along one axis."""
    return net("ConvTranspose", "x", "w", strides=(3,), pads=(1, 0))


def _attention(net: Net) -> Value:
    """softmax(q k^T / 2) v in batches: two products, a transpose and a row reduction."""
    turned = net.stored("Transpose", "k", perm=(0, 1, 3, 2))
    scores = net.stored("Mul", net("MatMul", "q", turned), "half")
    return net("MatMul", net.stored("Softmax", scores, axis=-1), "v")


@dataclass(frozen=True)
class Network:
    """A description with the shapes of its inputs and weights, in the order they are drawn.

    Weights are multiplied with their `factors`, so that sums stay small. `is_exact` says that whole
    numbers give the result bit for bit.
    """

    describe: Callable[[Net], Value]
    inputs: Mapping[str, Shape]
    weights: Mapping[str, Shape] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    is_exact: bool = True

    def make(
        self, rng: np.random.Generator, data: str
    ) -> tuple[bytes, Feeds, Callable[[Keeper, bool], Num]]:
        """Return a model, its inputs and its reference (of a storage and whole numbers)."""
        feeds = {name: fill(rng, shape, data) for name, shape in self.inputs.items()}
        constants: Feeds = {
            name: weights(rng, shape, data) * np.float32(self.factors.get(name, 1))
            for name, shape in self.weights.items()
        }
        constants |= {name: np.asarray(n, np.float32) for name, n in self.numbers.items()}

        def described(keep: Keeper, whole: bool) -> tuple[Net, Value]:
            net = Net(feeds, constants, keep, whole)
            return net, self.describe(net)

        net, result = described(KEEPERS["float32"], False)
        net.builder.output(result[0])
        return to_bytes(net.builder.build()), feeds, lambda *how: described(*how)[1][1]


LIMITS = {"lo": 0.0, "hi": 6.0}

NETWORKS: dict[str, Network] = {
    "residual": Network(_residual, {"x": (1, 6, 7, 9)}, {"w": (6, 6, 3, 3), "b": (6,)}),
    "branches": Network(_branches, {"x": (2, 3, 8, 6)}, {"p": (5, 3, 1, 1), "q": (2, 3, 3, 3)}),
    "separable": Network(
        _separable, {"x": (1, 9, 9, 7)}, {"d": (9, 1, 3, 3), "p": (10, 9, 1, 1)}, LIMITS
    ),
    "perceptron": Network(
        _perceptron,
        {"x": (3, 2, 3, 4)},
        {"w0": (24, 17), "w1": (17, 9), "w2": (9, 5), "b0": (17,), "b1": (9,), "b2": (5,)},
        factors={"w0": 0.5, "w1": 0.5, "w2": 0.5},
    ),
    "classifier": Network(
        _classifier, {"x": (2, 1, 8, 8)}, {"w": (6, 1, 3, 3), "v": (24, 10)},
        factors={"v": 0.125}, is_exact=False,
    ),
    "conv1d": Network(_row, {"x": (2, 5, 23)}, {"w": (6, 5, 3), "b": (6,)}),
    "conv-transpose1d": Network(_row_back, {"x": (1, 4, 9)}, {"w": (4, 3, 4)}),
    "attention": Network(
        _attention, dict.fromkeys("qkv", (2, 3, 5, 4)), {}, {"half": 0.5}, is_exact=False
    ),
}  # fmt: skip
"""Models by name."""


def network(name: str) -> Case:
    """Return a model of `NETWORKS` through `gpuedge.Session`."""
    one = NETWORKS[name]

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        model, feeds, reference = one.make(rng, data)
        whole = data in WHOLE and one.is_exact

        def call(device: Any) -> Array:
            return next(iter(run_model(model, feeds, device).values()))

        return Built(call, lambda keep: reference(keep, whole))

    return Case("network", name, make)
