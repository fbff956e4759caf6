"""Quantised operators that go wrong where sums or rounding do, and what is right, in integers.

Random bytes hardly show a lost low bit: results have 8 bits. So the numbers here cancel, or lie
between two results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.oracle.layers import convolve

ZERO_X, ZERO_Y = 128, 3


@dataclass(frozen=True)
class Case:
    """A graph with its inputs, and what it gives."""

    graph: Graph
    inputs: Mapping[str, Array]
    wanted: Array


def sums(x: Array, w: Array, pad: int, stride: int = 1, group: int = 1) -> Array:
    """Return the convolution of centred int64 numbers, padded by zeros."""
    how = {"stride": (stride, stride), "pads": (pad,) * 4, "groups": group}
    return convolve(x, w, **how).astype(np.int64)


def requantised(total: Array, scale: Array, zero: int, dtype: str) -> Array:
    """Return sums in the units of the result: float32 scale, half to even, then the zero point."""
    about = np.iinfo(dtype)
    product = total.astype(np.float32) * np.asarray(scale, np.float32)
    return np.clip(np.rint(product) + zero, about.min, about.max).astype(dtype)


def convolution(
    x: Array, w: Array, scale: float | Array, *, bias: Array | None = None, pad: int = 0,
    stride: int = 1, group: int = 1, zero_x: int = ZERO_X, zero_y: int = ZERO_Y, zero_w: int = 0,
) -> Case:  # fmt: skip
    """Return a QLinearConv of uint8 or int8 by uint8 or int8 weights."""
    dtype, scales = x.dtype.name, np.asarray(scale, np.float32)
    b = GraphBuilder()
    constants = {
        "x_scale": np.float32(1), "x_zero": np.array(zero_x, dtype), "w": w, "w_scale": scales,
        "w_zero": np.full(scales.shape, zero_w, w.dtype), "y_scale": np.float32(1),
        "y_zero": np.array(zero_y, dtype), **({} if bias is None else {"b": bias}),
    }  # fmt: skip
    names = [b.input("x", TensorType(dtype, x.shape)), *(
        b.constant(name, value) for name, value in constants.items())]  # fmt: skip
    attrs = {"pads": (pad,) * 4, "strides": (stride,) * 2, "group": group}
    b.output(b.add("QLinearConv", names, attrs, output="y"))
    total = sums(x.astype(np.int64) - zero_x, w.astype(np.int64) - zero_w, pad, stride, group)
    if bias is not None:
        total += bias.astype(np.int64).reshape(1, -1, 1, 1)
    column = scales.reshape(-1, 1, 1) if scales.ndim else scales
    return Case(b.build(), {"x": x}, requantised(total, column, zero_y, dtype))


def cancelling(channels: int = 300) -> Case:
    """Sums beyond 2^24 half way (of 1,024 channels 66 million) that come back to a few, odd ones.

    Every kernel adds up tap by tap: the first four, of 127, are taken back by the last of 126, and
    by what the fifth has besides a few units.
    """
    rng = np.random.default_rng(1)
    x = np.full((1, channels, 5, 6), ZERO_X + 127, np.uint8)
    x[:, ::3] = ZERO_X + 125
    w = np.full((5, channels, 3, 3), 127, np.int8)
    w[:, :, 1, 2:] = w[:, :, 2] = -126
    w[:, :, 1, 1] = -4
    few = rng.integers(0, channels, (5, 3))
    w[np.arange(5)[:, None], few, 1, 1] += rng.integers(-1, 2, (5, 3)).astype(np.int8)
    return convolution(x, w, 0.25, zero_y=128)


def ties() -> Case:
    """Tiny sums, half of which lie exactly between two results."""
    rng = np.random.default_rng(2)
    x = rng.integers(126, 131, (2, 7, 5, 6)).astype(np.uint8)
    w = rng.integers(-1, 2, (6, 7, 3, 3)).astype(np.int8)
    bias = rng.integers(-3, 4, 6).astype(np.int32)
    return convolution(x, w, 0.5, bias=bias, pad=1, zero_y=128)


def extreme(channels: int = 160) -> Case:
    """The largest sums there are, of either sign, each channel in its own scale."""
    x = np.zeros((1, channels, 2, 3), np.uint8)
    x[..., ::2] = 255
    w = np.full((6, channels, 3, 3), 127, np.int8)
    w[1::2] = -128
    scale = np.float32(2.0**-20) * np.arange(3, 9, dtype=np.float32) / 7
    return convolution(x, w, scale, pad=1, zero_y=100)


def biased() -> Case:
    """Biases beyond 2^24, and padding: by the zero point, which counts as nothing."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (1, 6, 5, 5)).astype(np.uint8)
    w = rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
    bias = np.array([2**31 - 10**7, 10**7 - 2**31, 2**24 + 1, -(2**24) - 1, 5, 0, -7, 11])
    scale = np.float32([3e-8, 3e-8, 5e-6, 5e-6, 1e-3, 1e-3, 1e-3, 1e-3])
    return convolution(x, w, scale, bias=bias.astype(np.int32), stride=2, group=2, pad=1,
                       zero_y=90)  # fmt: skip


