"""The usual networks at their real sizes, with weights of zero: for what is planned, not run."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType


class Net:
    """A graph in the making; methods take and return names of values."""

    def __init__(self, *shape: int) -> None:
        self.builder = GraphBuilder()
        self.x = self.builder.input("x", TensorType("float32", shape))
        self._count = 0

    def weight(self, *shape: int) -> str:
        self._count += 1
        return self.builder.constant(f"w{self._count}", np.zeros(shape, np.float32))

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.builder.add(op, inputs, attrs)

    def split(self, x: str, parts: int) -> list[str]:
        size = self.channels(x) // parts
        starts = [self.builder.constant(f"{x}.at{i}", np.array([i * size])) for i in range(parts)]
        ends = [
            self.builder.constant(f"{x}.to{i}", np.array([(i + 1) * size])) for i in range(parts)
        ]
        axes = self.builder.constant(f"{x}.axis", np.array([1]))
        return [self.add("Slice", x, a, b, axes) for a, b in zip(starts, ends, strict=True)]

    def channels(self, x: str) -> int:
        return self.builder.type(x).shape[1]

    def conv(self, x: str, out: int, size: int = 1, *, stride: int = 1, group: int = 1) -> str:
        w = self.weight(out, self.channels(x) // group, size, size)
        return self.add("Conv", x, w, self.weight(out), pads=(size // 2,) * 4, group=group,
                        strides=(stride, stride), kernel_shape=(size, size))  # fmt: skip

    def unit(self, x: str, out: int, size: int = 1, *, stride: int = 1, group: int = 1) -> str:
        return self.add("Relu", self.conv(x, out, size, stride=stride, group=group))

    def pool(self, x: str, size: int, stride: int) -> str:
        pads = (size // 2,) * 4 if size % 2 else (0,) * 4
        return self.add("MaxPool", x, kernel_shape=(size, size), strides=(stride, stride),
                        pads=pads)  # fmt: skip

    def classified(self, x: str) -> Graph:
        flat = self.add("Flatten", self.add("GlobalAveragePool", x))
        return self.done(
            self.add("Gemm", flat, self.weight(self.channels(x), 1000), self.weight(1000))
        )

    def done(self, *outputs: str) -> Graph:
        self.builder.output(*outputs)
        return self.builder.build()


def resnet50() -> Graph:
    """He et al. 2015, table 1, 50 layers; batch norms folded."""
    net = Net(1, 3, 224, 224)
    x = net.pool(net.unit(net.x, 64, 7, stride=2), 3, 2)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            inner, out = 64 << stage, 256 << stage
            y = net.unit(net.unit(x, inner), inner, 3, stride=stride)
            short = x if block else net.conv(x, out, stride=stride)
            x = net.add("Relu", net.add("Add", net.conv(y, out), short))
    return net.classified(x)


def unet() -> Graph:
    """Ronneberger et al. 2015, with padding, half as wide."""
    net = Net(1, 3, 256, 256)
    x, tops = net.x, []
    for depth in range(4):
        x = net.unit(net.unit(x, 32 << depth, 3), 32 << depth, 3)
        tops.append(x)
        x = net.pool(x, 2, 2)
    x = net.unit(net.unit(x, 512, 3), 512, 3)
    for depth in reversed(range(4)):
        wide = 32 << depth
        x = net.add("ConvTranspose", x, net.weight(2 * wide, wide, 2, 2), strides=(2, 2),
                    kernel_shape=(2, 2))  # fmt: skip
        x = net.add("Concat", tops[depth], x, axis=1)
        x = net.unit(net.unit(x, wide, 3), wide, 3)
    return net.done(net.conv(x, 2))


INCEPTION = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""Szegedy et al. 2014, table 1: 1x1, 3x3 reduced, 3x3, 5x5 reduced, 5x5, after the pooling."""


def inception() -> Graph:
    net = Net(1, 3, 224, 224)
    x = net.pool(net.unit(net.x, 64, 7, stride=2), 3, 2)
    x = net.pool(net.unit(net.unit(x, 64), 192, 3), 3, 2)
    for at, (a, b, c, d, e, f) in enumerate(INCEPTION):
        x = net.pool(x, 3, 2) if at in (2, 7) else x
        branches = (
            net.unit(x, a), net.unit(net.unit(x, b), c, 3), net.unit(net.unit(x, d), e, 5),
            net.unit(net.pool(x, 3, 1), f),
        )  # fmt: skip
        x = net.add("Concat", *branches, axis=1)
    return net.classified(x)


def shufflenet() -> Graph:
    """Ma et al. 2018, figure 3 c and d, 1x."""
    net = Net(1, 3, 224, 224)
    x = net.pool(net.unit(net.x, 24, 3, stride=2), 3, 2)
    for wide, units, side in ((116, 4, 28), (232, 8, 14), (464, 4, 7)):
        for unit in range(units):
            half, stride = wide // 2, 1 if unit else 2
            left, right = net.split(x, 2) if unit else (x, x)
            if not unit:
                left = net.conv(left, net.channels(x), 3, stride=2, group=net.channels(x))
                left = net.unit(left, half)
            right = net.unit(right, half)
            right = net.unit(net.conv(right, half, 3, stride=stride, group=half), half)
            both = net.add("Concat", left, right, axis=1)
            x = shuffled(net, both, wide, side)
    return net.classified(net.unit(x, 1024))


def shuffled(net: Net, x: str, wide: int, side: int) -> str:
    """Return a shuffle of the channels of two groups."""
    apart, back = (
        net.builder.constant(f"{x}.{name}", np.array(shape))
        for name, shape in (
            ("apart", (1, 2, wide // 2, side, side)),
            ("back", (1, wide, side, side)),
        )
    )
    y = net.add("Transpose", net.add("Reshape", x, apart), perm=(0, 2, 1, 3, 4))
    return net.add("Reshape", y, back)


def transformer(blocks: int = 2) -> Graph:
    """Vaswani et al. 2017: 128 positions, width 512, 8 heads, as exporters write it."""
    rows, wide, heads = 128, 512, 8
    net = Net(1, rows, wide)
    apart, back = (
        net.builder.constant(name, np.array(shape))
        for name, shape in (("apart", (1, rows, heads, wide // heads)), ("back", (1, rows, wide)))
    )
    scale = net.builder.constant("scale", np.array(0.125, np.float32))
    x = net.x

    def linear(x: str, k: int, n: int) -> str:
        return net.add("Add", net.add("MatMul", x, net.weight(k, n)), net.weight(n))

    def normed(x: str) -> str:
        return net.add("LayerNormalization", x, net.weight(wide), net.weight(wide), axis=-1)

    for _ in range(blocks):
        y = normed(x)
        q, k, v = (net.add("Reshape", linear(y, wide, wide), apart) for _ in range(3))
        q, v = (net.add("Transpose", t, perm=(0, 2, 1, 3)) for t in (q, v))
        scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 2, 3, 1)))
        shares = net.add("Softmax", net.add("Mul", scores, scale), axis=-1)
        y = net.add("Transpose", net.add("MatMul", shares, v), perm=(0, 2, 1, 3))
        x = net.add("Add", x, linear(net.add("Reshape", y, back), wide, wide))
        y = net.add("Gelu", linear(normed(x), wide, 4 * wide))
        x = net.add("Add", x, linear(y, 4 * wide, wide))
    return net.done(normed(x))


USUAL = {
    "resnet50": resnet50, "unet": unet, "inception": inception, "shufflenet": shufflenet,
    "transformer": transformer,
}  # fmt: skip
