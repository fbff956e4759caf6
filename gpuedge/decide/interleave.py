"""Timing two alternatives against each other, so that drift hits both alike.

Single alternating runs are biased against the side that is cold after every switch; one long block
each is biased by drift. Serpentine blocks (ABBA) with the first run after each switch dropped have
neither fault: linear drift cancels, and what is kept is warm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal

Arm = Literal["a", "b"]
MARGIN = 1.5
"""A run may take this much longer than the arm's last one before it is thought to be too late."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Kept runs of both arms in nanoseconds, and how many warm-up runs were dropped."""

    a_ns: tuple[int, ...]
    b_ns: tuple[int, ...]
    dropped: int

    @property
    def ln_ratio(self) -> float | None:
        """ln(median b / median a): below zero where b is faster; None without runs of both."""
        if not self.a_ns or not self.b_ns:
            return None
        return math.log(max(median(self.b_ns), 1) / max(median(self.a_ns), 1))


def serpentine(block: int = 4) -> Iterator[Arm]:
    """Yield arms for ever: one rough pair there and back, then blocks a, b, b, a, a, b, b, ...

    The rough pair comes first so that slow models, of which few runs fit the budget, have runs of
    both arms.
    """
    turn: tuple[Arm, ...] = ("a", "b", "b", "a")
    yield from turn
    while True:
        for arm in turn:
            yield from [arm] * block


def compare(
    run_a: Callable[[], object],
    run_b: Callable[[], object],
    budget_s: float,
    *,
    block: int = 4,
    max_runs: int = 200,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Comparison:
    """Time two callables in serpentine blocks until the budget or `max_runs` is used up.

    Parameters
    ----------
    run_a, run_b : callable
        One complete run each, waited for; what they return is ignored.
    budget_s : float
        No run is started that is expected to end after this many seconds.
    block : int
        Runs per block.
    max_runs : int
        Runs in all, dropped ones included.
    clock : callable
        Monotonic, in integer nanoseconds.

    Raises
    ------
    Exception
        Whatever the callables raise.
    """
    deadline = clock() + round(budget_s * 1e9)
    arms: dict[Arm, Callable[[], object]] = {"a": run_a, "b": run_b}
    kept: dict[Arm, list[int]] = {"a": [], "b": []}
    cold: dict[Arm, list[int]] = {"a": [], "b": []}
    last: dict[Arm, int] = {"a": 0, "b": 0}
    previous: Arm | None = None
    order = serpentine(block)
    for _ in range(max_runs):
        arm = next(order)
        if clock() + round(MARGIN * last[arm]) > deadline:
            break
        started = clock()
        arms[arm]()
        last[arm] = clock() - started
        (kept if arm == previous else cold)[arm].append(last[arm])
        previous = arm
    return _result(kept, cold)


def _result(kept: dict[Arm, list[int]], cold: dict[Arm, list[int]]) -> Comparison:
    # A model so slow that an arm has only runs after a switch: those are better than nothing.
    used = {arm: kept[arm] or cold[arm] for arm in kept}
    dropped = sum(len(cold[arm]) for arm in cold if kept[arm])
    return Comparison(tuple(used["a"]), tuple(used["b"]), dropped)
