"""Trials and bursts: the order of runs, what counts, and when they stop."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.decide.belief import Belief, prior, seen, updated
from gpuedge.decide.options import DEFAULT
from gpuedge.decide.trial import Burst, Trial

MS = 10**6
ENDLESS = 10**9
BREAK_EVEN = 1 / 1.1


def drive(
    trial: Trial,
    cpu_ns: float,
    gpu_ns: float,
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> str:
    """Run a trial to its end; return the sides, in capitals what counted."""
    rng, text = random.Random(seed), ""
    while not trial.stop:
        side = trial.next
        ns = (cpu_ns if side == "base" else gpu_ns) * math.exp(rng.gauss(0, noise))
        kept = len(trial.kept(side))
        trial.add(round(ns))
        letter = "c" if side == "base" else "g"
        text += letter.upper() if len(trial.kept(side)) > kept else letter
    return text


def warm(cpu_ns: int, predicted: float = 1.0, *, ahead: int = ENDLESS, beside: int = 8) -> Trial:
    return Trial(
        prior(round(cpu_ns * predicted), cpu_ns), BREAK_EVEN, ahead=ahead,
        beside=[cpu_ns] * beside,
    )  # fmt: skip


def test_a_fast_model_runs_in_blocks_and_the_first_after_a_switch_does_not_count() -> None:
    text = drive(warm(10 * MS), 10 * MS, 9 * MS)
    assert text.startswith("gG" + "cCCC" + "CCCC" + "gGGG")


def test_a_slow_model_runs_one_by_one_and_all_counts() -> None:
    text = drive(warm(200 * MS), 200 * MS, 180 * MS)
    assert text == "GG" + "CC" + "G"


def test_without_runs_before_it_a_trial_begins_with_what_serves() -> None:
    trial = Trial(Belief(0, 10**6), BREAK_EVEN)
    assert trial.next == "base"
    trial.add(5 * MS)
    assert trial.next == "other"


def test_a_trial_ends_when_more_runs_cost_more_than_they_may_save() -> None:
    few, many = warm(10 * MS, ahead=5), warm(10 * MS, ahead=100_000)
    short, long = (drive(t, 10 * MS, 9 * MS, noise=0.2) for t in (few, many))
    assert few.stop == "settled"
    assert len(short) < len(long)


def test_a_trial_ends_when_its_runs_are_surer_than_the_window() -> None:
    trial = warm(MS // 10)
    drive(trial, MS / 10, MS / 10, noise=0.3)
    assert trial.stop == "enough"
    noise = DEFAULT.trial
    own = 1.57 * noise.run**2 * sum(1 / len(trial.kept(s)) for s in ("base", "other"))
    assert own < DEFAULT.enough * noise.window**2


def test_a_gpu_that_takes_many_times_as_long_is_tried_no_further() -> None:
    trial = warm(10 * MS)
    text = drive(trial, 10 * MS, 80 * MS)
    assert (trial.stop, text) == ("hopeless", "gG")
    assert trial.belief.theta > 0.9


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.01, 900), st.floats(0.01, 900), st.floats(0, 1.5), st.integers(0, 99),
    st.integers(0, 8), st.integers(1, 10**9),
)  # fmt: skip
def test_every_trial_ends_and_believes_what_it_kept(
    cpu: float, gpu: float, noise: float, seed: int, beside: int, ahead: int
) -> None:
    before = prior(round(gpu * MS), round(cpu * MS))
    options = replace(DEFAULT, enough=0.0)
    runs = [round(cpu * MS)] * beside

    def made() -> Trial:
        return Trial(before, BREAK_EVEN, options=options, ahead=ahead, beside=runs)

    one, two = made(), made()
    text = drive(one, cpu * MS, gpu * MS, noise=noise, seed=seed)
    assert text == drive(two, cpu * MS, gpu * MS, noise=noise, seed=seed)
    assert one.belief == two.belief
    assert one.runs == len(text) <= options.max_runs
    if one.kept("base") and one.kept("other"):
        y, v = seen(one.kept("other"), one.kept("base"), options.trial)
        assert one.belief == updated(before, y, v)
    with pytest.raises(ValueError, match="after its end"):
        one.add(1)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None])
def test_what_is_no_time_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        warm(MS).add(wrong)  # type: ignore[arg-type]


def test_drift_hits_both_sides_alike() -> None:
    """The machine becomes twice as slow while it is measured, steadily."""
    trial = Trial(Belief(0, 10**6), BREAK_EVEN, options=replace(DEFAULT, enough=0.1), ahead=ENDLESS)
    count = 0
    while not trial.stop:
        trial.add(round((10 if trial.next == "base" else 7) * MS * (1 + count / 60)))
        count += 1
    assert seen(trial.kept("other"), trial.kept("base"), replace(DEFAULT.trial, bias=0.0))[
        0
    ] == pytest.approx(math.log(0.7), abs=0.12)


def test_a_burst_stands_between_runs_of_the_side_in_use() -> None:
    burst = Burst("gpu", range(100, 140), DEFAULT)
    looked = 0
    while not burst.is_over:
        looked += burst.is_looking
        burst.add(400 + looked if burst.is_looking else 7)
    k = DEFAULT.burst_beside
    assert looked == DEFAULT.burst_runs
    assert burst.beside == [*range(140 - k, 140), *[7] * k]
    assert len(burst.runs) == DEFAULT.burst_runs - DEFAULT.burst_dropped
    assert min(burst.runs) == 401 + DEFAULT.burst_dropped


def test_a_burst_on_a_side_that_is_far_slower_ends_early() -> None:
    burst = Burst("gpu", [10] * 8, DEFAULT)
    for ns in (5, 80, 90):
        assert burst.is_looking
        burst.add(ns)
    assert not burst.is_looking
    assert burst.runs == [90]
