"""Twenty models and single operators as people run them at the edge, as ONNX bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Shape = Sequence[int]


def sample(shape: Shape) -> Any:
    """Return the same ordinary numbers every time."""
    return np.random.default_rng(3).standard_normal(tuple(shape)).astype(np.float32)


class Net:
    """Builds a model of one input, layer after layer; weights are small and seeded."""

    def __init__(self, *shape: int) -> None:
        self._rng = np.random.default_rng(7)
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._shape = shape
        self.at = "x"
        """Name of the latest value."""

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator; without `inputs` it takes the latest value."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs or (self.at,), [name], **attributes))
        self.at = name
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """Add a constant of normal numbers; scaled by the width of what it multiplies."""
        values = self._rng.standard_normal(shape).astype(np.float32) * np.float32(scale)
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, cin: int, cout: int, size: int = 3, *, stride: int = 1, group: int = 1) -> Net:
        """Add a convolution that keeps the sides (divided by `stride`), with a bias."""
        taps = (cin // group) * size * size
        weights = self.weight(cout, cin // group, size, size, scale=(2 / taps) ** 0.5)
        self.op("Conv", self.at, weights, self.weight(cout, scale=0.1), kernel_shape=[size] * 2,
                pads=[size // 2] * 4, strides=[stride] * 2, group=group)  # fmt: skip
        return self

    def dense(self, k: int, n: int) -> Net:
        """Add a fully connected layer."""
        weights = self.weight(k, n, scale=(2 / k) ** 0.5)
        self.op("Gemm", self.at, weights, self.weight(n, scale=0.1))
        return self

    def relu(self) -> Net:
        """Add a Relu."""
        self.op("Relu")
        return self

    def pool(self, size: int = 2) -> Net:
        """Add a maximum over windows that do not overlap."""
        self.op("MaxPool", kernel_shape=[size] * 2, strides=[size] * 2)
        return self

    def mobile(self, cin: int, cout: int, *, widen: int = 4, stride: int = 1) -> Net:
        """Add an inverted residual block (MobileNetV2)."""
        before, wide = self.at, cin * widen
        self.conv(cin, wide, 1).op("Clip", self.at, *self._six())
        self.conv(wide, wide, 3, stride=stride, group=wide).op("Clip", self.at, *self._six())
        self.conv(wide, cout, 1)
        if stride == 1 and cin == cout:
            self.op("Add", before, self.at)
        return self

    def _six(self) -> tuple[str, str]:
        known = {w.name for w in self._weights}
        for name, bound in (("zero", 0.0), ("six", 6.0)):
            if name not in known:
                self._weights.append(numpy_helper.from_array(np.float32(bound), name))
        return "zero", "six"

    def done(self) -> bytes:
        """Return the model; the latest value is its output."""
        element = TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            "model",
            [helper.make_tensor_value_info("x", element, self._shape)],
            [helper.make_tensor_value_info(self.at, element, None)],
            self._weights,
        )
        made: ModelProto = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        return bytes(made.SerializeToString())


def _single(kind: str, *shape: int, **attributes: Any) -> bytes:
    net = Net(*shape)
    net.op(kind, **attributes)
    return net.done()


def _product(m: int, k: int, n: int) -> bytes:
    net = Net(m, k)
    net.op("MatMul", "x", net.weight(k, n, scale=k**-0.5))
    return net.done()


def _gelu(net: Net) -> Net:
    x = net.at
    net.op("Mul", x, net.weight(1, scale=0.5))
    net.op("Erf")
    net.op("Add", net.at, net.weight(1))
    net.op("Mul", net.at, x)
    return net


def _mish() -> bytes:
    net = Net(1, 16, 96, 96)
    for _ in range(4):
        x = net.at
        net.op("Softplus")
        net.op("Tanh")
        net.op("Mul", x, net.at)
    return net.done()


def _mlp_small() -> bytes:
    return Net(1, 64).dense(64, 128).relu().dense(128, 64).relu().dense(64, 10).done()


def _feed_forward() -> bytes:
    net = Net(64, 128)
    net.dense(128, 512)
    return _gelu(net).dense(512, 128).done()


def _lenet() -> bytes:
    net = Net(1, 1, 28, 28).conv(1, 8, 5).relu().pool().conv(8, 16, 5).relu().pool()
    net.op("Flatten")
    return net.dense(16 * 49, 64).relu().dense(64, 10).done()


def _resnet() -> bytes:
    net = Net(1, 3, 32, 32).conv(3, 16).relu()
    for cin, cout, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
        before = net.at
        net.conv(cin, cout, stride=stride).relu().conv(cout, cout)
        branch = net.at
        if stride > 1:
            net.at = before
            before = net.conv(cin, cout, 1, stride=stride).at
        net.op("Add", before, branch)
        net.relu()
    net.op("GlobalAveragePool")
    net.op("Flatten")
    return net.dense(64, 10).done()


def _vgg() -> bytes:
    net = Net(1, 3, 64, 64)
    for cin, cout in ((3, 32), (32, 64), (64, 128)):
        net.conv(cin, cout).relu().conv(cout, cout).relu().pool()
    return net.done()


def _mobilenet() -> bytes:
    net = Net(1, 3, 96, 96).conv(3, 16, stride=2).relu()
    net.mobile(16, 24, stride=2).mobile(24, 24).mobile(24, 32, stride=2).mobile(32, 32)
    net.op("GlobalAveragePool")
    net.op("Flatten")
    return net.dense(32, 10).done()


def _unet() -> bytes:
    net = Net(1, 1, 64, 64)
    top = net.conv(1, 8).relu().conv(8, 8).relu().at
    middle = net.pool().conv(8, 16).relu().conv(16, 16).relu().at
    net.pool().conv(16, 32).relu().conv(32, 32).relu()
    for skip, cin, cout in ((middle, 32, 16), (top, 16, 8)):
        net.op("ConvTranspose", net.at, net.weight(cin, cout, 2, 2, scale=cin**-0.5),
               kernel_shape=[2, 2], strides=[2, 2])  # fmt: skip
        net.op("Concat", skip, net.at, axis=1)
        net.conv(cin, cout).relu().conv(cout, cout).relu()
    return net.conv(8, 1, 1).done()


def _attention() -> bytes:
    net = Net(64, 128)
    parts = [net.op("MatMul", "x", net.weight(128, 64, scale=128**-0.5)) for _ in range(3)]
    turned = net.op("Transpose", parts[1], perm=[1, 0])
    net.op("MatMul", parts[0], turned)
    net.op("Softmax", axis=-1)
    net.op("MatMul", net.at, parts[2])
    return net.done()


def _denoise() -> bytes:
    return Net(1, 1, 128, 128).conv(1, 16).relu().conv(16, 16).relu().conv(16, 1).done()


MODELS: dict[str, Callable[[], bytes]] = {
    "relu 4k": lambda: _single("Relu", 1, 4096),
    "hardswish 1M": lambda: _single("HardSwish", 1, 16, 256, 256),
    "gelu 150k": lambda: _gelu(Net(1, 16, 96, 96)).done(),
    "mish x4 150k": _mish,
    "softmax 256x1000": lambda: _single("Softmax", 256, 1000, axis=-1),
    "transpose 512x512": lambda: _single("Transpose", 512, 512, perm=[1, 0]),
    "average 64x56x56": lambda: _single(
        "AveragePool", 1, 64, 56, 56, kernel_shape=[3, 3], pads=[1] * 4
    ),
    "product 1x1024x1024": lambda: _product(1, 1024, 1024),
    "product 256x256x256": lambda: _product(256, 256, 256),
    "conv 3x3 16x64x64": lambda: Net(1, 16, 64, 64).conv(16, 16).done(),
    "depthwise 96x56x56": lambda: Net(1, 96, 56, 56).conv(96, 96, group=96).done(),
    "mlp 64-128-64-10": _mlp_small,
    "feed-forward 64x128x512": _feed_forward,
    "attention 64x128": _attention,
    "lenet 28": _lenet,
    "resnet 32": _resnet,
    "vgg 64": _vgg,
    "mobilenet 96": _mobilenet,
    "unet 64": _unet,
    "denoise 128": _denoise,
}
"""Makers by name."""

NETWORKS = (
    "mlp 64-128-64-10", "feed-forward 64x128x512", "attention 64x128", "gelu 150k", "lenet 28",
    "resnet 32", "vgg 64", "mobilenet 96", "unet 64", "denoise 128",
)  # fmt: skip
"""Ten of them that have several layers."""
