"""Operators of ONNX on drawn operands and attributes, each by what its description takes.

Of each operator a drawer returns a case whose name says all that was drawn but the numbers.
Operators that one family describes and that take the same are drawn by one drawer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from gpuedge.conformance import nodes
from gpuedge.conformance.case import Case
from gpuedge.conformance.data import Shape, broadcastable, dims, operand, pick, spread, weights
from gpuedge.conformance.nodes import node
from gpuedge.conformance.operators import ANGLES, EQUATIONS, floats, ints
from gpuedge.opset import angles, bits, reduce
from gpuedge.opset.bounds import Array
from gpuedge.oracle import recurrent

Rng = np.random.Generator
Draw = Callable[[Rng], Case]
SIDES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 17)

# --- operands ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shaped:
    """What draws an operand of a shape."""

    shape: Shape

    @property
    def text(self) -> str:
        """Their part of a name."""
        return dims(self.shape)


@dataclass(frozen=True)
class Drawn(Shaped):
    """Integers from `low` up to `high` - 1, or numbers of the case's kind and dtype (no dtype)."""

    low: int = 0
    high: int = 2
    dtype: str = ""

    def __call__(self, rng: Rng, data: str, dtype: str) -> Array:
        """Return them."""
        if not self.dtype:
            return operand(rng, self.shape, data, dtype)
        return rng.integers(self.low, self.high, self.shape).astype(self.dtype)


@dataclass(frozen=True)
class Between(Shaped):
    """Numbers from one end to the other, both among them, and whole ones and halves."""

    low: float
    high: float

    def __call__(self, rng: Rng, *_: str) -> Array:
        """Return them."""
        return spread(rng, self.low, self.high, math.prod(self.shape)).reshape(self.shape)


@dataclass(frozen=True)
class PickedPlaces:
    """Different positions along axes, in an order that is drawn, from the end or the begin."""

    count: int
    extents: Shape

    def __call__(self, rng: Rng, *_: str) -> Array:
        """Return rows of one position for each axis."""
        flat = rng.permutation(math.prod(self.extents))[: self.count]
        rows = np.stack(np.unravel_index(flat, self.extents), 1)
        return np.asarray(rows - rng.integers(0, 2, rows.shape) * self.extents, np.int64)

    @property
    def text(self) -> str:
        """Their part of a name."""
        return f"{self.count}of{dims(self.extents)}"


@dataclass(frozen=True)
class Among(Shaped):
    """Of each row different positions along the last axis, or a drawn one."""

    extent: int
    axis: int

    def __call__(self, rng: Rng, *_: str) -> Array:
        """Return them."""
        size = list(self.shape)
        size[self.axis] = self.extent
        order = np.argsort(rng.random(size), self.axis)
        return np.take(order, np.arange(self.shape[self.axis]), self.axis).astype(np.int64)


def said(value: Any) -> str:
    """Return an operand or attribute as a part of a name."""
    if callable(value):  # what draws an operand
        return str(value.text)
    if isinstance(value, str):
        return value.lower()
    numbers = np.ravel(value).tolist()
    return ".".join(f"{n:g}" if isinstance(n, float) else str(int(n)) for n in numbers)


def one(onnx: str, *operands: Any, **more: Any) -> Case:
    """Return a node whose name says its operands and attributes."""
    own = {"constant", "outputs", "dtype", "data", "name", "domain"}
    attrs = {name: value for name, value in more.items() if name not in own}
    parts = [dims(o) if isinstance(o, tuple) else said(o) for o in operands if o is not None]
    parts += [f"{name.replace('_', '')}{said(value)}" for name, value in attrs.items()]
    parts += [f"c{said(list(more['constant']))}"] if more.get("constant") else []
    how = {name: more[name] for name in ("constant", "outputs", "domain") if name in more}
    words = [*([more["name"]] if "name" in more else []), *parts]
    text = "-".join(words).replace(",", ".").replace("->", "to").replace("+", "")
    case = node(onnx, text, *operands, **how, **attrs)
    return replace(case, dtype=more.get("dtype", "float32"), data=more.get("data", "integers"))


def shape_of(rng: Rng, low: int = 1, high: int = 6, most: int = 1500) -> Shape:
    """Return a shape of up to `most` elements."""
    rank = int(rng.integers(low, high + 1))
    shape = [pick(rng, SIDES) for _ in range(rank)]
    while math.prod(shape) > most:
        shape[int(np.argmax(shape))] = pick(rng, (1, 2, 3))
    return tuple(shape)


