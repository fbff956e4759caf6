"""What is believed about one GPU against the CPU, and what either choice would lose.

Everything is about theta = ln(latency on the GPU / latency on the CPU) of one model. Belief in it
is a normal distribution; a prediction starts it and every window of measurements narrows it. All of
it is pure, and every result is rounded to millionths, so that a record replays to the same choice
on every machine.

Measuring longer does not help beyond a point: heat and what else runs outlast a window, so a window
has an error of its own (`Noise.window`) however many runs it holds, and some error never goes away
(`Options.lasting`). Windows at other times do help.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from gpuedge.decide.options import DEFAULT, Noise, Options

MICRO = 10**6
MEAN_LIMIT = 20 * MICRO
VAR_LIMIT = 25 * MICRO
"""Bounds of a belief: a factor of e**20 either way, and a standard deviation of 5 nats."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A normal distribution over theta, in whole numbers; in files a list of the three.

    Attributes
    ----------
    mean : int
        In millionths of a nat; below zero where the GPU is faster.
    var : int
        In millionths of a square nat, at least 1.
    windows : int
        Windows of measurements that went into it.
    """

    IS_LIST: ClassVar = True

    mean: int
    var: int
    windows: int = 0

    def __post_init__(self) -> None:
        for value, low, high in (
            (self.mean, -MEAN_LIMIT, MEAN_LIMIT), (self.var, 1, VAR_LIMIT), (self.windows, 0, 10**9)
        ):  # fmt: skip
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"not a belief: {self.mean!r}, {self.var!r}, {self.windows!r}")

    @property
    def theta(self) -> float:
        """The mean in nats."""
        return self.mean / MICRO

    @property
    def sd(self) -> float:
        """The standard deviation in nats."""
        return math.sqrt(self.var / MICRO)


UNKNOWN = Belief(0, VAR_LIMIT)
"""Of one who knows nothing."""


def bounded(mean: float, var: float, windows: int) -> Belief:
    """Return the belief nearest to these numbers (in nats and square nats) that can be held."""
    low = min(max(round(mean * MICRO), -MEAN_LIMIT), MEAN_LIMIT)
    return Belief(low, min(max(round(var * MICRO), 1), VAR_LIMIT), windows)


def prior(gpu_ns: int, cpu_ns: int, factor: float = DEFAULT.prior_factor) -> Belief:
    """Return the belief that a predicted latency of the GPU justifies.

    Parameters
    ----------
    gpu_ns, cpu_ns : int
        One inference: predicted on the GPU, measured on the CPU; at least 1 is assumed.
    factor : float
        Error of the prediction that is claimed (one standard deviation).
    """
    spread = math.log(factor)
    return bounded(math.log(max(gpu_ns, 1) / max(cpu_ns, 1)), spread * spread, 0)


def seen(gpu_ns: Sequence[int], cpu_ns: Sequence[int], noise: Noise) -> tuple[float, float]:
    """Return what a window of runs says of theta, and the variance of that. Both need runs."""
    gpu, gpu_var = _middle(gpu_ns, noise.run)
    cpu, cpu_var = _middle(cpu_ns, noise.run)
    return gpu - cpu + noise.bias, gpu_var + cpu_var + noise.window * noise.window


def updated(belief: Belief, y: float, v: float) -> Belief:
    """Return the belief after one observation `y` of theta with variance `v`."""
    mean, var = belief.mean / MICRO, belief.var / MICRO
    total = var + v
    return bounded((mean * v + y * var) / total, var * v / total, belief.windows + 1)


def forget(belief: Belief, seconds: float, options: Options = DEFAULT) -> Belief:
    """Return the belief after time has passed: less sure, up to a bound."""
    added = min(max(seconds, 0.0) * options.drift_per_s, options.forgetting)
    return bounded(belief.theta, belief.var / MICRO + added, belief.windows)


def surprise(belief: Belief, y: float, v: float) -> float:
    """Return how many standard deviations an observation lies from what was believed."""
    return (y - belief.theta) / math.sqrt(belief.var / MICRO + v)


def losses(belief: Belief, break_even: float, lasting: float = DEFAULT.lasting) -> tuple[int, int]:
    """Return what the CPU and the GPU are expected to lose against knowing theta.

    With X = exp(theta), log-normal, and k the break-even, the CPU loses E(k - X)+ and the GPU E(X -
    k)+: the expected opportunity loss of statistical decision theory (Raiffa and Schlaifer 1961,
    chapter 5), in closed form as for an option (Black and Scholes 1973).

    Parameters
    ----------
    belief : Belief
    break_even : float
        The ratio of latencies below which the GPU is worth it.
    lasting : float
        Standard deviation that no measurement takes away, in nats.

    Returns
    -------
    tuple of int
        Losses of the CPU and of the GPU, in millionths of the CPU's latency.
    """
    mean, k = belief.theta, break_even
    var = belief.var / MICRO + lasting * lasting
    sd = math.sqrt(var)
    ratio = math.exp(min(mean + var / 2, 40.0))
    cpu = 0.0
    if k > 0:
        d = (math.log(k) - mean) / sd
        cpu = max(k * _phi(d) - ratio * _phi(d - sd), 0.0)
    return round(cpu * MICRO), round(max(cpu - k + ratio, 0.0) * MICRO)


def share_surprise(
    other: Belief, before: Belief, after: Belief, correlation: float = DEFAULT.correlation
) -> Belief:
    """Return the belief about an API route that was not measured, after another one was.

    Parameters
    ----------
    other : Belief
        About the route that was not measured.
    before, after : Belief
        About the measured one, by prediction and now.
    correlation : float
        Of the errors of the two predictions.
    """
    moved = (after.mean - before.mean) / MICRO
    known = max(1 - after.var / before.var, 0.0)  # the part of the variance that measuring took
    var = other.var / MICRO * (1 - correlation * correlation * known)
    return bounded(other.theta + correlation * moved, var, other.windows)


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _middle(runs: Sequence[int], floor: float) -> tuple[float, float]:
    """Return the median of the logarithms of some runs, and its variance.

    1.57 is pi / 2, what a median costs against a mean; 1.349 the distance of the quartiles of the
    standard normal distribution, which one slow run in four does not move.
    """
    logs = sorted(math.log(max(ns, 1)) for ns in runs)
    n, spread = len(logs), floor
    if n > 3:
        spread = max((_at(logs, 0.75) - _at(logs, 0.25)) / 1.349, floor)
    return median(logs), 1.57 * spread * spread / n


def _at(ordered: Sequence[float], share: float) -> float:
    """Return a quantile, by linear interpolation between order statistics."""
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
