"""The graphs that traces are made of: operators and small networks as they run at the edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType


class _Net:
    """A graph of one input, layer after layer; weights are small and the same every time."""

    def __init__(self, *shape: int) -> None:
        self.builder = GraphBuilder()
        self._rng = np.random.default_rng(7)
        self.at = self.builder.input("x", TensorType("float32", shape))
        """Name of the latest value."""
        self._constants = 0

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator; without `inputs` it takes the latest value."""
        self.at = self.builder.add(kind, inputs or (self.at,), attributes)
        return self.at

    def constant(self, value: Any) -> str:
        """Add a constant of float32."""
        self._constants += 1
        return self.builder.constant(f"c{self._constants}", np.asarray(value, np.float32))

    def weight(self, *shape: int, scale: float) -> str:
        """Add a constant of normal numbers."""
        return self.constant(self._rng.standard_normal(shape) * scale)

    def conv(self, cin: int, cout: int, size: int = 3, *, stride: int = 1, group: int = 1) -> _Net:
        """Add a convolution with a bias that keeps the sides, divided by `stride`."""
        taps = (cin // group) * size * size
        weights = self.weight(cout, cin // group, size, size, scale=(2 / taps) ** 0.5)
        self.op("Conv", self.at, weights, self.weight(cout, scale=0.1), kernel_shape=(size, size),
                pads=(size // 2,) * 4, strides=(stride, stride), group=group)  # fmt: skip
        return self

    def dense(self, k: int, n: int) -> _Net:
        """Add a fully connected layer."""
        self.op("Gemm", self.at, self.weight(k, n, scale=(2 / k) ** 0.5),
                self.weight(n, scale=0.1))  # fmt: skip
        return self

    def relu(self) -> _Net:
        """Add a Relu."""
        self.op("Relu")
        return self

    def pool(self) -> _Net:
        """Add a maximum over windows of 2x2."""
        self.op("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
        return self

    def gelu(self) -> _Net:
        """Add a Gelu as exporters write it."""
        x = self.at
        self.op("Mul", x, self.constant(0.7071))
        self.op("Erf")
        self.op("Add", self.at, self.constant(1.0))
        self.op("Mul", self.at, x)
        return self

    def mobile(self, cin: int, cout: int, *, stride: int = 1) -> _Net:
        """Add an inverted residual block (MobileNetV2)."""
        before, wide = self.at, cin * 4
        self.conv(cin, wide, 1).relu().conv(wide, wide, 3, stride=stride, group=wide).relu()
        self.conv(wide, cout, 1)
        if stride == 1 and cin == cout:
            self.op("Add", before, self.at)
        return self

    def head(self, channels: int) -> _Net:
        """Add what classifiers end with."""
        self.op("GlobalAveragePool")
        self.op("Flatten")
        return self.dense(channels, 10)

    def done(self) -> Graph:
        """Return the graph."""
        self.builder.output(self.at)
        return self.builder.build()


def _single(kind: str, *shape: int, **attributes: Any) -> Graph:
    net = _Net(*shape)
    net.op(kind, **attributes)
    return net.done()


def _product(m: int, k: int, n: int) -> Graph:
    net = _Net(m, k)
    net.op("MatMul", "x", net.weight(k, n, scale=k**-0.5))
    return net.done()


def _lenet() -> Graph:
    net = _Net(1, 1, 28, 28).conv(1, 8, 5).relu().pool().conv(8, 16, 5).relu().pool()
    net.op("Flatten")
    return net.dense(16 * 49, 64).relu().dense(64, 10).done()


def _attention() -> Graph:
    net = _Net(64, 128)
    q, k, v = (net.op("MatMul", "x", net.weight(128, 64, scale=128**-0.5)) for _ in range(3))
    net.op("MatMul", q, net.op("Transpose", k, perm=(1, 0)))
    net.op("Softmax", axis=-1)
    net.op("MatMul", net.at, v)
    return net.done()


def _resnet() -> Graph:
    net = _Net(1, 3, 32, 32).conv(3, 16).relu()
    for cin, cout, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
        before = net.at
        branch = net.conv(cin, cout, stride=stride).relu().conv(cout, cout).at
        if stride > 1:
            net.at = before
            before = net.conv(cin, cout, 1, stride=stride).at
        net.op("Add", before, branch)
        net.relu()
    return net.head(64).done()


def _mobilenet() -> Graph:
    net = _Net(1, 3, 96, 96).conv(3, 16, stride=2).relu().mobile(16, 24, stride=2).mobile(24, 24)
    return net.mobile(24, 32, stride=2).mobile(32, 32).head(32).done()


def _unet() -> Graph:
    net = _Net(1, 1, 64, 64).conv(1, 8).relu().conv(8, 8).relu()
    top = net.at
    net.pool().conv(8, 16).relu().conv(16, 16).relu()
    net.op("ConvTranspose", net.at, net.weight(16, 8, 2, 2, scale=0.25), kernel_shape=(2, 2),
           strides=(2, 2))  # fmt: skip
    net.op("Concat", top, net.at, axis=1)
    return net.conv(16, 8).relu().conv(8, 1, 1).done()


GRAPHS: dict[str, Callable[[], Graph]] = {
    "relu-4k": lambda: _single("Relu", 1, 4096),
    "hardswish-1m": lambda: _single("HardSwish", 1, 16, 256, 256),
    "gelu-150k": lambda: _Net(1, 16, 96, 96).gelu().done(),
    "softmax-256x1000": lambda: _single("Softmax", 256, 1000, axis=-1),
    "transpose-512x512": lambda: _single("Transpose", 512, 512, perm=(1, 0)),
    "average-64x56x56": lambda: _single(
        "AveragePool", 1, 64, 56, 56, kernel_shape=(3, 3), pads=(1, 1, 1, 1)
    ),
    "product-1x1024x1024": lambda: _product(1, 1024, 1024),
    "product-256x256x256": lambda: _product(256, 256, 256),
    "conv-3x3-16x64x64": lambda: _Net(1, 16, 64, 64).conv(16, 16).done(),
    "conv-3x3-64x28x28": lambda: _Net(1, 64, 28, 28).conv(64, 64).done(),
    "conv-1x1-128x28x28": lambda: _Net(1, 128, 28, 28).conv(128, 128, 1).done(),
    "depthwise-96x56x56": lambda: _Net(1, 96, 56, 56).conv(96, 96, group=96).done(),
    "mlp-64-128-64-10": lambda: (
        _Net(1, 64).dense(64, 128).relu().dense(128, 64).relu().dense(64, 10).done()
    ),
    "feed-forward-64x128": lambda: _Net(64, 128).dense(128, 512).gelu().dense(512, 128).done(),
    "attention-64x128": _attention,
    "lenet-28": _lenet,
    "resnet-32": _resnet,
    "mobilenet-96": _mobilenet,
    "unet-64": _unet,
    "denoise-96": lambda: (
        _Net(1, 1, 96, 96).conv(1, 16).relu().conv(16, 16).relu().conv(16, 1).done()
    ),
}
"""Makers by name. A graph that changes gets another name: traces are compared by it."""


def inputs_of(graph: Graph) -> dict[str, Array]:
    """Return the same ordinary numbers every time."""
    rng = np.random.default_rng(3)
    return {
        name: rng.standard_normal(graph.types[name].shape).astype(np.float32)
        for name in graph.inputs
    }
