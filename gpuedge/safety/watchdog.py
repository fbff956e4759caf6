"""Is it hung? The one answer for runs, requests, worker processes and probing children.

Three things tell a hung driver from a slow one, and each is one class here:

* `Watchdog` knows how long a run may take: from what was predicted and how far off predictions were
  for this device (`Slowness`), and then from the runs before it.
* `Activity` tells a process that does nothing from one that computes, or that is kept from it by a
  busy machine.
* `Watch` follows one piece of work. Whoever waits asks it `look()` a few times a second; it says
  True once the work has taken longer than its limit, or once the process that does the work has
  been idle for too long. Time in which nobody looked counts little: the whole machine may have been
  asleep (a closed lid, ``SIGSTOP``), and that says nothing about a driver.

A process is idle if it used almost no processor time, no thread of it wanted any, and it read
nothing from disk. A driver that waits for an interrupt that never comes does nothing of all that.
Where a driver works in that process, as software rasterisers and compilers do, the limit is
stretched while it is not idle, up to `STRETCH` times: an endless loop is found as well, but later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic, process_time

from gpuedge.core.times import FLOOR_S, MOST_S, RUN_LIMIT_S, STILL_S

FACTOR = 10.0
"""A run that takes this many times the slowest of the runs before it is no longer a slow run; nor
is a first run that takes as many times what it is predicted to take on this device."""

STRETCH = 10.0
"""Work may take this many times its limit while the process that does it computes, or wants to."""

SLOW_S = 1.0
"""Runs from here on tell how much longer a device takes than predicted; overhead governs others."""

WINDOW = 128
"""Runs that a watchdog remembers."""

LOOK_S = 0.5
"""How often to look at work under way."""

MOST_GAP_S = 2 * LOOK_S
"""What the time between two looks counts for at most."""

IDLE_SHARE = 0.1
"""A process that used less than this share of the time was idle."""

MAX_TASKS = 64
"""Threads of a process that are looked at."""

_OFTEN, _SELDOM = 8, 32


class Slowness:
    """How many times as long as predicted runs on a device took: the worst so far, at least 1."""

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, seconds: float, predicted_s: float) -> None:
        """Remember what a run took that was predicted to take `predicted_s`."""
        if predicted_s > 0.0:
            self.factor = max(self.factor, seconds / predicted_s)


class Watchdog:
    """How long a piece of a run may take: ten times the 99th percentile of its past, at least 2 s.

    Of each run in the past, its longest piece counts. One of a first run may take `RUN_LIMIT_S`, or
    ten times what it is predicted to take on this device.

    `limit_s` is what a piece of the next run may take before anybody asks what was predicted: that
    takes time. A run that took no longer than `quick_s` need not be noted: it would not change the
    limit. A run has `pieces`; `pieces_done` counts those of all runs, so it tells of progress.
    """

    def __init__(self, slowness: Slowness | None = None) -> None:
        self.is_fixed = False
        self.quick_s = -1.0
        self.limit_s = RUN_LIMIT_S
        self.pieces, self.pieces_done = 1, 0
        self._times: list[float] = []
        self._runs = 0
        self._slowness = slowness or Slowness()
        self._predict: Callable[[], float] | None = None
        self._compiling: Callable[[], float] = lambda: 0.0
        self._predicted_s: float | None = None

    def fix(self, limit_s: float) -> None:
        """Set a limit that stays, whatever is measured."""
        self.is_fixed, self.limit_s, self.quick_s = True, limit_s, inf

    def expect(
        self, predict: Callable[[], float], compiling: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Set what predicts the seconds of a run, and of compiling in a first one.

        The first is asked at most once, the second only of slow runs.
        """
        self._predict, self._compiling = predict, compiling

    @property
    def has_run(self) -> bool:
        """Whether a run has ended: drivers compile during the first one."""
        return self._runs > 0

    @property
    def patience_s(self) -> float:
        """What the next run may take without a sign of life."""
        if self.is_fixed or self._runs:
            return self.limit_s
        predicted_s = self.predicted_s + self._compiling() * self._slowness.factor
        expected_s = FACTOR * predicted_s / self.pieces
        return min(max(self.limit_s, expected_s), MOST_S)

    @property
    def most_s(self) -> float:
        """What the next run may take while there are signs of life."""
        if self.is_fixed:
            return self.limit_s
        return min(max(RUN_LIMIT_S, STRETCH * self.patience_s), MOST_S)

    @property
    def predicted_s(self) -> float:
        """What a run is predicted to take here once all is compiled; 0.0 where nothing says."""
        return self._predicted() * self._slowness.factor

    def note(self, seconds: float, longest_s: float | None = None) -> None:
        """Remember how long a run took, and its longest piece."""
        times, runs = self._times, self._runs
        if seconds >= SLOW_S:
            first_s = 0.0 if self._runs else self._compiling()
            self._slowness.note(seconds, self._predicted() + first_s)
        longest_s = seconds if longest_s is None else longest_s
        if runs < WINDOW:
            times.append(longest_s)
        else:
            times[runs % WINDOW] = longest_s
        self._runs = runs = runs + 1
        if (runs <= _OFTEN or runs % _SELDOM == 0) and not self.is_fixed:
            slow = percentile(sorted(times), 99)
            self.limit_s = min(max(FLOOR_S, FACTOR * slow), MOST_S)
            self.quick_s = FLOOR_S / FACTOR if self.limit_s == FLOOR_S else -1.0

    def _predicted(self) -> float:
        if self._predicted_s is None:
            self._predicted_s = 0.0 if self._predict is None else self._predict()
        return self._predicted_s


