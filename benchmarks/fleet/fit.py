"""Fit the constants of the decision to traces: ``python -m benchmarks.fleet.fit TRACE...``.

Write traces with ``gpuedge bench --trace``, those of one device into a folder of its own; a folder
may be given for all traces in it. Each
constant of `gpuedge.decide.options` is printed with a 90 % interval (bootstrap over series) and how
many values it rests on; the README here says how to read them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from gpuedge.core.errors import InputError

from .traces import CPU, GPU, TracedPair, load

RESAMPLES = 400
NORMAL_IQR = 1.349
"""Interquartile range of a normal distribution, in standard deviations."""
MEDIAN_VARIANCE = math.pi / 2
"""Variance of a median over that of a mean, of many normal values."""


@dataclass(frozen=True)
class Fitted:
    """A constant with its 90 % interval, NaN where traces say nothing of it."""

    name: str
    value: float
    low: float
    high: float
    count: int
    meaning: str


def run_sd(pair: TracedPair, side: str) -> float:
    """Return the standard deviation of ln(latency) from run to run, NaN where too few follow.

    Of differences of neighbours, so that what a window shares does not count, and by the
    interquartile range, so that a spike does not.
    """
    steps = [
        math.log(b / a)
        for window in pair.windows
        for a, b in zip(window[side == GPU], window[side == GPU][1:], strict=False)
    ]
    if len(steps) < 3:
        return math.nan
    low, high = np.percentile(steps, [25, 75])
    return float(high - low) / NORMAL_IQR / math.sqrt(2)


def _of_runs(pair: TracedPair) -> float:
    """Return the mean variance that single runs leave in ln(GPU / CPU) of a window."""
    sds = {side: run_sd(pair, side) for side in (CPU, GPU)}
    if any(math.isnan(sd) for sd in sds.values()):
        return math.nan
    parts = [
        MEDIAN_VARIANCE * (sds[CPU] ** 2 / len(cpu) + sds[GPU] ** 2 / len(gpu))
        for cpu, gpu in pair.windows
    ]
    return float(np.mean(parts))


def window_variance(pair: TracedPair) -> float:
    """Return the variance that windows of one launch do not share; NaN if it cannot be told."""
    seen = pair.log_ratios
    if len(seen) < 2:
        return math.nan
    return float(np.var(seen, ddof=1)) - _of_runs(pair)


def lasting_variance(launches: Sequence[TracedPair]) -> float:
    """Return the variance between launches of one device that no number of windows takes away."""
    if len(launches) < 2:
        return math.nan
    between = float(np.var([float(np.mean(one.log_ratios)) for one in launches], ddof=1))
    spread = [np.var(p.log_ratios, ddof=1) / len(p.windows) for p in launches if len(p.windows) > 1]
    return between - float(np.mean(spread)) if spread else math.nan


def bias(pair: TracedPair) -> float:
    """Return what is to be added to a window to get at the ratio of mean latencies."""
    means = [np.mean([ns for window in pair.windows for ns in window[side]]) for side in (0, 1)]
    return float(math.log(means[1] / means[0]) - np.mean(pair.log_ratios))


def residual(pair: TracedPair) -> float:
    """Return ln(measured / predicted) of the latency on the device."""
    return math.log(pair.median_ns(GPU) / pair.predicted_ns)


def startup_residual(pair: TracedPair) -> float:
    """Return ln(measured / predicted) of opening the device and compiling the graph."""
    return math.log(pair.startup_ns / pair.predicted_startup_ns)


def _root_mean(values: np.ndarray) -> float:
    return math.sqrt(max(0.0, float(values.mean())))


def _factor(values: np.ndarray) -> float:
    return math.exp(math.sqrt(float((values**2).mean())))


def _fitted(
    name: str, values: Sequence[float], of: Callable[[np.ndarray], float], meaning: str
) -> Fitted:
    known = np.array([v for v in values if not math.isnan(v)])
    if len(known) < 2:
        return Fitted(name, math.nan, math.nan, math.nan, len(known), meaning)
    rng = np.random.default_rng(1)
    again = [of(rng.choice(known, len(known))) for _ in range(RESAMPLES)]
    low, high = np.percentile(again, [5, 95])
    return Fitted(name, of(known), float(low), float(high), len(known), meaning)


def fit(pairs: Sequence[TracedPair]) -> list[Fitted]:
    """Return every constant that traces can say something of."""
    launches: dict[tuple[str, str, str], list[TracedPair]] = {}
    for pair in pairs:
        launches.setdefault((pair.device, pair.level, pair.graph), []).append(pair)
    runs = [sd for pair in pairs for sd in (run_sd(pair, CPU), run_sd(pair, GPU))]

    def middle(values: np.ndarray) -> float:
        return float(median(values))

    return [
        _fitted("trial.window", [window_variance(p) for p in pairs], _root_mean,
                "sd of ln(GPU/CPU) that the runs of a window share"),
        _fitted("lasting", [lasting_variance(one) for one in launches.values()], _root_mean,
                "sd between launches of one device that more windows do not lower"),
        _fitted("trial.run", runs, middle, "sd of ln(latency) from run to run, median series"),
        _fitted("trial.bias", [bias(p) for p in pairs], middle,
                "ln(GPU/CPU) of means, less that of medians of windows"),
        _fitted("prior_factor", [residual(p) for p in pairs], _factor,
                "error of predicted latency as a factor (root mean square); claim at least 3"),
        _fitted("prior bias", [residual(p) for p in pairs], middle,
                "median of ln(measured/predicted) latency"),
        _fitted("startup_factor", [startup_residual(p) for p in pairs], _factor,
                "error of predicted start-up as a factor (root mean square)"),
    ]  # fmt: skip


def classes(pairs: Sequence[TracedPair]) -> list[tuple[str, int, float, float]]:
    """Return class and level, pairs, and median and standard deviation of the residual."""
    groups: dict[str, list[float]] = {}
    for pair in pairs:
        groups.setdefault(f"{pair.device_class} {pair.level}", []).append(residual(pair))
    return [
        (name, len(values), float(median(values)), float(np.std(values)))
        for name, values in sorted(groups.items())
    ]


def main(arguments: Sequence[str]) -> int:
    """Print the constants as two tables."""
    if not arguments or "--help" in arguments:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        pairs = load(arguments)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if not pairs:
        print("There is no trace (*.trace) in what was named.", file=sys.stderr)
        return 2
    print(f"{'constant':15s} {'value':>7s} {'90 % interval':>16s} {'from':>6s}  what it is")
    for one in fit(pairs):
        interval = f"{one.low:.3f} to {one.high:.3f}"
        shown = f"{one.value:7.3f} {interval:>16s}" if one.count > 1 else f"{'-':>7s} {'-':>16s}"
        print(f"{one.name:15s} {shown} {one.count:6d}  {one.meaning}")
    print(
        f"\n{'class and level':25s} {'pairs':>5s} {'median':>7s} {'sd':>6s}  ln(measured/predicted)"
    )
    for name, count, middle, sd in classes(pairs):
        print(f"{name:25s} {count:5d} {middle:7.2f} {sd:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
