"""Small networks as ONNX models: what fusion, layouts and memory make of several nodes at once.

Each is described once, as the model that goes through `gpuedge.Session`; the oracle evaluates its
graph. What the planner fuses keeps its precision; what it stores
in between is rounded by the storage, so descriptions say where a node of its own begins (`stored`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuedge.conformance.case import Built, Case
from gpuedge.conformance.data import WHOLE, Shape, fill, weights
from gpuedge.conformance.nodes import runs_of
from gpuedge.conformance.storing import Keeper
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.graph.writer import to_bytes
from gpuedge.opset.bounds import Array, Num
from gpuedge.oracle.nodes import evaluate

Feeds = dict[str, Array]


class Net:
    """A network being described: a model, and which of its values are stored on the way."""

    def __init__(self, inputs: Feeds, constants: Feeds) -> None:
        self.builder = GraphBuilder()
        self.kept: list[str] = []
        for name, array in inputs.items():
            self.builder.input(name, TensorType("float32", array.shape))
        for name, array in constants.items():
            self.builder.constant(name, array)

    def __call__(self, onnx: str, *operands: str, **attrs: Any) -> str:
        """Add a node of values by name."""
        return self.builder.add(onnx, operands, attrs)

    def stored(self, onnx: str, *operands: str, **attrs: Any) -> str:
        """Add a node whose result is stored."""
        self.kept.append(self(onnx, *operands, **attrs))
        return self.kept[-1]


def _residual(net: Net) -> str:
    """relu(conv(x) + bias + x): the block that networks are made of."""
    return net("Relu", net("Add", net("Conv", "x", "w", "b", pads=(1, 1, 1, 1)), "x"))


def _branches(net: Net) -> str:
    """Two convolutions of one input, joined along the channels, and pooled."""
    left = net.stored("Relu", net("Conv", "x", "p"))
    right = net.stored("Conv", "x", "q", pads=(1, 1, 1, 1))
    joined = net.stored("Concat", left, right, axis=1)
    return net("MaxPool", joined, kernel_shape=(2, 2), strides=(2, 2))


def _separable(net: Net) -> str:
    """Depthwise, pointwise, and an activation after each: a mobile block with a stride."""
    deep = net("Conv", "x", "d", group=9, pads=(1, 1, 1, 1), strides=(2, 2))
    return net("Clip", net("Conv", net.stored("Clip", deep, "lo", "hi"), "p"), "lo", "hi")


def _perceptron(net: Net) -> str:
    """Three layers of Gemm with relu between them, after flattening an image."""
    value = net("Flatten", "x")
    for i in range(2):
        value = net.stored("Relu", net("Gemm", value, f"w{i}", f"b{i}"))
    return net("Gemm", value, "w2", "b2")


def _classifier(net: Net) -> str:
    """Convolution, pooling, a fully connected layer and softmax."""
    conv = net.stored("Relu", net("Conv", "x", "w"))
    pooled = net.stored("AveragePool", conv, kernel_shape=(3, 3), strides=(3, 3))
    return net("Softmax", net.stored("MatMul", net("Flatten", pooled), "v"), axis=1)


def _row(net: Net) -> str:
    """A convolution along one axis only, with a stride and dilation."""
    return net("Conv", "x", "w", "b", strides=(2,), dilations=(3,), pads=(2, 1))


def _row_back(net: Net) -> str:
    """A transposed convolution along one axis."""
    return net("ConvTranspose", "x", "w", strides=(3,), pads=(1, 0))


def _attention(net: Net) -> str:
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

    describe: Callable[[Net], str]
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

        net = Net(feeds, constants)
        result = self.describe(net)
        net.builder.output(result)
        graph = net.builder.build()

        def reference(keep: Keeper, whole: bool) -> Num:
            # single numbers become part of the kernel: they are not stored
            given = {n: keep(a) if a.ndim else Num.of(a) for n, a in {**feeds, **constants}.items()}
            stored = dict.fromkeys(net.kept, keep.__call__)
            values = evaluate(graph, given, whole=whole, stored=stored)
            return Num.of(values[result])

        return to_bytes(graph), feeds, reference


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
    chosen = NETWORKS[name]

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        model, feeds, reference = chosen.make(rng, data)
        whole = data in WHOLE and chosen.is_exact

        def runs(device: Any) -> Generator[Array, None, None]:
            with closing(runs_of(model, feeds, device)) as every:
                for results in every:
                    yield next(iter(results.values()))

        return Built(runs, lambda keep: reference(keep, whole))

    return Case("network", name, make)
