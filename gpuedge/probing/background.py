"""Drivers that a caller's deadline cut off are looked at once more, where nobody waits for them.

The first start of an application finds every driver's cache of shaders empty, and a busy machine
gives none its share: what was not done in time says nothing of the driver. So it is probed again,
on a thread, with time enough; what a driver itself needs has a limit of its own either way
(`gpuedge.probing.judge.BUDGET_S`).
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from gpuedge.core.times import PROBE_END_S
from gpuedge.safety.deadline import DeadlineCall

if TYPE_CHECKING:
    from gpuedge.core.driver import Candidate
    from gpuedge.probing.report import ProbeRow

    Found = dict[str, list[ProbeRow]]

DEADLINE_S = 60.0
"""Time for all of them together."""

WORDS = "looked at again in the background, or at the next start"


def marked(rows: list[ProbeRow]) -> list[ProbeRow]:
    """Say of what was cut off that it is looked at again."""
    return [row.replace(reason=f"{row.reason}; {WORDS}") if row.is_starved else row for row in rows]


class BackgroundProbe:
    """One more probe, under way on a daemon thread. Raises RuntimeError where there is none.

    Parameters
    ----------
    drivers : mapping of str to Candidate
        By the key of their verdicts.
    cut : mapping of str to list of ProbeRow
        What is said of them meanwhile.
    probe : callable
        Called with the drivers, the deadline, when it begins, and what tells to give up earlier;
        returns rows by key.
    keep : callable
        Called with what was found, on the thread.
    """

    def __init__(
        self,
        drivers: Mapping[str, Candidate],
        cut: Found,
        probe: Callable[[Mapping[str, Candidate], float, float, Callable[[], bool]], Found],
        keep: Callable[[Found], object],
    ) -> None:
        self._cut = cut
        self._owner = os.getpid()

        def work() -> Found:
            rows_of = probe(drivers, DEADLINE_S, time.monotonic(), lambda: self._is_stopped)
            if not self._is_stopped:
                keep(rows_of)
            return rows_of

        self._is_stopped = False
        self._call = DeadlineCall(work, "gpuedge-probe")
        atexit.register(self._stop)

    def _stop(self) -> None:
        """Give up: the interpreter ends, and with it the thread that would clean up."""
        if not self.is_over:
            self._is_stopped = True
            self._call.wait(PROBE_END_S)

    @property
    def is_over(self) -> bool:
        """True if it ended; in a forked child it never was."""
        return self._call.is_over or self._owner != os.getpid()

    def has_ended_in(self, seconds: float) -> bool:
        """Wait for it to end; tell whether it has."""
        return self.is_over or self._call.wait(seconds)

    def wait(self, wanted: Collection[str], seconds: float) -> Found:
        """Wait for it if it is looking at one of these drivers, and return what it says of them.

        That is what was cut off where time is over before; nothing of drivers that were cut off
        again. What ended before was stored, and is not asked any more.
        """
        mine = self._cut.keys() & wanted
        if self.is_over or not mine:
            return {}
        if not self._call.wait(seconds):
            return {key: self._cut[key] for key in mine}
        try:
            rows_of = self._call.result()
        except Exception:  # as the caller's own probe will
            return {}
        return {k: rows_of[k] for k in mine if not any(row.is_starved for row in rows_of[k])}
