"""Beliefs and what they come to, against numerical integration and Bayes' rule on a grid."""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import replace
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuedge.decide.belief import (
    MIN_FACTOR,
    NOISE,
    Belief,
    CostContext,
    Noise,
    Rule,
    forget,
    prior,
    seen,
    updated,
    weigh,
)

NONE = Noise(window=0.0, lasting=0.0, bias=0.0)

beliefs = st.builds(
    Belief, st.integers(-3_000_000, 3_000_000), st.integers(100, 2_000_000), st.integers(0, 10)
)
stakes = st.builds(
    CostContext,
    st.integers(1_000, 10**9),
    st.integers(0, 10**10),
    st.sampled_from([1, 10, 1000, 10**6]),
)
rules = st.builds(
    Rule, alpha_ppm=st.sampled_from([50_000, 300_000, 10**6]), speedup_milli=st.integers(1000, 3000)
)
noises = st.sampled_from([NOISE(None), NOISE(50), NOISE(90), NOISE(99)])


# -- losses -----------------------------------------------------------------------------------


def by_integration(
    b: Belief, s: CostContext, rule: Rule, noise: Noise
) -> tuple[float, float, float]:
    """Losses and harm as integrals over theta, by Simpson's rule; the product uses closed forms."""
    mean, sd = b.mean / 1e6, math.sqrt(b.var / 1e6 + noise.lasting**2)
    share = s.startup_ns / s.inferences / s.cpu_ns
    k = 1000 / rule.speedup_milli - share
    normal = NormalDist(mean, sd)
    n, low, high = 4000, mean - 9 * sd, mean + 9 * sd
    if k > 0:  # a grid point on the kink
        low += (math.log(k) - low) % ((high - low) / n)
    step = (high - low) / n
    cpu = gpu = 0.0
    for i in range(n + 1):
        weight = (1 if i in (0, n) else 4 if i % 2 else 2) * step / 3
        theta = low + i * step
        gap = k - math.exp(theta)
        cpu += weight * normal.pdf(theta) * max(gap, 0.0)
        gpu += weight * normal.pdf(theta) * max(-gap, 0.0)
    limit = 1.1 - share
    harm = 1.0 if limit <= 0 else 1 - normal.cdf(math.log(limit))
    return cpu, gpu, harm


@pytest.mark.parametrize("seed", range(60))
def test_losses_are_the_integrals_they_stand_for(seed: int) -> None:
    rng = random.Random(seed)
    b = Belief(rng.randrange(-2_000_000, 2_000_000), rng.randrange(1_000, 1_500_000))
    s = CostContext(10**7, rng.choice([0, 10**8, 10**10]), rng.choice([1, 100, 10_000]))
    rule, noise = Rule(speedup_milli=rng.choice([1000, 1200])), NOISE(rng.choice([50, 90, None]))
    found = weigh(b, s, rule, noise)
    cpu, gpu, harm = by_integration(b, s, rule, noise)
    assert found.loss_cpu_ppm == pytest.approx(cpu * 1e6, rel=1e-4, abs=2)
    assert found.loss_gpu_ppm == pytest.approx(gpu * 1e6, rel=1e-4, abs=2)
    assert found.harm_ppm == pytest.approx(harm * 1e6, abs=1.01)


@given(beliefs, stakes, rules, noises)
def test_choice_follows_from_the_losses(
    b: Belief, s: CostContext, rule: Rule, noise: Noise
) -> None:
    found = weigh(b, s, rule, noise)
    is_better = found.loss_gpu_ppm < found.loss_cpu_ppm
    assert found.use_gpu == (is_better and found.harm_ppm <= rule.alpha_ppm)
    assert found.loss_ppm == (found.loss_gpu_ppm if found.use_gpu else found.loss_cpu_ppm)
    assert found.is_settled == (found.loss_ppm < rule.eps_ppm)
    assert found.loss_cpu_ppm >= 0
    assert found.loss_gpu_ppm >= 0