def many() -> Case:
    """Filters and columns that fill no tile, each sum beyond 2^24."""
    rng = np.random.default_rng(8)
    x = rng.integers(200, 256, (2, 90, 4, 11)).astype(np.uint8)
    w = rng.integers(-128, -90, (21, 90, 3, 3)).astype(np.int8)
    bias = rng.integers(-(2**30), 2**30, 21).astype(np.int32)
    return convolution(x, w, 2e-7, bias=bias, pad=1, zero_x=0, zero_y=200)


def whole() -> Case:
    """A ConvInteger whose sums are wanted themselves, to the last bit."""
    x = np.full((1, 150, 3, 3), 255, np.uint8)
    w = np.full((5, 150, 2, 2), 127, np.int8)
    w[:, 1, 0, 0] = np.arange(5)
    w[3:] = -128
    b = GraphBuilder()
    names = [b.input("x", TensorType("uint8", x.shape)), b.constant("w", w),
             b.constant("zero", np.uint8(1))]  # fmt: skip
    b.output(b.add("ConvInteger", names, output="y"))
    return Case(b.build(), {"x": x}, sums(x.astype(np.int64) - 1, w.astype(np.int64), 0))


def weights_given() -> Case:
    """The same with weights that come in, which no kernel of convolutions takes; odd sums."""
    x = np.full((1, 150, 2, 2), 255, np.uint8)
    w = np.full((3, 150, 2, 2), 127, np.int8)
    w[:, 1, 0, 0] = np.arange(3)
    w[2] = -128
    b = GraphBuilder()
    names = [b.input("x", TensorType("uint8", x.shape)), b.input("w", TensorType("int8", w.shape))]
    b.output(b.add("ConvInteger", names, output="y"))
    return Case(b.build(), {"x": x, "w": w}, sums(x.astype(np.int64), w.astype(np.int64), 0))


def signs() -> Case:
    """A ConvInteger whose positive products alone, and negative ones, just stay below 2^24."""
    x = np.full((1, 1036, 3, 3), 255, np.uint8)
    w = np.full((5, 1036, 1, 1), 127, np.int8)
    w[:, 518:] = -127
    w[1, :518], w[2, 518:], w[3, 7], w[4, 1000] = 0, 0, 126, 0
    b = GraphBuilder()
    names = [b.input("x", TensorType("uint8", x.shape)), b.constant("w", w)]
    b.output(b.add("ConvInteger", names, output="y"))
    return Case(b.build(), {"x": x}, sums(x.astype(np.int64), w.astype(np.int64), 0))


def byte_convolution() -> Case:
    """Bytes with a zero point that is not in their middle, a bias of three digits; short sums."""
    rng = np.random.default_rng(13)
    x = rng.integers(0, 256, (2, 35, 7, 9)).astype(np.uint8)
    w = rng.integers(-128, 128, (18, 35, 3, 3)).astype(np.int8)
    bias = rng.integers(-(2**22), 2**22, 18).astype(np.int32)
    return convolution(x, w, 2e-5, bias=bias, pad=1, zero_x=100, zero_y=120)


def long_byte_convolution() -> Case:
    """The same with a stride, sums and a bias beyond 2^24."""
    rng = np.random.default_rng(14)
    x = rng.integers(100, 256, (1, 139, 9, 9)).astype(np.uint8)
    w = rng.integers(40, 128, (14, 139, 3, 3)).astype(np.int8)
    w[1] = -128
    bias = rng.integers(-(2**30), 2**30, 14).astype(np.int32)
    return convolution(x, w, 2e-7, bias=bias, pad=1, stride=2, zero_x=9, zero_y=90)


def whole_byte_convolution() -> Case:
    """A ConvInteger of such sums, which are wanted to the last bit."""
    case = long_byte_convolution()
    x, w = case.inputs["x"], case.graph.constants["w"]
    b = GraphBuilder()
    names = [b.input("x", TensorType("uint8", x.shape)), b.constant("w", w),
             b.constant("zero", np.uint8(9))]  # fmt: skip
    b.output(b.add("ConvInteger", names, output="y"))
    return Case(b.build(), {"x": x}, sums(x.astype(np.int64) - 9, w.astype(np.int64), 0))