def axis_of(rng: Rng, shape: Shape) -> int:
    """Return an axis, counted from either end."""
    return int(rng.integers(-len(shape), len(shape)))


def image_of(rng: Rng, rank: int = 0, c: Sequence[int] = (1, 2, 3, 4, 5, 8, 9)) -> Shape:
    """Return (batch, channels, *sides) of one to three sides."""
    rank = rank or int(rng.integers(1, 4))
    sides = (1, 2, 3, 4, 5, 7, 8, 11) if rank < 3 else (1, 2, 3, 5)
    return (pick(rng, (1, 1, 2, 3)), pick(rng, c), *(pick(rng, sides) for _ in range(rank)))


def flag(rng: Rng) -> int:
    """Return 0 or 1."""
    return int(rng.integers(2))


# --- drawers -------------------------------------------------------------------------------------


def _reduced(onnx: str, rng: Rng) -> Case:
    shape = shape_of(rng, most=900)
    count = int(rng.integers(1, len(shape) + 1))
    axes = [int(a) - flag(rng) * len(shape) for a in rng.permutation(len(shape))[:count]]
    if onnx == "ReduceProd":  # exact as long as products stay below 2**24
        size = [min(d, 5) for d in shape]
        axes = axes[:1] if math.prod(size[a] for a in axes) > 10 else axes
        shape = tuple(size)
    first = Between(shape, 0.5, 4) if onnx == "ReduceLogSum" and math.prod(shape) > 10 else shape
    if onnx == "ReduceLogSum" and isinstance(first, tuple):
        return _reduced(onnx, rng)
    return one(onnx, first, ints(*axes), constant=[1], keepdims=flag(rng))


def _picked(onnx: str, rng: Rng) -> Case:
    shape = shape_of(rng)
    return one(onnx, shape, axis=axis_of(rng, shape), keepdims=flag(rng),
               select_last_index=flag(rng))  # fmt: skip


def _hardmax(rng: Rng) -> Case:
    shape = shape_of(rng)
    return one("Hardmax", shape, axis=axis_of(rng, shape))


def _angle(onnx: str, rng: Rng) -> Case:
    shape = shape_of(rng, 1, 6)
    return one(onnx, Between(shape, *ANGLES[onnx])) if math.prod(shape) > 10 else _angle(onnx, rng)


def _parametrised(onnx: str, rng: Rng) -> Case:
    alpha = float(rng.integers(-24, 25)) / 8
    shape = shape_of(rng)
    if math.prod(shape) <= 10:
        return _parametrised(onnx, rng)
    return one(onnx, Between(shape, -20, 20), alpha=alpha)


def _gelu(rng: Rng) -> Case:
    return one("Gelu", shape_of(rng), approximate=pick(rng, ("none", "tanh")))


def _pair(rng: Rng) -> tuple[Shape, Shape]:
    a, b = broadcastable(rng, 2, 1)
    return a or (1,), b or (1,)


def _bitwise(onnx: str, rng: Rng) -> Case:
    dtype = pick(rng, ("uint8", "int8"))
    low = -128 if dtype == "int8" else 0
    a, b = (Drawn(s, low, low + 256, dtype) for s in _pair(rng))
    if onnx == "BitwiseNot":
        return one(onnx, a, dtype=dtype)
    if onnx == "BitCast":
        return one(onnx, Drawn(a.shape, -128, 128, "int8"), to=2, dtype="uint8")
    if onnx == "BitShift":
        way, by = pick(rng, ("LEFT", "RIGHT")), Drawn(b.shape, 0, 8, "uint8")
        return one(onnx, Drawn(a.shape, 0, 256, "uint8"), by, direction=way, dtype="uint8")
    return one(onnx, a, b, dtype=dtype)


def _truth(onnx: str, rng: Rng) -> Case:
    return one(onnx, *(Drawn(s, dtype="bool") for s in _pair(rng)[: 1 if onnx == "Not" else 2]))


def _asked(onnx: str, rng: Rng) -> Case:
    return one(onnx, shape_of(rng))


def _where(rng: Rng) -> Case:
    c, a, b = broadcastable(rng, 3, 1)
    return one("Where", Drawn(c, dtype="bool"), a or (1,), b or (1,))


def _mod(rng: Rng) -> Case:
    a, b = _pair(rng)
    return one("Mod", Drawn(a, -99, 100, "int64"), Drawn(b, 1, 18, "int64"))