@given(beliefs, stakes, rules, noises, st.integers(1, 10**6))
def test_a_faster_gpu_is_never_left_for_it(
    b: Belief, s: CostContext, rule: Rule, noise: Noise, less: int
) -> None:
    if weigh(b, s, rule, noise).use_gpu:
        assert weigh(replace(b, mean=b.mean - less), s, rule, noise).use_gpu
        assert weigh(b, replace(s, startup_ns=s.startup_ns // 2), rule, noise).use_gpu
        assert weigh(b, replace(s, inferences=s.inferences * 2), rule, noise).use_gpu
        assert weigh(b, s, replace(rule, alpha_ppm=10**6), noise).use_gpu
        assert weigh(b, s, replace(rule, speedup_milli=1000), noise).use_gpu


def test_start_up_that_outweighs_everything_keeps_the_cpu() -> None:
    found = weigh(Belief(-5_000_000, 100), CostContext(10**6, 2 * 10**9, 1), Rule(), NONE)
    assert not found.use_gpu
    assert (found.loss_cpu_ppm, found.harm_ppm) == (0, 10**6)


def test_caution_forbids_what_expected_loss_allows() -> None:
    wide = Belief(-500_000, 700_000)
    free = weigh(wide, CostContext(10**7, 0, 1), Rule(alpha_ppm=10**6), NONE)
    assert free.use_gpu
    assert 200_000 < free.harm_ppm < 300_000
    careful = weigh(wide, CostContext(10**7, 0, 1), Rule(alpha_ppm=200_000), NONE)
    assert not careful.use_gpu
    assert not careful.is_settled  # so it is measured, instead of being taken for slow


def test_equal_losses_stay_on_the_cpu() -> None:
    # E(X) = exp(m + V / 2) is exactly 1 where m = -V / 2
    found = weigh(Belief(-5_000, 10_000), CostContext(10**7, 0, 1), Rule(), NONE)
    assert found.loss_cpu_ppm == found.loss_gpu_ppm > 0
    assert found.harm_ppm < Rule().alpha_ppm  # caution is not what decides
    assert not found.use_gpu


# -- beliefs ----------------------------------------------------------------------------------


def on_a_grid(b: Belief, y: float, v: float) -> tuple[float, float]:
    """Bayes' rule by brute force: mean and variance of prior times likelihood."""
    sd = math.sqrt(b.var / 1e6)
    points = [b.mean / 1e6 + sd * (i - 6000) / 1000 for i in range(12001)]
    logs = [-((t - b.mean / 1e6) ** 2) / (2 * sd * sd) - (t - y) ** 2 / (2 * v) for t in points]
    top = max(logs)
    weights = [math.exp(value - top) for value in logs]
    total = math.fsum(weights)
    mean = math.fsum(w * t for w, t in zip(weights, points, strict=True)) / total
    var = math.fsum(w * (t - mean) ** 2 for w, t in zip(weights, points, strict=True)) / total
    return mean, var


@pytest.mark.parametrize("seed", range(8))
def test_observation_is_bayes_rule(seed: int) -> None:
    rng = random.Random(seed)
    b = Belief(rng.randrange(-(10**6), 10**6), rng.randrange(50_000, 900_000), seed)
    gpu = [round(10**7 * rng.lognormvariate(0, 0.6)) for _ in range(rng.randrange(1, 40))]
    cpu = [round(2 * 10**7 * rng.lognormvariate(0, 0.3)) for _ in range(rng.randrange(4, 40))]
    found = updated(b, *seen(gpu, cpu, NOISE(90)))
    y = statistics.median(map(math.log, gpu)) - statistics.median(map(math.log, cpu)) - 0.05

    def variance(runs: list[int]) -> float:
        spread = 0.35
        if len(runs) > 3:
            low, _, high = statistics.quantiles(runs, n=4, method="inclusive")
            spread = max(math.log(high / low) / 1.349, spread)
        return 1.57 * spread**2 / len(runs)

    mean, var = on_a_grid(b, y, variance(gpu) + variance(cpu) + 0.21**2)
    assert found.mean == pytest.approx(mean * 1e6, abs=50)
    assert found.var == pytest.approx(var * 1e6, rel=1e-3)
    assert found.windows == seed + 1


def test_window_has_an_error_however_many_runs_it_holds() -> None:
    b = Belief(0, 480_000)
    many = updated(b, *seen([10**7] * 5000, [2 * 10**7] * 5000, NOISE(50)))
    assert many.var > 0.9 * 0.21**2 * 480_000 / (0.21**2 * 10**6 + 480_000) * 10**6
    twice = updated(many, *seen([10**7] * 50, [2 * 10**7] * 50, NOISE(50)))
    assert twice.var < 0.62 * many.var  # another window, at another time, halves it


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_order_of_runs_does_not_matter(runs: list[int], rng: random.Random) -> None:
    b = Belief(-100_000, 480_000)
    shuffled = list(runs)
    rng.shuffle(shuffled)
    assert updated(b, *seen(runs, [10**7], NOISE(90))) == updated(
        b, *seen(shuffled, [10**7], NOISE(90))
    )


def test_claimed_error_is_never_below_a_factor_of_two() -> None:
    honest = prior(2 * 10**6, 10**6, MIN_FACTOR)
    assert prior(2 * 10**6, 10**6, 1.2) == prior(2 * 10**6, 10**6, 0.0) == honest
    assert honest.mean == round(math.log(2) * 1e6)
    assert honest.var == round(math.log(2) ** 2 * 1e6)
    assert prior(1, 1, 4).var == round(math.log(4) ** 2 * 1e6)


def test_fleet_shrinks_a_prediction_by_bayes_rule() -> None:
    found = prior(10**6, 3 * 10**6, 3.0, (0.2, 0.5))
    mean, var = on_a_grid(Belief(200_000, 250_000), -math.log(3), math.log(3) ** 2)
    assert found.mean == pytest.approx(mean * 1e6, abs=50)
    assert found.var == pytest.approx(var * 1e6, rel=1e-3)


def test_predictions_of_no_time_at_all() -> None:
    assert prior(5, 0, 2.0).mean > 0 > prior(0, 5, 2.0).mean
    assert prior(0, 0, 2.0).mean > 0


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 10**6))
def test_unit_of_time_does_not_matter(gpu: int, cpu: int, scale: int) -> None:
    assert prior(gpu, cpu, 2.0) == prior(gpu * scale, cpu * scale, 2.0)


