"""Quantised numbers: to integers and back, and products and convolutions of such.

Sums of products are computed in float32, which is exact as long as no sum can exceed 2^24; what
might is refused by name. Rounding is half to even, and the zero point is added after it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from gpuedge.core.dtypes import BYTES, EXACT, SMALL
from gpuedge.opset import conv
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.expr import Expr, apply
from gpuedge.opset.index import Index
from gpuedge.opset.logic import ELEMENT_TYPES
from gpuedge.opset.matmul import multiplied
from gpuedge.opset.operator import FLOATS, Operator
from gpuedge.opset.ranges import limits, span
from gpuedge.opset.tensor import Tensor, constant, mapped, reshape, retyped, view


def _along(parameter: Tensor, x: Tensor, call: OperatorCall) -> Tensor:
    """Return a scale or zero point as it broadcasts: of all, along an axis, or of blocks."""
    if parameter.size == 1:
        return reshape(parameter, ())
    axis = call.axis(call.integer("axis", 1), x.rank)
    if parameter.rank == 1:
        if parameter.size != x.shape[axis]:
            raise call.bad_shape(f"has {parameter.size} scales for {x.shape[axis]} along its axis")
        return reshape(parameter, (parameter.size, *(1,) * (x.rank - axis - 1)))
    size = call.integer("block_size", 0)
    if parameter.rank != x.rank or size < 1 or -(-x.shape[axis] // size) != parameter.shape[axis]:
        raise call.bad_shape(f"has scales that do not fit blocks of {size}")

    def to(position: tuple[Index, ...]) -> list[Index]:
        return [*position[:axis], position[axis] // size, *position[axis + 1 :]]

    return view(parameter, x.shape, to)


def _requantised(value: Expr, zero: Expr | float, dtype: str) -> Expr:
    low, high = limits(dtype)
    return apply("min", apply("max", apply("round", value) + zero, low), high)


def _quantize(call: OperatorCall) -> Tensor:
    x, scale = call.input(0), _along(call.input(1), call.input(0), call)
    zero = call.optional(2)
    stated = ELEMENT_TYPES.get(call.integer("output_dtype", 0))
    dtype = stated or (zero.dtype if zero is not None else "uint8")
    if dtype not in SMALL:
        raise call.unsupported(f"gives {dtype}; only {', '.join(SMALL)} are known")
    if zero is None:
        return mapped(lambda x, s: _requantised(x / s, 0.0, dtype), x, scale, dtype=dtype)
    return mapped(lambda x, s, z: _requantised(x / s, z, dtype), x, scale, _along(zero, x, call),
                  dtype=dtype)  # fmt: skip


def _dequantize(call: OperatorCall) -> Tensor:
    x, scale, zero = call.input(0), call.input(1), call.optional(2)
    if scale.dtype not in FLOATS:
        raise call.unsupported(f"has a scale of {scale.dtype}")
    factor = _along(scale, x, call)
    if zero is None:
        return mapped(lambda x, s: x * s, x, factor, dtype=scale.dtype)
    return mapped(lambda x, s, z: (x - z) * s, x, factor, _along(zero, x, call), dtype=scale.dtype)


# --- products ------------------------------------------------------------------------------------


def _centred(x: Tensor, zero: Tensor | None, column: tuple[int, ...] = ()) -> tuple[Tensor, float]:
    """Return integers without their zero point, as floats, and how large they may be."""
    low, high = span(x)
    if x.array is not None and (zero is None or zero.array is not None):
        away = 0.0 if zero is None or zero.array is None else zero.array.astype(np.float32)
        known = x.array - (away if np.size(away) == 1 else np.reshape(away, column))
        return constant(known.astype(np.float32)), float(np.abs(known).max(initial=0.0))
    if zero is None:
        return retyped(x, "float32"), max(-low, high)
    shape = column if zero.size > 1 else ()
    least, most = span(zero)
    made = mapped(lambda v, z: v - z, x, reshape(zero, shape), dtype="float32")
    return made, max(high - least, most - low)


def _check_sums(call: OperatorCall, terms: int, a: float, b: float) -> None:
    if terms * a * b > EXACT:
        raise call.unsupported(
            f"adds {terms} products of up to {a:.0f} by {b:.0f}, more than float32 holds exactly"
        )


def _matmul(call: OperatorCall) -> Tensor:
    """Return the product of integers: MatMulInteger, or the inner part of QLinearMatMul."""
    is_integer = call.op == "MatMulInteger"
    first, second = (call.input(0), call.input(1 if is_integer else 3))
    rows, columns = call.optional(2), call.optional(3 if is_integer else 5)
    a, most_a = _centred(first, rows, () if rows is None else (rows.size, 1))
    b, most_b = _centred(second, columns)
    if not a.rank or not b.rank or a.shape[-1] != b.shape[-2 if b.rank > 1 else 0]:
        raise call.bad_shape("has matrices that do not fit")
    _check_sums(call, a.shape[-1], most_a, most_b)
    return multiplied(a, b)


def _matmul_integer(call: OperatorCall) -> Tensor:
    return retyped(_matmul(call), "int32")


def _scaled(
    call: OperatorCall, total: Tensor, scales: tuple[int, int, int], zero: Tensor | None,
    column: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """Return a sum of products in the units of the result."""
    x, w, y = (call.input(i) for i in scales)
    factor = mapped(lambda a, b, c: a * b / c, *(
        reshape(s, column if s.size > 1 else ()) for s in (x, w, y)
    ))  # fmt: skip
    dtype = call.input(0).dtype if zero is None else zero.dtype
    if zero is None:
        return mapped(lambda v, f: _requantised(v * f, 0.0, dtype), total, factor, dtype=dtype)
    return mapped(lambda v, f, z: _requantised(v * f, z, dtype), total, factor,
                  reshape(zero, ()), dtype=dtype)  # fmt: skip


def _qlinear_matmul(call: OperatorCall) -> Tensor:
    total = _matmul(call)
    return _scaled(call, total, (1, 4, 6), call.optional(7), (total.shape[-1],))


def _convolved(call: OperatorCall, w_at: int, zeros: tuple[int, int], bias: int) -> Tensor:
    """Return the convolution of centred integers as floats, with an int32 bias if there is one."""
    x, w = call.input(0), call.input(w_at)
    column = (w.shape[0], *(1,) * (w.rank - 1))
    left, most_x = _centred(x, call.optional(zeros[0]))
    right, most_w = _centred(w, call.optional(zeros[1]), column)
    _check_sums(call, prod(w.shape[1:]), most_x, most_w)
    made = conv.convolution(replace(call, op="Conv", inputs=(left, right), names=("x", "w")))
    added = call.optional(bias)
    if added is None:
        return made
    shape = (w.shape[0], *(1,) * (w.rank - 2))
    return mapped(lambda y, b: y + b, made, reshape(added, shape))


def _conv_integer(call: OperatorCall) -> Tensor:
    return retyped(_convolved(call, 1, (2, 3), len(call.names)), "int32")


def _qlinear_conv(call: OperatorCall) -> Tensor:
    total = _convolved(call, 3, (2, 5), 8)
    column = (total.shape[1], *(1,) * (total.rank - 2))
    return _scaled(call, total, (1, 4, 6), call.optional(7), column)


OPERATORS: tuple[Operator, ...] = (
    Operator("QuantizeLinear", _quantize, dtypes=("int32",), others=(1, 2)),
    Operator("DequantizeLinear", _dequantize, dtypes=(*SMALL, "int32"), others=(1,)),
    Operator("MatMulInteger", _matmul_integer, dtypes=BYTES, others=(1, 2, 3),
             remark="of sums up to 2^24"),
    Operator("QLinearMatMul", _qlinear_matmul, dtypes=BYTES, others=tuple(range(1, 8)),
             remark="of sums up to 2^24"),
    Operator("ConvInteger", _conv_integer, dtypes=BYTES, others=(1, 2, 3),
             remark="of sums up to 2^24"),
    Operator("QLinearConv", _qlinear_conv, dtypes=BYTES, others=tuple(range(1, 9)),
             remark="of sums up to 2^24"),
)  # fmt: skip
