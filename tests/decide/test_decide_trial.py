"""Trials: the order of runs, what counts, when they stop, and that they can be judged again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.decide.belief import NOISE, Belief, CostContext, Rule, prior, seen, updated, weigh
from gpuedge.decide.trial import BLOCK, FAST_NS, MAX_RUNS, WARM_UP, Alternative, Trial, replayed

MS = 10**6
S = 10**9
FOURS = ["cpu"] * 4 + ["gpu"] * 8 + ["cpu"] * 4


def run(
    cpu_ns: float, gpu_ns: float, *, noise: float = 0.0, seed: int = 0, cold_ns: int = 0,
    predicted: tuple[float, float] | None = None, budget_ns: int = 2 * S, eps_ppm: int = 5000,
    startup_ns: int = 0, percentile: int | None = 50,
) -> tuple[Trial, int]:  # fmt: skip
    """Drive a trial on a machine whose GPU is cold for its first runs; return the time used."""
    rng = random.Random(seed)
    guess = predicted or (cpu_ns, gpu_ns)
    trial = Trial(
        prior(round(guess[1]), round(guess[0]), 2.0),
        CostContext(round(guess[0]), startup_ns, 1000),
        Rule(eps_ppm=eps_ppm), NOISE(percentile), budget_ns,
    )  # fmt: skip
    now, gpu_runs, last = 0, 0, ""
    while (alternative := trial.next(now)) is not None:
        ns = (cpu_ns if alternative == "cpu" else gpu_ns) * math.exp(rng.gauss(0, noise))
        if alternative == "gpu":
            gpu_runs += 1
            ns += cold_ns if gpu_runs <= WARM_UP or last != "gpu" else 0
        last = alternative
        now += round(ns)
        trial.add(alternative, round(ns))
    return trial, now


def letters(trial: Trial) -> str:
    """Return the alternatives, in capitals what counts."""
    return "".join(r.alternative[0].upper() if r.kept else r.alternative[0] for r in trial.runs)


def test_order_and_what_counts_for_a_fast_model() -> None:
    trial, _ = run(10 * MS, 9 * MS, eps_ppm=0)
    text = letters(trial)
    assert text.startswith("cggc" + "CCCC" + "gggg" + "ggGG" + "cCCC" + "CCCC" + "gGGG" + "GGGG")
    blocks = [r.block for r in trial.runs]
    assert blocks == sorted(blocks)
    assert blocks[:8] == [0, 1, 1, 2, 2, 2, 2, 2]


def test_order_and_what_counts_for_a_slow_model() -> None:
    trial, _ = run(200 * MS, 180 * MS, eps_ppm=0)
    assert letters(trial).startswith("CgGCCGGCC")


def test_gpu_is_warm_after_eight_runs_or_some_time_and_switches_cost() -> None:
    trial, _ = run(70 * MS, 60 * MS, eps_ppm=0)
    assert letters(trial).startswith("cggcCgGcCgGcCgG")


def test_cold_run_of_a_fast_gpu_is_not_taken_for_a_slow_one() -> None:
    """Beside a slow CPU: cold, the GPU takes as long as that; warm, a third of it.

    A few cold runs still count, as a GPU is thought warm after some time.
    """
    trial, _ = run(60 * MS, 20 * MS, cold_ns=40 * MS, predicted=(60 * MS, 40 * MS), eps_ppm=0)
    assert trial.belief.theta == pytest.approx(math.log(1 / 3), abs=0.25)


def test_alternatives_stay_even() -> None:
    for cpu, gpu in ((5 * MS, 6 * MS), (80 * MS, 90 * MS)):
        trial, _ = run(cpu, gpu, eps_ppm=0)
        ahead = 0
        for r in trial.runs:
            ahead += 1 if r.alternative == "cpu" else -1
            assert -2 * BLOCK <= ahead <= 2 * BLOCK


def test_cold_runs_do_not_count_against_a_fast_gpu() -> None:
    """The GPU is twice as fast once warm, and ten times as slow while cold."""
    trial, _ = run(4 * MS, 2 * MS, cold_ns=40 * MS, predicted=(4 * MS, 4 * MS))
    assert trial.verdict.use_gpu
    assert trial.belief.theta == pytest.approx(math.log(0.5), abs=0.12)


@pytest.mark.parametrize("cpu_ms", [1, 20, 40, 100, 400, 900])
def test_time_is_kept(cpu_ms: int) -> None:
    for gpu_ms in (cpu_ms / 3, cpu_ms, 3 * cpu_ms):
        _, used = run(cpu_ms * MS, gpu_ms * MS, eps_ppm=0)
        assert used <= 2 * S


def test_model_that_takes_longer_than_the_budget_is_not_run() -> None:
    trial, used = run(3 * S, S)
    assert (trial.runs, used, trial.stop) == ((), 0, "time")
    assert trial.belief == trial.before


def test_gpu_predicted_to_need_the_rest_of_the_budget_is_not_run() -> None:
    trial, used = run(0.5 * S, 3 * S)
    assert letters(trial) == "C"
    assert used <= 2 * S


def test_no_run_begins_that_is_expected_to_end_too_late() -> None:
    trial, used = run(300 * MS, 250 * MS, eps_ppm=0)
    assert trial.stop == "time"
    assert 1.4 * S < used <= 2 * S


def test_clear_cases_stop_early_and_close_ones_go_on() -> None:
    clear, used = run(20 * MS, 2 * MS, noise=0.2, predicted=(20 * MS, 20 * MS))
    close, longer = run(20 * MS, 19 * MS, noise=0.2)
    assert (clear.stop, clear.verdict.use_gpu, clear.verdict.is_settled) == ("settled", True, True)
    assert used < longer
    assert close.stop in ("time", "enough")
    assert not close.verdict.is_settled


def test_window_ends_when_its_own_error_no_longer_counts() -> None:
    trial, used = run(MS / 10, MS / 10, noise=0.3, eps_ppm=0)
    assert trial.stop == "enough"
    assert len(trial.runs) < MAX_RUNS
    assert used < S
    kept = [
        sum(r.kept for r in trial.runs if r.alternative == alternative)
        for alternative in ("cpu", "gpu")
    ]
    # as documented: the variance of the runs is 15 % of that of the window
    assert 1.57 * 0.35**2 * sum(1 / k for k in kept) < 0.15 * 0.21**2


def test_drift_hits_both_alternatives_alike() -> None:
    """The machine becomes twice as slow while it is measured, steadily."""
    trial = Trial(
        Belief(0, 480_000), CostContext(10 * MS, 0, 1000), Rule(eps_ppm=0), NOISE(50), 2 * S
    )
    now, count = 0, 0
    while (alternative := trial.next(now)) is not None:
        ns = round((10 if alternative == "cpu" else 7) * MS * (1 + count / 100))
        now, count = now + ns, count + 1
        trial.add(alternative, ns)
    assert trial.seen is not None
    assert trial.seen[0] - NOISE(50).bias == pytest.approx(math.log(0.7), abs=0.05)


def test_belief_counts_a_window_once_however_often_it_is_looked_at() -> None:
    trial, _ = run(10 * MS, 9 * MS, eps_ppm=0, noise=0.2)
    kept: dict[str, list[int]] = {"cpu": [], "gpu": []}
    for r in trial.runs:
        if r.kept:
            kept[r.alternative].append(r.ns)
    assert trial.belief == updated(trial.before, *seen(kept["gpu"], kept["cpu"], trial.noise))
    assert trial.belief.windows == 1
    assert trial.verdict == weigh(trial.belief, trial.stakes, trial.rule, trial.noise)


def test_measured_cpu_latency_takes_the_place_of_the_predicted_one() -> None:
    trial, _ = run(10 * MS, 2 * MS, predicted=(30 * MS, 10 * MS), startup_ns=S)
    assert trial.stakes.cpu_ns == 10 * MS
    tail = Trial(trial.before, trial.stakes, trial.rule, trial.noise, tail_milli=1500)
    for r in trial.runs:
        assert tail.next(0) == r.alternative
        tail.add(r.alternative, r.ns)
    assert tail.stakes.cpu_ns == 15 * MS


def test_start_up_that_was_paid_takes_the_place_of_the_predicted_one() -> None:
    trial = Trial(Belief(-700_000, 50_000), CostContext(MS, 0, 100), Rule(), NOISE(50))
    assert trial.verdict.use_gpu
    trial.started(10**9)
    assert not trial.verdict.use_gpu


def test_slow_gpu_beside_a_fast_cpu_has_runs_that_count() -> None:
    trial, used = run(2 * MS, 500 * MS, predicted=(2 * MS, 2 * MS), cold_ns=50 * MS)
    assert used <= 2 * S
    assert trial.belief.theta > 2
    assert not trial.verdict.use_gpu
    assert trial.verdict.is_settled


def test_only_cold_runs_are_better_than_none() -> None:
    """On a budget for two runs of each, what a fast model has is cold."""
    trial, _ = run(20 * MS, 10 * MS, budget_ns=75 * MS, eps_ppm=0)
    assert letters(trial) == "cggcC"[: len(trial.runs)]
    assert trial.stop == "time"
    assert trial.belief.windows == 1


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(10**4, 6 * 10**8), st.floats(0.1, 10), st.floats(0, 0.8))
def test_runs_alone_make_the_same_trial(seed: int, cpu: int, ratio: float, noise: float) -> None:
    trial, _ = run(cpu, cpu * ratio, noise=noise, seed=seed, predicted=(cpu, cpu), startup_ns=10**8)
    pairs = [(r.alternative, r.ns) for r in trial.runs]
    again = replayed(
        pairs, trial.before, CostContext(cpu, 10**8, 1000), trial.rule, trial.noise
    )  # fmt: skip
    assert again.runs == trial.runs
    assert (again.belief, again.stakes, again.verdict) == (
        trial.belief, trial.stakes, trial.verdict
    )  # fmt: skip
    assert again.stop == trial.stop


def test_runs_that_no_trial_makes_are_refused() -> None:
    trial, _ = run(20 * MS, 2 * MS)
    pairs: list[tuple[Alternative, int]] = [(r.alternative, r.ns) for r in trial.runs]
    rest = (trial.before, trial.stakes, trial.rule, trial.noise)
    many = [(alternative, 5) for alternative in (["cpu", "gpu", "gpu", "cpu"] + 50 * FOURS)]
    for wrong in ([("gpu", 5)], pairs[1:], [("cpu", -1)], [*pairs, ("gpu", 5), ("cpu", 5)], many):
        with pytest.raises(ValueError, match="trial"):
            replayed(wrong, *rest)  # type: ignore[arg-type]


def test_next_repeats_itself_until_told() -> None:
    trial = Trial(Belief(0, 480_000), CostContext(MS, 0, 1), Rule(), NOISE(50))
    assert [trial.next(0), trial.next(5), trial.next(9)] == ["cpu"] * 3
    with pytest.raises(ValueError, match="waits for cpu"):
        trial.add("gpu", 5)
    trial.add("cpu", 5)
    assert trial.next(10) == "gpu"


def test_ended_trial_stays_ended() -> None:
    trial, used = run(20 * MS, 2 * MS)
    before = (trial.stop, trial.runs, trial.belief)
    assert trial.next(used) is None
    assert trial.next(0) is None
    assert (trial.stop, trial.runs, trial.belief) == before


def share(choice: Callable[[Trial], bool], ratio: float, **more: float) -> float:
    """Share of 60 noisy trials, cold GPU and prediction off by a factor of two included."""
    hits = 0
    for seed in range(60):
        rng = random.Random(1000 + seed)
        guess = (10 * MS, 10 * MS * ratio * rng.lognormvariate(0, math.log(2)))
        trial, _ = run(10 * MS, 10 * MS * ratio, noise=0.3, seed=seed, cold_ns=8 * MS,
                       predicted=guess, **more)  # type: ignore[arg-type]  # fmt: skip
        hits += choice(trial)
    return hits / 60


def test_clear_truths_are_found_under_noise() -> None:
    assert share(lambda t: t.verdict.use_gpu, 0.4) == 1.0
    assert share(lambda t: t.verdict.use_gpu, 2.0) == 0.0


def test_fast_is_a_matter_of_the_run() -> None:
    trial, _ = run(FAST_NS, FAST_NS, eps_ppm=0)
    assert letters(trial).lower().startswith("cggccccc")
    slow, _ = run(FAST_NS + 1, FAST_NS + 1, eps_ppm=0)
    assert letters(slow).lower().startswith("cggccggcc")
    assert replace(trial.runs[0], kept=True) != trial.runs[0]
