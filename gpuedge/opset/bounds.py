"""Running error analysis: how far float32 on a GPU may be from the exact value, step by step.

Every operation of `Num` adds the error that the Vulkan specification allows it ("Precision and
Operation of SPIR-V Instructions"; the GLSL ES 3.10 specification, section 4.5.1, and WGSL give the
same figures), with sums and products rounded to nearest. Applied to the formulas in
``docs/numerics.md`` it gives the bounds of composed functions. Errors of the operands, such as
those of a coarser storage, are carried along.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

U = 2.0**-24
"""Half a unit in the last place of float32, relative: the error of one rounding to nearest."""
ULP = 2.0**-23
"""A unit in the last place of float32, relative."""
MOST = 2.0**128 * (1 - U)
"""The largest finite float32."""
TINY = 2.0**-126
"""Results below this may be flushed to zero."""

HALF_U = 2.0**-11
"""The error of one rounding to float16 to nearest, relative."""
HALF_TINY = 2.0**-14
"""The smallest normal float16: what is smaller may become zero."""
HALF_MOST = 65504.0
"""The largest finite float16."""


@dataclass(frozen=True, eq=False)
class Num:
    """Exact values in float64, and a bound on how far a computation may be from each of them.

    Unpacks into (`v`, `e`). A sum also keeps how many terms it has, the sum of their magnitudes and
    that of their bounds, because a compiler may add three or more in another order (WGSL, section
    "Reassociation and Fusion"; GLSL ES without `precise`). `likely` is less than the bound where
    many roundings add up to it, which are as likely to cancel: the root of their number stands in
    place of it (Higham and Mary, 2019). None is the bound itself. No operation carries it on.
    """

    v: Array
    e: Array
    terms: tuple[int, Array, Array] | None = field(default=None, kw_only=True)
    likely: Array | None = field(default=None, kw_only=True)

    def __iter__(self) -> Iterator[Array]:
        return iter((self.v, self.e))

    @staticmethod
    def of(x: Any) -> Num:
        """Return an operand as it is, or a constant as float32 holds it: exact."""
        if isinstance(x, Num):
            return x
        value = np.asarray(x, np.float64)
        if value.ndim:
            return Num(value, np.zeros_like(value))
        return Num(value, np.abs(value - value.astype(np.float32)))

    def rounded(self, v: Array, e: Array, relative: Any = U) -> Num:
        """Return `v` computed with the operands' error `e` and a relative error of its own."""
        return Num(v, e + relative * (np.abs(v) + e) + TINY)

    def __neg__(self) -> Num:
        return Num(-self.v, self.e, terms=self.terms)

    def __add__(self, other: Any) -> Num:
        """Sum of n terms in any order: n - 1 roundings, the last of the result.

        Each of the others is of a partial sum, which is no larger than all magnitudes together
        (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2).
        """
        b = Num.of(other)
        (n, size, e), (more, of_b, e_b) = (
            x.terms or (1, np.abs(x.v) + x.e, x.e) for x in (self, b)
        )
        n, size, e = n + more, size + of_b, e + e_b
        total = self.rounded(self.v + b.v, e + (n - 2) * (U * size + TINY))
        return Num(total.v, total.e, terms=(n, size, e))

    def __sub__(self, other: Any) -> Num:
        return self + -Num.of(other)

    def __rsub__(self, other: Any) -> Num:
        return Num.of(other) + -self

    def __mul__(self, other: Any) -> Num:
        b = Num.of(other)
        e = np.abs(self.v) * b.e + np.abs(b.v) * self.e + self.e * b.e
        return self.rounded(self.v * b.v, e)

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Num:
        """Division: 2.5 ULP (Vulkan specification); of what overflows nothing follows."""
        b = Num.of(other)
        q = self.v / b.v
        e = (self.e + np.abs(q) * b.e) / np.maximum(np.abs(b.v) - b.e, TINY)
        return self.rounded(q, np.where(np.abs(q) > MOST, np.inf, e), 2.5 * ULP)

    def __rtruediv__(self, other: Any) -> Num:
        return Num.of(other) / self

    def exp(self) -> Num:
        """Exponential: 3 + 2 |x| ULP (Vulkan specification)."""
        v = np.exp(self.v)
        return self.rounded(v, v * np.expm1(self.e), (3 + 2 * np.abs(self.v)) * ULP)

    def log(self, base: float = math.e) -> Num:
        """Logarithm: 3 ULP, or 2^-21 absolute within [0.5, 2] (Vulkan specification)."""
        v = np.log(self.v) / math.log(base)
        e = -np.log1p(-np.minimum(self.e / self.v, 0.5)) / math.log(base)
        near = (self.v - self.e <= 2) & (self.v + self.e >= 0.5)
        return Num(v, e + np.maximum(np.where(near, 2.0**-21, 0), 3 * ULP * np.abs(v)) + TINY)

    def sqrt(self) -> Num:
        """Square root: 1 / inversesqrt, 2 ULP and a division (Vulkan specification)."""
        v = np.sqrt(self.v)
        # |sqrt(x + e) - sqrt(x)| is e / sqrt(x) at most, and never more than sqrt(e).
        e = np.minimum(self.e / np.maximum(v, TINY), np.sqrt(self.e))
        return self.rounded(v, e, 4.5 * ULP)

    def tanh(self) -> Num:
        """(exp(x) - exp(-x)) / (exp(x) + exp(-x)) (Vulkan specification), x limited to +-15."""
        x = self.clip(-15, 15)
        up, down = x.exp(), (-x).exp()
        return (up - down) / (up + down)

    def clip(self, lo: float, hi: float) -> Num:
        """Limit to [lo, hi]; what lies well outside becomes exact."""
        beyond = (self.v - self.e >= hi) | (self.v + self.e <= lo)
        return Num(np.clip(self.v, lo, hi), np.where(beyond, 0, self.e))

    def abs(self) -> Num:
        """Absolute value: exact."""
        return Num(np.abs(self.v), self.e)


