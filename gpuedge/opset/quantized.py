"""Quantised numbers: to integers and back, and products and convolutions of such.

Sums of products are computed in float32, which is exact as long as no sum can exceed 2^24; what
might is summed in two digits (`gpuedge.opset.digits`), exact to 2^31, and rounded once where it
becomes a float. Rounding is half to even, and the zero point is added after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from gpuedge.core.dtypes import BYTES, EXACT, FLOAT8, NIBBLES, SMALL
from gpuedge.opset import conv, deep
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.digits import as_floats, carried, fitting, in_digits, of_parts
from gpuedge.opset.evaluate import evaluate
from gpuedge.opset.expr import Expr, apply, lift
from gpuedge.opset.index import Index
from gpuedge.opset.limits import Limit
from gpuedge.opset.logic import ELEMENT_TYPES
from gpuedge.opset.matmul import multiplied
from gpuedge.opset.operator import FLOATS, Operator
from gpuedge.opset.packed import unpacked
from gpuedge.opset.ranges import Range, largest, limits, span
from gpuedge.opset.tensor import (
    Carry,
    Centred,
    Convolution,
    Product,
    Tensor,
    constant,
    mapped,
    reduced,
    reshape,
    retyped,
    view,
)
from gpuedge.opset.windows import Slide

LARGEST_SUM = 2.0**31
"""Sums must stay below, with the bias; ONNX Runtime adds up in int32, which wraps."""

LARGEST_BIAS = 2**30
"""What a bias that is not constant may be."""

MOST_TERMS = 65_280
"""Most products of one sum whose digits are added up alone: 255 times as many stay below 2^24."""


def _blocks(parameter: Tensor, x: Tensor, call: OperatorCall) -> tuple[int, ...]:
    """Return how many elements share a scale or zero point, along each axis."""
    if parameter.size == 1:
        return x.shape
    axis = call.axis(call.integer("axis", 1), x.rank)
    size = call.integer("block_size", 0)
    if parameter.rank == 1 and not (size and x.rank == 1):
        if parameter.size != x.shape[axis]:
            raise call.bad_shape(f"has {parameter.size} scales for {x.shape[axis]} along its axis")
        return (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    wanted = (*x.shape[:axis], -(-x.shape[axis] // max(size, 1)), *x.shape[axis + 1 :])
    if size < 1 or parameter.shape != wanted:
        raise call.bad_shape(f"has scales that do not fit blocks of {size}")
    return (*(1,) * axis, size, *(1,) * (x.rank - axis - 1))


def _place(
    parameter: Tensor, position: tuple[Index, ...], blocks: tuple[int, ...], axis: int
) -> Sequence[Index]:
    """Return where the scale or zero point of a position is."""
    if parameter.size == 1:
        return (Index(),) * parameter.rank
    found = [p // size for p, size in zip(position, blocks, strict=True)]
    return found if parameter.rank == len(found) else [found[axis]]


def _along(parameter: Tensor, x: Tensor, call: OperatorCall) -> Tensor:
    """Return a scale or zero point as it broadcasts: of all, along an axis, or of blocks."""
    blocks = _blocks(parameter, x, call)
    if parameter.size == 1:
        return reshape(parameter, ())
    axis = call.axis(call.integer("axis", 1), x.rank)
    if parameter.rank == 1 and parameter.size == x.shape[axis]:
        return reshape(parameter, (parameter.size, *(1,) * (x.rank - axis - 1)))
    return view(parameter, x.shape, lambda position: _place(parameter, position, blocks, axis))


def _clamped(steps: Expr, low: float, high: float) -> Expr:
    return apply("min", apply("max", steps, low), high)


def _known_zero(zero: Tensor | None) -> float | None:
    """Return the one zero point of a tensor, 0 where there is none; None if it is not known."""
    if zero is None:
        return 0.0
    if zero.array is None or not zero.size or np.ptp(zero.array.astype(np.float32)):
        return None
    return float(zero.array.flat[0])


def _coded(
    steps: Callable[..., Expr], dtype: str, given: Sequence[Tensor], zero: Tensor | None,
    along: Callable[[Tensor], Tensor] = lambda zero: zero,
) -> Tensor:  # fmt: skip
    """Return whole steps, a formula, and the zero point as a number of a type, which has limits.

    Where the zero point is one known number, the steps are what is computed and kept; what reads
    them as such need not take it away again.
    """
    low, high = limits(dtype)
    known = _known_zero(zero)
    if zero is not None and known is None:
        return mapped(lambda *v: _clamped(steps(*v[:-1]) + v[-1], low, high), *given, along(zero),
                      dtype=dtype)  # fmt: skip
    away = known or 0.0
    centred = mapped(lambda *v: _clamped(steps(*v), low - away, high - away), *given,
                     dtype="float32" if away else dtype)  # fmt: skip
    if not away:
        return centred
    centred.span = (low - away, high - away)
    whole = mapped(lambda v: v + away, centred, dtype=dtype)
    whole.centred = Centred(centred, away)
    return whole


def _steps(x: Expr, scale: Expr, dtype: str) -> Expr:
    """Return how many steps of a scale a number is, as an integer that a type may hold."""
    return apply("steps8" if dtype in BYTES else "steps16", x, scale)


def _quantize(call: OperatorCall) -> Tensor:
    x, scale = call.input(0), _along(call.input(1), call.input(0), call)
    zero = call.optional(2)
    stated = ELEMENT_TYPES.get(call.integer("output_dtype", 0))
    dtype = stated or (zero.dtype if zero is not None else "uint8")
    if dtype not in SMALL:
        raise call.unsupported(f"gives {dtype}; only {', '.join(SMALL)} are known")
    return _coded(lambda v, s: _steps(v, s, dtype), dtype, (x, scale), zero,
                  lambda zero: _along(zero, x, call))  # fmt: skip


def _quantize_dynamically(call: OperatorCall) -> tuple[Tensor, Tensor, Tensor]:
    """Return uint8 numbers with the scale and zero point that their range asks for.

    A range of nothing has the scale 1, as ONNX Runtime has it; the body that ONNX gives divides by
    0 there.
    """
    x = call.input(0)
    if not x.size:
        raise call.unsupported("has no elements")
    least, most = (reduced(extreme, x, range(x.rank), keepdims=False) for extreme in ("min", "max"))
    least = mapped(lambda v: apply("min", v, 0.0), least)

    def scaled(low: Expr, high: Expr) -> Expr:
        step = (apply("max", high, 0.0) - low) / 255.0
        return apply("pick", apply("above", step, 0.0), step, 1.0)

    scale = mapped(scaled, least, most)

    def code(x: Expr, scale: Expr, zero: Expr | float = 0.0) -> Expr:
        return _clamped(_steps(x, scale, "uint8") + zero, *limits("uint8"))

    zero = mapped(lambda v, s: code(0.0 - v, s), least, scale, dtype="uint8")
    y = mapped(code, x, scale, zero, dtype="uint8")
    return y, scale, zero


def dequantized(call: OperatorCall) -> Tensor:
    """Return what DequantizeLinear makes."""
    held, scale, zero = call.input(0), call.input(1), call.optional(2)
    if scale.dtype not in FLOATS:
        raise call.unsupported(f"has a scale of {scale.dtype}")
    blocks = _blocks(scale, held, call)
    if zero is not None:
        _blocks(zero, held, call)
    axis = call.axis(call.integer("axis", 1), held.rank) if scale.size > 1 else 0
    kept = unpacked(held, scale, zero, lambda p, at: _place(p, at, blocks, axis), blocks)
    if kept is not None:
        return kept
    x = as_floats(held)
    factor, away = _along(scale, x, call), _known_zero(zero)
    if away is not None and held.centred is not None and held.centred.zero == away:
        x, away = held.centred.tensor, 0.0
    if zero is None or away == 0.0:
        return mapped(lambda x, s: x * s, x, factor, dtype=scale.dtype)
    return mapped(lambda x, s, z: (x - z) * s, x, factor, _along(zero, x, call), dtype=scale.dtype)


# --- products ------------------------------------------------------------------------------------


def _centred(x: Tensor, zero: Tensor | None, column: tuple[int, ...] = ()) -> tuple[Tensor, Range]:
    """Return integers without their zero point, and between what they lie.

    Constants become int8 where that holds them: they stay bytes on devices.
    """
    low, high = span(x)
    if x.array is not None and (zero is None or zero.array is not None):
        away = 0.0 if zero is None or zero.array is None else zero.array.astype(np.float32)
        known = x.array - (away if np.size(away) == 1 else np.reshape(away, column))
        between = float(known.min(initial=0.0)), float(known.max(initial=0.0))
        least, most = limits("int8")
        is_byte = between[0] >= least and between[1] <= most
        return constant(known.astype(np.int8 if is_byte else np.int16)), between
    known_zero = _known_zero(zero)
    if zero is None or known_zero == 0.0:
        return retyped(x, "float32"), (low, high)
    if x.centred is not None and x.centred.zero == known_zero:
        return x.centred.tensor, (low - known_zero, high - known_zero)
    shape = column if zero.size > 1 else ()
    least, most = span(zero)
    centred = mapped(lambda v, z: v - z, x, reshape(zero, shape), dtype="float32")
    centred.span = (low - most, high - least)
    return centred, centred.span


def _carry(
    call: OperatorCall, terms: int, most: float, factors: tuple[float, float], bias: float = 0.0
) -> Carry | None:
    """Return how sums of up to `most`, and a bias, are kept exactly: None where float32 does."""
    if most + bias <= EXACT:
        return None
    a, b = factors
    if most + bias >= LARGEST_SUM or terms > MOST_TERMS:
        more = f" and a bias of up to {bias:.0f}" if bias else ""
        raise call.unsupported(
            f"adds {terms} products of up to {a:.0f} by {b:.0f}{more}, more than 32 bits hold"
        )
    return Carry(fitting(a * b))


def _size(between: Range) -> float:
    return max(map(abs, between))


def _most(a: Range, b: Tensor, b_most: float, axes: tuple[int, ...], terms: int) -> float:
    """Return how large sums of products along `axes`, in any order, can be.

    By constants, no part of a sum is larger than its positive, or its negative products together.
    """
    if b.array is None:
        return terms * _size(a) * b_most
    low, high = max(0.0, -a[0]), max(0.0, a[1])
    above, below = (
        np.maximum(side, 0).sum(axis=axes, dtype=np.float64)
        for side in (b.array, -b.array.astype(np.int16))
    )
    sums = np.maximum(above * high + below * low, above * low + below * high)
    return float(sums.max(initial=0.0))


def _whole(total: Tensor, most: float) -> Tensor:
    result = retyped(total, "int32")
    result.span = (-most, most)
    return result


def _matmul(call: OperatorCall) -> Tensor:
    """Return the product of integers: MatMulInteger, or the inner part of QLinearMatMul."""
    is_integer = call.op == "MatMulInteger"
    first, second = (call.input(0), call.input(1 if is_integer else 3))
    rows, columns = call.optional(2), call.optional(3 if is_integer else 5)
    a, within_a = _centred(first, rows, () if rows is None else (rows.size, 1))
    a = a if a.array is None else constant(a.array.astype(np.float32))  # its dtype is the sum's
    b, within_b = _centred(second, columns, () if columns is None else (columns.size,))
    if not a.rank or not b.rank or a.shape[-1] != b.shape[-2 if b.rank > 1 else 0]:
        raise call.bad_shape("has matrices that do not fit")
    terms = a.shape[-1]
    most_a, most_b = _size(within_a), _size(within_b)
    most = _most(within_a, b, most_b, (-2 if b.rank > 1 else 0,), terms)
    carry = _carry(call, terms, most, (most_a, most_b))
    if carry is None:
        return _whole(_exact(multiplied(a, b)), most)
    return of_parts(lambda part: multiplied(a, b, replace(carry, part=part)))


def _scaled(
    call: OperatorCall, total: Tensor, scales: tuple[int, int, int], zero: Tensor | None,
    column: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """Return a sum of products in the units of the result."""
    x, w, y = (call.input(i) for i in scales)
    factor = mapped(lambda a, b, c: a * b / c, *(
        reshape(s, column if s.size > 1 else ()) for s in (x, w, y)
    ))  # fmt: skip
    if all(s.array is not None for s in (x, w, y)):  # division differs from device to device
        factor = constant(evaluate([factor], {})[0])
    dtype = call.input(0).dtype if zero is None else zero.dtype
    given = (as_floats(total), factor)
    return _coded(lambda v, f: apply("round", v * f), dtype, given, zero,
                  lambda zero: reshape(zero, ()))  # fmt: skip


def _qlinear_matmul(call: OperatorCall) -> Tensor:
    total = _matmul(call)
    return _scaled(call, total, (1, 4, 6), call.optional(7), (total.shape[-1],))


def _convolved(call: OperatorCall, w_at: int, zeros: tuple[int, int], bias: int) -> Tensor:
    """Return the convolution of centred integers, with an int32 bias if there is one."""
    x, w, added = call.input(0), call.input(w_at), call.optional(bias)
    left, within = _centred(x, call.optional(zeros[0]))
    right, within_w = _centred(w, call.optional(zeros[1]), (w.shape[0], *(1,) * (w.rank - 1)))
    most_x, most_w = _size(within), _size(within_w)
    names = ("x", "w", "" if added is None else "b")
    inner = replace(call, op="Conv", inputs=(left, right, added), names=names)
    slide, group = conv.sliding(inner)
    terms = prod(w.shape[1:])
    most = _most(within, right, most_w, tuple(range(1, w.rank)), terms)
    bias_most = 0.0 if added is None else LARGEST_BIAS if added.array is None else largest(added)
    carry = _carry(call, terms, most, (most_x, most_w), bias_most)
    if carry is None:
        return _whole(_exact(conv.convolution(inner)), most + bias_most)
    if conv.is_direct(slide, right, added):
        source = Convolution(left, right, added, slide.window, group, is_whole=True)
        shape = (x.shape[0], w.shape[0], *slide.out)
        return of_parts(lambda part: Tensor(
            shape, "float32", replace(source, carry=replace(carry, part=part))
        ))  # fmt: skip
    return _in_two_sums(left, right, slide, group, added)


def _exact(total: Tensor) -> Tensor:
    """Note that a product or a convolution is one of integers: no kernel may round."""
    if isinstance(total.source, Convolution | Product):
        total.source = replace(total.source, is_whole=True)
    return total


def _in_two_sums(x: Tensor, w: Tensor, slide: Slide, group: int, bias: Tensor | None) -> Tensor:
    """Return what no kernel of convolutions serves: of each product high and low digit alone."""

    def high(p: Expr) -> Expr:
        return apply("floor", p * (1 / 256))

    def low(p: Expr) -> Expr:
        return p - 256.0 * high(p)

    sums = [deep.convolved(x, w, slide, group, digit) for digit in (high, low)]
    if bias is not None:
        known = in_digits(bias)
        sums += [deep.column(digit, x.rank) for digit in (known.high, known.low)]

    def formula(*values: Expr) -> tuple[Expr, Expr]:
        upper, lower, *rest = values
        bias_high, bias_low = rest or (lift(0.0), lift(0.0))
        return high(upper) + bias_high, 256.0 * low(upper) + lower + bias_low

    return carried(formula, *sums)


def _conv_integer(call: OperatorCall) -> Tensor:
    return _convolved(call, 1, (2, 3), len(call.names))


def _by_filter(call: OperatorCall) -> bool:
    """Tell whether each filter has a zero point of its own, which ONNX Runtime refuses."""
    zero = call.optional(3)
    return zero is not None and zero.shape not in ((), (1,))


def _biases(call: OperatorCall) -> tuple[Limit, ...]:
    """Return the limits of a bias that is not constant: with it, sums stay within 32 bits."""
    bias = call.optional(8)
    if bias is None or bias.array is not None:
        return ()
    return (Limit(8, "biases", (-LARGEST_BIAS,), (LARGEST_BIAS,)),)


def _qlinear_conv(call: OperatorCall) -> Tensor:
    total = _convolved(call, 3, (2, 5), 8)
    column = (total.shape[1], *(1,) * (total.rank - 2))
    return _scaled(call, total, (1, 4, 6), call.optional(7), column)


def _is_of_nothing(call: OperatorCall) -> bool:
    """Tell of products of no numbers: ONNX Runtime (seen with 1.32.0) leaves these as they were."""
    return call.input(0).shape[-1:] == (0,)


OPERATORS: tuple[Operator, ...] = (
    Operator("QuantizeLinear", _quantize, dtypes=("int32",), others=(1, 2), is_quantised=True),
    Operator("DynamicQuantizeLinear", _quantize_dynamically, is_quantised=True),
    Operator("DequantizeLinear", dequantized, dtypes=(*SMALL, *NIBBLES, *FLOAT8, "int32"),
             others=(1,)),
    Operator("MatMulInteger", _matmul, dtypes=BYTES, others=(1, 2, 3),
             remark="of sums up to 2^31", is_quantised=True, differs=_is_of_nothing),
    Operator("QLinearMatMul", _qlinear_matmul, dtypes=BYTES, others=tuple(range(1, 8)),
             remark="of sums up to 2^31", is_quantised=True, differs=_is_of_nothing),
    Operator("ConvInteger", _conv_integer, dtypes=BYTES, others=(1, 2, 3),
             remark="of sums up to 2^31", is_quantised=True, differs=_by_filter),
    Operator("QLinearConv", _qlinear_conv, dtypes=BYTES, others=tuple(range(1, 9)),
             remark="of sums up to 2^31", is_quantised=True, limits=_biases),
)  # fmt: skip
