"""Operators of ONNX by rows: operands, attributes and what they mean, in numpy by the definition.

Most move, count or compare, or compute with numbers that float32 holds: their results are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpuedge.conformance import oracle
from gpuedge.conformance.case import Case
from gpuedge.conformance.data import Shape, dims, operand, pick, spread
from gpuedge.conformance.nodes import Draw, Meaning, node, total
from gpuedge.opset.angles import FORMULAS
from gpuedge.opset.bounds import ULP, Array, Num, power
from gpuedge.opset.errors import running_error
from gpuedge.opset.tensor import Window
from gpuedge.plan.conv import Slices
from gpuedge.plan.conv import facts as convolution_facts
from gpuedge.plan.matmul import facts as product_facts

INTEGERS, BOTH = ("integers",), ("integers", "normal")
TWO, HALF, POINT = np.float32(2), np.float32(0.5), np.uint8(3)
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


def exactly(f: Callable[..., Any]) -> Meaning:
    """Return the meaning of what computes without rounding."""
    return lambda *x, whole, **attrs: Num.of(
        np.asarray(f(*(one.v for one in x), **attrs), np.float64)
    )


def row(
    onnx: str, meaning: Meaning, *operands: Any, data: Sequence[str] = INTEGERS,
    dtype: str = "float32", name: str = "", **more: Any,
) -> Iterator[Case]:  # fmt: skip
    """Yield the cases of a row, one for each kind of data."""
    shapes = "-".join(dims(o) if isinstance(o, tuple) else "p" for o in operands)
    made = node(onnx, shapes + (f"-{name}" if name else ""), *operands, meaning=meaning, **more)
    yield from (replace(made, data=kind, dtype=dtype) for kind in data)


# --- functions, norms and sums that round ---------------------------------------------------------

ANGLES: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "Tan": (np.tan, -1.4, 1.4), "Asin": (np.arcsin, -1, 1), "Acos": (np.arccos, -1, 1),
    "Atan": (np.arctan, -50, 50), "Cosh": (np.cosh, -20, 20), "Asinh": (np.arcsinh, -50, 50),
    "Acosh": (np.arccosh, 1, 50), "Atanh": (np.arctanh, -0.99, 0.99),
}  # fmt: skip


def _angle(onnx: str, x: Num, *, whole: bool) -> Num:
    value = ANGLES[onnx][0](x.v)
    with np.errstate(all="ignore"):  # of branches that are not taken
        error = running_error(FORMULAS[onnx], x).e
    return Num(value, np.maximum(error, ULP * np.abs(value)))


def _lengths(x: Num, axes: Num, *, whole: bool, keepdims: int) -> Num:
    return total(x * x, axes, whole=whole, keepdims=keepdims).sqrt()


def _log_sum(x: Num, axes: Num, *, whole: bool, keepdims: int, is_exp: bool = False) -> Num:
    if not is_exp:
        return total(x, axes, whole=whole, keepdims=keepdims).log()
    along = tuple(axes.v.astype(int))
    peak = Num.of(x.v.max(along, keepdims=True))
    powers = total((x - peak).exp(), axes, whole=False, keepdims=1)
    found = powers.log() + peak
    return found if keepdims else Num(found.v.squeeze(along), found.e.squeeze(along))


def _instance_norm(x: Num, scale: Num, shift: Num, *, whole: bool, epsilon: float) -> Num:
    along, column = tuple(range(2, x.v.ndim)), (-1,) + (1,) * (x.v.ndim - 2)
    centred = x - oracle.mean(x, along)
    inverse = 1.0 / (oracle.mean(centred * centred, along) + epsilon).sqrt()
    s, b = (Num(p.v.reshape(column), p.e.reshape(column)) for p in (scale, shift))
    return centred * inverse * s + b


def _lp_norm(x: Num, *, whole: bool, axis: int, p: int) -> Num:
    along = Num.of(np.asarray([axis], np.float64))
    if p == 1:
        return x / total(x.abs(), along, whole=whole, keepdims=1)
    return x / _lengths(x, along, whole=whole, keepdims=1)


def _lrn(x: Num, *, whole: bool, size: int, alpha: float, beta: float, bias: float) -> Num:
    square, room = x * x, [(0, 0), (size // 2, size // 2), (0, 0), (0, 0)]
    count = x.v.shape[1]
    near = [Num(np.pad(square.v, room)[:, i : i + count], np.pad(square.e, room)[:, i : i + count])
            for i in range(size)]  # fmt: skip
    return x / power(sum(near[1:], near[0]) * (alpha / size) + bias, Num.of(np.asarray(beta)))


def _lp_pool(x: Num, *, whole: bool, **_: Any) -> Num:
    """Windows of 2 by 2 that do not overlap, p = 2."""
    n, c, h, w = x.v.shape
    apart = (Num(a.v.reshape(n, c, h // 2, 2, w // 2, 2), a.e.reshape(n, c, h // 2, 2, w // 2, 2))
             for a in (x * x,))  # fmt: skip
    return total(next(apart), Num.of(np.array([3.0, 5.0])), whole=whole, keepdims=0).sqrt()


def _global_lp(x: Num, *, whole: bool, p: int) -> Num:
    return _lengths(x, Num.of(np.array([2.0, 3.0])), whole=whole, keepdims=1)


# --- what is exact --------------------------------------------------------------------------------


def _scattered(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array:
    made = x.copy()
    np.put_along_axis(made, indices.astype(int), updates, axis)
    return np.asarray(made)


def _scattered_nd(x: Array, indices: Array, updates: Array) -> Array:
    made = x.copy()
    made[tuple(indices.astype(int).T)] = updates
    return np.asarray(made)


def _deep(x: Array, blocksize: int) -> Array:
    n, c, h, w = x.shape
    b = blocksize
    apart = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    return np.asarray(apart.reshape(n, c // b**2, h * b, w * b))


def _flat(x: Array, blocksize: int) -> Array:
    n, c, h, w = x.shape
    b = blocksize
    apart = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return np.asarray(apart.reshape(n, c * b * b, h // b, w // b))


def _reversed(x: Array, lengths: Array, **_: Any) -> Array:
    made = x.copy()
    for i, n in enumerate(lengths.astype(int)):
        made[:n, i] = x[:n, i][::-1]
    return np.asarray(made)


def _unpooled(x: Array, indices: Array, **_: Any) -> Array:
    n, c, h, w = x.shape
    flat = np.zeros(n * c * 4 * h * w)
    flat[indices.astype(int).ravel()] = x.ravel()
    return flat.reshape(n, c, 2 * h, 2 * w)


def _doubled(x: Array, *_: Array, **__: Any) -> Array:
    """Twice as wide and high, linearly: three quarters of the nearest and a quarter of the next."""
    for axis in (2, 3):
        places = (np.arange(2 * x.shape[axis]) + 0.5) / 2 - 0.5
        low = np.floor(places).astype(int)
        most, column = x.shape[axis] - 1, [1, 1, 1, 1]
        column[axis] = -1
        share = (places - low).reshape(column)
        near = x.take(np.clip(low, 0, most), axis)
        x = near * (1 - share) + x.take(np.clip(low + 1, 0, most), axis) * share
    return x


def _sampled(x: Array, grid: Array, **_: Any) -> Array:
    """Pixels that a grid with aligned corners meets."""
    h, w = x.shape[2:]
    column, line = (grid[..., 0] + 1) / 2 * (w - 1), (grid[..., 1] + 1) / 2 * (h - 1)
    picked = (x[n][:, line[n].astype(int), column[n].astype(int)] for n in range(len(x)))
    return np.stack(list(picked))


def _quantised(x: Array, scale: Array, zero: Array) -> Array:
    return np.asarray(np.clip(np.rint(x / scale) + zero, 0, 255))


def _requantised(*x: Array) -> Array:
    a, scale_a, zero_a, b, scale_b, zero_b, scale, zero = x
    return _quantised((a - zero_a) @ (b - zero_b) * (scale_a * scale_b), scale, zero)


def _convolved(x: Array, w: Array, *points: Array, whole: bool = True) -> Num:
    zero = points[0] if points else 0.0
    return oracle.conv2d(Num.of(x - zero), Num.of(w), whole=whole)


def draw_integer_convolution(rng: np.random.Generator) -> Case:
    """Return a random convolution of bytes whose sums pass 2**24, so that they take two digits."""
    m, height, width = (pick(rng, sizes) for sizes in ((2, 4, 9, 12), (4, 5), (6, 9, 11)))
    c = int(rng.integers(75, 90))
    x, w = (1, c, height, width), (m, c, 3, 3)
    made = node("ConvInteger", f"{dims(x)}-{dims(w)}", drawn(x, 0, 256, "uint8"),
                drawn(w, 100, 128, "int8"), POINT, constant=[1, 2],
                meaning=lambda x, w, z, whole: _convolved(x.v, w.v, z.v))  # fmt: skip
    window = Window((3, 3), (1, 1), (0, 0, 0, 0), (1, 1), (height - 2, width - 2))
    return replace(made, facts=convolution_facts(window, Slices(c, m, 1)))


def draw_integer_product(rng: np.random.Generator) -> Case:
    """Return a random product of bytes whose sums pass 2**24, so that they take two digits."""
    rows, columns = (pick(rng, sizes) for sizes in ((1, 4, 5, 9, 17), (1, 7, 13, 14, 33)))
    depth = int(rng.integers(320, 400))
    a, b = (rows, depth), (depth, columns)
    made = node("MatMulInteger", f"{dims(a)}-{dims(b)}", drawn(a, 0, 256, "uint8"),
                drawn(b, 200, 256, "uint8"), POINT, POINT, constant=[1, 2, 3],
                meaning=exactly(lambda a, b, za, zb: (a - za) @ (b - zb)))  # fmt: skip
    return replace(made, facts=product_facts(rows, depth, columns))


def _split(x: Num, *, whole: bool, **_: Any) -> tuple[Num, Num]:
    """Two parts, the first the longer."""
    return oracle.moved(lambda a: a[:, :4], x), oracle.moved(lambda a: a[:, 4:], x)


def _deformed(x: Num, w: Num, offset: Num, *, whole: bool, **_: Any) -> Num:
    """Offsets of zero: a convolution."""
    return oracle.conv2d(x, w, whole=whole)


def _wrapping(f: Callable[..., Any]) -> Meaning:
    """Return the meaning of what computes with bits of uint8."""
    return exactly(lambda *x, **_: f(*(one.astype(np.int64) for one in x)) & 255)


CODES, GRID = (drawn((4, 9), 0, 256, "uint8"),) * 2, floats(-1, -1, 1, 1, -1, 1)
BYTES: dict[str, Any] = {"dtype": "uint8"}


def _bits() -> Iterator[Case]:
    for onnx, f in (("BitwiseAnd", np.bitwise_and), ("BitwiseOr", np.bitwise_or),
                    ("BitwiseXor", np.bitwise_xor)):  # fmt: skip
        yield from row(onnx, _wrapping(f), *CODES, **BYTES)
    yield from row("BitwiseNot", _wrapping(np.invert), CODES[0], **BYTES)
    by = drawn((4, 9), 0, 8, "uint8")
    yield from row("BitShift", _wrapping(np.left_shift), CODES[0], by, direction="LEFT", **BYTES)
    for onnx, g in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)):
        yield from row(onnx, exactly(g), mask(4, 9), mask(4, 9))
    yield from row("Not", exactly(np.logical_not), mask(4, 9))
    yield from row("IsNaN", exactly(np.isnan), MATRIX)
    yield from row("IsInf", exactly(np.isinf), MATRIX)
    yield from row("Mod", exactly(np.mod), drawn((4, 9), -99, 99, "int64"),
                   drawn((9,), 1, 17, "int64"))  # fmt: skip
    yield from row("Where", exactly(lambda c, a, b: np.where(c > 0, a, b)), mask(5, 7), MATRIX,
                   (7,), data=BOTH)  # fmt: skip
    yield from row("Cast", exactly(lambda x, to: np.trunc(x)), values(5, 7), to=7)
    yield from row("CastLike", exactly(lambda x, _: x), drawn((5, 7), 0, 200, "uint8"), (1,))


def _moving() -> Iterator[Case]:
    r = row
    rows, some = ints(0, -1, 3), ints(0, 2, 1)
    yield from r("Identity", exactly(lambda x: x), MATRIX, data=BOTH)
    yield from r("Dropout", exactly(lambda x: x), MATRIX)
    yield from r(
        "Reshape", exactly(lambda x, _: x.reshape(7, 5)), MATRIX, ints(7, -1), constant=[1]
    )
    yield from r("Split", _split, MATRIX, outputs=2, axis=1, num_outputs=2)
    yield from r("Squeeze", exactly(lambda x, _: x[:, 0]), (5, 1, 7), ints(1), constant=[1])
    yield from r("Unsqueeze", exactly(lambda x, _: x[:, None]), MATRIX, ints(1), constant=[1])
    yield from r("Expand", exactly(lambda x, _: np.broadcast_to(x, (3, 5, 7))), (5, 1),
                 ints(3, 5, 7), constant=[1])  # fmt: skip
    yield from r("Tile", exactly(lambda x, _: np.tile(x, (2, 3))), MATRIX, ints(2, 3), constant=[1])
    yield from r("Slice", exactly(lambda x, *_: x[4:0:-2]), MATRIX, ints(4), ints(0), ints(0),
                 ints(-2), constant=range(1, 5))  # fmt: skip
    yield from r("Pad", exactly(lambda x, _, v: np.pad(x, ((1, 2), (0, 3)), constant_values=v)),
                 MATRIX, ints(1, 0, 2, 3), HALF, constant=[1, 2])  # fmt: skip
    for mode in ("reflect", "edge", "wrap"):
        pad: Any = lambda x, _, mode: np.pad(x, ((1, 2), (0, 3)), mode=mode)  # noqa: E731
        yield from r("Pad", exactly(pad), MATRIX, ints(1, 0, 2, 3), constant=[1], mode=mode,
                     name=mode)  # fmt: skip
    yield from r("Trilu", exactly(lambda x, k, upper: np.tril(x, int(k))), MATRIX, np.int64(1),
                 constant=[1], upper=0)  # fmt: skip
    yield from r("CenterCropPad", exactly(lambda x, _: np.pad(x[1:4], ((0, 0), (1, 1)))), MATRIX,
                 ints(3, 9), constant=[1])  # fmt: skip
    yield from r("DepthToSpace", exactly(_deep), (1, 8, 3, 5), blocksize=2)
    yield from r("SpaceToDepth", exactly(_flat), (1, 3, 4, 6), blocksize=2)
    yield from r("ReverseSequence", exactly(_reversed), MATRIX, ints(1, 2, 3, 5, 4, 1, 2),
                 time_axis=0, batch_axis=1)  # fmt: skip
    yield from r("GatherElements",
                 exactly(lambda x, i, axis: np.take_along_axis(x, i.astype(int), axis)), MATRIX,
                 drawn(MATRIX, -7, 7, "int64"), axis=1)  # fmt: skip
    yield from r("GatherND", exactly(lambda x, i: x[tuple(i.astype(int).T)]), MATRIX,
                 np.stack([rows, some], 1))  # fmt: skip
    yield from r("Compress", exactly(lambda x, _, axis: x[[0, 3, 4]]), MATRIX,
                 np.array([1, 0, 0, 1, 1], bool), constant=[1], axis=0)  # fmt: skip
    yield from r("ScatterElements", exactly(_scattered), MATRIX, ints(*[2] * 7).reshape(1, 7),
                 (1, 7), axis=0)  # fmt: skip
    yield from r("ScatterND", exactly(_scattered_nd), MATRIX, np.stack([rows, some], 1), (3,))
    yield from r("MaxUnpool", exactly(_unpooled), (1, 1, 2, 2),
                 ints(0, 3, 9, 14).reshape(1, 1, 2, 2), kernel_shape=(2, 2),
                 strides=(2, 2))  # fmt: skip
    yield from r("OneHot", exactly(lambda i, *_, axis: np.eye(5)[i.astype(int)]),
                 drawn((3, 4), -5, 5, "int64"), np.int64(5), floats(0, 1), constant=[1, 2],
                 axis=-1)  # fmt: skip


def _picked() -> Iterator[Case]:
    yield from row("ArgMax", exactly(lambda x, axis: x.argmax(axis)[:, None]), MATRIX, axis=1)
    yield from row("ArgMin", exactly(lambda x, axis: x.argmin(axis)[None]), MATRIX, axis=0)
    yield from row("Hardmax", exactly(lambda x, axis: np.eye(7)[x.argmax(axis)]), MATRIX, axis=1)
    yield from row("Resize", exactly(_doubled), (1, 2, 3, 5), np.zeros(0, np.float32),
                   floats(1, 1, 2, 2), constant=[1, 2], mode="linear")  # fmt: skip
    yield from row("GridSample", exactly(_sampled), (1, 3, 4, 5), GRID.reshape(1, 1, 3, 2),
                   align_corners=1)  # fmt: skip
    yield from row("DeformConv", _deformed, (1, 3, 6, 7), (4, 3, 3, 3),
                   np.zeros((1, 18, 4, 5), np.float32), data=BOTH, kernel_shape=(3, 3))  # fmt: skip
    for onnx, f in (("GlobalMaxPool", np.max), ("GlobalAveragePool", np.mean)):
        kind = "max" if f is np.max else "avg"
        yield from row(onnx, lambda x, whole, kind=kind: oracle.global_pool(kind, x), IMAGE,
                       data=("integers",) if kind == "max" else ("normal",))  # fmt: skip
    yield from row("QuantizeLinear", exactly(_quantised), values(5, 7), HALF, POINT,
                   dtype="float32", constant=[1, 2])  # fmt: skip
    yield from row("DequantizeLinear", exactly(lambda x, s, z: (x - z) * s), CODES[0], HALF, POINT)
    matrices = (drawn((4, 300), 0, 256, "uint8"), drawn((300, 5), 0, 256, "uint8"))
    yield from row("MatMulInteger", exactly(lambda a, b, za, zb: (a - za) @ (b - zb)), *matrices,
                   POINT, POINT, name="k300")  # fmt: skip
    yield from row("QLinearMatMul", exactly(_requantised), CODES[0], HALF, POINT,
                   drawn((9, 5), 0, 256, "uint8"), HALF, np.uint8(128), np.float32(64),
                   np.uint8(100), constant=[1, 2, 4, 5, 6, 7])  # fmt: skip
    yield from row("ConvInteger", lambda x, w, z, whole: _convolved(x.v, w.v, z.v),
                   drawn((1, 3, 6, 7), 0, 256, "uint8"), drawn((5, 3, 3, 3), -128, 128, "int8"),
                   POINT)  # fmt: skip


def _rounding() -> Iterator[Case]:
    for onnx, (_, low, high) in ANGLES.items():
        draw: Draw = lambda rng, *_, ends=(low, high): spread(rng, ends[0], ends[1], 301)  # noqa: E731
        yield from row(onnx, partial(_angle, onnx), draw, data=("normal",))
    for onnx, name in (("none", "gelu"), ("tanh", "gelu_tanh")):
        yield from row("Gelu", lambda x, whole, approximate, name=name: oracle.elementwise(name, x),
                       (301,), data=("normal",), approximate=onnx, name=onnx)  # fmt: skip
    above: Draw = lambda rng, *_: rng.uniform(0.5, 4, (3, 5, 4)).astype(np.float32)  # noqa: E731
    how: dict[str, Any] = {"constant": [1], "keepdims": 0}
    squares: Meaning = lambda x, a, **h: total(x * x, a, **h)  # noqa: E731
    sizes: Meaning = lambda x, a, **h: total(x.abs(), a, **h)  # noqa: E731
    for meaning, onnx in ((sizes, "ReduceL1"), (squares, "ReduceSumSquare"), (_lengths, "ReduceL2"),
                          (partial(_log_sum, is_exp=True), "ReduceLogSumExp")):  # fmt: skip
        yield from row(onnx, meaning, (3, 5, 4), ints(1), data=("normal",), **how)
    yield from row("ReduceLogSum", _log_sum, above, ints(1), data=("normal",), **how)
    yield from row("ReduceProd", exactly(lambda x, _, keepdims: np.prod(x, 1)), (9, 6), ints(1),
                   **how)  # fmt: skip
    yield from row("LogSoftmax", lambda x, whole, axis: oracle.softmax(x, axis, log=True), (4, 33),
                   data=("normal",), axis=-1)  # fmt: skip
    yield from row("InstanceNormalization", _instance_norm, (2, 5, 3, 7), (5,), (5,),
                   data=("normal",), epsilon=1e-3)  # fmt: skip
    for p in (1, 2):
        yield from row("LpNormalization", _lp_norm, (5, 33), data=("normal",), axis=1, p=p,
                       name=f"p{p}")  # fmt: skip
    yield from row("LRN", _lrn, (1, 7, 4, 5), data=("normal",), size=3, alpha=0.25, beta=0.75,
                   bias=1.0)  # fmt: skip
    yield from row("LpPool", _lp_pool, IMAGE, data=("normal",), kernel_shape=(2, 2),
                   strides=(2, 2))  # fmt: skip
    yield from row("GlobalLpPool", _global_lp, IMAGE, data=("normal",), p=2)


def cases(scale: int) -> Iterator[Case]:
    """Yield the cases, the same for every `scale`."""
    for family in (_bits, _moving, _picked, _rounding):
        yield from family()