def _cast(onnx: str, rng: Rng) -> Case:
    shape = shape_of(rng)
    if onnx == "CastLike":
        return one(onnx, Drawn(shape, 0, 200, "uint8"), (1,))
    return one(onnx, Drawn(shape), to=pick(rng, (6, 7, 9)))


def _gather(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 5)
    size = tuple(pick(rng, (1, 2, 3, 5)) for _ in range(int(rng.integers(0, 3))))
    constant, dtype = bool(flag(rng)), pick(rng, ("int32", "int64"))
    return nodes.gather(shape, axis_of(rng, shape), size, constant=constant, dtype=dtype)


def _gather_elements(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4)
    axis = int(rng.integers(0, len(shape)))
    size, extent = list(shape), shape[axis]  # the reference takes no fewer along the others
    size[axis] = pick(rng, SIDES[:7])
    return one("GatherElements", shape, Drawn(tuple(size), -extent, extent, "int64"), axis=axis)


def _gather_nd(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 5)
    depth = int(rng.integers(1, len(shape) + 1))
    most = min(9, math.prod(shape[:depth]))
    return one("GatherND", shape, PickedPlaces(int(rng.integers(1, most + 1)), shape[:depth]))


def _reversed(rng: Rng) -> Case:
    time, batch = pick(rng, SIDES), pick(rng, SIDES)
    first = flag(rng)
    more = shape_of(rng, 0, 2, 20)
    shape = (batch, time, *more) if first else (time, batch, *more)
    return one("ReverseSequence", shape, Drawn((batch,), 1, time + 1, "int64"),
               time_axis=first, batch_axis=1 - first)  # fmt: skip


def _one_hot(rng: Rng) -> Case:
    shape, depth = shape_of(rng, 1, 3, 200), pick(rng, (1, 2, 3, 5, 9))
    where = Drawn(shape, -depth, depth, "int64")
    return one("OneHot", where, np.int64(depth), floats(-1, 3), constant=[1, 2],
               axis=int(rng.integers(-len(shape) - 1, len(shape) + 1)))  # fmt: skip


def _compress(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4)
    axis = axis_of(rng, shape)
    keep = rng.random(shape[axis]) < 0.6
    keep[0] = True
    return one("Compress", shape, keep, constant=[1], axis=axis)


def _scatter_elements(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4, 400)
    axis = axis_of(rng, shape)
    size = tuple(int(rng.integers(1, d + 1)) for d in shape)
    if flag(rng):
        extent, kind = shape[axis], pick(rng, ("add", "max", "min"))
        size = tuple(min(d, 7) for d in size)
        return one("ScatterElements", shape, Drawn(size, -extent, extent, "int64"), size,
                   axis=axis, reduction=kind)  # fmt: skip
    return one("ScatterElements", shape, Among(size, shape[axis], axis), size, axis=axis)


def _scatter_nd(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4, 400)
    depth = int(rng.integers(1, len(shape) + 1))
    count = int(rng.integers(1, min(7, math.prod(shape[:depth])) + 1))
    how = {"reduction": pick(rng, ("add", "max"))} if flag(rng) else {}
    return one(
        "ScatterND", shape, PickedPlaces(count, shape[:depth]), (count, *shape[depth:]), **how
    )


def _unpooled(rng: Rng) -> Case:
    c, h, w = pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 4, 5))
    kh, kw = pick(rng, (1, 2, 3)), pick(rng, (1, 2, 3))
    rows = np.arange(h)[:, None] * kh + kh - 1
    columns = np.arange(w) * kw
    places = rows * (w * kw) + columns + np.arange(c)[:, None, None] * (h * kh * w * kw)
    return one("MaxUnpool", (1, c, h, w), places[None].astype(np.int64), name=f"{c}x{h}x{w}",
               kernel_shape=(kh, kw), strides=(kh, kw))  # fmt: skip


def _col2im(rng: Rng) -> Case:
    kernel, stride = (pick(rng, (1, 2, 3)), pick(rng, (1, 2))), (pick(rng, (1, 2)), flag(rng) + 1)
    steps = (pick(rng, (1, 2, 3)), pick(rng, (1, 2, 4)))
    size = [(n - 1) * s + k for n, s, k in zip(steps, stride, kernel, strict=True)]
    c = pick(rng, (1, 2, 3, 5))
    x = (pick(rng, (1, 2)), c * math.prod(kernel), math.prod(steps))
    return one("Col2Im", x, ints(*size), ints(*kernel), constant=[1, 2], strides=stride)


