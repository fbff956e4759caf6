"""Quantiles, ratios and sample sizes, each with the name of its method; numpy only.

Times are compared as ratios, so what is estimated is a difference of logarithms of medians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
"""Confidence of intervals."""

POWER = 0.95
"""Probability with which an effect is to be found, for sample sizes."""

EXACT = 60
"""Up to so many pairs the distribution of the signed-rank sum is computed, beyond it is normal."""

ROOT_HALF_PI = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, of normal numbers."""

SIGNED_RANK = "Wilcoxon signed-rank test of rounds"
RANK_SUM = "Mann-Whitney U test of rounds"


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile with its interval; a bound is None where there are too few samples for one."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians: its interval, and how it was tested against 1.

    Attributes
    ----------
    value, low, high : float
        The Hodges-Lehmann estimate, and the interval that belongs to the test. The interval is
        unbounded where there are too few samples: 0 and infinity.
    p : float
        Two-sided.
    test : str
        `SIGNED_RANK` or `RANK_SUM`.
    n : int
        Rounds; of `RANK_SUM` those of both sides.
    spread : float
        Standard deviation of the logarithms, of one round.
    """

    value: float
    low: float
    high: float
    p: float
    test: str
    n: int
    spread: float

    @property
    def is_different(self) -> bool:
        """Whether the interval does not hold 1."""
        return not self.low <= 1 <= self.high


def quantile(values: Sequence[float], p: float, level: float = LEVEL) -> Quantile:
    """Return a quantile with the interval between two order statistics.

    The estimate is Hyndman and Fan's type 8 (median-unbiased). The interval holds the quantile of
    any continuous distribution with at least `level`, for the number of samples below it is
    binomial (Conover, Practical Nonparametric Statistics, 3.2; Hahn and Meeker 1991, 5.2). It takes
    samples as independent.

    Parameters
    ----------
    values : sequence of float
        At least one.
    p : float
        Between 0 and 1.
    level : float
        Least confidence.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    n, tail = len(ordered), (1 - level) / 2
    below = np.cumsum(_binomial(n, p))  # of k samples or fewer
    low = int(np.searchsorted(below, tail, side="right")) - 1  # the last k that is rare enough
    high = int(np.searchsorted(below, 1 - tail, side="left")) + 1
    value = float(np.quantile(ordered, p, method="median_unbiased"))
    return Quantile(
        value,
        float(ordered[low]) if low >= 0 else None,
        float(ordered[high - 1]) if high <= n else None,
    )


def _binomial(n: int, p: float) -> Floats:
    """Return the probabilities of 0 to n."""
    logs = np.array([math.lgamma(i + 1) for i in range(n + 1)])
    k = np.arange(n + 1)
    chances: Floats = np.exp(
        logs[n] - logs - logs[::-1] + k * math.log(p) + (n - k) * math.log1p(-p)
    )
    return chances


def paired(differences: Sequence[float], level: float = LEVEL) -> Ratio:
    """Return the ratio that differences of logarithms say, one for each round.

    Wilcoxon's signed-rank test, its distribution computed over all signs (ties share their mean
    rank), and the Hodges-Lehmann estimate with the interval that inverts the test (Hollander, Wolfe
    and Chicken, Nonparametric Statistical Methods, 3.1 to 3.3). A round is the unit because runs
    within one are correlated.
    """
    d = np.asarray(differences, np.float64)
    n = len(d)
    first, second = np.triu_indices(n)
    means = np.sort((d[first] + d[second]) / 2)
    low, high = _bounds(means, _least_rank_sum(n, (1 - level) / 2))
    return Ratio(
        math.exp(float(np.median(means))), low, high, _signed_rank(d[d != 0]), SIGNED_RANK, n,
        deviation(d),
    )  # fmt: skip


def unpaired(before: Sequence[float], after: Sequence[float], level: float = LEVEL) -> Ratio:
    """Return the ratio of `after` to `before`, logarithms of rounds that were not interleaved.

    The Mann-Whitney U test by its normal approximation (corrected for ties and continuity), and the
    Hodges-Lehmann estimate with its interval (Hollander, Wolfe and Chicken, 4.1 to 4.3). It knows
    nothing of what changed between the two measurements.
    """
    a, b = np.asarray(before, np.float64), np.asarray(after, np.float64)
    n = len(a) + len(b)
    apart = np.sort(np.subtract.outer(b, a).ravel())
    _, ties = np.unique(np.concatenate((a, b)), return_counts=True)
    tied = float((ties**3 - ties).sum()) / (n * (n - 1)) if n > 1 else 0.0
    variance = len(apart) / 12 * (n + 1 - tied)
    u = float((apart > 0).sum() + (apart == 0).sum() / 2)
    away = max(0.0, abs(u - len(apart) / 2) - 0.5)
    p = 2 * NormalDist().cdf(-away / math.sqrt(variance)) if variance > 0 else 1.0
    z = NormalDist().inv_cdf(1 - (1 - level) / 2)
    least = len(apart) / 2 - z * math.sqrt(len(apart) * (n + 1) / 12)
    low, high = _bounds(apart, math.floor(least))
    both = math.sqrt((deviation(a) ** 2 + deviation(b) ** 2) / 2)
    return Ratio(math.exp(float(np.median(apart))), low, high, min(1.0, p), RANK_SUM, n, both)


