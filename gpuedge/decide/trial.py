"""Timing a model on a GPU and on the CPU path: what to run next, what counts, when to stop.

A trial says which alternative to run and is told how long that took; it neither runs nor looks at a
clock, so the product and a simulator drive the same code, and a record of its runs can be judged
again.

The order is serpentine (C G G C, then blocks C G G C ...), so that drift hits both alternatives
alike. What is cold is not counted: a driver compiles and clocks rise during the first runs, and the
first run after a switch finds the caches of the other alternative. Those costs are bounded in
absolute time, so they matter less the longer a run is; and of slow models too few runs fit to be
choosy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Literal

from gpuedge.decide.belief import (
    MICRO,
    Belief,
    CostContext,
    Noise,
    Rule,
    Weighing,
    seen,
    updated,
    weigh,
)
from gpuedge.decide.exact import exp

Alternative = Literal["cpu", "gpu"]

BUDGET_NS = 2_000_000_000
"""What one launch of an application may spend on a trial."""

BLOCK = 4
"""Runs of one alternative in a row, of fast models."""

FAST_NS = 30_000_000
"""A model whose first run on the CPU is up to this long is fast: it is run in blocks."""

COLD_NS = 150_000_000
"""Where even the fastest run on the GPU takes longer than this, being cold does not explain it."""

WARM_UP, WARM_UP_NS = 8, 150_000_000
"""First runs on a GPU that are dropped: so many; where the model is not fast, only until they took
so long together. The first one always is."""

SWITCH_NS = 100_000_000
"""Up to this length the first run after a switch is dropped; what a switch costs is bounded, so it
says little of longer ones, of which there are too few."""

MAX_RUNS = 240
"""Runs of a trial, dropped ones included."""

ENOUGH = 0.15
"""A trial ends once the error of its own runs is below this part of the error of the window (as
variances): more of the same window shows nothing new."""

MARGIN = 1.1
"""A run may take this much longer than the last one of its alternative before it is thought too
late."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a trial.

    Attributes
    ----------
    alternative : {"cpu", "gpu"}
    block : int
        Counted from 0; a block is a stretch of runs of one alternative.
    ns : int
    kept : bool
        Whether it counts.
    """

    alternative: Alternative
    block: int
    ns: int
    kept: bool


class Trial:
    """One window of measurements of one GPU against the CPU path.

    Parameters
    ----------
    belief : Belief
        What was believed before.
    stakes : CostContext
        With the predicted latency of the CPU path; its measured median takes the place of that.
    rule : Rule
    noise : Noise
    budget_ns : int
        No run is proposed that is expected to end later than this after the first call of `next`.
    tail_milli : int
        What the latency of the CPU path at the wanted percentile is of its median, in thousandths.
    """

    def __init__(
        self,
        belief: Belief,
        stakes: CostContext,
        rule: Rule,
        noise: Noise,
        budget_ns: int = BUDGET_NS,
        *,
        tail_milli: int = 1000,
    ) -> None:
        self.before = belief
        self.belief = belief
        self.stakes = stakes
        self.rule = rule
        self.noise = noise
        self.budget_ns = budget_ns
        self.tail_milli = tail_milli
        self.seen: tuple[float, float] | None = None
        """What the runs say of theta by themselves, and the variance of that."""
        self.stop = ""
        """Why it ended: ``settled``, ``enough``, ``time`` or ``runs``; empty until then."""
        self._runs: list[Run] = []
        self._last: dict[Alternative, int] = {}
        self._kept: dict[Alternative, list[int]] = {"cpu": [], "gpu": []}
        self._cold: dict[Alternative, list[int]] = {"cpu": [], "gpu": []}
        self._first_cpu_ns = 0
        self._order = self._serpentine()
        self._next: Alternative | None = None
        self._block = -1
        self._is_pair_end = False
        self._deadline: int | None = None
        self._verdict = weigh(belief, stakes, rule, noise)

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run, in order."""
        return tuple(self._runs)

    @property
    def verdict(self) -> Weighing:
        """What the belief comes to now."""
        return self._verdict

    def started(self, startup_ns: int) -> None:
        """Take what opening and compiling on the GPU took, in place of what was predicted."""
        self.stakes = replace(self.stakes, startup_ns=startup_ns)
        self._verdict = weigh(self.belief, self.stakes, self.rule, self.noise)

    def next(self, now_ns: int) -> Alternative | None:
        """Return which alternative to run next; None once the trial is over.

        Parameters
        ----------
        now_ns : int
            A monotonic clock, in nanoseconds.
        """
        if self._deadline is None:
            self._deadline = now_ns + self.budget_ns
        if self.stop:
            return None
        alternative: Alternative = next(self._order) if self._next is None else self._next
        self._next = alternative
        if now_ns + self._expected(alternative) > self._deadline:
            self._end("time")
            return None
        return alternative

    def add(self, alternative: Alternative, ns: int) -> None:
        """Take the time of a run of the alternative that `next` returned.

        Raises
        ------
        ValueError
            It is another alternative, or not a time.
        """
        if alternative != self._next or type(ns) is not int or ns < 0:
            raise ValueError(
                f"a trial that waits for {self._next} cannot take {alternative}, {ns!r} ns"
            )
        self._record(alternative, ns)
        self._next = None
        if len(self._runs) >= MAX_RUNS:
            self._end("runs")
        elif self._is_pair_end:
            self._look()

    # -- the order ----------------------------------------------------------------------------

    def _serpentine(self) -> Iterator[Alternative]:
        """Yield alternatives forever: a rough pair, then blocks, or single runs of a slow model.

        The rough pair comes first so that a slow model has runs of both alternatives. Beliefs are
        looked at after each block of the GPU or the CPU that leaves both with equally many.
        """
        turn: tuple[Alternative, ...] = ("cpu", "gpu", "gpu", "cpu")
        size = 1
        while True:
            for place, alternative in enumerate(turn):
                for i in range(size):
                    # The second and fourth block leave the alternatives even.
                    self._is_pair_end = i == size - 1 and place % 2 == 1
                    yield alternative
            size = BLOCK if self._first_cpu_ns <= FAST_NS else 1

    def _expected(self, alternative: Alternative) -> int:
        """Return how long the next run may take; by the prediction if there was none."""
        if alternative in self._last:
            return round(MARGIN * self._last[alternative])
        if alternative == "cpu":
            return self.stakes.cpu_ns
        return round(self._last["cpu"] * exp(min(self.before.mean / MICRO, 40.0)))

    # -- what counts --------------------------------------------------------------------------

    def _record(self, alternative: Alternative, ns: int) -> None:
        is_switch = not self._runs or self._runs[-1].alternative != alternative
        self._block += is_switch
        self._last[alternative] = ns
        if not self._runs:
            self._first_cpu_ns = ns
        kept = not self._is_cold(alternative, ns, is_switch)
        (self._kept if kept else self._cold)[alternative].append(ns)
        self._runs.append(Run(alternative, self._block, ns, kept))

    def _is_cold(self, alternative: Alternative, ns: int, is_switch: bool) -> bool:
        # Not by the length of the run at hand alone: a cold run of a fast GPU is a long one.
        before = (*self._kept[alternative], *self._cold[alternative])
        if alternative == "gpu":
            if not before:
                return True
            fastest = min(*self._kept[alternative], *self._cold[alternative][1:], ns, ns)
            is_fast = self._first_cpu_ns <= FAST_NS and fastest <= COLD_NS
            if len(before) < WARM_UP and (is_fast or sum(before) < WARM_UP_NS):
                return True
        return is_switch and ns <= SWITCH_NS

    # -- what it comes to ---------------------------------------------------------------------

    def _look(self) -> None:
        """Update the belief, and end where more runs are not worth their time."""
        gpu, cpu = self._kept["gpu"], self._kept["cpu"]
        if not gpu or not cpu:
            return
        self._judge(gpu, cpu)
        ratio = self.noise.window / self.noise.run
        floor = ENOUGH * ratio * ratio / 1.57
        if self._verdict.is_settled:
            self.stop = "settled"
        elif 1 / len(gpu) + 1 / len(cpu) < floor:
            self.stop = "enough"

    def _judge(self, gpu: list[int], cpu: list[int]) -> None:
        self.seen = seen(gpu, cpu, self.noise)
        self.belief = updated(self.before, *self.seen)
        typical = median_low(cpu) * self.tail_milli // 1000
        self.stakes = replace(self.stakes, cpu_ns=max(typical, 1))
        self._verdict = weigh(self.belief, self.stakes, self.rule, self.noise)

    def _end(self, why: str) -> None:
        """End with what there is; cold runs count for an alternative that has no others.

        The very first run on a GPU compiles, and says nothing of those that follow.
        """
        self.stop = why
        gpu = self._kept["gpu"] or self._cold["gpu"][1:]
        cpu = self._kept["cpu"] or self._cold["cpu"]
        if gpu and cpu:
            self._judge(gpu, cpu)


def replayed(
    runs: Iterable[tuple[Alternative, int]],
    belief: Belief,
    stakes: CostContext,
    rule: Rule,
    noise: Noise,
    *,
    tail_milli: int = 1000,
) -> Trial:
    """Return the trial that these runs, as pairs of alternative and nanoseconds, make, judged anew.

    Only which alternative ran and for how long is taken from them, not what it was thought to mean,
    nor that there was reason to go on.

    Raises
    ------
    ValueError
        The runs are not those of a trial: the alternatives are out of order, or they are too many.
    """
    trial = Trial(belief, stakes, rule, noise, tail_milli=tail_milli)
    for alternative, ns in runs:
        if len(trial._runs) == MAX_RUNS:
            raise ValueError(f"a trial has at most {MAX_RUNS} runs")
        trial.stop, trial._next = "", next(trial._order)
        trial.add(alternative, ns)
    if not trial.stop:
        trial._end("time")
    return trial
