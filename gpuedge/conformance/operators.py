"""Operators of ONNX by rows: operands and attributes.

Most move, count or compare, or compute with numbers that float32 holds: their results are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuedge.conformance.case import Case
from gpuedge.conformance.data import Shape, dims, operand, pick, spread
from gpuedge.conformance.nodes import Draw, node
from gpuedge.opset.bounds import Array
from gpuedge.opset.tensor import Window
from gpuedge.plan.conv import Slices
from gpuedge.plan.conv import facts as convolution_facts
from gpuedge.plan.matmul import facts as product_facts

INTEGERS, NORMAL, BOTH = ("integers",), ("normal",), ("integers", "normal")
TWO, HALF, POINT = np.float32(2), np.float32(0.5), np.array(3, np.uint8)
MATRIX, IMAGE = (5, 7), (2, 4, 6, 8)


def ints(*numbers: int) -> Array:
    """Return int64."""
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> Array:
    """Return float32."""
    return np.array(numbers, np.float32)


def drawn(shape: Shape, low: int, high: int, dtype: str) -> Draw:
    """Return what draws integers from `low` up to `high` - 1."""
    return lambda rng, *_: rng.integers(low, high, shape).astype(dtype)


def mask(*shape: int) -> Draw:
    """Return what draws truth values."""
    return lambda rng, *_: rng.random(shape) < 0.5


def values(*shape: int) -> Draw:
    """Return what draws numbers of the case's kind and dtype."""
    return lambda rng, data, dtype: operand(rng, shape, data, dtype)


def row(
    onnx: str, *operands: Any, data: Sequence[str] = INTEGERS,
    dtype: str = "float32", name: str = "", **more: Any,
) -> Iterator[Case]:  # fmt: skip
    """Yield the cases of a row, one for each kind of data."""
    shapes = "-".join(dims(o) if isinstance(o, tuple) else "p" for o in operands)
    case = node(onnx, shapes + (f"-{name}" if name else ""), *operands, **more)
    yield from (replace(case, data=kind, dtype=dtype) for kind in data)


ANGLES: dict[str, tuple[float, float]] = {
    "Tan": (-1.4, 1.4), "Asin": (-1, 1), "Acos": (-1, 1), "Atan": (-50, 50), "Cosh": (-20, 20),
    "Asinh": (-50, 50), "Acosh": (1, 50), "Atanh": (-0.99, 0.99),
}  # fmt: skip
"""Functions of angles, and where they are tested."""


def draw_integer_convolution(rng: np.random.Generator) -> Case:
    """Return a random convolution of bytes whose sums pass 2**24, so that they take two digits."""
    m, height, width = (pick(rng, sizes) for sizes in ((2, 4, 9, 12), (4, 5), (6, 9, 11)))
    c = int(rng.integers(75, 90))
    x, w = (1, c, height, width), (m, c, 3, 3)
    case = node("ConvInteger", f"{dims(x)}-{dims(w)}", drawn(x, 0, 256, "uint8"),
                drawn(w, 100, 128, "int8"), POINT, constant=[1, 2])  # fmt: skip
    window = Window((3, 3), (1, 1), (0, 0, 0, 0), (1, 1), (height - 2, width - 2))
    return replace(case, facts=convolution_facts(window, Slices(c, m, 1), is_bytes=True))


def _byte_convolution(c: int, height: int, width: int, m: int) -> Case:
    """Return a convolution of bytes by signed bytes, whose sums pass 2**24."""
    x, w = (2, c, height, width), (m, c, 3, 3)
    case = node("ConvInteger", f"{dims(x)}-{dims(w)}", drawn(x, 0, 256, "uint8"),
                drawn(w, 90, 128, "int8"), POINT, constant=[1, 2])  # fmt: skip
    window = Window((3, 3), (1, 1), (0, 0, 0, 0), (1, 1), (height - 2, width - 2))
    return replace(case, facts=convolution_facts(window, Slices(c, m, 1), is_bytes=True))


BYTE_CONVOLUTIONS = (_byte_convolution(75, 5, 5, 13), _byte_convolution(96, 8, 9, 36))
"""Convolutions whose sums pass 2**24, of numbers that four at a time make an int."""


def draw_integer_product(rng: np.random.Generator) -> Case:
    """Return a random product of bytes whose sums pass 2**24, so that they take two digits."""
    rows, columns = (pick(rng, sizes) for sizes in ((1, 4, 5, 9, 17), (1, 7, 13, 14, 33)))
    depth = int(rng.integers(320, 400))
    a, b = (rows, depth), (depth, columns)
    case = node("MatMulInteger", f"{dims(a)}-{dims(b)}", drawn(a, 0, 256, "uint8"),
                drawn(b, 200, 256, "uint8"), POINT, POINT, constant=[1, 2, 3])  # fmt: skip
    return replace(case, facts=product_facts(rows, depth, columns))


