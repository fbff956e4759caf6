"""The few functions a decision needs, with the same bits on every machine.

The exponential, the logarithm and the error function of C libraries differ in their last bits from
one to the next, so a decision replayed elsewhere could fall on the other side of a tie. Here they
are made of IEEE additions, subtractions, multiplications and divisions in a fixed order, of
`frexp` and `ldexp` (which only move the binary point), and of whole numbers.

Errors, against correctly rounded values: `exp` and `ln` within 1e-15 relative (`ln` near 1: of its
result), `phi` within 1e-14 absolute and 1e-10 relative down to -8, `quantile` within 1e-12.
"""

from __future__ import annotations

from math import frexp, isqrt, ldexp

LN2_HIGH = 762123384785 / 2**40
LN2_LOW = 7.371002565167799e-13
"""ln 2 in two parts: the first has 40 bits, so that its product with an exponent is exact."""

PER_LN2 = 1.4426950408889634
ROOT_HALF = 0.7071067811865476
PER_ROOT_2PI = 0.3989422804014327
LARGEST = 700.0
"""Arguments of `exp` beyond this, either way, are taken as this: a latency ratio never gets there,
and numbers near the ends of the range would lose bits."""

STEPS = 8
"""Grid points per unit in the table of the normal distribution."""

END = 8.5
"""Beyond this the normal distribution counts as 0 or 1; it is within 1e-17 of them."""


def exp(x: float) -> float:
    """Return e to the power `x`, which is clamped to +-`LARGEST`."""
    x = LARGEST if x > LARGEST else -LARGEST if x < -LARGEST else x
    n = int(x * PER_LN2 + (0.5 if x >= 0 else -0.5))
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    # The Taylor series: at most 0.347 ** 14 / 14! = 4e-18 is cut off.
    s = 1 + r * (1 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r * (
        1 / 5040 + r * (1 / 40320 + r * (1 / 362880 + r * (1 / 3628800 + r * (1 / 39916800 + r * (
            1 / 479001600 + r / 6227020800))))))))))))  # fmt: skip
    return ldexp(s, n)


def ln(x: float) -> float:
    """Return the natural logarithm of a positive number.

    Raises
    ------
    ValueError
        `x` is not above zero.
    """
    if not x > 0:
        raise ValueError(f"ln needs a number above zero, not {x!r}")
    m, n = frexp(x)
    if m < ROOT_HALF:
        m, n = m + m, n - 1
    s = (m - 1) / (m + 1)
    z = s * s
    # 2 artanh(s): |s| <= 0.1716, so at most 7e-19 of the result is cut off.
    t = z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * (1 / 13 + z * (
        1 / 15 + z * (1 / 17 + z * (1 / 19 + z * (1 / 21 + z / 23))))))))))  # fmt: skip
    return n * LN2_HIGH + (2 * s + (2 * s * t + n * LN2_LOW))


def root(value: int, scale: int = 10**6) -> float:
    """Return the square root of ``value / scale``, exact to 1e-9, from whole numbers only."""
    return isqrt(value * 10**18 // scale) / 10**9


def density(z: float) -> float:
    """Return the density of the standard normal distribution."""
    return PER_ROOT_2PI * exp(-0.5 * z * z)


def phi(z: float) -> float:
    """Return the probability that a standard normal variable is below `z`."""
    if z <= -END:
        return 0.0
    if z >= END:
        return 1.0
    a = -z if z < 0 else z
    place = int(a * STEPS + 0.5)
    h = a - place / STEPS
    c = _TAIL[place]
    q = c[0] + h * (c[1] + h * (c[2] + h * (c[3] + h * (c[4] + h * (c[5] + h * (c[6] + h * (
        c[7] + h * (c[8] + h * (c[9] + h * c[10])))))))))  # fmt: skip
    return q if z < 0 else 1.0 - q


def quantile(p: float) -> float:
    """Return the `z` with ``phi(z) == p``, for `p` from 1e-6 to 1 - 1e-6.

    Raises
    ------
    ValueError
        `p` is outside that range.
    """
    if not 1e-6 <= p <= 1 - 1e-6:
        raise ValueError(f"quantile needs a probability from 1e-6 to 1 - 1e-6, not {p!r}")
    if p > 0.5:
        return -quantile(1 - p)
    low, high = -5.0, 0.0
    for _ in range(20):  # halving brings it to 5e-6, where Newton's steps converge
        z = (low + high) / 2
        if phi(z) < p:
            low = z
        else:
            high = z
    z = (low + high) / 2
    for _ in range(2):
        z -= (phi(z) - p) / density(z)
    return z


def _series(z: float, tail: float, terms: int) -> list[float]:
    """Return the Taylor coefficients around `z` of the upper tail, whose value there is `tail`.

    The density f has f' = -z f, which gives each coefficient from the two before it.
    """
    before, now = 0.0, density(z)
    made = [tail]
    for n in range(1, terms + 1):
        made.append(-now / n)
        before, now = now, -(z * now + before) / n
    return made


def _table() -> tuple[tuple[float, ...], ...]:
    """Return the Taylor coefficients of the upper tail at every grid point from 0 to `END`.

    It begins at the far end, with the continued fraction of Laplace, and walks towards 0: there
    the tail grows with every step, so errors shrink against it.
    """
    fraction = END
    for n in range(60, 0, -1):
        fraction = END + n / fraction
    tail = density(END) / fraction
    rows = []
    for place in range(round(END * STEPS), -1, -1):
        z = place / STEPS
        rows.append(tuple(_series(z, tail, 10)))
        step, tail = 1.0, 0.0
        for coefficient in _series(z, rows[-1][0], 24):
            tail += coefficient * step
            step *= -1 / STEPS
    return tuple(reversed(rows))


_TAIL = _table()