def percentile(ordered: list[float], share: int) -> float:
    """Return the smallest of the ordered times that `share` per cent of them do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


class Watch:
    """Follows one piece of work; not for several threads at once.

    The work may take `limit_s` in all. If a process, `pid`, does it, that may be idle for `idle_s`;
    where the system does not tell (only Linux does), it counts as busy. While it is not idle, the
    work may take `most_s`; where the system does not tell, `limit_s`. Whenever `progress` returns
    something else than before, all this begins anew. By the last look the work has taken `spent_s`,
    and the process had been idle for `idle_for_s`.
    """

    def __init__(
        self,
        limit_s: float,
        pid: int | None = None,
        idle_s: float | None = None,
        most_s: float | None = None,
        progress: Callable[[], object] | None = None,
    ) -> None:
        self.limit_s, self.most_s = limit_s, most_s
        self._progress = progress
        self._mark = None if progress is None else progress()
        self._idle_s = idle_s
        self._process = None if pid is None else Activity(pid)
        self.restart()

    def restart(self, limit_s: float | None = None, most_s: float | None = None) -> None:
        """Start over: there was a sign of life, or other work has begun."""
        if limit_s is not None:
            self.limit_s, self.most_s = limit_s, most_s
        self.spent_s = self.idle_for_s = 0.0
        self._when = monotonic()
        if self._process is not None:
            self._process.touch()

    def look(self) -> bool:
        """Tell whether the work hangs."""
        if self._progress is not None and (mark := self._progress()) != self._mark:
            self._mark = mark
            self.restart()
        now = monotonic()
        self.spent_s += min(now - self._when, MOST_GAP_S)
        self._when = now
        if self._process is not None:
            idle_s = self._process.idle_s()
            self.idle_for_s = idle_s if self._process.is_known else 0.0
        is_idle = self._idle_s is not None and self.idle_for_s >= self._idle_s
        may_take_s = self.most_s if self.most_s is not None and self.is_alive else self.limit_s
        return is_idle or self.spent_s >= may_take_s

    @property
    def is_alive(self) -> bool:
        """Whether the process is known to have done something just now."""
        process = self._process
        return process is not None and process.is_known and self.idle_for_s < STILL_S


class Activity:
    """When a process last did something: computed, or wanted to and had no processor.

    Only a process that does neither can be hanging, however silent the others are. Linux alone says
    all this (`is_known`); elsewhere a process counts as idle since it last gave a sign of life.
    `used_s` is the processor time used by the last look, None where not known.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._when = self._active = monotonic()
        self.used_s = cpu_seconds(pid)
        self.is_known = self.used_s is not None
        self._reads = _disk_reads(pid)

    def touch(self) -> None:
        """Note a sign of life."""
        self._active = monotonic()

    def idle_s(self) -> float:
        """Return for how long it has done nothing; to be asked again and again."""
        now = monotonic()
        gap = now - self._when
        if gap >= LOOK_S / 5:  # reading it costs some microseconds per thread of the process
            used, before = cpu_seconds(self._pid), self.used_s
            self.is_known = used is not None
            if used is not None:
                reads, read = _disk_reads(self._pid), self._reads
                is_busy = before is None or used - before >= IDLE_SHARE * gap or reads != read
                if is_busy or _wants_to_run(self._pid):
                    self._active = now
                elif gap > MOST_GAP_S:  # we stood still ourselves: nothing is known of it
                    self._active += gap
                self.used_s, self._reads = used, reads
            self._when = now
        return now - self._active


def is_active(used_s: float, over_s: float) -> bool:
    """Tell whether this process computed for some of a time, or has no processor to do so.

    `over_s` is how long ago its ``process_time()`` was `used_s`.
    """
    return process_time() - used_s >= IDLE_SHARE * over_s or _wants_to_run(os.getpid())


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time that a process has used; None where the system does not say."""
    try:
        fields = _stat(f"/proc/{pid}")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _disk_reads(pid: int) -> bytes:
    """Return something that changes while a process reads from disk, as when it loads its code."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/io", "rb") as file:
        return file.read().split()[9]  # read_bytes
    return b""


def _wants_to_run(pid: int) -> bool:
    """Tell whether a thread of a process runs or waits for a processor (Linux), this one aside."""
    me = str(threading.get_native_id())
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task")[:MAX_TASKS]:
            if task == me:
                continue
            with suppress(OSError, IndexError):  # it has ended
                if _stat(f"/proc/{pid}/task/{task}")[0] == "R":
                    return True
    return False


def _stat(place: str) -> list[str]:
    """Return the fields of a ``stat`` file after the name, which may hold anything."""
    with open(f"{place}/stat", "rb") as file:
        return file.read(4096).rpartition(b")")[2].decode("ascii", "replace").split()
