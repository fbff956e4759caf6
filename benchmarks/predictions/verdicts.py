"""Predictions and decisions judged against what was measured. Pure: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

INFERENCES = 1000
"""Over how many inferences the start-up is spread: the default of `Policy`."""

CLEAR = 1.2
"""Beyond this factor either way of the break-even a decision must be right."""

QUANTILES = (5, 25, 50, 75, 95)


def error(one: Mapping[str, Any]) -> float:
    """Return ln(predicted / measured) of the median latency of one alternative of one case."""
    return math.log(one["predicted_ns"] / one["p50_ns"])


def errors(found: Mapping[str, Any], alternative: str) -> list[float]:
    """Return the errors of one alternative, case by case."""
    return [error(case[alternative]) for case in found["cases"].values()]


def quantile(values: Sequence[float], percent: float) -> float:
    """Return a quantile by linear interpolation."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def within(values: Iterable[float], factor: float) -> float:
    """Return the share of errors that are within a factor."""
    held = [abs(v) <= math.log(factor) for v in values]
    return sum(held) / len(held)


def rms(values: Sequence[float]) -> float:
    """Return the root of the mean square: what a claimed standard deviation is held against."""
    return math.sqrt(sum(v * v for v in values) / len(values))


def speedup(case: Mapping[str, Any], inferences: int = INFERENCES) -> float:
    """Return how many times as fast as the CPU path the GPU truly was, start-up included."""
    gpu, cpu = case["gpu"], case["cpu"]
    return float(cpu["p50_ns"] / (gpu["p50_ns"] + gpu["startup_ns"] / inferences))


@dataclass(frozen=True)
class Judged:
    """One decision against the truth.

    Attributes
    ----------
    configuration, engine, model, policy : str
    speedup : float
        True speed-up of the GPU, start-up included.
    chose_gpu, is_right, is_clear : bool
        What was chosen, whether that is the better one, and whether the truth is more than `CLEAR`
        from the policy's break-even.
    lost : float
        How much longer the choice takes than the other one would have, as a factor; 1 if right.
    reason : str
    confidence : str
    """

    configuration: str
    engine: str
    model: str
    policy: str
    speedup: float
    chose_gpu: bool
    is_right: bool
    is_clear: bool
    lost: float
    reason: str
    confidence: str


def judged(
    configuration: str,
    engine: str,
    found: Mapping[str, Any],
    choices: Mapping[str, Any],
    policies: Mapping[str, float],
) -> list[Judged]:
    """Hold the decisions of one configuration against what was measured there."""
    rows = []
    for model, case in found["cases"].items():
        for policy, least in policies.items():
            one = choices["cases"][model][policy]
            truth = speedup(case)
            chose_gpu = one["device"] != "cpu"
            ratio = truth / least
            rows.append(
                Judged(
                    configuration, engine, model, policy, truth, chose_gpu,
                    is_right=chose_gpu == (ratio > 1),
                    is_clear=abs(math.log(ratio)) > math.log(CLEAR),
                    lost=max(1 / truth if chose_gpu else truth, 1.0),
                    reason=one["reason"],
                    confidence=one["confidence"],
                )
            )  # fmt: skip
    return rows