def _bytes(rows: int, depth: int, columns: int) -> Case:
    """Return a product of which one factor are signed bytes, and the other with its zero point."""
    a, b = (rows, depth), (depth, columns)
    case = node("MatMulInteger", f"{dims(a)}-{dims(b)}", drawn(a, 0, 256, "uint8"),
                drawn(b, 90, 128, "int8"), POINT, constant=[1, 2])  # fmt: skip
    return replace(case, facts=product_facts(rows, depth, columns, is_bytes=True))


def _windows(
    c: int, size: Shape, m: int, *, stride: Shape, dilation: Shape, pads: Shape, groups: int = 1,
) -> Case:  # fmt: skip
    """Return a convolution of bytes with windows that differ along the axes."""
    x, w, k = (1, c, *size), (m, c // groups, 3, 2), (3, 2)
    how: dict[str, Any] = {"strides": stride, "dilations": dilation, "pads": pads, "group": groups}
    said = "-".join(f"{name[0]}{'.'.join(map(str, np.ravel(v)))}" for name, v in how.items())
    case = node("ConvInteger", f"{dims(x)}-{dims(w)}-{said}", drawn(x, 0, 256, "uint8"),
                drawn(w, 100, 128, "int8"), POINT, constant=[1, 2], **how)  # fmt: skip
    out = [(size[i] + pads[i] + pads[i + 2] - dilation[i] * (k[i] - 1) - 1) // stride[i] + 1
           for i in range(2)]  # fmt: skip
    edges = (pads[0], pads[1], pads[2], pads[3])
    window = Window(k, (stride[0], stride[1]), edges, (dilation[0], dilation[1]), (out[0], out[1]))
    facts = convolution_facts(window, Slices(c, m, groups), is_bytes=groups == 1)
    return replace(case, facts=facts)


MASKS = np.array([0x7FFFF0FF, -2], np.int32)
"""Bits of both digits of integers. With two results for each, they are picked in a pass of its own:
drivers take long over kernels of sums that end in them."""


def _one(number: float, dtype: str = "float32") -> Array:
    return np.array(number, dtype)


def _scales(count: int) -> Array:
    """Return powers of two, each unlike its neighbours."""
    return np.exp2(np.arange(count) % 3 - 2).astype(np.float32)


def _coded(x: Shape, w: Shape, bias: tuple[int, int], scale: int, groups: int = 1) -> Case:
    """Return a convolution of codes; a bias between two limits brings sums of `scale` near zero."""
    how: dict[str, Any] = {"constant": range(1, 9), "group": groups}
    case = node("QLinearConv", f"{dims(x)}-{dims(w)}-g{groups}-b", drawn(x, 0, 256, "uint8"),
                _one(0.5), POINT, drawn(w, 90, 128, "int8"), _scales(w[0]), _one(0, "int8"),
                _one(scale), _one(128, "uint8"), drawn(w[:1], *bias, "int32"), **how)  # fmt: skip
    return replace(case, facts=_facts_of(x, w, groups))


def _facts_of(x: Shape, w: Shape, groups: int = 1) -> dict[str, int]:
    out = (x[2] - w[2] + 1, x[3] - w[3] + 1)
    window = Window((w[2], w[3]), (1, 1), (0, 0, 0, 0), (1, 1), out)
    return convolution_facts(window, Slices(x[1], w[0], groups), is_bytes=groups == 1)


def _digits(x: Shape, w: Shape) -> Case:
    """Return a convolution of bytes, of whose sums both digits count."""
    case = node("ConvInteger", f"{dims(x)}-{dims(w)}-and", drawn(x, 0, 256, "uint8"),
                drawn(w, 90, 128, "int8"), POINT, constant=[1, 2],
                then=("BitwiseAnd", MASKS.reshape(2, 1, 1, 1, 1)))  # fmt: skip
    return replace(case, facts=_facts_of(x, w))


def _batches(a: Shape, b: Shape) -> Iterator[Case]:
    """Yield products of batches of bytes, of which both digits count, and places."""
    left, right = drawn(a, 0, 256, "uint8"), drawn(b, -128, 128, "int8")
    text = f"{dims(a)}-{dims(b)}"
    digits = node("MatMulInteger", f"{text}-and", left, right, POINT, constant=[2],
                  then=("BitwiseAnd", MASKS.reshape(2, 1, 1, 1)))  # fmt: skip
    codes = node("QLinearMatMul", text, left, _one(0.5), POINT, right, _scales(b[-1]),
                 _one(0, "int8"), _one(1024), _one(128, "uint8"),
                 constant=[1, 2, 4, 5, 6, 7])  # fmt: skip
    facts = product_facts(a[-2], a[-1], b[-1], is_bytes=True)
    yield from (replace(case, facts=facts) for case in (digits, codes))


BYTE_BIASES = (
    _coded((1, 64, 6, 11), (48, 32, 3, 2), (-2_900_000, -2_300_000), 512, groups=2),
    _coded((1, 48, 5, 2), (24, 24, 1, 1), (-380_000, -280_000), 128, groups=2),
)
"""Convolutions of bytes with a bias in three digits, whose sums float32 holds."""

BATCHES_OF_BYTES = tuple(_batches((2, 33, 650), (2, 650, 14)))

BYTE_WINDOWS = (
    _windows(101, (7, 23), 12, stride=(2, 1), dilation=(1, 2), pads=(1, 0, 2, 1)),
    _windows(110, (9, 31), 13, stride=(1, 3), dilation=(2, 1), pads=(0, 2, 1, 0)),
    _windows(208, (5, 12), 24, stride=(1, 1), dilation=(1, 1), pads=(1, 1, 0, 1), groups=2),
    _digits((2, 110, 7, 3), (13, 110, 3, 2)),
    _coded((2, 110, 7, 3), (13, 110, 3, 2), (-9_200_000, -8_700_000), 1024),
)
"""Convolutions whose sums pass 2**24, and of which no axis is like the other."""

BYTE_PRODUCTS = (_bytes(9, 650, 14), _bytes(33, 661, 33), _bytes(40, 704, 70))
"""Products whose sums pass 2**24, of numbers that four at a time make an int."""

CODES, GRID = (drawn((4, 9), 0, 256, "uint8"),) * 2, floats(-1, -1, 1, 1, -1, 1)
SIGNED = (drawn((4, 9), -128, 128, "int8"), drawn((4, 1), -128, 0, "int8"))
BYTES: dict[str, Any] = {"dtype": "uint8"}


def _bits() -> Iterator[Case]:
    for onnx in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield from row(onnx, *SIGNED, dtype="int8")
    yield from row("BitwiseNot", CODES[0], **BYTES)
    by = drawn((4, 9), 0, 8, "uint8")
    yield from row("BitShift", CODES[0], by, direction="LEFT", **BYTES)
    for onnx in ("And", "Or", "Xor"):
        yield from row(onnx, mask(4, 9), mask(4, 9))
    yield from row("Not", mask(4, 9))
    yield from row("IsNaN", MATRIX)
    yield from row("IsInf", MATRIX)
    yield from row("Mod", drawn((4, 9), -99, 99, "int64"), drawn((9,), 1, 17, "int64"))
    yield from row("Where", mask(5, 7), MATRIX, (7,), data=BOTH)
    yield from row("Cast", values(5, 7), to=7)
    yield from row("CastLike", drawn((5, 7), 0, 200, "uint8"), (1,))


def _moving() -> Iterator[Case]:
    rows, some = ints(0, -1, 3), ints(0, 2, 1)
    pads = ints(1, 0, 2, 3)
    yield from row("Identity", MATRIX, data=BOTH)
    yield from row("Dropout", MATRIX)
    yield from row("Reshape", MATRIX, ints(7, -1), constant=[1])
    yield from row("Split", MATRIX, outputs=2, axis=1, num_outputs=2)
    yield from row("Squeeze", (5, 1, 7), ints(1), constant=[1])
    yield from row("Unsqueeze", MATRIX, ints(1), constant=[1])
    yield from row("Expand", (5, 1), ints(3, 5, 7), constant=[1])
    yield from row("Tile", MATRIX, ints(2, 3), constant=[1])
    yield from row("Slice", MATRIX, ints(4), ints(0), ints(0), ints(-2), constant=range(1, 5))
    yield from row("Pad", MATRIX, pads, HALF, constant=[1, 2])
    for mode in ("reflect", "edge", "wrap"):
        yield from row("Pad", MATRIX, pads, constant=[1], mode=mode, name=mode)
    yield from row("Trilu", MATRIX, np.int64(1), constant=[1], upper=0)
    yield from row("CenterCropPad", MATRIX, ints(3, 9), constant=[1])
    yield from row("DepthToSpace", (1, 8, 3, 5), blocksize=2)
    yield from row("SpaceToDepth", (1, 3, 4, 6), blocksize=2)
    lengths = ints(1, 2, 3, 5, 4, 1, 2)
    yield from row("Col2Im", (1, 8, 9), ints(4, 5), ints(2, 2), constant=[1, 2],
                   strides=(1, 2), pads=(0, 1, 0, 0))  # fmt: skip
    yield from row("BitCast", drawn((4, 9), -128, 128, "int8"), to=2)
    yield from row("ReverseSequence", MATRIX, lengths, time_axis=0, batch_axis=1)
    yield from row("GatherElements", MATRIX, drawn(MATRIX, -7, 7, "int64"), axis=1)
    yield from row("GatherND", MATRIX, np.stack([rows, some], 1))
    yield from row("Compress", MATRIX, np.array([1, 0, 0, 1, 1], bool), constant=[1], axis=0)
    yield from row("ScatterElements", MATRIX, ints(*[2] * 7).reshape(1, 7), (1, 7), axis=0)
    yield from row("ScatterND", MATRIX, np.stack([rows, some], 1), (3,))
    places = ints(0, 3, 9, 14).reshape(1, 1, 2, 2)
    yield from row("MaxUnpool", (1, 1, 2, 2), places, kernel_shape=(2, 2), strides=(2, 2))
    yield from row("OneHot", drawn((3, 4), -5, 5, "int64"), np.int64(5), floats(0, 1),
                   constant=[1, 2], axis=-1)  # fmt: skip


def _long() -> Iterator[Case]:
    """More updates than loops of fragment shaders can be trusted with; drivers take long."""
    long = drawn((1, 600), -700, 700, "int64")
    yield from row("ScatterElements", (2, 700), long, (1, 600), axis=1, reduction="add")
    flat = drawn((530, 1), -300, 300, "int64")
    yield from row("ScatterND", (300, 2), flat, (530, 2), reduction="max")


def _picked() -> Iterator[Case]:
    yield from row("ArgMax", MATRIX, axis=1)
    yield from row("ArgMin", MATRIX, axis=0)
    yield from row("Hardmax", MATRIX, axis=1)
    yield from row("Resize", (1, 2, 3, 5), np.zeros(0, np.float32), floats(1, 1, 2, 2),
                   constant=[1, 2], mode="linear")  # fmt: skip
    yield from row("GridSample", (1, 3, 4, 5), GRID.reshape(1, 1, 3, 2), align_corners=1)
    yield from row("DeformConv", (1, 3, 6, 7), (4, 3, 3, 3), np.zeros((1, 18, 4, 5), np.float32),
                   data=BOTH, kernel_shape=(3, 3))  # fmt: skip
    yield from row("GlobalMaxPool", IMAGE)
    yield from row("GlobalAveragePool", IMAGE, data=NORMAL)
    yield from row("QuantizeLinear", values(5, 7), HALF, POINT, constant=[1, 2])
    yield from row("DequantizeLinear", CODES[0], HALF, POINT)
    matrices = (drawn((4, 300), 0, 256, "uint8"), drawn((300, 5), 0, 256, "uint8"))
    yield from row("MatMulInteger", *matrices, POINT, POINT, name="k300")
    yield from row("QLinearMatMul", CODES[0], HALF, POINT, drawn((9, 5), 0, 256, "uint8"), HALF,
                   np.uint8(128), np.float32(64), np.uint8(100),
                   constant=[1, 2, 4, 5, 6, 7])  # fmt: skip
    yield from row("ConvInteger", drawn((1, 3, 6, 7), 0, 256, "uint8"),
                   drawn((5, 3, 3, 3), -128, 128, "int8"), POINT)  # fmt: skip


def _sums() -> Iterator[Case]:
    """Products that are exact of small integers: sines and cosines of quarters are 0 and 1."""
    small: Draw = lambda rng, *_: rng.integers(-2, 3, (4, 9)).astype(np.float32)  # noqa: E731
    flags: tuple[dict[str, Any], ...] = ({}, {"exclusive": 1}, {"reverse": 1})
    for how in flags:
        yield from row("CumProd", small, np.int64(1), constant=[1], name="".join(how), **how)
    for name, equation, shapes in EQUATIONS:
        yield from row("Einsum", *shapes, name=name, equation=equation)
    for size in (2, 3):
        yield from row("Det", (5, size, size), data=BOTH)
    named: dict[str, dict[str, Any]] = {
        "": {},
        "inverse": {"inverse": 1},
        "onesided": {"onesided": 1},
    }
    for name, how in named.items():
        parts = 1 if name == "onesided" else 2
        yield from row("DFT", drawn((2, 4, 3, parts), -99, 100, "float32"), np.int64(4),
                       np.int64(1), constant=[1, 2], name=name, **how)  # fmt: skip
    yield from row("STFT", drawn((2, 21, 1), -99, 100, "float32"), np.int64(3), floats(1, 2, 2, 1),
                   np.int64(4), constant=[1, 3])  # fmt: skip


EQUATIONS: tuple[tuple[str, str, tuple[Shape, ...]], ...] = (
    ("matrices", "bij,bjk->bik", ((3, 4, 5), (3, 5, 7))),
    ("diagonal", "...ii->...i", ((3, 5, 5),)),
    ("three", "ij,kj,k->i", ((4, 5), (6, 5), (6,))),
    ("outer", "i,j->ji", ((5,), (7,))),
)


def _attending() -> Iterator[Case]:
    """What decoders are made of: exact, but for the softmax of Attention."""
    some: Draw = lambda rng, *_: (rng.random((3, 5)) < 0.5) | np.eye(3, 5, dtype=bool)  # noqa: E731
    keys, shared = ((1, 2, 5, 4),) * 2, ((2, 2, 5, 8),) * 2
    yield from row("Attention", (1, 2, 3, 4), *keys, data=NORMAL)
    yield from row("Attention", (1, 2, 3, 4), *keys, some, data=NORMAL, scale=0.75)
    yield from row("Attention", (2, 4, 5, 8), *shared, data=NORMAL, is_causal=1, name="causal")
    yield from row("RotaryEmbedding", (2, 2, 3, 8), (2, 3, 4), (2, 3, 4))
    yield from row("RotaryEmbedding", (2, 3, 12), (7, 2), (7, 2), drawn((2, 3), 0, 7, "int64"),
                   num_heads=2, interleaved=1, rotary_embedding_dim=4)  # fmt: skip
    few = [drawn((1, 3, size), -2, 3, "float32") for size in (8, 4, 5)]
    heads: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 1, "scale": 1.0, "outputs": 2}
    yield from row("LinearAttention", *few, update_rule="linear", name="linear", **heads)
    past, own = (2, 3, 7, 4), (2, 3, 2, 4)
    yield from row("TensorScatter", past, own, data=BOTH)
    for mode, places in (("linear", ints(5, 1)), ("circular", ints(6, 3))):
        yield from row("TensorScatter", past, own, places, mode=mode, name=mode)


