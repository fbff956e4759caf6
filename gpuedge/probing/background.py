"""Probes that are under way in this process, and those of them that nobody waits for.

One driver is looked at by one thread at a time: others that want it wait for that one (`Look`).

What a caller's deadline cut off is looked at once more on a thread of its own, with time enough.
The first start of an application finds every driver's cache of shaders empty, and a busy machine
gives none its share: what was not done in time says nothing of the driver. What a driver itself
needs has a limit of its own either way (`gpuedge.probing.judge.BUDGET_S`).
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from gpuedge.core.times import PROBE_END_S
from gpuedge.safety.deadline import DeadlineCall

if TYPE_CHECKING:
    from gpuedge.core.driver import Candidate
    from gpuedge.probing.report import ProbeRow

    Drivers = Mapping[str, Candidate]
    Found = dict[str, list[ProbeRow]]

DEADLINE_S = 60.0
"""Time for all drivers together that a deadline cut off."""

WORDS = "looked at again in the background, or at the next start"

_looks: dict[str, Look] = {}
"""Who looks at a driver, by the key of its verdict."""


def marked(rows: list[ProbeRow]) -> list[ProbeRow]:
    """Say of what was cut off that it is looked at again."""
    return [row.replace(reason=f"{row.reason}; {WORDS}") if row.is_starved else row for row in rows]


class Look:
    """A look at some drivers by the thread that makes this, or by one in the background.

    A thread never waits for itself: a caller's callback may want a driver, too.

    Parameters
    ----------
    until : float
        When it is over at the latest, on the clock of `time.monotonic`.
    meanwhile : mapping of str to list of ProbeRow, optional
        What is said of its drivers as long as it is not over; given for one in the background.

    Attributes
    ----------
    drivers : dict of str to Candidate
        What it looks at: those that nobody else does.
    """

    def __init__(self, drivers: Drivers, until: float, meanwhile: Found | None = None) -> None:
        self._until = until
        self._meanwhile = meanwhile or {}
        self._found: Found = {}
        self._owner = os.getpid()
        self._thread = None if meanwhile else threading.get_ident()
        self._over = threading.Lock()
        self._over.acquire()
        self.drivers: dict[str, Candidate] = {}
        for name, driver in drivers.items():
            if self._is_taken(name):
                self.drivers[name] = driver

    def _is_taken(self, name: str) -> bool:
        """Take a driver that nobody looks at; a dictionary does so in one step."""
        other = _looks.setdefault(name, self)
        if other is not self and (other.is_over or other._thread == threading.get_ident()):
            _looks[name] = other = self
        return other is self

    @property
    def is_over(self) -> bool:
        """True if it ended, or should have; in a forked child it never was."""
        is_late = time.monotonic() > self._until + PROBE_END_S
        return is_late or self._owner != os.getpid() or not self._over.locked()

    def end(self, found: Found) -> None:
        """Give what was found to all that wait."""
        self._found = found
        for name in self.drivers:
            if _looks.get(name) is self:
                del _looks[name]
        self._over.release()

    def wait(self, wanted: Collection[str], seconds: float) -> Found:
        """Wait for it, and return what it says of drivers.

        That is what was said before where time is over first, and nothing of those that it has no
        verdict on.
        """
        if not self._over.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX)):
            return {name: self._meanwhile.get(name, []) for name in self.drivers.keys() & wanted}
        self._over.release()  # for others that wait
        mine = self._found.keys() & wanted
        return {n: self._found[n] for n in mine if not any(r.is_starved for r in self._found[n])}


def other_look(wanted: Collection[str]) -> Look | None:
    """Return the look of another thread at some of these drivers, if there is one."""
    return next((look for name in wanted if (look := _looks.get(name)) is not None), None)


class BackgroundProbe:
    """A probe on a daemon thread. Raises NoThreadError where none can be started.

    `work` is called with what tells it to give up: the interpreter ends, and with it the thread
    that would clean up.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], object]) -> None:
        self._is_stopped = False
        self._owner = os.getpid()
        self._call = DeadlineCall(lambda: self._do(work), "gpuedge-probe")
        atexit.register(self._stop)

    def _do(self, work: Callable[[Callable[[], bool]], object]) -> None:
        work(lambda: self._is_stopped)
        atexit.unregister(self._stop)

    def _stop(self) -> None:
        if not self._call.is_over and self._owner == os.getpid():
            self._is_stopped = True
            self._call.wait(PROBE_END_S)
