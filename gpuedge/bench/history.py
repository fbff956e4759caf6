"""Slow-downs in a history of results of one case on one subject and machine.

The unit is a run of the benchmark, as the logarithm of its median latency, for iterations within a
run are correlated and runs differ by more than their iterations say. A run is compared with those
before it, at most `Rule.window`, by Student's t for one further observation (the prediction
interval). What exceeds it is suspect; the run after it must exceed it, too, against the same runs.
Only then the level has changed, and later runs are compared with what came since. Until these are
enough they are compared with the level before: two in a row that are like it have returned to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev
from typing import Literal

from gpuedge.bench.estimates import ROOT_HALF_PI, spread, student
from gpuedge.bench.results import BenchResult
from gpuedge.core.text import counted

STATISTIC = "Student's t of the logarithm of a run's median, confirmed by a second run"

State = Literal["new", "same", "suspect", "slower", "faster"]


ROUNDING_NS = 2.0
"""By so much runs of the same speed may differ: each time is the difference of two readings of a
clock in whole nanoseconds, and is off by up to one."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a run counts as slower. The defaults are those that tools/bench_power.py simulates.

    Attributes
    ----------
    least, window : int
        Runs that there must be before one is judged, and most that it is compared with.
    tail : float
        Probability with which a run that is like the others is suspect, on either side. That two in
        a row are, on the same side, is much rarer.
    effect : float
        The slow-down that the number of iterations is asked for; 0.05 is 5 %.
    power : float
        With which it is to be found.
    """

    least: int = 8
    window: int = 20
    tail: float = 0.003
    effect: float = 0.05
    power: float = 0.95


RULE = Rule()


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A run of a history: the logarithm of its median, and how it spreads within the run."""

    log_median: float
    spread: float
    runs: int
    when: str = ""
    commit: str = ""


@dataclass(frozen=True, slots=True)
class JudgedPoint:
    """What is said of one run.

    Attributes
    ----------
    state : str
        ``new``: too few runs of its level before it; ``suspect``: run it again; ``slower``,
        ``faster``: the level has changed, at the run `since`.
    ratio, limit : float or None
        To the runs it was compared with, and the most that a run of their level has; 1 / `limit` is
        the least.
    """

    point: HistoryPoint
    state: State
    ratio: float | None = None
    limit: float | None = None
    since: int | None = None


Histories = dict[tuple[str, str, str], list[JudgedPoint]]
"""Judged runs by case, subject and machine."""


def point_of(result: BenchResult) -> HistoryPoint:
    """Return the point of a result that has times."""
    logs = [math.log(ns) for ns in result.warm]
    return HistoryPoint(median(logs), spread(logs), len(logs), result.when, result.commit)


def judge(points: Sequence[HistoryPoint], rule: Rule = RULE) -> list[JudgedPoint]:
    """Judge every run by those before it.

    Parameters
    ----------
    points : sequence of HistoryPoint
        Oldest first.
    rule : Rule
    """
    found: list[JudgedPoint] = []
    base: list[int] = []  # runs of the present level
    old: list[int] = []  # and of the one before it, from which it lies to the side `turn`
    turn = 0
    suspect: tuple[int, int] | None = None  # the run before, and its side
    for at, point in enumerate(points):
        # a suspect has joined nothing: the run after it is judged by the same runs
        is_young = len(base) < rule.least and bool(old)
        before = [points[i].log_median for i in (old if is_young else base)[-rule.window :]]
        if len(before) < rule.least:
            found.append(JudgedPoint(point, "new"))
            base.append(at)
            continue
        away, limit = point.log_median - fmean(before), _limit(before, rule)
        side = 0 if abs(away) <= limit else (1 if away > 0 else -1)
        if is_young:  # too few runs to judge by: what counts is whether it has left the old level
            side = 0 if side == turn else -turn
        ratio, most = math.exp(away), math.exp(limit)
        if suspect is not None and side == suspect[1]:
            state: State = "slower" if side > 0 else "faster"
            since = [suspect[0], at]
            if is_young:
                ratio = math.exp(point.log_median - fmean(points[i].log_median for i in base))
            found.append(JudgedPoint(point, state, ratio, most, suspect[0]))
            base, old, turn, suspect = old + since if is_young else since, base, side, None
            continue
        if suspect is not None:  # nothing was confirmed: it was noise, and counts as such
            base.append(suspect[0])
            suspect = None
        if side:
            suspect = (at, side)
        else:
            base.append(at)
        calm: State = "new" if is_young else "same"
        found.append(JudgedPoint(point, "suspect" if side else calm, ratio, most))
    return found