def _rounding() -> Iterator[Case]:
    for onnx, ends in ANGLES.items():
        draw: Draw = lambda rng, *_, ends=ends: spread(rng, ends[0], ends[1], 301)  # noqa: E731
        yield from row(onnx, draw, data=NORMAL)
    for kind in ("none", "tanh"):
        yield from row("Gelu", (301,), data=NORMAL, approximate=kind, name=kind)
    above: Draw = lambda rng, *_: rng.uniform(0.5, 4, (3, 5, 4)).astype(np.float32)  # noqa: E731
    how: dict[str, Any] = {"constant": [1], "keepdims": 0}
    for onnx in ("ReduceL1", "ReduceSumSquare", "ReduceL2", "ReduceLogSumExp"):
        yield from row(onnx, (3, 5, 4), ints(1), data=NORMAL, **how)
    yield from row("ReduceLogSum", above, ints(1), data=NORMAL, **how)
    yield from row("ReduceProd", (9, 6), ints(1), **how)
    yield from row("LogSoftmax", (4, 33), data=NORMAL, axis=-1)
    yield from row("InstanceNormalization", (2, 5, 3, 7), (5,), (5,), data=NORMAL, epsilon=1e-3)
    for p in (1, 2):
        yield from row("LpNormalization", (5, 33), data=NORMAL, axis=1, p=p, name=f"p{p}")
    yield from row("LRN", (1, 7, 4, 5), data=NORMAL, size=3, alpha=0.25, beta=0.75, bias=1.0)
    yield from row("LpPool", IMAGE, data=NORMAL, kernel_shape=(2, 2), strides=(2, 2))
    yield from row("GlobalLpPool", IMAGE, data=NORMAL, p=2)


def cases(scale: int) -> Iterator[Case]:
    """Yield the cases, and for a larger `scale` those that take long."""
    for family in (_bits, _moving, _picked, _sums, _attending, _rounding):
        yield from family()
    if scale > 1:
        yield from _long()