def unsigned_weights() -> Case:
    """Pixel by pixel, with weights of uint8 around 113 that are signed bytes without it."""
    rng = np.random.default_rng(15)
    x = rng.integers(0, 256, (1, 42, 5, 8)).astype(np.uint8)
    w = rng.integers(0, 241, (24, 42, 1, 1)).astype(np.uint8)
    bias = rng.integers(-(2**17), 2**17, 24).astype(np.int32)
    return convolution(x, w, 3e-4, bias=bias, zero_x=3, zero_y=120, zero_w=113)


def product(depth: int = 1100) -> Case:
    """A MatMulInteger of bytes at their ends, read as what a model makes of it: floats."""
    a, b, total = _matrices(depth)
    builder = GraphBuilder()
    names = [builder.input("a", TensorType("uint8", a.shape)), builder.constant("b", b),
             builder.constant("za", np.uint8(0)), builder.constant("zb", np.int8(-3))]  # fmt: skip
    made = builder.add("MatMulInteger", names, output="whole")
    turned = builder.add("Transpose", [made], {"perm": (1, 0)}, output="turned")
    cast = builder.add("Cast", [turned], {"to": 1}, output="y")
    builder.output(cast)
    return Case(builder.build(), {"a": a}, total.T.astype(np.float32))


def whole_product(depth: int = 1100) -> Case:
    """The same as it is, both factors from outside."""
    a, b, total = _matrices(depth)
    builder = GraphBuilder()
    names = [builder.input("a", TensorType("uint8", a.shape)),
             builder.input("b", TensorType("int8", b.shape)),
             builder.constant("za", np.uint8(0)), builder.constant("zb", np.int8(-3))]  # fmt: skip
    builder.output(builder.add("MatMulInteger", names, output="y"))
    return Case(builder.build(), {"a": a, "b": b}, total)


def linear_product(depth: int = 1100) -> Case:
    """A QLinearMatMul of the same, each column in its own scale."""
    a, b, total = _matrices(depth)
    builder = GraphBuilder()
    scale = np.array([3, 5, 7, 9, 11, 13, 15], np.float32) * np.float32(2.0**-23)
    constants: dict[str, Any] = {
        "sa": np.float32(1), "za": np.uint8(0), "b": b, "sb": scale,
        "zb": np.full(7, -3, np.int8), "sy": np.float32(0.7), "zy": np.uint8(10),
    }  # fmt: skip
    names = [builder.input("a", TensorType("uint8", a.shape)), *(
        builder.constant(n, np.asarray(v)) for n, v in constants.items())]  # fmt: skip
    builder.output(builder.add("QLinearMatMul", names, output="y"))
    factor = scale * np.float32(1) / np.float32(0.7)
    return Case(builder.build(), {"a": a}, requantised(total, factor, 10, "uint8"))


def wide_product(depth: int = 1100) -> Case:
    """A MatMulInteger with rows and columns that fill no block, and a batch of one factor."""
    a, b, _ = _matrices(depth, 22, 18)
    stack = a.reshape(2, 11, depth)
    builder = GraphBuilder()
    names = [builder.input("a", TensorType("uint8", stack.shape)), builder.constant("b", b)]
    builder.output(builder.add("MatMulInteger", names, output="y"))
    return Case(builder.build(), {"a": stack}, stack.astype(np.int64) @ b.astype(np.int64))


def byte_product(depth: int = 1100) -> Case:
    """A QLinearMatMul of bytes whose zero point, 100, is not in their middle; sums beyond 2^24."""
    rng = np.random.default_rng(5)
    a = rng.integers(200, 256, (13, depth)).astype(np.uint8)
    b = rng.integers(90, 128, (depth, 18)).astype(np.int8)
    a[1], b[:, 1], b[:, 2] = 0, -128, rng.integers(-128, 128, depth)
    builder = GraphBuilder()
    scales = {"sa": np.float32(1), "sb": np.float32(2.0**-17), "sy": np.float32(1)}
    given = {"a": a, "sa": 0, "za": np.uint8(100), "b": b, "sb": 0, "zb": np.int8(0), "sy": 0,
             "zy": np.uint8(120)} | scales  # fmt: skip
    names = [builder.input(n, TensorType("uint8", a.shape)) if n == "a" else
             builder.constant(n, np.asarray(v)) for n, v in given.items()]  # fmt: skip
    builder.output(builder.add("QLinearMatMul", names, output="y"))
    total = (a.astype(np.int64) - 100) @ b.astype(np.int64)
    return Case(builder.build(), {"a": a}, requantised(total, 2.0**-17, 120, "uint8"))


