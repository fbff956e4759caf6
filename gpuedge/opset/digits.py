"""Integers of 32 bits in two digits of 16, which float32 holds exactly on every level.

What may leave 2^24 is kept as high * 2^16 + low (`gpuedge.opset.tensor.Digits`): sums of many
products, and whatever bits are asked for. Everything else computes integers as floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpuedge.core.dtypes import EXACT
from gpuedge.opset.expr import Expr, apply
from gpuedge.opset.tensor import (
    Array,
    Constant,
    Digits,
    Given,
    Part,
    Tensor,
    constant,
    mapped,
)

BASE = 65536.0
"""One more than the largest low digit."""

STEP = 4096
"""What sums carry at: see the kernels ``map/conv2d_int`` and ``map/matmul_int``."""

DIGIT_DTYPES = ("int32", "uint32")
"""Integers that may be kept in two digits."""


def part_of(array: Array, part: Part) -> Array:
    """Return integers, or one of their digits, as float32."""
    if part == "whole":
        return array.astype(np.float32)
    wide = array.astype(np.int64)
    return (wide >> 16 if part == "high" else wide & 0xFFFF).astype(np.float32)


def joined(high: Array, low: Array, dtype: str) -> Array:
    """Return the integers that digits stand for; what does not fit wraps."""
    return (high.astype(np.int64) * int(BASE) + low.astype(np.int64)).astype(dtype)


def fitting(highest: float) -> int:
    """Return how many products of that size may be added up between two carries.

    Half of what fits: a compiler that unrolls loops may add before it carries (Mesa 22.3 was seen
    to reorder sums).
    """
    return int((EXACT // 2 - STEP) // max(highest, 1.0))


def in_digits(tensor: Tensor) -> Digits:
    """Return the digits of an integer tensor; those of one that has none follow from its value."""
    if tensor.digits is not None:
        return tensor.digits
    source, is_wide = tensor.source, tensor.dtype in DIGIT_DTYPES
    if isinstance(source, Constant):
        high, low, whole = (constant(part_of(source.array, p)) for p in ("high", "low", "whole"))
        return Digits(high, low, whole)
    if isinstance(source, Given) and is_wide:
        high, low = (
            Tensor(tensor.shape, "float32", replace(source, part=p)) for p in ("high", "low")
        )
        return Digits(high, low, _whole(high, low))
    high = mapped(lambda v: apply("floor", v * (1 / BASE)), tensor, dtype="float32")
    low = mapped(lambda v: v - BASE * apply("floor", v * (1 / BASE)), tensor, dtype="float32")
    return Digits(high, low, mapped(lambda v: v, tensor, dtype="float32"))


def of_digits(high: Tensor, low: Tensor, dtype: str, rounded: Tensor | None = None) -> Tensor:
    """Return the integers that two tensors of digits stand for, kept in digits."""
    tensor = mapped(_value, high, low, dtype=dtype)
    tensor.digits = Digits(high, low, rounded or _whole(high, low))
    return tensor


def as_floats(tensor: Tensor) -> Tensor:
    """Return a tensor to compute floats from: integers in two digits, rounded once to float32."""
    return tensor if tensor.digits is None else tensor.digits.rounded


def _value(high: Expr, low: Expr) -> Expr:
    return high * BASE + low


def _whole(high: Tensor, low: Tensor) -> Tensor:
    return mapped(_value, high, low, dtype="float32")


def carried(formula: Callable[..., tuple[Expr, Expr]], *tensors: Tensor) -> Tensor:
    """Return an int32 tensor from whole numbers `high` and `low`, each below 2^24, of a formula.

    Their sum high * 2^16 + low wraps as int32 does.
    """

    def over(low: Expr) -> Expr:
        return apply("floor", low * (1 / BASE))

    def high_digit(*values: Expr) -> Expr:
        high, low = formula(*values)
        whole = high + over(low)
        return whole - BASE * apply("floor", (whole + BASE / 2) * (1 / BASE))

    def low_digit(*values: Expr) -> Expr:
        low = formula(*values)[1]
        return low - BASE * over(low)

    high = mapped(high_digit, *tensors, dtype="float32")
    return of_digits(high, mapped(low_digit, *tensors, dtype="float32"), "int32")


def of_parts(make: Callable[[Part], Tensor]) -> Tensor:
    """Return the int32 tensor of a sum that is carried; `make` gives the whole or a digit."""
    return of_digits(make("high"), make("low"), "int32", make("whole"))
