"""Finds the commit that made a case slower: each step is interleaved with the good commit."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from gpuedge.bench.cases import BenchCase
from gpuedge.bench.checkouts import Repository
from gpuedge.bench.estimates import Ratio
from gpuedge.bench.interleave import Say, interleaved
from gpuedge.bench.results import ratio
from gpuedge.bench.subjects import SubjectName
from gpuedge.core.errors import InputError, UsageError

LEVEL = 0.99
"""Confidence of a step: a handful of them must all be right."""

LEAST_ROUNDS = 8
"""So many rounds bound the ratio at that confidence."""


@dataclass(frozen=True, slots=True)
class BisectStep:
    """A commit that was compared with another one; `is_sure` where the interval decided."""

    commit: str
    against: str
    ratio: Ratio
    is_slow: bool
    is_sure: bool


@dataclass(frozen=True, slots=True)
class FoundCommit:
    """The outcome.

    Attributes
    ----------
    commit : str
        The first slow one.
    before : str
        The last fast one.
    total : Ratio
        Of the bad commit to the good one.
    steps : tuple of BisectStep
        At most ceil(log2(number of commits)) + 2: the ends, the search, and `commit` against
        `before`.
    untestable : tuple of str
        Commits that did not run.
    is_confirmed : bool
        Whether `commit` is slower than `before`, by at least half of the whole (in logarithms).
        False too where untestable commits lie between the two.
    """

    commit: str
    before: str
    total: Ratio
    steps: tuple[BisectStep, ...]
    untestable: tuple[str, ...]
    is_confirmed: bool


Measure = Callable[[str, str, float | None], Ratio]
"""Returns how many times as long the second commit takes. The search goes on until the interval
does not hold the given ratio, or all rounds are done. Raises InputError for one that does not run.
"""


class Bisection:
    """The search over commits, oldest first; the first is good and the last is bad."""

    def __init__(self, commits: list[str], measure: Measure, say: Say = lambda _: None) -> None:
        self._commits, self._measure, self._say = commits, measure, say
        self._steps: list[BisectStep] = []
        self._untestable: list[str] = []

    def run(self) -> FoundCommit:
        """Search.

        Raises
        ------
        UsageError (GE-200)
            The last commit is not slower than the first.
        InputError (GE-203)
            One of these two does not run.
        """
        low, high = 0, len(self._commits) - 1
        total = self._step(low, high, 1.0).ratio
        if total.low <= 1:
            raise UsageError(
                "The bad commit is not slower than the good one.", asked_by="the command line",
                known=f"the ratio is {total.value:.3f}, from {total.low:.3f} to {total.high:.3f}",
                hint="more --rounds, or another case",
            )  # fmt: skip
        border = math.sqrt(total.value)
        while (middle := self._middle(low, high, border)) is not None:
            low, high = (low, middle) if self._steps[-1].is_slow else (middle, high)
        is_confirmed = high - low == 1
        if is_confirmed and len(self._commits) > 2:
            last = self._step(low, high, 1.0)
            is_confirmed = last.ratio.low > 1 and last.ratio.value >= border
        return FoundCommit(
            self._commits[high], self._commits[low], total, tuple(self._steps),
            tuple(self._untestable), is_confirmed,
        )  # fmt: skip

    def _middle(self, low: int, high: int, border: float) -> int | None:
        """Compare the commit nearest to the middle that runs; None where there is none left."""
        inner = sorted(range(low + 1, high), key=lambda i: abs(2 * i - low - high))
        for at in inner:
            if self._commits[at] in self._untestable:
                continue
            try:
                self._step(0, at, border)
            except InputError as error:
                self._say(f"{self._commits[at][:12]} does not run: {error.known or error.what}")
                self._untestable.append(self._commits[at])
                continue
            return at
        return None

    def _step(self, before: int, after: int, border: float) -> BisectStep:
        first, second = self._commits[before], self._commits[after]
        self._say(f"step {len(self._steps) + 1}: {second[:12]} against {first[:12]}")
        found = self._measure(first, second, border)
        is_sure = not found.low <= border <= found.high
        step = BisectStep(second, first, found, found.value > border, is_sure)
        self._steps.append(step)
        return step


def measure_commits(
    case: BenchCase, repository: Repository, device: str, rounds: int, say: Say
) -> Measure:
    """Return what compares two commits by a case."""

    def measure(before: str, after: str, border: float | None) -> Ratio:
        names = [SubjectName(c[:12], device=device, commit=c) for c in (before, after)]
        with ExitStack() as stack:
            subjects = [stack.enter_context(repository.checked_out(name)) for name in names]
            timed = stack.enter_context(interleaved(case, subjects))
            for at in range(rounds):
                timed.round(rounds)
                first, second = timed.results()
                failed = next((r for r in (first, second) if r.failed), None)
                if failed is not None:
                    raise InputError(
                        f"Commit {failed.subject} does not run the case.", known=failed.failed,
                        hint="--setup, if it must be built",
                    )  # fmt: skip
                if at + 1 < LEAST_ROUNDS:
                    continue
                found = ratio(first, second, LEVEL)
                say(f"{after[:12]}: {found.value:.3f} times as long, round {at + 1}")
                if border is not None and not found.low <= border <= found.high:
                    break
        return found

    return measure