def _limit(before: Sequence[float], rule: Rule) -> float:
    """Return how far one more observation of the same level lies, but for both tails."""
    n = len(before)
    limit = student(1 - rule.tail, n - 1) * stdev(before) * math.sqrt(1 + 1 / n)
    return max(limit, ROUNDING_NS * math.exp(-fmean(before)))


def present(judged: Sequence[JudgedPoint]) -> list[HistoryPoint]:
    """Return the runs of the present level: all since the last change."""
    since = next((one.since for one in reversed(judged) if one.since is not None), 0)
    return [one.point for one in judged[since:]]


def histories(results: Iterable[BenchResult], rule: Rule = RULE) -> Histories:
    """Judge results with times, oldest first."""
    found: dict[tuple[str, str, str], list[HistoryPoint]] = {}
    for one in results:
        if one.blocks:
            found.setdefault((one.case, one.subject, one.machine), []).append(point_of(one))
    return {key: judge(points, rule) for key, points in found.items()}


def verdict(judged: Sequence[JudgedPoint], rule: Rule = RULE) -> tuple[State, str]:
    """Return the state that counts, and it in a sentence.

    It is that of the last change, if this is among as many runs as one is compared with; else that
    of the latest run.
    """
    changes = [one for one in judged[-rule.window :] if one.since is not None]
    told = (changes or judged)[-1]
    if told.ratio is None or told.limit is None:
        needed = f"{len(judged) - 1} of the {rule.least} runs that are needed before it"
        return told.state, f"no verdict: {needed}"
    size = f"{told.ratio:.2f}x [{told.ratio / told.limit:.2f}, {told.ratio * told.limit:.2f}]"
    limits = f"the limits are {1 / told.limit:.2f}x and {told.limit:.2f}x"
    if told.since is None:
        return told.state, f"{told.state}: {size} the level; {limits}"
    ago, when = counted(len(judged) - 1 - told.since, "run"), judged[told.since].point.when[:19]
    return told.state, f"{told.state}: {size} the level before, {ago} ago ({when}); {limits}"


def shift_needed(runs: int, rule: Rule = RULE) -> float:
    """Return the shift that is found with the power asked for, in standard deviations of runs.

    `runs` are those before it, by which the limit is estimated, with an error of its own. Both runs
    after the change must exceed it, so each must with the square root of the power.
    """
    n = max(rule.least, min(runs, rule.window))
    quantile, one_more = student(1 - rule.tail, n - 1), 1 + 1 / n
    deviation = math.sqrt(one_more + quantile**2 / (2 * (n - 1)))
    return quantile * math.sqrt(one_more) + NormalDist().inv_cdf(math.sqrt(rule.power)) * deviation


def iterations_needed(
    points: Sequence[HistoryPoint], rule: Rule = RULE
) -> int | None:  # fmt: skip
    """Return how many iterations a run needs to find `Rule.effect`; None where none suffice.

    `points` are runs of one level (`present`).

    The variance between runs is that of a median of iterations, which falls with their number, and
    what else differs between runs, which does not.
    """
    recent = points[-rule.window :]
    within = [(ROOT_HALF_PI * p.spread) ** 2 for p in recent]  # of a median of one iteration
    if len(recent) < 2:
        between = 0.0
    else:
        sampling = fmean(w / p.runs for w, p in zip(within, recent, strict=True))
        between = max(0.0, stdev(p.log_median for p in recent) ** 2 - sampling)
    allowed = (math.log1p(rule.effect) / shift_needed(len(recent), rule)) ** 2 - between
    return math.ceil(max(1.0, fmean(within) / allowed)) if allowed > 0 else None
