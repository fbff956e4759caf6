"""Roads to one GPU learn from each other: by surprise, and by a duel."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from decide_fakes import MS, ms

from gpuedge.core.errors import InputError
from gpuedge.decide.attempts import (
    Attempt,
    next_attempt,
    next_duel,
    outcome,
    with_duel,
    with_trial,
)  # fmt: skip
from gpuedge.decide.belief import Belief
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.kin import KIN, tell
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record


def road(device: str, at: float, physical: str = "gpu", **more: Any) -> Evidence:
    return Evidence(device, is_software=False, prediction=ms(at), physical=physical, **more)


CPU = Evidence("cpu", is_software=False, prediction=ms(6.0))


def made(*roads: Evidence) -> Decision:
    return decide(Record("auto", Policy(min_speedup=1.0), (*roads, CPU), "0.1.0", "cached"))


def replays(decision: Decision) -> bool:
    text = decision.to_json()
    loaded = Decision.from_dict(json.loads(text))
    return loaded == decision and loaded.replay().to_json() == text


def drive(attempt: Attempt, first_ms: float, gpu_ms: float, seed: int = 0) -> None:
    rng, now = random.Random(seed), 0
    while (arm := attempt.trial.next(now)) is not None:
        ns = round((first_ms if arm == "cpu" else gpu_ms) * MS * rng.lognormvariate(0, 0.2))
        now += ns
        attempt.trial.add(arm, ns)


def tried(decision: Decision, cpu_ms: float, gpu_ms: float) -> Decision:
    attempt = next_attempt(decision)
    assert attempt is not None
    drive(attempt, cpu_ms, gpu_ms)
    return with_trial(decision, attempt.device, attempt.trial)


def on_a_grid(other: Belief, before: Belief, after: Belief) -> tuple[float, float]:
    """Condition a joint normal distribution by brute force over the measured road's theta.

    Given it, the other one is normal around mean + rho (theta - before) sd ratio; equal standard
    deviations here, as two predictions of one model have them.
    """
    sd = math.sqrt(before.var / 1e6)
    mean = second = total = 0.0
    for i in range(-4000, 4001):
        theta = after.mean / 1e6 + math.sqrt(after.var / 1e6) * i / 500
        weight = math.exp(-((i / 500) ** 2) / 2)
        centre = other.mean / 1e6 + KIN * (theta - before.mean / 1e6)
        spread = other.var / 1e6 - (KIN * sd) ** 2
        mean += weight * centre
        second += weight * (spread + centre**2)
        total += weight
    return mean / total, second / total - (mean / total) ** 2


@pytest.mark.parametrize("mean", [-900_000, 0, 1_200_000])
def test_surprise_is_shared_as_correlation_says(mean: int) -> None:
    before, other = Belief(-100_000, 480_453), Belief(300_000, 480_453)
    after = Belief(mean, 60_000, 1)
    found = tell(other, before, after)
    expected, var = on_a_grid(other, before, after)
    assert found.mean == pytest.approx(expected * 1e6, abs=20)
    assert found.var == pytest.approx(var * 1e6, rel=1e-3)
    assert found.visits == 0


def test_road_that_was_not_measured_learns_from_the_one_that_was() -> None:
    first = made(road("vulkan:0", 2.0), road("gles31:0", 2.2), road("vulkan:1", 2.4, "else"))
    assert first.device == "vulkan:0"
    after = tried(first, 6.0, 20.0)
    told, alone = after.rows[1], after.rows[2]
    assert after.rows[0].belief is not None
    assert after.rows[0].belief.theta > 0.5  # against -1.1 by prediction
    assert told.belief is not None
    assert first.rows[1].belief is not None
    assert told.belief.theta > first.rows[1].belief.theta + 1
    assert told.confidence != "1 window"
    assert alone.belief == first.rows[2].belief  # another GPU
    assert after.device == "vulkan:1"
    assert replays(after)
    assert "gles31:0: by prediction alone" in str(after)


def test_devices_that_may_be_the_same_or_not_learn_nothing() -> None:
    first = made(road("vulkan:0", 2.0, ""), road("gles31:0", 2.2, ""))
    assert tried(first, 6.0, 20.0).rows[1].belief == first.rows[1].belief


def test_duel_finds_the_faster_road() -> None:
    """Predicted alike; measured against the CPU only one is, and it is the slower one."""
    after = tried(made(road("vulkan:0", 2.0), road("gles31:0", 2.2)), 6.0, 2.0)
    assert after.device == "vulkan:0"
    duel = next_duel(after)
    assert duel is not None
    assert (duel.device, duel.rival, duel.why) == ("gles31:0", "vulkan:0", "duel")
    drive(duel, 2.0, 1.2)
    found = with_duel(after, duel, 0)
    assert found.device == "gles31:0"
    assert replays(found)
    (mine, other) = (found.rows[0].belief, found.rows[1].belief)
    assert mine is not None
    assert other is not None
    assert other.theta - mine.theta == pytest.approx(math.log(0.6), abs=0.15)
    assert other.mean - mine.mean == duel.trial.belief.mean
    assert other.var == mine.var + duel.trial.belief.var
    assert found.rows[1].confidence == "1 window"
    assert outcome(found, "gles31:0") is not None
    assert next_duel(found) is None


def test_duel_that_is_lost_changes_nothing() -> None:
    after = tried(made(road("vulkan:0", 2.0), road("gles31:0", 2.2)), 6.0, 2.0)
    duel = next_duel(after)
    assert duel is not None
    drive(duel, 2.0, 3.0)
    found = with_duel(after, duel, 0)
    assert found.device == "vulkan:0"
    assert replays(found)


def test_start_up_counts_in_a_duel() -> None:
    """Faster by 0.3 ms, over 1000 inferences, for 2 s of start-up."""
    dear = replace(road("gles31:0", 2.2), prediction=ms(2.2, 300.0))
    cheap = replace(road("vulkan:0", 2.0), prediction=ms(2.0, 100.0))
    after = tried(made(cheap, dear), 6.0, 2.0)
    duel = next_duel(after)
    assert duel is not None
    assert duel.trial.stakes.startup_ns == 200 * MS
    duel.trial.started(2000 * MS)
    drive(duel, 2.0, 1.7)
    assert not duel.trial.verdict.use_gpu
    found = with_duel(after, duel, 2000 * MS)
    assert found.device == "vulkan:0"
    assert replays(found)


def test_no_duel_without_a_close_road_to_the_same_measured_device() -> None:
    assert next_duel(made(road("vulkan:0", 2.0), road("gles31:0", 2.2))) is None  # not measured
    for others in (
        [road("gles31:0", 9.0)],  # far slower
        [road("vulkan:1", 2.2, "else")],  # another device
        [road("gles31:0", 2.2, "")],  # of unknown device
        [Evidence("gles31:0", "other-road", physical="gpu")],  # not predicted
    ):
        assert next_duel(tried(made(road("vulkan:0", 2.0), *others), 6.0, 2.0)) is None
    slow = tried(made(road("vulkan:0", 2.0), road("gles31:0", 2.2)), 6.0, 20.0)
    assert slow.device == "cpu"
    assert next_duel(slow) is None  # nothing was chosen to be challenged
    fast = tried(made(road("vulkan:0", 2.0), road("gles31:0", 2.2)), 6.0, 2.0)
    assert next_duel(fast, skip={"gles31:0"}) is None


def test_runs_that_no_duel_makes_are_refused() -> None:
    after = tried(made(road("vulkan:0", 2.0), road("gles31:0", 2.2)), 6.0, 2.0)
    duel = next_duel(after)
    assert duel is not None
    drive(duel, 2.0, 1.2)
    saved = json.loads(with_duel(after, duel, 0).to_json())
    saved["record"]["candidates"][1]["duel"].pop(0)
    with pytest.raises(InputError):
        Decision.from_dict(saved)