def _sliced(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 5)
    count = int(rng.integers(1, len(shape) + 1))
    axes = [int(a) for a in rng.permutation(len(shape))[:count]]
    begin, end, step = [], [], []
    for a in axes:
        by = pick(rng, (1, 1, 2, 3, -1, -2))
        low, high = sorted(int(v) for v in rng.integers(0, shape[a], 2))
        begin.append(low if by > 0 else high)
        end.append(high + 1 if by > 0 else low - 1 if low else -shape[a] - 1)
        step.append(by)
    axes = [a - flag(rng) * len(shape) for a in axes]
    return one("Slice", shape, *(ints(*v) for v in (begin, end, axes, step)),
               constant=[1, 2, 3, 4])  # fmt: skip


def _split(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4)
    axis = axis_of(rng, shape)
    count = min(shape[axis], pick(rng, (2, 3)))
    cuts = sorted(int(c) for c in rng.permutation(np.arange(1, shape[axis]))[: count - 1])
    ends = (0, *cuts, shape[axis])
    sizes = ints(*(b - a for a, b in pairwise(ends)))
    return one("Split", shape, sizes, constant=[1], outputs=len(sizes), axis=axis)


def _squeezed(onnx: str, rng: Rng) -> Case:
    shape = [*shape_of(rng, 1, 4)]
    at = int(rng.integers(0, len(shape) + 1))
    if onnx == "Squeeze":
        shape.insert(at, 1)
    axis = at - flag(rng) * (len(shape) + (onnx == "Unsqueeze"))
    return one(onnx, tuple(shape), ints(axis), constant=[1])


def _expanded(rng: Rng) -> Case:
    to = shape_of(rng, 1, 5)
    own = [1 if rng.random() < 0.5 else d for d in to][int(rng.integers(0, len(to))) :]
    return one("Expand", tuple(own), ints(*to), constant=[1])


def _tiled(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4, 200)
    return one("Tile", shape, ints(*(pick(rng, (1, 2, 3)) for _ in shape)), constant=[1])


def _padded(rng: Rng) -> Case:
    shape = tuple(d + 1 for d in shape_of(rng, 1, 4, 400))
    mode = pick(rng, ("constant", "reflect", "edge", "wrap"))
    pads = [int(rng.integers(0, min(d, 4))) for d in (*shape, *shape)]
    more = (np.float32(0.5),) if mode == "constant" else ()
    return one("Pad", shape, ints(*pads), *more, constant=[1, 2][: 1 + len(more)], mode=mode)


def _centred(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4)
    to = [max(1, d + int(rng.integers(-3, 4))) for d in shape]
    return one("CenterCropPad", shape, ints(*to), constant=[1])


def _depth(onnx: str, rng: Rng) -> Case:
    by = pick(rng, (2, 3))
    n, c, h, w = pick(rng, (1, 2)), pick(rng, (1, 2, 3, 5)), pick(rng, SIDES[:6]), pick(rng, SIDES)
    if onnx == "SpaceToDepth":
        return one(onnx, (n, c, h * by, w * by), blocksize=by)
    return one(onnx, (n, c * by * by, h, w), blocksize=by, mode=pick(rng, ("DCR", "CRD")))


def _triangle(rng: Rng) -> Case:
    shape = shape_of(rng, 2, 4)
    rows, columns = shape[-2:]
    # past these diagonals nothing is kept, and zeros that nothing computes prove nothing
    diagonal = np.clip(rng.integers(-3, 4), 1 - rows, columns - 1)
    return one("Trilu", shape, np.int64(diagonal), constant=[1], upper=flag(rng))


def _reshaped(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 6)
    size, to = math.prod(shape), []
    for factor in (2, 3, 5, 7, 4):
        if size % factor == 0 and rng.random() < 0.6:
            to.append(factor)
            size //= factor
    to.insert(int(rng.integers(0, len(to) + 1)), -1)
    return one("Reshape", shape, ints(*to), constant=[1])


def _cumsum(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4)
    axis = axis_of(rng, shape)
    is_exclusive = flag(rng) if shape[axis] > 1 else 0  # else there is nothing to compute
    return nodes.cumsum(shape, axis, is_exclusive, flag(rng))


def _cumprod(rng: Rng) -> Case:
    shape = tuple(min(d, 7) for d in shape_of(rng, 1, 3, 300))
    axis, small = axis_of(rng, shape), Drawn(shape, -2, 3, "float32")
    return one("CumProd", small, np.int64(axis), constant=[1],
               exclusive=flag(rng) if shape[axis] > 1 else 0, reverse=flag(rng))  # fmt: skip


