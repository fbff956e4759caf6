"""Quantiles, ratios and sample sizes against scipy, textbooks and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from gpuedge.bench import estimates

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 5, 50, 300, 1500])
def test_intervals_of_quantiles_are_those_of_the_binomial_distribution(n: int, p: float) -> None:
    values = RNG.permutation(np.arange(1.0, n + 1))  # the k-th smallest is k
    found = estimates.quantile(values, p)
    below = stats.binom(n, p)
    low = [k for k in range(1, n + 1) if below.cdf(k - 1) <= 0.025]
    high = [k for k in range(1, n + 1) if below.sf(k - 1) <= 0.025]
    assert found.low == (max(low) if low else None)
    assert found.high == (min(high) if high else None)
    assert found.value == np.quantile(values, p, method="median_unbiased")


def test_intervals_hold_the_quantile_as_often_as_they_say() -> None:
    draws = RNG.lognormal(size=(2000, 60))
    held = 0
    for row in draws:
        found = estimates.quantile(row, 0.9)
        assert found.low is not None
        held += found.low <= math.exp(1.2815515655446004) <= (found.high or math.inf)
    assert 0.94 <= held / 2000 <= 0.99  # at least 95 %, order statistics are discrete


@pytest.mark.parametrize("n", [1, 5, 6, 12, 30, 60])
def test_signed_rank_is_scipys(n: int) -> None:
    d = RNG.normal(0.3, 1, n)
    wanted = stats.wilcoxon(d, method="exact").pvalue
    assert estimates.paired(d).p == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("n", [1, 5, 12])
def test_tied_differences_are_tested_by_all_signs(n: int) -> None:
    d = np.round(RNG.normal(0.3, 1, n) * 2) / 2
    d[::4] = 0.0
    kept = np.abs(d[d != 0])
    ranks = stats.rankdata(kept)
    signs = np.array(list(itertools.product((0, 1), repeat=len(kept))))
    sums, seen = signs @ ranks, float(ranks[d[d != 0] > 0].sum())
    away = np.abs(sums - ranks.sum() / 2) >= abs(seen - ranks.sum() / 2) - 1e-9
    assert estimates.paired(d).p == pytest.approx(float(away.mean()), rel=1e-9)


def test_signed_rank_of_many_is_the_normal_approximation() -> None:
    d = RNG.normal(0.1, 1, 200)
    wanted = stats.wilcoxon(d, method="asymptotic", correction=True).pvalue
    assert estimates.paired(d).p == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("n", [6, 9, 20, 80])
def test_the_interval_of_a_ratio_holds_one_exactly_where_the_test_does_not_reject(n: int) -> None:
    seen = set()
    for _ in range(300):
        found = estimates.paired(RNG.normal(0.5, 1, n))
        if n <= estimates.EXACT or abs(found.p - 0.05) > 0.003:  # continuity, where it is normal
            assert found.is_different == (found.p <= 0.05)
        seen.add(found.is_different)
    assert seen == {True, False} or n == 80


def test_the_interval_is_the_books() -> None:
    # Hollander, Wolfe and Chicken, example 3.1 (Hamilton depression scale): estimate -0.46 and
    # P(-0.786 <= theta <= -0.010) = 0.96
    before = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
    after = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
    found = estimates.paired(np.subtract(after, before))
    assert math.log(found.value) == pytest.approx(-0.46, abs=0.005)
    assert math.log(found.low) == pytest.approx(-0.786, abs=0.001)
    assert math.log(found.high) == pytest.approx(-0.010, abs=0.001)
    assert found.p == pytest.approx(0.039, abs=0.001)


def test_too_few_rounds_bound_nothing() -> None:
    found = estimates.paired([0.1] * 5)
    assert (found.low, found.high, found.is_different) == (0, math.inf, False)
    assert estimates.as_json(found)["low"] is None and estimates.as_json(found)["high"] is None
    assert estimates.paired([0.1, 0.11, 0.12, 0.13, 0.14, 0.15]).is_different


@pytest.mark.parametrize(("n", "m"), [(3, 3), (12, 20), (40, 40)])
def test_rank_sum_is_scipys(n: int, m: int) -> None:
    a, b = np.round(RNG.normal(0, 1, n), 1), np.round(RNG.normal(0.6, 1, m), 1)
    found = estimates.unpaired(a, b)
    wanted = stats.mannwhitneyu(b, a, method="asymptotic").pvalue
    assert found.p == pytest.approx(wanted, rel=1e-9)
    assert found.value == pytest.approx(math.exp(np.median(np.subtract.outer(b, a))))
    assert found.low < found.value < found.high


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 19, 100])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.975, 0.995, 0.9999])
def test_student_is_scipys(df: int, p: float) -> None:
    assert estimates.student(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("deviation", [0.01, 0.03, 0.06])
def test_so_many_rounds_find_the_effect(deviation: float) -> None:
    n, trials = estimates.rounds_needed(deviation, 0.05), 300
    error = 3 * math.sqrt(0.95 * 0.05 / trials)  # three standard errors

    def share(effect: float) -> float:
        found = (estimates.paired(RNG.normal(effect, deviation, n)) for _ in range(trials))
        return float(np.mean([f.is_different for f in found]))

    assert share(math.log(1.05)) >= 0.95 - error
    assert share(0.0) <= 0.05 + error


def test_spread_leaves_outliers_aside() -> None:
    values = RNG.normal(0, 1, 4001)
    values[:200] = 1000
    assert estimates.spread(values) == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9, 10, 11])
def test_deviation_of_few_is_right_on_average(n: int) -> None:
    found = [estimates.deviation(RNG.normal(0, 1, n)) for _ in range(4000)]
    assert np.mean(found) == pytest.approx(1, abs=0.01 + 4 * np.std(found) / math.sqrt(4000))
