"""Beliefs against closed forms, and losses against plain quadrature."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from decide_states import quadrature
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.decide.belief import (
    MICRO,
    Belief,
    bounded,
    forget,
    losses,
    prior,
    seen,
    share_surprise,
    surprise,
    updated,
)
from gpuedge.decide.options import DEFAULT, Noise

MEANS = st.floats(-3, 3)
VARS = st.floats(0.005, 1.5)


@settings(max_examples=12, deadline=None)
@given(MEANS, VARS, st.floats(0.2, 2.0))
def test_losses_are_those_of_quadrature(mean: float, var: float, k: float) -> None:
    belief = bounded(mean, var, 1)
    sd = math.sqrt(belief.var / MICRO + 0.01)
    cpu, gpu = quadrature(belief.theta, sd, k)
    found = losses(belief, k, lasting=0.1)
    assert found[0] == pytest.approx(cpu * MICRO, abs=2 + 2e-6 * cpu * MICRO)
    assert found[1] == pytest.approx(gpu * MICRO, abs=2 + 2e-6 * gpu * MICRO)


def test_without_a_break_even_only_the_gpu_can_lose() -> None:
    assert losses(Belief(0, 10_000), 0.0)[0] == 0
    assert losses(Belief(0, 10_000), -1.0)[1] > 1.9 * MICRO


@given(MEANS, VARS, MEANS, VARS)
def test_an_update_is_the_product_of_two_normal_densities(
    mean: float, var: float, y: float, v: float
) -> None:
    before = bounded(mean, var, 3)
    after = updated(before, y, v)
    precision = 1 / (before.var / MICRO) + 1 / v
    assert after.var / MICRO == pytest.approx(1 / precision, abs=1e-6)
    wanted = (before.theta / (before.var / MICRO) + y / v) / precision
    assert after.theta == pytest.approx(wanted, abs=2e-6)
    assert after.windows == 4
    assert after.var <= before.var


def test_a_prior_is_the_prediction_with_the_claimed_error() -> None:
    found = prior(2_000_000, 1_000_000, 3.0)
    assert (found.theta, found.sd) == (
        pytest.approx(math.log(2), abs=1e-6), pytest.approx(math.log(3), abs=1e-6)
    )  # fmt: skip
    assert found.windows == 0
    assert prior(0, 0) == prior(1, 1)


def test_a_window_shows_the_ratio_of_medians_and_its_error() -> None:
    y, v = seen([200, 210, 190, 5000], [100, 105, 95], Noise(window=0.2, run=0.3, bias=0.0))
    assert y == pytest.approx(math.log(math.sqrt(200 * 210) / 100))
    low, high = (
        math.log(200) * 0.75 + math.log(190) * 0.25,
        math.log(210) * 0.75 + math.log(5000) * 0.25,
    )
    spread = (high - low) / 1.349
    assert v == pytest.approx(1.57 * spread**2 / 4 + 1.57 * 0.09 / 3 + 0.04)


def test_time_widens_by_what_the_options_say() -> None:
    before = Belief(-300_000, 40_000, 2)
    after = forget(before, 60.0)
    assert after.var - before.var == round(60 * DEFAULT.drift_per_s * MICRO)
    assert forget(before, 1e9).var - before.var == round(DEFAULT.forgetting * MICRO)
    assert forget(before, -5.0) == before


@given(MEANS, VARS, MEANS, st.floats(0.01, 0.99))
def test_surprise_is_shared_as_by_a_joint_normal(
    mean: float, var: float, shown: float, part: float
) -> None:
    """Two errors of one size with correlation rho: the conditional distribution in closed form."""
    said = bounded(0.0, var, 0)
    found = bounded(shown, said.var / MICRO * part, 1)
    other = bounded(mean, said.var / MICRO, 0)
    after = share_surprise(other, said, found, 0.9)
    assert after.theta == pytest.approx(other.theta + 0.9 * found.theta, abs=2e-6)
    wanted = other.var * (1 - 0.81 * (1 - found.var / said.var))
    assert after.var == pytest.approx(wanted, abs=2)


def test_surprise_counts_in_standard_deviations() -> None:
    assert surprise(Belief(0, 30_000), 0.4, 0.01) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "wrong", [(0, 0), (21_000_000, 1), (0, 26_000_000), (0.5, 1), (0, True)]
)  # fmt: skip
def test_what_is_no_belief_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not a belief"):
        Belief(*wrong)


def test_constants_can_be_replaced_for_a_study() -> None:
    wide = replace(DEFAULT, forgetting=1.0, drift_per_s=0.01)
    assert forget(Belief(0, 10_000), 30.0, wide).var == 310_000