def _layer_norm(rng: Rng) -> Case:
    shape = shape_of(rng, 2, 4)
    axis = int(rng.integers(1, len(shape))) - flag(rng) * len(shape)
    if math.prod(shape[axis % len(shape) :]) < 3:
        return _layer_norm(rng)
    return nodes.layer_norm(shape, axis, bias=bool(flag(rng)))


def _instance_norm(rng: Rng) -> Case:
    shape = image_of(rng)
    if math.prod(shape[2:]) < 3:
        return _instance_norm(rng)
    return one("InstanceNormalization", shape, shape[1:2], shape[1:2], epsilon=0.125)


def _lp_norm(rng: Rng) -> Case:
    shape = tuple(d + 2 for d in shape_of(rng, 1, 4, 300))
    return one("LpNormalization", shape, axis=axis_of(rng, shape), p=pick(rng, (1, 2)))


def _local_norm(rng: Rng) -> Case:
    return one("LRN", image_of(rng, 2), size=pick(rng, (1, 3, 5)), alpha=0.25,
               beta=pick(rng, (0.5, 0.75)), bias=1.0)  # fmt: skip


def _batch_norm(rng: Rng) -> Case:
    shape = image_of(rng)
    return nodes.batch_norm(shape, pick(rng, ((), (1,), (1, 3), (2, 4), (1, 2, 3, 4))))


def _window(rng: Rng, size: Shape) -> dict[str, Any]:
    kernel = tuple(int(rng.integers(1, min(d, 3) + 1)) for d in size)
    stride = tuple(pick(rng, (1, 2, 3)) for _ in size)
    pads = tuple(int(rng.integers(0, kernel[i % len(kernel)])) for i in range(2 * len(kernel)))
    return {"kernel_shape": kernel, "strides": stride, "pads": pads}


def _pooled(onnx: str, rng: Rng) -> Case:
    shape = image_of(rng, 2 if onnx == "LpPool" else 0)
    return one(onnx, shape, **_window(rng, shape[2:]))


def _global(onnx: str, rng: Rng) -> Case:
    how = {"p": pick(rng, (1, 2))} if onnx == "GlobalLpPool" else {}
    return one(onnx, image_of(rng), **how)


