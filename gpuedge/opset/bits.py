"""Bits of integers, by arithmetic: floats hold them all up to 2^24, on every level.

Those of 32 bits are also computed in two digits (`gpuedge.opset.digits`): what leaves a model, and
what becomes bits or floats again, is made of these; other operators read the floats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gpuedge.core.dtypes import EXACT, INTEGERS
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.digits import BASE, DIGIT_DTYPES, in_digits, of_digits
from gpuedge.opset.elementwise import above, pick
from gpuedge.opset.expr import Expr, apply, lift
from gpuedge.opset.logic import ELEMENT_TYPES, broadcast_map, converted
from gpuedge.opset.operator import Operator
from gpuedge.opset.ranges import largest, limits
from gpuedge.opset.tensor import Tensor, mapped


def both(a: Expr, b: Expr) -> Expr:
    """The bits that both integers have."""
    return apply("and", a, b)


BITWISE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "BitwiseAnd": both,
    "BitwiseOr": lambda a, b: a + b - both(a, b),
    "BitwiseXor": lambda a, b: (a - both(a, b)) + (b - both(a, b)),
}


def _in_digits(tensor: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Return a tensor, and what it is in digits."""
    tensor.digits = of_digits(high, low, tensor.dtype).digits
    return tensor


def _bitwise(formula: Callable[[Expr, Expr], Expr], call: OperatorCall) -> Tensor:
    a, b = call.input(0), call.input(1)
    result = broadcast_map(call, formula, a, b)
    if result.dtype in DIGIT_DTYPES:
        first, second = in_digits(a), in_digits(b)
        _in_digits(result, mapped(formula, first.high, second.high),
                   mapped(formula, first.low, second.low))  # fmt: skip
    # no more bits than the operands have
    size = max(largest(a), largest(b), 1.0)
    most = 2.0 ** int(np.ceil(np.log2(size)))
    result.span = (-most, most)
    return result


def _bitwise_not(call: OperatorCall) -> Tensor:
    x = call.input(0)
    ones = float(np.iinfo(x.dtype).max) if x.dtype.startswith("u") else -1.0
    if x.dtype in DIGIT_DTYPES:
        digits, top = in_digits(x), -1.0 if ones < 0 else BASE - 1
        high = mapped(lambda v: top - v, digits.high)
        low = mapped(lambda v: BASE - 1 - v, digits.low)
        whole = of_digits(high, low, x.dtype)
        return whole if ones > 0 else _in_digits(mapped(lambda v: ones - v, x), high, low)
    if ones > EXACT:
        raise call.unsupported(f"turns all bits of {x.dtype} round, which gives more than {EXACT}")
    return mapped(lambda v: ones - v, x)


def _power(base: float, shift: Expr) -> Expr:
    """Two, or a half, to a whole number from 0 to 63, by its bits: exact, unlike exp2."""
    result, left = lift(1.0), shift
    for bit in range(6):
        half = apply("floor", left * 0.5)
        result = pick(above(left - 2.0 * half, 0.5), result * base**2**bit, result)
        left = half
    return result


def _bit_shift(call: OperatorCall) -> Tensor:
    """Multiply or divide by a power of two; beyond the width nothing but the sign is left.

    A shift leaves as many significant bits as there were, so float32 holds it, and what wraps.
    """
    a, b = call.input(0), call.input(1)
    width, to_left = np.iinfo(a.dtype).bits, call.text("direction", "") == "LEFT"
    low, count = limits(a.dtype)[0], 2.0**width

    def shifted(a: Expr, b: Expr) -> Expr:
        valid = (1.0 - above(0.0, b)) * above(float(width), b)
        by = apply("min", apply("max", b, 0.0), width - 1.0)
        if not to_left:
            rest = apply("floor", a * _power(0.5, by))
            return pick(valid, rest, pick(above(0.0, a), -1.0, 0.0))
        whole = a * _power(2.0, by)
        return pick(valid, whole - count * apply("floor", (whole - low) * (1 / count)), 0.0)

    result = broadcast_map(call, shifted, a, b)
    result.span = limits(a.dtype) if to_left else (-largest(a), largest(a))
    if a.dtype not in DIGIT_DTYPES:
        return result
    x, shift = in_digits(a), in_digits(b).rounded
    shifting = partial(_left, is_signed=low < 0) if to_left else _right
    high, rest = (
        broadcast_map(call, lambda h, v, s, i=i: shifting(h, v, s)[i], x.high, x.low, shift)
        for i in (0, 1)
    )
    return _in_digits(result, high, rest)