def _bounds(ordered: Floats, rank: int) -> tuple[float, float]:
    """Return the ratios at a rank from either end, from 1; none is below it."""
    if rank < 1:
        return 0.0, math.inf
    return math.exp(float(ordered[rank - 1])), math.exp(float(ordered[-rank]))


FEW = (1.0, 1.0, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)
"""By how many times the median absolute deviation of so many numbers is too small on average."""


def spread(values: Sequence[float] | Floats) -> float:
    """Return the standard deviation as the median absolute deviation says it.

    Outliers, which timings have, do not move it. The factor makes it right of many normal numbers.
    """
    array = np.asarray(values, np.float64)
    return float(np.median(np.abs(array - np.median(array)))) / NormalDist().inv_cdf(0.75)


def deviation(values: Floats) -> float:
    """Return `spread`, right on average of few normal numbers too.

    The factors are those of Croux and Rousseeuw (Computational Statistics 1, 1992).
    """
    n = len(values)
    return spread(values) * (FEW[n] if n < len(FEW) else n / (n - 0.8))


def _rank_sums(doubled: npt.NDArray[np.int64]) -> Floats:
    """Return the probability of each sum of doubled ranks over all signs."""
    chances = np.zeros(int(doubled.sum()) + 1)
    chances[0] = 1.0
    for rank in doubled:
        moved = np.zeros_like(chances)
        moved[rank:] = chances[: len(chances) - rank]
        chances = (chances + moved) / 2
    return chances


def _signed_rank(d: Floats) -> float:
    """Return the two-sided p of differences that are not zero."""
    n = len(d)
    if n == 0:
        return 1.0
    _, place, count = np.unique(np.abs(d), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    doubled = (2 * last - count + 1)[place]  # twice the mean rank
    total, least = int(doubled.sum()), int(min(doubled[d > 0].sum(), doubled[d < 0].sum()))
    if n <= EXACT:
        return min(1.0, 2 * float(_rank_sums(doubled)[: least + 1].sum()))
    away = max(0.0, total / 4 - least / 2 - 0.5)
    deviation = math.sqrt(float((doubled.astype(np.float64) ** 2).sum()) / 16)
    return min(1.0, 2 * NormalDist().cdf(-away / deviation))


def _least_rank_sum(n: int, tail: float) -> int:
    """Return the rank of the mean that bounds the interval: 0 where none does."""
    if n <= EXACT:
        below = np.cumsum(_rank_sums(2 * np.arange(1, n + 1))[::2])
        return int(np.searchsorted(below, tail, side="right"))
    middle, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return max(0, math.floor(middle - NormalDist().inv_cdf(1 - tail) * deviation))


def rounds_needed(
    deviation: float, effect: float, *, level: float = LEVEL, power: float = POWER
) -> int:
    """Return how many rounds find a slow-down by `effect` (0.05: 5 %) with `power`.

    Noether's formula for the signed-rank test (JASA 82, 1987) at normal differences, where its
    efficiency is 3/pi, with Guenther's correction for few of them (American Statistician 35, 1981);
    never fewer than the test needs to reach `level` at all.
    """
    z = NormalDist().inv_cdf(1 - (1 - level) / 2)
    needed = (z + NormalDist().inv_cdf(power)) * deviation / math.log1p(effect)
    rounds = needed**2 * math.pi / 3 + z**2 / 2
    return max(math.ceil(rounds), math.ceil(1 - math.log2(1 - level)))


@lru_cache
def student(p: float, df: int) -> float:
    """Return a quantile of Student's t with a whole number of degrees of freedom, p from 0.5.

    By bisection of the finite series for the distribution (Abramowitz and Stegun, 26.7.3 and
    26.7.4).
    """
    low, high = 0.0, 1.0
    while _student_below(high, df) < p:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_below(middle, df) < p else (low, middle)
    return (low + high) / 2


def _student_below(t: float, df: int) -> float:
    angle = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, 0.0) if df % 2 else (1.0, 0.0)
    for k in range(1 if df % 2 else 0, df - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    inside = 2 / math.pi * (angle + sine * total) if df % 2 else sine * total
    return 0.5 + inside / 2


def as_json(found: Ratio | Quantile) -> dict[str, Any]:
    """Return the fields for JSON, which knows no infinity: an interval without a bound has None."""
    values = {name: getattr(found, name) for name in found.__slots__}
    if values["low"] == 0:
        values["low"] = None
    return {n: None if v == math.inf else v for n, v in values.items()}
