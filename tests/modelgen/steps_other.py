"""Steps that move elements, or compute integers and truth values."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto

from modelgen.case import Builder
from modelgen.meanings import Array, CannotError
from modelgen.steps_float import broadcast, tamed

INT64, INT32, FLOAT, BOOL = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT,
                             TensorProto.BOOL)  # fmt: skip


def reshape(b: Builder, x: str) -> str:
    left, target = prod(b.shape(x)), list[int]()
    while left > 1 and len(target) < 3:
        target.append(b.pick(*(d for d in range(1, min(left, 40) + 1) if left % d == 0)))
        left //= target[-1]
    target.insert(b.between(0, len(target)), left)
    if b.chance(0.3):
        target[b.between(0, len(target) - 1)] = -1
    return b.node("Reshape", [x, b.ints(*target)])


def by_shape(b: Builder, x: str) -> str:
    """Flatten as exporters write it: the batch from the shape, the rest as -1."""
    first = b.node("Gather", [b.node("Shape", [x]), b.ints(0)], axis=0)
    return b.node("Reshape", [x, b.node("Concat", [first, b.ints(-1)], axis=0)])


def flatten(b: Builder, x: str) -> str:
    return b.node("Flatten", [x], axis=b.between(0, len(b.shape(x))))


def transpose(b: Builder, x: str) -> str:
    return b.node("Transpose", [x], perm=[int(i) for i in b.rng.permutation(len(b.shape(x)))])


def unsqueeze(b: Builder, x: str) -> str:
    if len(b.shape(x)) > 4:
        raise CannotError("it has enough axes")
    return b.axes("Unsqueeze", x, [b.between(0, len(b.shape(x)))], 13)


def squeeze(b: Builder, x: str) -> str:
    ones = [i for i, n in enumerate(b.shape(x)) if n == 1]
    if not ones:
        raise CannotError("no axis has one element")
    return b.axes("Squeeze", x, [b.pick(*ones)], 13)


def axis_of(b: Builder, x: str, since: int = 11) -> int:
    """Return an axis, counted from the end in some cases."""
    rank = len(b.shape(x))
    if not rank:
        raise CannotError("it is a scalar")
    axis = b.between(0, rank - 1)
    return axis - rank if b.opset >= since and b.chance(0.3) else axis


def concat(b: Builder, x: str) -> str:
    axis, shape = axis_of(b, x), b.shape(x)
    parts = [x]
    for _ in range(b.between(1, 3)):
        other = list(shape)
        other[axis] = b.between(1, 5)
        parts.append(x if b.chance(0.3) else b.put(b.floats(other)))
    order = b.rng.permutation(len(parts))
    return b.node("Concat", [parts[i] for i in order], axis=axis)


def split(b: Builder, x: str) -> str:
    """Split, and join the parts in another order."""
    axis = axis_of(b, x)
    extent = b.shape(x)[axis]
    if extent < 2:
        raise CannotError("there is nothing to split")
    first = b.between(1, extent - 1)
    sizes = [first, extent - first]
    if b.opset >= 13:
        parts = b.many("Split", [x, b.ints(*sizes)], 2, axis=axis)
    else:
        parts = b.many("Split", [x], 2, axis=axis, split=sizes)
    b.case.outputs += [parts[0]] if b.chance(0.2) else []
    return b.node("Concat", parts[::-1], axis=axis)


def slice_(b: Builder, x: str) -> str:
    axis = axis_of(b, x)
    extent = b.shape(x)[axis]
    start = b.between(0, extent - 1)
    if b.opset < 10:
        end = b.pick(b.between(start + 1, extent), 9999)
        return b.node("Slice", [x], axes=[axis % len(b.shape(x))], starts=[start], ends=[end])
    step = b.pick(1, 1, 2, 3, -1, -2)
    end = b.between(start + 1, extent) if step > 0 else b.pick(-(2**62), start - extent - 1)
    return b.node("Slice", [x, *(b.ints(n) for n in (start, end, axis, step))])


def pad(b: Builder, x: str) -> str:
    shape = b.shape(x)
    mode = b.pick("constant", "constant", "reflect", "edge", *(["wrap"] if b.opset >= 19 else []))
    room = [3 if mode in ("constant", "edge") else n - 1 if mode == "reflect" else n for n in shape]
    pads = [b.between(0, min(2, r)) if b.chance(0.6) else 0 for r in (*room, *room)]
    value = float(b.pick(0.0, -1.5, 2.0))
    if b.opset < 11:
        return b.node("Pad", [x], mode=mode, pads=pads, value=value)
    filling = [b.held(np.float32(value))] if mode == "constant" else []
    return b.node("Pad", [x, b.ints(*pads), *filling], mode=mode)


def tile(b: Builder, x: str) -> str:
    return b.node("Tile", [x, b.ints(*(b.pick(1, 1, 2, 3) for _ in b.shape(x)))])


def expand(b: Builder, x: str) -> str:
    b.need(8)
    shape = [n if n > 1 else b.pick(1, 3) for n in b.shape(x)]
    front = [b.between(1, 3)] if len(shape) < 4 and b.chance(0.5) else []
    return b.node("Expand", [x, b.ints(*front, *shape)])


def indices(b: Builder, extent: int, shape: tuple[int, ...]) -> Array:
    """Return places along an axis; counted from its end from operator set 11 on."""
    low = -extent if b.opset >= 11 else 0
    dtype = b.pick(np.int64, np.int32)
    return b.rng.integers(low, extent, shape).astype(dtype)


def gather(b: Builder, x: str) -> str:
    axis = axis_of(b, x)
    shape = b.pick((), (b.between(1, 9),), (2, b.between(1, 4)))
    return b.node("Gather", [x, b.put(indices(b, b.shape(x)[axis], shape))], axis=axis)


def gather_elements(b: Builder, x: str) -> str:
    b.need(11)
    axis, shape = axis_of(b, x), b.shape(x)
    inside = tuple(b.between(1, n) for n in shape)
    chosen = b.put(indices(b, shape[axis], inside))
    return b.node("GatherElements", [x, chosen], axis=axis)


def gather_nd(b: Builder, x: str) -> str:
    b.need(12)
    shape = b.shape(x)
    if not shape:
        raise CannotError("it is a scalar")
    depth = b.between(1, len(shape))
    rows = [b.rng.integers(0, shape[i], (5,)) for i in range(depth)]
    return b.node("GatherND", [x, b.put(np.stack(rows, 1).astype(np.int64))])


def scatter(b: Builder, x: str) -> str:
    b.need(9)
    axis, shape = axis_of(b, x), b.shape(x)
    count = b.between(1, shape[axis])
    inside = list(shape)
    inside[axis] = count
    column = [1] * len(shape)
    column[axis] = count
    # no place twice: which of two wins is not said
    places = b.rng.permutation(shape[axis])[:count].reshape(column)
    chosen = b.put(np.broadcast_to(places, inside).copy().astype(np.int64))
    op = "ScatterElements" if b.opset >= 11 else "Scatter"
    more = {"reduction": "add"} if b.opset >= 16 and b.chance(0.3) else {}
    return b.node(op, [x, chosen, b.put(b.floats(inside))], axis=axis, **more)


def scatter_nd(b: Builder, x: str) -> str:
    b.need(11)
    shape = b.shape(x)
    if not shape:
        raise CannotError("it is a scalar")
    count = b.between(1, shape[0])
    places = b.rng.permutation(shape[0])[:count].reshape(-1, 1).astype(np.int64)
    return b.node("ScatterND", [x, b.put(places), b.put(b.floats((count, *shape[1:])))])


def blocks(b: Builder, x: str) -> str:
    shape = b.shape(x)
    if len(shape) != 4:
        raise CannotError("it is no image")
    if shape[1] % 4 == 0 and b.chance(0.7):
        mode = {"mode": b.pick("DCR", "CRD")} if b.opset >= 11 else {}
        return b.node("DepthToSpace", [x], blocksize=2, **mode)
    if shape[2] % 2 or shape[3] % 2:
        raise CannotError("it has no whole blocks")
    return b.node("SpaceToDepth", [x], blocksize=2)


def reverse_sequence(b: Builder, x: str) -> str:
    b.need(10)
    shape = b.shape(x)
    if len(shape) < 2:
        raise CannotError("it has no sequences")
    time = b.between(0, 1)
    lengths = b.rng.integers(1, shape[time] + 1, shape[1 - time])
    return b.node("ReverseSequence", [x, b.put(lengths)], time_axis=time, batch_axis=1 - time)


def trilu(b: Builder, x: str) -> str:
    b.need(14)
    if len(b.shape(x)) < 2:
        raise CannotError("it is no matrix")
    return b.node("Trilu", [x, b.held(np.array(b.between(-2, 2), np.int64))],
                  upper=b.between(0, 1))  # fmt: skip


def center(b: Builder, x: str) -> str:
    b.need(18)
    return b.node("CenterCropPad", [x, b.ints(*(b.between(1, n + 3) for n in b.shape(x)))])


def dropout(b: Builder, x: str) -> str:
    return b.node("Dropout", [x])


# --- truth values, integers ----------------------------------------------------------------------


def need_exact(b: Builder, x: str) -> None:
    """Raise CannotError where a decision would hang on a rounding."""
    if not b.is_exact(x):
        raise CannotError("its numbers are not exact")


def compared(b: Builder, x: str) -> str:
    """Return truth values about exact numbers."""
    need_exact(b, x)
    op = b.pick("Greater", "Less", *(["Equal"] if b.opset >= 11 else []),
                *(["GreaterOrEqual", "LessOrEqual"] if b.opset >= 12 else []))  # fmt: skip
    return b.node(op, [x, b.put(b.floats(broadcast(b, b.shape(x))))])


def logic(b: Builder, x: str) -> str:
    yes = compared(b, x)
    if b.chance(0.5):
        yes = b.node(b.pick("And", "Or", "Xor"), [yes, compared(b, x)])
    return b.node("Not", [yes]) if b.chance(0.3) else yes


def where(b: Builder, x: str) -> str:
    b.need(9)
    other = b.put(b.floats(broadcast(b, b.shape(x))))
    exact = [v for v in b.case.exact if b.shape(v) == b.shape(x) and b.array(v).dtype.kind == "f"]
    if exact and b.chance(0.7):
        test = logic(b, b.pick(*sorted(exact)))
    else:
        test = b.put(b.rng.random(broadcast(b, b.shape(x))) < 0.5)
    return b.node("Where", [test, x, other] if b.chance(0.5) else [test, other, x])


def as_float(b: Builder, x: str) -> str:
    return b.node("Cast", [x], to=FLOAT)


def masked(b: Builder, x: str) -> str:
    return as_float(b, logic(b, x))


def whole(b: Builder, x: str) -> str:
    """Compute with integers of 32 or 64 bits, and return to floats."""
    need_exact(b, x)
    b.need(9)
    x = tamed(b, x)
    integers = b.node("Cast", [x], to=b.pick(INT32, INT64))
    dtype = b.array(integers).dtype
    for _ in range(b.between(1, 3)):
        op = b.pick("Add", "Sub", "Mul", "Neg", "Abs", "Mod", "Div", "Max", "Min")
        if op in ("Neg", "Abs"):
            integers = b.node(op, [integers])
            continue
        if (op in ("Max", "Min") and b.opset < 12) or (op == "Mod" and b.opset < 10):
            continue
        low = 1 if op in ("Mod", "Div") else -5
        if op == "Div":  # of negative numbers evaluators round in two ways
            integers = b.node("Abs", [integers])
        other = b.rng.integers(low, 7, broadcast(b, b.shape(integers))).astype(dtype)
        integers = b.node(op, [integers, b.put(other)])
    return as_float(b, integers)


def bits(b: Builder, x: str) -> str:
    """Compute with the bits of uint8."""
    need_exact(b, x)
    b.need(18)
    positive = b.node("Abs", [tamed(b, x)])
    codes = b.node("Cast", [b.node("Floor", [positive])], to=TensorProto.UINT8)
    other = b.put(b.rng.integers(0, 255, broadcast(b, b.shape(codes))).astype(np.uint8))
    op = b.pick("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "BitwiseNot")
    if op == "BitwiseNot":
        return as_float(b, b.node(op, [codes]))
    if op == "BitShift":
        by = b.put(b.rng.integers(0, 5, b.shape(codes)).astype(np.uint8))
        return as_float(b, b.node(op, [codes, by], direction=b.pick("LEFT", "RIGHT")))
    return as_float(b, b.node(op, [codes, other]))


def arg(b: Builder, x: str) -> str:
    need_exact(b, x)
    last = {"select_last_index": b.between(0, 1)} if b.opset >= 12 else {}
    return as_float(b, b.node(b.pick("ArgMax", "ArgMin"), [x], axis=axis_of(b, x),
                              keepdims=b.between(0, 1), **last))  # fmt: skip


def top(b: Builder, x: str) -> str:
    need_exact(b, x)
    axis = axis_of(b, x)
    count = b.between(1, b.shape(x)[axis])
    if b.opset < 10:
        values, places = b.many("TopK", [x], 2, axis=axis, k=count)
    else:
        more = {"largest": b.between(0, 1)} if b.opset >= 11 else {}
        values, places = b.many("TopK", [x, b.ints(count)], 2, axis=axis, **more)
    return values if b.chance(0.5) else as_float(b, places)


def one_hot(b: Builder, x: str) -> str:
    b.need(9)
    shape = b.shape(x)[:3]
    depth = b.between(1, 9)
    chosen = b.put(indices(b, depth, shape).astype(np.int64))
    values = b.held(np.array([b.between(-2, 0), b.between(1, 3)], np.float32))
    return b.node("OneHot", [chosen, b.held(np.array(depth, np.int64)), values],
                  axis=b.between(-1, len(shape)))  # fmt: skip


def compress(b: Builder, x: str) -> str:
    b.need(9)
    axis = axis_of(b, x)
    kept = b.rng.random(b.shape(x)[axis]) < 0.6
    kept[b.between(0, len(kept) - 1)] = True
    return b.node("Compress", [x, b.held(kept)], axis=axis)


def hardmax(b: Builder, x: str) -> str:
    need_exact(b, x)
    return b.node("Hardmax", [x], axis=axis_of(b, x))


def made_of_nothing(b: Builder, x: str) -> str:
    """Add what only the shape decides."""
    b.need(11)
    rank = len(b.shape(x))
    kind = b.pick("Range", "EyeLike", "ConstantOfShape")
    if kind == "EyeLike" and rank == 2:
        return b.node("Add", [x, b.node("EyeLike", [x], k=b.between(-1, 1))])
    if kind == "Range" and rank:
        ends = (b.held(np.float32(n)) for n in (0, b.shape(x)[-1] / 2, 0.5))
        return b.node("Add", [x, b.node("Range", ends)])
    return b.node("Add", [x, b.node("ConstantOfShape", [b.node("Shape", [x])])])


def quantised(b: Builder, x: str) -> str:
    """Quantise exact numbers and return."""
    need_exact(b, x)
    b.need(10)
    dtype = b.pick(np.uint8, np.int8)
    axis = axis_of(b, x, 10) if b.opset >= 13 and b.chance(0.5) else None
    count = () if axis is None else (b.shape(x)[axis],)
    scale = b.held(np.exp2(b.rng.integers(-2, 2, count)).astype(np.float32))
    zero = b.held(b.rng.integers(0, 20, count).astype(dtype))
    coded = b.node("QuantizeLinear", [x, scale, zero], axis=axis)
    return b.node("DequantizeLinear", [coded, scale, zero], axis=axis)


def integer_product(b: Builder, x: str) -> str:
    """Multiply a matrix of bytes with one of constants."""
    need_exact(b, x)
    b.need(10)
    flat = b.node("Flatten", [b.node("Abs", [tamed(b, x)])], axis=len(b.shape(x)) - 1)
    scale, zero = b.held(np.float32(0.5)), b.held(np.uint8(b.between(0, 9)))
    coded = b.node("QuantizeLinear", [flat, scale, zero])
    inner = b.shape(coded)[1]
    weights = b.rng.integers(0, 30, (inner, b.between(1, 12))).astype(np.uint8)
    w = b.put(weights)
    if b.chance(0.5):
        return as_float(b, b.node("MatMulInteger", [coded, w, zero, b.held(np.uint8(12))]))
    step = b.held(np.float32(2.0 ** b.between(0, 4)))
    inputs = [coded, scale, zero, w, scale, b.held(np.uint8(12)), step, b.held(np.uint8(128))]
    return b.node("DequantizeLinear", [b.node("QLinearMatMul", inputs), step, inputs[-1]])


def integer_conv(b: Builder, x: str) -> str:
    """Convolve bytes with constants."""
    need_exact(b, x)
    b.need(10)
    shape = b.shape(x)
    if len(shape) != 4:
        raise CannotError("it is no image")
    scale, zero = b.held(np.float32(0.5)), b.held(np.uint8(b.between(0, 9)))
    coded = b.node("QuantizeLinear", [b.node("Abs", [tamed(b, x)]), scale, zero])
    kernel = [min(b.pick(1, 3), n) for n in shape[2:]]
    filters = b.between(1, 20)
    w = b.held(b.rng.integers(-9, 9, (filters, shape[1], *kernel)).astype(np.int8))
    attrs = {"pads": [k // 2 for k in kernel * 2], "strides": [b.pick(1, 2) for _ in kernel]}
    none = b.held(np.int8(0))
    if b.chance(0.4):
        return as_float(b, b.node("ConvInteger", [coded, w, zero, none], **attrs))
    step, middle = b.held(np.float32(2.0 ** b.between(0, 3))), b.held(np.uint8(100))
    inputs = [coded, scale, zero, w, scale, none, step, middle]
    if b.chance(0.5):
        inputs.append(b.held(b.rng.integers(-99, 99, filters).astype(np.int32)))
    return b.node("DequantizeLinear", [b.node("QLinearConv", inputs, **attrs), step, middle])


STEPS = (
    reshape, reshape, by_shape, flatten, transpose, transpose, unsqueeze, squeeze, concat, concat,
    split, slice_, slice_, pad, pad, tile, expand, gather, gather_elements, gather_nd, scatter,
    scatter_nd, blocks, reverse_sequence, trilu, center, dropout, where, where, masked, whole,
    whole, bits, arg, top, one_hot, compress, hardmax, made_of_nothing, quantised,
    integer_product, integer_conv,
)  # fmt: skip