def _split(digit: Expr, by: Expr) -> tuple[Expr, Expr]:
    """Return how often a digit has 2^`by`, and the rest.

    Compilers may add in another order (Mesa 22.3 does), so nothing here ever leaves 2^24, and a
    `floor` stands between what is subtracted and what follows.
    """
    times = apply("floor", digit * _power(0.5, by))
    return times, apply("floor", digit - times * _power(2.0, by))


def _steps(shift: Expr) -> tuple[Expr, Expr, Expr]:
    """Return whether a shift is one of 0 to 31, whether it is beyond 15, and what remains."""
    valid = (1.0 - above(0.0, shift)) * above(32.0, shift)
    by = apply("min", apply("max", shift, 0.0), 31.0)
    far = above(by, 15.5)
    return valid, far, by - 16.0 * far


def _left(high: Expr, low: Expr, shift: Expr, *, is_signed: bool) -> tuple[Expr, Expr]:
    """Return digits shifted to the left: of each only what stays has to be multiplied."""
    valid, far, by = _steps(shift)
    over, low = _split(low, 16.0 - by)
    low = low * _power(2.0, by)
    high = pick(far, low, _split(high, 16.0 - by)[1] * _power(2.0, by) + over)
    if is_signed:
        high = high - BASE * above(high, BASE / 2 - 0.5)
    return pick(valid, high, 0.0), pick(valid, pick(far, 0.0, low), 0.0)


def _right(high: Expr, low: Expr, shift: Expr) -> tuple[Expr, Expr]:
    """Return digits shifted to the right, with the sign that they have."""
    valid, far, by = _steps(shift)
    sign = above(0.0, high)
    top, rest = _split(high, by)
    low = _split(low, by)[0] + rest * _power(2.0, 16.0 - by)
    low = pick(far, top + BASE * sign, low)
    return pick(valid, pick(far, -sign, top), -sign), pick(valid, low, sign * (BASE - 1))


def _bit_cast(call: OperatorCall) -> Tensor:
    """Read integers with another sign; kernels have no bits of floats."""
    x, wanted = call.input(0), ELEMENT_TYPES.get(call.integer("to", 0), "")
    sizes = {name: np.dtype(name).itemsize for name in ("bool", *INTEGERS)}
    if x.dtype == wanted:
        return mapped(lambda v: v, x)
    if sizes.get(x.dtype) != sizes.get(wanted) or wanted in ("", "bool", "int64", "uint64"):
        raise call.unsupported(f"reads the bits of {x.dtype} as {wanted or 'another dtype'}")
    if wanted not in DIGIT_DTYPES:
        return converted(call, x, wanted)
    digits = in_digits(x)
    if wanted == "uint32":
        high = mapped(lambda h: pick(above(0.0, h), h + BASE, h), digits.high)
    else:
        high = mapped(lambda h: pick(above(BASE / 2, h), h, h - BASE), digits.high)
    return of_digits(high, digits.low, wanted)


OPERATORS: tuple[Operator, ...] = (
    *(Operator(name, partial(_bitwise, formula), dtypes=INTEGERS)
      for name, formula in BITWISE.items()),
    Operator("BitwiseNot", _bitwise_not, dtypes=INTEGERS),
    Operator("BitCast", _bit_cast, moves=True, dtypes=INTEGERS,
             remark="of integers of up to 32 bits"),
    Operator("BitShift", _bit_shift, dtypes=INTEGERS),
)  # fmt: skip