def half(x: Num) -> Num:
    """Round to float16; of what may overflow nothing is known."""
    size = np.abs(x.v) + x.e
    with np.errstate(over="ignore"):
        is_half = (x.v.astype(np.float16) == x.v) & (x.e == 0)
    flushed = np.where(np.abs(x.v) - x.e < HALF_TINY, HALF_TINY, 0.0)
    exact = is_half & ((np.abs(x.v) >= HALF_TINY) | (x.v == 0))
    e = np.where(exact, 0.0, x.e + HALF_U * size + flushed)
    return Num(x.v, np.where(size > HALF_MOST, np.inf, e))


def polynomial(x: Num, coefficients: Sequence[float]) -> Num:
    """Horner's scheme, highest power first."""
    total = Num.of(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def erf(x: Num) -> Num:
    """Abramowitz and Stegun 7.1.26, whose own error is 1.5e-7."""
    a = x.abs()
    t = 1.0 / (0.3275911 * a + 1.0)
    c = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    inner = (a * a).clip(0, 80)
    value = 1.0 - polynomial(t, c) * t * (-inner).exp()
    return Num(np.sign(x.v) * value.v, value.e + 1.5e-7)


def sine(x: Num, phase: float) -> Num:
    """sin(x + phase) by subtracting multiples of pi in three parts, then a Taylor polynomial."""
    k = np.abs(x.v) / math.pi + 1
    r = math.pi / 2 + 1e-3
    parts = (3.140625, 0.0009670257568359375, 0.00000062783295730)
    left_over = abs(math.pi - sum(parts))
    reduction = k * (left_over + 2 * U * parts[2]) + 3 * U * r
    next_term = r**13 / math.factorial(13)
    return Num(np.sin(x.v + phase), x.e + reduction + next_term + 10 * U)


def power(a: Num, b: Num) -> Num:
    """exp2(b log2 |a|), with the cases of zero and one exact (Vulkan specification, pow)."""
    with np.errstate(all="ignore"):
        value = np.power(a.v, b.v)
        size = Num(np.maximum(np.abs(a.v), TINY), a.e).log(2.0) * b
        exact = np.exp2(size.v)
        own = (3 + 2 * np.abs(size.v)) * ULP
        e = exact * np.expm1(size.e * math.log(2)) + own * exact + TINY
    e = np.where((b.v == 0) | (a.v == 0), 0, e)
    is_open = (a.v == 0) & (b.v != 0) & (np.abs(b.v) < TINY)  # 1 where `b` is flushed to zero
    return Num(value, np.where(is_open, np.inf, e))