def test_forgetting_widens_up_to_a_bound() -> None:
    b = Belief(-300_000, 20_000, 2)
    minute = forget(b, 60)
    assert (minute.mean, minute.windows) == (b.mean, 2)
    assert minute.var - b.var == round(60 * 0.2**2 / 600 * 1e6)
    assert forget(b, 10**9) == forget(b, 10**12)
    assert forget(b, -5) == b


def test_beliefs_that_make_no_sense_are_refused() -> None:
    for args in ((0, 0), (0, -1), (10**9, 5), (0.5, 5), (True, 5), (0, 5, -1), (0, 10**12)):
        with pytest.raises(ValueError, match="not a belief"):
            Belief(*args)  # type: ignore[arg-type]


def test_noise_grows_towards_the_tail() -> None:
    rows = [NOISE(p) for p in range(1, 100)]
    assert [n.lasting for n in rows] == sorted(n.lasting for n in rows)
    assert NOISE(50).lasting < NOISE(None).lasting < NOISE(90).lasting < NOISE(99).lasting


def test_a_verdict_costs_little() -> None:
    """A simulator of ten thousand pairs calls these a million times."""
    b, s = Belief(-200_000, 300_000), CostContext(10**7, 10**8, 1000)
    runs = [10**7 + 1000 * i for i in range(24)]
    best = math.inf
    for _ in range(5):
        begin = time.process_time()
        for _ in range(200):
            weigh(updated(b, *seen(runs, runs, NOISE(90))), s, Rule(), NOISE(90))
        best = min(best, (time.process_time() - begin) / 200)
    assert best < 200e-6, f"{best * 1e6:.0f} us"
