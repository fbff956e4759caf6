"""Routes to one GPU learn from each other, as correlation says."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from decide_fakes import MS, ms

from gpuedge.decide.attempts import (
    Attempt,
    next_attempt,
    with_trial,
)  # fmt: skip
from gpuedge.decide.belief import CORRELATION, Belief, share_surprise
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record


def route(device: str, at: float, physical: str = "gpu", **more: Any) -> Evidence:
    return Evidence(device, is_software=False, prediction=ms(at), physical=physical, **more)


CPU = Evidence("cpu", is_software=False, prediction=ms(6.0))


def made(*routes: Evidence) -> Decision:
    return decide(Record("auto", Policy(min_speedup=1.0), (*routes, CPU), "0.1.0", "cached"))


def replays(decision: Decision) -> bool:
    text = decision.to_json()
    loaded = Decision.from_dict(json.loads(text))
    return loaded == decision and loaded.replay().to_json() == text


def drive(attempt: Attempt, first_ms: float, gpu_ms: float, seed: int = 0) -> None:
    rng, now = random.Random(seed), 0
    while (alternative := attempt.trial.next(now)) is not None:
        ns = round((first_ms if alternative == "cpu" else gpu_ms) * MS * rng.lognormvariate(0, 0.2))
        now += ns
        attempt.trial.add(alternative, ns)


def tried(decision: Decision, cpu_ms: float, gpu_ms: float) -> Decision:
    attempt = next_attempt(decision)
    assert attempt is not None
    drive(attempt, cpu_ms, gpu_ms)
    return with_trial(decision, attempt.device, attempt.trial)


def on_a_grid(other: Belief, before: Belief, after: Belief) -> tuple[float, float]:
    """Condition a joint normal distribution by brute force over the measured route's theta.

    Given it, the other one is normal around mean + rho (theta - before) sd ratio; equal standard
    deviations here, as two predictions of one model have them.
    """
    sd = math.sqrt(before.var / 1e6)
    mean = second = total = 0.0
    for i in range(-4000, 4001):
        theta = after.mean / 1e6 + math.sqrt(after.var / 1e6) * i / 500
        weight = math.exp(-((i / 500) ** 2) / 2)
        centre = other.mean / 1e6 + CORRELATION * (theta - before.mean / 1e6)
        spread = other.var / 1e6 - (CORRELATION * sd) ** 2
        mean += weight * centre
        second += weight * (spread + centre**2)
        total += weight
    return mean / total, second / total - (mean / total) ** 2


@pytest.mark.parametrize("mean", [-900_000, 0, 1_200_000])
def test_surprise_is_shared_as_correlation_says(mean: int) -> None:
    before, other = Belief(-100_000, 480_453), Belief(300_000, 480_453)
    after = Belief(mean, 60_000, 1)
    found = share_surprise(other, before, after)
    expected, var = on_a_grid(other, before, after)
    assert found.mean == pytest.approx(expected * 1e6, abs=20)
    assert found.var == pytest.approx(var * 1e6, rel=1e-3)
    assert found.windows == 0


def test_route_that_was_not_measured_learns_from_the_one_that_was() -> None:
    first = made(route("vulkan:0", 2.0), route("gles31:0", 2.2), route("vulkan:1", 2.4, "else"))
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
    first = made(route("vulkan:0", 2.0, ""), route("gles31:0", 2.2, ""))
    assert tried(first, 6.0, 20.0).rows[1].belief == first.rows[1].belief
