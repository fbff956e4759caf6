"""Bits of integers, by arithmetic: floats hold them all up to 2^24, on every level."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gpuedge.core.dtypes import EXACT, INTEGERS
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, pick
from gpuedge.opset.expr import Expr, apply, lift
from gpuedge.opset.logic import broadcast_map
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


def _bitwise(formula: Callable[[Expr, Expr], Expr], call: OperatorCall) -> Tensor:
    a, b = call.input(0), call.input(1)
    made = broadcast_map(call, formula, a, b)
    # no more bits than the operands have
    size = max(largest(a), largest(b), 1.0)
    most = 2.0 ** int(np.ceil(np.log2(size)))
    made.span = (-most, most)
    return made


def _bitwise_not(call: OperatorCall) -> Tensor:
    x = call.input(0)
    ones = float(np.iinfo(x.dtype).max) if x.dtype.startswith("u") else -1.0
    if ones > EXACT:
        raise call.unsupported(f"turns all bits of {x.dtype} round, which gives more than {EXACT}")
    return mapped(lambda v: ones - v, x)


def _power_of_two(shift: Expr) -> Expr:
    """Two to a whole number from 0 to 63, by its bits: exact, unlike exp2."""
    result, left = lift(1.0), shift
    for bit in range(6):
        half = apply("floor", left * 0.5)
        result = pick(above(left - 2.0 * half, 0.5), result * float(2**2**bit), result)
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
        by = _power_of_two(apply("min", apply("max", b, 0.0), width - 1.0))
        if not to_left:
            return pick(valid, apply("floor", a / by), pick(above(0.0, a), -1.0, 0.0))
        whole = a * by
        return pick(valid, whole - count * apply("floor", (whole - low) * (1 / count)), 0.0)

    made = broadcast_map(call, shifted, a, b)
    made.span = limits(a.dtype) if to_left else (-largest(a), largest(a))
    return made


OPERATORS: tuple[Operator, ...] = (
    *(Operator(name, partial(_bitwise, formula), dtypes=INTEGERS)
      for name, formula in BITWISE.items()),
    Operator("BitwiseNot", _bitwise_not, dtypes=INTEGERS),
    Operator("BitShift", _bit_shift, dtypes=INTEGERS),
)  # fmt: skip