def short_product(depth: int = 45) -> Case:
    """A MatMulInteger of bytes from outside, one factor a batch; no sum leaves 2^24."""
    rng = np.random.default_rng(6)
    a = rng.integers(0, 256, (11, depth)).astype(np.uint8)
    b = rng.integers(-128, 128, (3, depth, 38)).astype(np.int8)
    a[0], b[0, :, 0] = 255, -128
    builder = GraphBuilder()
    names = [builder.input("a", TensorType("uint8", a.shape)),
             builder.input("b", TensorType("int8", b.shape)),
             builder.constant("za", np.uint8(7))]  # fmt: skip
    builder.output(builder.add("MatMulInteger", names, output="y"))
    return Case(builder.build(), {"a": a, "b": b}, (a.astype(np.int64) - 7) @ b.astype(np.int64))


def _matrices(depth: int, rows: int = 6, columns: int = 7) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(4)
    a = np.full((rows, depth), 255, np.uint8)
    a[:, ::3] = rng.integers(250, 256, (rows, -(-depth // 3)))
    b = np.full((depth, columns), 122, np.int8)  # and 3 for the zero point
    b[:, 1] = -128
    b[:, 2:4] = rng.integers(-128, 128, (depth, 2))
    b[depth // 2 :, 4] = -128  # takes back most of what comes first
    return a, b, a.astype(np.int64) @ (b.astype(np.int64) + 3)


BITS: dict[str, Callable[..., Array]] = {
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
    "BitwiseNot": np.bitwise_not, "LEFT": np.left_shift, "RIGHT": np.right_shift,
}  # fmt: skip


def bits(name: str, dtype: str) -> Case:
    """A bitwise operator or a shift of 32-bit integers, of every size and both signs."""
    rng = np.random.default_rng(6)
    about = np.iinfo(dtype)
    ends = [about.min, about.max, about.min + 1, 0, 1, 2**16, 2**16 - 1, 2**24 + 1, 2**31 - 1]
    a = rng.integers(about.min, about.max, 301, endpoint=True).astype(dtype)
    a[: len(ends)] = ends
    second = rng.permutation(a) if name.startswith("Bitwise") else np.arange(301) % 32
    b = GraphBuilder()
    names = [b.input("a", TensorType(dtype, a.shape))]
    inputs, attrs = {"a": a}, {}
    if name != "BitwiseNot":
        inputs["b"] = second.astype(dtype)
        names.append(b.input("b", TensorType(dtype, a.shape)))
    if not name.startswith("Bitwise"):
        attrs["direction"] = name
    op = name if name.startswith("Bitwise") else "BitShift"
    b.output(b.add(op, names, attrs, output="y"))
    return Case(b.build(), inputs, BITS[name](*inputs.values()))


def mask() -> Case:
    """Bits of a constant and of what is scaled then: floats of integers beyond 2^24."""
    a = np.array([[2**31 - 1, -(2**31)], [-1, 2**25 + 3]], np.int32)
    b = GraphBuilder()
    x = b.input("x", TensorType("int32", a.shape))
    m = b.constant("m", np.array([-(2**20) - 1, 2**30 + 2**24 + 1], np.int32))
    masked = b.add("BitwiseXor", [x, m])
    turned = b.add("Transpose", [masked], {"perm": (1, 0)})
    cast = b.add("Cast", [turned], {"to": 1})
    b.output(b.add("Mul", [cast, b.constant("s", np.float32(0.3))], output="y"))
    known = (a ^ np.array([-(2**20) - 1, 2**30 + 2**24 + 1])).T
    return Case(b.build(), {"x": a}, known.astype(np.float32) * np.float32(0.3))


CASES: dict[str, Callable[[], Case]] = {
    "cancelling": cancelling, "ties": ties, "extreme": extreme, "biased": biased, "many": many,
    "whole": whole, "wide product": wide_product, "byte product": byte_product,
    "short product": short_product,
    "signs": signs, "byte convolution": byte_convolution,
    "long byte convolution": long_byte_convolution,
    "whole byte convolution": whole_byte_convolution, "unsigned weights": unsigned_weights,
    "weights given": weights_given, "product": product, "whole product": whole_product,
    "linear product": linear_product, "mask": mask,
    **{f"{name} of {dtype}": partial(bits, name, dtype) for name in BITS
       for dtype in ("int32", "uint32")},
}  # fmt: skip

LARGE: dict[str, Callable[[], Case]] = {
    **{name: make for name, make in CASES.items() if not name.endswith("of uint32")},
    "LEFT of uint32": CASES["LEFT of uint32"],
    "cancelling": lambda: cancelling(1024),
    "extreme": lambda: extreme(512),
    "product": lambda: product(9216),
    "whole product": lambda: whole_product(9216),
}
"""The same with longer sums, for devices."""
