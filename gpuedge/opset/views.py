"""Elements read elsewhere, or made of their position: slicing, padding, repeating, filling."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from gpuedge.core.dtypes import EXACT, INTEGERS
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.expr import Expr, LoadExpr, Number, where
from gpuedge.opset.expr import Position as Place
from gpuedge.opset.index import Index, choose, flatten
from gpuedge.opset.logic import ELEMENT_TYPES
from gpuedge.opset.operator import ANY, FLOATS, GROWS, Operator
from gpuedge.opset.tensor import (
    Shape,
    Tensor,
    at,
    broadcast,
    broadcast_shape,
    computed,
    constant,
    reshape,
    transpose,
    view,
)

Position = tuple[Index, ...]


def sliced(x: Tensor, starts: Sequence[int], steps: Sequence[int], shape: Shape) -> Tensor:
    """Return every `steps`-th element from `starts` on, for each axis."""
    return view(x, shape, lambda position: [
        p * step + start for p, start, step in zip(position, starts, steps, strict=True)
    ])  # fmt: skip


def _slice(call: OperatorCall) -> Tensor:
    x = call.input(0)
    if call.version < 10:
        given = (call.ints("starts", ()), call.ints("ends", ()))
        axes, by = call.ints("axes", tuple(range(len(given[0])))), None
    else:
        given = (call.constant_ints(1, "starts") or (), call.constant_ints(2, "ends") or ())
        axes = call.constant_ints(3, "axes") or tuple(range(len(given[0])))
        by = call.constant_ints(4, "steps")
    by = by or (1,) * len(axes)
    if not len(given[0]) == len(given[1]) == len(axes) == len(by) or 0 in by:
        raise call.bad_shape("has starts, ends, axes and steps that do not fit")
    starts, steps, shape = [0] * x.rank, [1] * x.rank, list(x.shape)
    for start, end, which, step in zip(*given, axes, by, strict=True):
        i = call.axis(which, x.rank)
        # ONNX begins at the first element where Python, going back from before it, has none.
        picked = range(x.shape[i])[max(start, -x.shape[i]) : end : step]
        starts[i], steps[i], shape[i] = picked.start if len(picked) else 0, picked.step, len(picked)
    return sliced(x, starts, steps, tuple(shape))


def _split(call: OperatorCall) -> tuple[Tensor, ...]:
    x, count = call.input(0), len(call.outputs)
    along = call.axis(call.integer("axis", 0), x.rank)
    given = call.ints("split", ()) if call.version < 13 else call.constant_ints(1, "split")
    extent = x.shape[along]
    if not given:
        part = ceil(extent / count)
        given = tuple(max(0, min(part, extent - i * part)) for i in range(count))
    if sum(given) != extent or len(given) != count or min(given) < 0:
        raise call.bad_shape(f"splits {extent} into {list(given)} for {count} outputs")
    begins = [sum(given[:i]) for i in range(count)]

    def part_of(begin: int, size: int) -> Tensor:
        starts = [begin if i == along else 0 for i in range(x.rank)]
        shape = (*x.shape[:along], size, *x.shape[along + 1 :])
        return sliced(x, starts, (1,) * x.rank, shape)

    return tuple(part_of(b, n) for b, n in zip(begins, given, strict=True))


def _expand(call: OperatorCall) -> Tensor:
    x, wanted = call.input(0), call.constant_ints(1, "shape")
    if wanted is None:
        raise call.unsupported("lacks its shape")
    shape = broadcast_shape([x.shape, wanted])
    if shape is None:
        raise call.bad_shape(f"does not broadcast to {list(wanted)}")
    return broadcast(x, shape)


def _tile(call: OperatorCall) -> Tensor:
    x, times = call.input(0), call.constant_ints(1, "repeats")
    if times is None or len(times) != x.rank or min(times, default=0) < 0:
        raise call.bad_shape(f"repeats {list(times or ())} times")
    shape = tuple(n * t for n, t in zip(x.shape, times, strict=True))
    return view(x, shape, lambda position: [p % n for p, n in zip(position, x.shape, strict=True)]
                if x.size else position)  # fmt: skip


# --- padding -------------------------------------------------------------------------------------


def padded(x: Tensor, before: Sequence[int], shape: Shape, fill: Expr | float) -> Tensor:
    """Return the tensor in a larger or smaller frame, `before` elements after its begin."""

    def body(position: Position) -> Expr:
        own = [p - b for p, b in zip(position, before, strict=True)]
        inside = [t for p, n in zip(own, x.shape, strict=True) for t in (p, n - 1 - p)]
        return where(inside, LoadExpr(x, choose(inside, flatten(own, x.shape), Index())), fill)

    return computed(shape, x.dtype, body if x.size else lambda _: fill)


def _source(mode: str, p: Index, extent: int) -> Index:
    """Return where a position outside of an axis is read; the furthest are clipped."""
    if mode == "wrap":
        return (p + extent * max(0, ceil(-p.low / extent))) % extent
    if mode == "reflect" and extent > 1:
        period = 2 * extent - 2
        inside = (p + period * max(0, ceil(-p.low / period))) % period
        return choose([extent - 1 - inside], inside, period - inside)
    return choose([p], choose([extent - 1 - p], p, Index(extent - 1)), Index())


def _pad(call: OperatorCall) -> Tensor:
    x, mode = call.input(0), call.text("mode", "constant")
    if call.version < 11:
        pads: Sequence[int] = call.ints("pads", call.ints("paddings", ()))
        fill: Expr | float = call.number("value", 0.0)
        axes = tuple(range(x.rank))
    else:
        pads = call.constant_ints(1, "pads") or ()
        given = call.optional(2)
        fill = 0.0 if given is None else at(reshape(given, (1,)), (Index(),))
        named = call.constant_ints(3, "axes")
        axes = tuple(range(x.rank)) if named is None else tuple(
            call.axis(a, x.rank) for a in named)  # fmt: skip
    if len(pads) != 2 * len(axes):
        raise call.bad_shape(f"has {len(pads)} pads instead of {2 * len(axes)}")
    before, shape = [0] * x.rank, list(x.shape)
    for i, a in enumerate(axes):
        before[a], shape[a] = pads[i], shape[a] + pads[i] + pads[i + len(axes)]
    if min(shape, default=0) < 0:
        raise call.bad_shape(f"has pads {list(pads)}, which leave less than nothing")
    if mode == "constant":
        return padded(x, before, tuple(shape), fill)
    if mode not in {"edge", "reflect", "wrap"}:
        raise call.unsupported(f"has mode={mode!r}, which does not exist")
    after = [m - n - b for n, m, b in zip(x.shape, shape, before, strict=True)]
    cut, rest = ([max(-b, 0) for b in side] for side in (before, after))
    left = tuple(n - b - e for n, b, e in zip(x.shape, cut, rest, strict=True))
    if min(left, default=1) < 1:
        raise call.unsupported("pads nothing with its own elements")
    inner = x if left == x.shape else sliced(x, cut, (1,) * x.rank, left)
    return view(inner, tuple(shape), lambda position: [
        _source(mode, p - max(b, 0), n) for p, b, n in zip(position, before, left, strict=True)
    ])  # fmt: skip


def _center_crop_pad(call: OperatorCall) -> Tensor:
    x, wanted = call.input(0), call.constant_ints(1, "shape") or ()
    axes = [call.axis(a, x.rank) for a in call.ints("axes", range(x.rank))]
    if len(axes) != len(wanted):
        raise call.bad_shape(f"has {len(wanted)} extents for {len(axes)} axes")
    before, shape = [0] * x.rank, list(x.shape)
    for a, extent in zip(axes, wanted, strict=True):
        over = extent - shape[a]
        before[a], shape[a] = (over // 2 if over >= 0 else -(-over // 2)), extent
    return padded(x, before, tuple(shape), 0.0)


# --- blocks --------------------------------------------------------------------------------------


def _depth_to_space(call: OperatorCall) -> Tensor:
    x, b = call.input(0), call.integer("blocksize", 0)
    if x.rank != 4 or b < 1 or x.shape[1] % (b * b):
        raise call.bad_shape(f"has blocks of {b} by {b}")
    n, c, h, w = x.shape
    rest = c // (b * b)
    if call.text("mode", "DCR") == "CRD":
        blocks = transpose(reshape(x, (n, rest, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    else:
        blocks = transpose(reshape(x, (n, b, b, rest, h, w)), (0, 3, 4, 1, 5, 2))
    return reshape(blocks, (n, rest, h * b, w * b))


def _space_to_depth(call: OperatorCall) -> Tensor:
    x, b = call.input(0), call.integer("blocksize", 0)
    if x.rank != 4 or b < 1 or x.shape[2] % b or x.shape[3] % b:
        raise call.bad_shape(f"has blocks of {b} by {b}")
    n, c, h, w = x.shape
    order = (0, 1, 3, 5, 2, 4) if call.text("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    blocks = transpose(reshape(x, (n, c, h // b, b, w // b, b)), order)
    return reshape(blocks, (n, c * b * b, h // b, w // b))


# --- made of positions ---------------------------------------------------------------------------


def _trilu(call: OperatorCall) -> Tensor:
    x, given = call.input(0), call.constant_ints(1, "diagonal")
    if x.rank < 2:
        raise call.bad_shape("needs matrices")
    k = given[0] if given else 0
    is_upper = bool(call.integer("upper", 1))

    def body(position: Position) -> Expr:
        above = position[-1] - position[-2] - k
        return where([above if is_upper else -above], at(x, position), 0.0)

    return computed(x.shape, x.dtype, body)


def _eye_like(call: OperatorCall) -> Tensor:
    x, k = call.input(0), call.integer("k", 0)
    dtype = ELEMENT_TYPES.get(call.integer("dtype", 0)) if "dtype" in call.attrs else x.dtype
    if dtype is None:
        raise call.unsupported("has a dtype that kernels lack")
    if x.rank != 2:
        raise call.bad_shape("needs a matrix")

    def body(position: Position) -> Expr:
        ahead = position[1] - position[0] - k
        return where([ahead, -ahead], 1.0, 0.0)

    return computed(x.shape, dtype, body)


def _filled(call: OperatorCall) -> Tensor:
    shape = call.constant_ints(0, "shape")
    if shape is None or min(shape, default=0) < 0:
        raise call.bad_shape(f"has the shape {list(shape or ())}")
    value = call.attrs.get("value")
    number = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    name = number.dtype.name
    if name not in (*FLOATS, *ANY):
        raise call.unsupported(f"gives {name}")
    if not np.isfinite(number[0]):  # kernels have no text for it
        return broadcast(constant(number[:1].reshape(())), shape)
    return computed(shape, name, lambda _: Number(float(number[0])))


def _range(call: OperatorCall) -> Tensor:
    parts = [call.constant(i, what) for i, what in enumerate(("start", "limit", "delta"))]
    start, limit, delta = (np.asarray(p).reshape(()) for p in parts)
    if max(abs(float(n)) for n in (start, limit, delta)) > EXACT and start.dtype.kind != "f":
        raise call.unsupported(f"counts beyond {EXACT}")
    if not delta:
        raise call.unsupported("has a step of 0")
    count = max(0, ceil((float(limit) - float(start)) / float(delta)))
    if start.dtype.name not in (*FLOATS, *INTEGERS):
        raise call.unsupported(f"counts in {start.dtype.name}")
    result = computed(
        (count,), start.dtype.name,
        lambda position: Place(position[0]) * float(delta) + float(start),
    )  # fmt: skip
    result.span = min(float(start), float(limit)), max(float(start), float(limit))
    return result


OPERATORS: tuple[Operator, ...] = (
    Operator("Slice", _slice, parameters=(1, 2, 3, 4), moves=True, cuts=True,
             remark="with constant bounds"),
    Operator("Split", _split, parameters=(1,), moves=True, remark="with constant sizes"),
    Operator("Expand", _expand, parameters=(1,), moves=True, facts=GROWS,
             remark="with a constant shape"),
    Operator("Tile", _tile, parameters=(1,), moves=True, facts=GROWS,
             remark="with constant repeats"),
    Operator("Pad", _pad, parameters=(1, 3), moves=True, facts=GROWS,
             remark="with constant pads"),
    Operator("CenterCropPad", _center_crop_pad, parameters=(1,), moves=True, facts=GROWS,
             remark="with a constant shape"),
    Operator("DepthToSpace", _depth_to_space, moves=True),
    Operator("SpaceToDepth", _space_to_depth, moves=True),
    Operator("Trilu", _trilu, parameters=(1,), moves=True, remark="with a constant diagonal"),
    Operator("EyeLike", _eye_like, moves=True, facts=GROWS),
    Operator("ConstantOfShape", _filled, parameters=(0,), moves=True, facts=GROWS,
             remark="with a constant shape"),
    Operator("Range", _range, parameters=(0, 1, 2), moves=True, facts=GROWS,
             remark="with constant bounds"),
)  # fmt: skip