def _conv(rng: Rng) -> Case:
    groups = pick(rng, (1, 1, 2, 3))
    x = image_of(rng, 0, tuple(groups * c for c in (1, 2, 3, 4, 5)))
    w = _window(rng, x[2:])
    m = groups * pick(rng, (1, 2, 3, 4, 5))
    filters = (m, x[1] // groups, *w["kernel_shape"])
    drawn = DrawnWeights(filters)
    how = {"strides": w["strides"], "pads": w["pads"], "group": groups}
    bias = [DrawnWeights((m,))] if flag(rng) else []
    return one("Conv", x, drawn, *bias, constant=pick(rng, ((), (1,), (1,))), **how)


@dataclass(frozen=True)
class DrawnWeights(Drawn):
    """The second operand of products."""

    def __call__(self, rng: Rng, data: str, dtype: str) -> Array:
        """Return them."""
        return weights(rng, self.shape, data)


def _conv_back(rng: Rng) -> Case:
    x = image_of(rng, pick(rng, (1, 2)), (1, 2, 3, 4, 5))
    kernel = tuple(int(rng.integers(1, 4)) for _ in x[2:])
    drawn = DrawnWeights((x[1], pick(rng, (1, 2, 3, 5)), *kernel))
    return one("ConvTranspose", x, drawn, constant=pick(rng, ((), (1,))),
               strides=tuple(pick(rng, (1, 2, 3)) for _ in kernel))  # fmt: skip


def _resized(rng: Rng) -> Case:
    shape = (pick(rng, (1, 2)), pick(rng, (1, 2, 3, 5)), pick(rng, SIDES[:8]), pick(rng, SIDES[:8]))
    scales = floats(1, 1, pick(rng, (1, 2, 4)), pick(rng, (1, 2, 4)))
    return one("Resize", shape, np.zeros(0, np.float32), scales, constant=[1, 2], mode="linear")


def _sampled(rng: Rng) -> Case:
    """Places that are those of pixels: sides are odd, so that the middle is one."""
    n, c = pick(rng, (1, 2)), pick(rng, (1, 2, 3, 5))
    size, to = (pick(rng, (3, 5, 7)), pick(rng, (3, 5))), (pick(rng, (1, 2, 3)), pick(rng, (1, 4)))
    where = Drawn((n, *to, 2), -1, 2, "float32")
    return one("GridSample", (n, c, *size), where, align_corners=1,
               mode=pick(rng, ("linear", "nearest")))  # fmt: skip


def _quantised(rng: Rng) -> Case:
    scale, zero = np.float32(2.0 ** int(rng.integers(-3, 2))), np.uint8(rng.integers(0, 200))
    return one("QuantizeLinear", Drawn(shape_of(rng)), scale, zero, constant=[1, 2])


def _dequantised(rng: Rng) -> Case:
    dtype = pick(rng, ("uint8", "int8"))
    low = 0 if dtype == "uint8" else -128
    codes = Drawn(shape_of(rng), low, low + 256, dtype)
    zero = np.asarray(rng.integers(low, low + 256), dtype)
    how = {"constant": [1, 2]} if flag(rng) else {}
    return one("DequantizeLinear", codes, np.float32(2.0 ** int(rng.integers(-3, 2))), zero,
               name=dtype, **how)  # fmt: skip


def _bytes(rng: Rng, shape: Shape) -> tuple[Drawn, Any, str]:
    dtype = pick(rng, ("uint8", "int8"))
    low = 0 if dtype == "uint8" else -128
    return (
        Drawn(shape, low, low + 256, dtype),
        np.asarray(rng.integers(low, low + 256), dtype),
        dtype,
    )


def _product(onnx: str, rng: Rng) -> Case:
    m, k, n = (pick(rng, (1, 2, 3, 4, 5, 7, 9, 13, 33)) for _ in range(3))
    a, zero_a, of_a = _bytes(rng, (m, k))
    b, zero_b, of_b = _bytes(rng, (k, n))
    if onnx == "MatMulInteger":
        return one(onnx, a, b, zero_a, zero_b, name=f"{of_a}-{of_b}",
                   constant=pick(rng, ((), (1, 2, 3), (2, 3))))  # fmt: skip
    a, b = Drawn((m, k), 0, 256, "uint8"), Drawn((k, n), 0, 256, "uint8")
    half, scale = np.float32(0.5), np.float32(2.0 ** int(rng.integers(2, 8)))
    zeros = [np.uint8(z) for z in rng.integers(90, 160, 3)]
    return one(onnx, a, half, zeros[0], b, half, zeros[1], scale, zeros[2], dtype="uint8",
               constant=[1, 2, 4, 5, 6, 7])  # fmt: skip


def _integer_conv(rng: Rng) -> Case:
    x = image_of(rng, 2, (1, 2, 3, 4, 5, 9))
    window = _window(rng, x[2:])
    a, zero, of_a = _bytes(rng, x)
    w, _, of_w = _bytes(rng, (pick(rng, (1, 2, 3, 4, 5)), x[1], *window["kernel_shape"]))
    return one("ConvInteger", a, w, zero, name=f"{of_a}-{of_w}", strides=window["strides"],
               constant=pick(rng, ((), (1, 2), (2,))))  # fmt: skip


def _einsum(rng: Rng) -> Case:
    size = {letter: pick(rng, (1, 2, 3, 4, 5, 7)) for letter in "bijkl"}
    many = (*(e for _, e, _ in EQUATIONS if "." not in e), "ij,jk->ik", "ij,ij->i", "ijk->kij",
            "bik,bjk->bij", "ij->j", "bi,bj->bij", "ijk,k->ij", "ij,kj->ik")  # fmt: skip
    equation = pick(rng, many)
    shapes = [tuple(size[c] for c in part) for part in equation.split("->")[0].split(",")]
    return one("Einsum", *shapes, name=equation.replace(",", ".").replace("->", "-"),
               equation=equation)  # fmt: skip


def _det(rng: Rng) -> Case:
    size = pick(rng, (1, 2, 3))
    return one("Det", (*shape_of(rng, 0, 2, 200), size, size))


def _transform(rng: Rng) -> Case:
    """Exact where sines and cosines are 0 and 1."""
    length, parts = pick(rng, (1, 2, 4)), pick(rng, (1, 2))
    shape = (pick(rng, (1, 2, 3)), length, *shape_of(rng, 0, 2, 30), parts)
    how: dict[str, int] = {"inverse": 1} if flag(rng) else {}
    if parts == 1 and flag(rng):
        how = {"onesided": 1}
    return one("DFT", Drawn(shape, -99, 100, "float32"), np.int64(length), np.int64(1),
               constant=[1, 2], **how)  # fmt: skip


def _frames(rng: Rng) -> Case:
    signal, step = (pick(rng, (1, 2)), pick(rng, (9, 16, 21, 30)), 1), pick(rng, (1, 2, 3, 5))
    window = floats(*(pick(rng, (1, 2, 3)) for _ in range(4)))
    return one("STFT", Drawn(signal, -99, 100, "float32"), np.int64(step), window, np.int64(4),
               constant=[1, 3], onesided=flag(rng))  # fmt: skip


def _attended(rng: Rng) -> Case:
    n, heads, shared = pick(rng, (1, 2)), pick(rng, (1, 2, 3)), pick(rng, (1, 2))
    rows, keys, size = pick(rng, (1, 2, 3, 5)), pick(rng, (1, 3, 5, 8)), pick(rng, (2, 4, 5, 8))
    of_v = pick(rng, (2, 4, 7))
    how: dict[str, Any] = {"is_causal": 1} if flag(rng) else {}
    how |= {"scale": 0.75} if flag(rng) else {}
    kv = ((n, heads, keys, size), (n, heads, keys, of_v))
    return one("Attention", (n, heads * shared, rows, size), *kv, **how)


def _linear(rng: Rng) -> Case:
    """Attention without exponentials, exact on whole numbers."""
    heads, shared, rows = pick(rng, (1, 2)), pick(rng, (1, 2, 3)), pick(rng, (1, 2, 3, 5))
    of_k, of_v, n = pick(rng, (1, 2, 4)), pick(rng, (1, 3, 5)), pick(rng, (1, 2))
    sizes = (heads * shared * of_k, heads * of_k, heads * of_v)
    few = [Drawn((n, rows, size), -2, 3, "float32") for size in sizes]
    return one("LinearAttention", *few, outputs=2, update_rule="linear", scale=1.0,
               q_num_heads=heads * shared, kv_num_heads=heads)  # fmt: skip


def _soft(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 5)
    return one("LogSoftmax", shape, axis=axis_of(rng, shape))


def _turned(rng: Rng) -> Case:
    n, heads, rows, half = (pick(rng, (1, 2, 3)) for _ in range(4))
    table = (n, rows, half)
    return one("RotaryEmbedding", (n, heads, rows, 2 * half), table, table, interleaved=flag(rng))


def _scattered(rng: Rng) -> Case:
    n, heads, room, size = (
        pick(rng, (1, 2)),
        pick(rng, (1, 3)),
        pick(rng, (4, 7, 9)),
        pick(rng, (1, 4, 5)),
    )
    rows = pick(rng, (1, 2, 3))
    mode = pick(rng, ("linear", "circular"))
    last = room - rows if mode == "linear" else room - 1
    where = Drawn((n,), 0, last + 1, "int64")
    return one("TensorScatter", (n, heads, room, size), (n, heads, rows, size), where, mode=mode)


def _deformed(rng: Rng) -> Case:
    x = (pick(rng, (1, 2)), pick(rng, (1, 2, 3, 5)), pick(rng, (3, 4, 6)), pick(rng, (3, 5, 7)))
    k = (pick(rng, (1, 2, 3)), pick(rng, (1, 2, 3)))
    size = (x[2] - k[0] + 1, x[3] - k[1] + 1)
    offset = Drawn((x[0], 2 * math.prod(k), *size), 0, 1, "float32")
    return one(
        "DeformConv", x, DrawnWeights((pick(rng, (1, 2, 4, 5)), x[1], *k)), offset, kernel_shape=k
    )


def _recurrent(onnx: str, rng: Rng) -> Case:
    gates, _ = recurrent.STEPS[onnx]
    steps, batch, inner, size = (pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 3)),
                                 pick(rng, (1, 3, 5, 8)), pick(rng, (1, 3, 4, 5)))  # fmt: skip
    way = pick(rng, ("forward", "reverse", "bidirectional"))
    count = 2 if way == "bidirectional" else 1
    state = (count, batch, size)
    more: list[Any] = [
        pick(rng, (None, (count, 2 * gates * size))),
        pick(rng, (None, Drawn((batch,), 1, steps + 1, "int32"))),
        pick(rng, (None, state)),
    ]
    how: dict[str, Any] = {"linear_before_reset": flag(rng)} if onnx == "GRU" else {}
    if onnx == "LSTM":
        more += [pick(rng, (None, state)), pick(rng, (None, (count, 3 * size)))]
    weights = ((count, gates * size, inner), (count, gates * size, size))
    return one(onnx, (steps, batch, inner), *weights, *more, constant=pick(rng, ((), (1, 2))),
               name=present(more), outputs=3 if onnx == "LSTM" else 2, hidden_size=size,
               direction=way, **how)  # fmt: skip


def present(operands: Sequence[Any]) -> str:
    """Return which of the last operands are there, for a name."""
    return "".join(str(int(o is not None)) for o in operands)


def _each(names: Sequence[str], draw: Callable[[str, Rng], Case]) -> dict[str, Draw]:
    return {name: partial(draw, name) for name in names}


INTEGERS, NORMAL, TWINS = ("integers",), ("normal",), ("normal", "integers")
ORDERED = ("ties", "normal")
REDUCED = [o.name for o in reduce.OPERATORS if o.name.startswith("Reduce")]
LINEAR = ("ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceMax", "ReduceMin")

DRAWERS: tuple[tuple[int, Sequence[str], dict[str, Draw]], ...] = (
    (60, TWINS, _each([n for n in REDUCED if n in LINEAR], _reduced)),
    (60, NORMAL, _each([n for n in REDUCED if n not in (*LINEAR, "ReduceProd")], _reduced)),
    (40, INTEGERS, _each(["ReduceProd"], _reduced)),
    (40, ORDERED, _each(["ArgMax", "ArgMin"], _picked)),
    (60, ORDERED, {"Hardmax": _hardmax}),
    (30, NORMAL, _each([o.name for o in angles.OPERATORS], _angle)),
    (40, NORMAL, {**_each(["ThresholdedRelu", "Swish"], _parametrised), "Gelu": _gelu}),
    (40, INTEGERS, _each([o.name for o in bits.OPERATORS], _bitwise)),
    (40, INTEGERS, _each(["And", "Or", "Xor", "Not"], _truth)),
    (15, NORMAL, _each(["IsNaN", "IsInf"], _asked)),
    (60, NORMAL, {"Where": _where, "Gather": _gather, "GatherElements": _gather_elements,
                  "GatherND": _gather_nd, "Compress": _compress}),
    (60, INTEGERS, {"Mod": _mod, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd}),
    (30, INTEGERS, {**_each(["Cast", "CastLike"], _cast), "MaxUnpool": _unpooled,
                    "Col2Im": _col2im, "OneHot": _one_hot}),
    (50, NORMAL, {"ReverseSequence": _reversed, "Slice": _sliced, "Split": _split,
                  **_each(["Squeeze", "Unsqueeze"], _squeezed), "Expand": _expanded,
                  "Tile": _tiled, "CenterCropPad": _centred,
                  **_each(["DepthToSpace", "SpaceToDepth"], _depth), "Trilu": _triangle,
                  "Reshape": _reshaped}),
    (80, NORMAL, {"Pad": _padded}),
    (15, NORMAL, _each(["Identity", "Dropout"], _asked)),
    (60, TWINS, {"CumSum": _cumsum}),
    (50, INTEGERS, {"CumProd": _cumprod}),
    (60, NORMAL, {"LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm,
                  "LpNormalization": _lp_norm, "LRN": _local_norm,
                  "BatchNormalization": _batch_norm}),
    (60, NORMAL, {**_each(["LpPool", "AveragePool"], _pooled)}),
    (60, ORDERED, {**_each(["MaxPool"], _pooled)}),
    (30, NORMAL, _each(["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"], _global)),
    (150, TWINS, {"Conv": _conv}),
    (80, TWINS, {"ConvTranspose": _conv_back}),
    (30, TWINS, {"DeformConv": _deformed}),
    (60, INTEGERS, {"Resize": _resized, "GridSample": _sampled, "DequantizeLinear": _dequantised}),
    (60, ORDERED, {"QuantizeLinear": _quantised}),
    (60, INTEGERS, {**_each(["MatMulInteger", "QLinearMatMul"], _product),
                    "ConvInteger": _integer_conv}),
    (120, INTEGERS, {"Einsum": _einsum}),
    (30, TWINS, {"Det": _det}),
    (30, INTEGERS, {"DFT": _transform, "STFT": _frames, "RotaryEmbedding": _turned}),
    (60, NORMAL, {"Attention": _attended, "LogSoftmax": _soft}),
    (30, INTEGERS, {"LinearAttention": _linear}),
    (40, NORMAL, _each(list(recurrent.STEPS), _recurrent)),
    (40, NORMAL, {"TensorScatter": _scattered}),
)  # fmt: skip
"""How many of each operator, the kinds of numbers, and what draws it. Two kinds of which the first
is ``normal`` are twins: every case is there in both. Others are taken in turn."""


__all__ = ["DRAWERS", "TWINS", "axis_of", "flag", "present", "shape_of"]
