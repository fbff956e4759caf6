"""How long a host is waited for: less where it does nothing than where it computes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuedge.probing import process
from gpuedge.probing.judge import HUNG_SHARE

if TYPE_CHECKING:
    from gpuedge.isolation.shared import Arena

CALL_S = 10.0
"""Time for a call that computes nothing, in seconds."""

FLOOR_S = 2.0
"""The least a host may do nothing in a call before it counts as hung: shorter gaps are normal."""

STILL_S = 10.0
"""What it may where nobody said how long the device may take."""

AFTER_S = 1.0
"""Calls that take less are not looked at."""

LOOK_S = 0.5
"""How often the others are; no gap between two looks counts for more than twice of it, so that the
time that this process stood still itself is not held against the host."""


class Stillness:
    """How long a host has done nothing while an answer is waited for.

    It did something if it used a tenth of the time, or if a thread of it wants to run and has no
    processor. Where the system does not tell (Linux does) a host is never still.

    Parameters
    ----------
    pid : int
        Its process id.
    allowed_s : float
        How long it may.
    """

    def __init__(self, pid: int, allowed_s: float) -> None:
        self._pid = pid
        self._allowed_s = allowed_s
        self._next = time.monotonic() + AFTER_S
        self._when = 0.0
        self._used: float | None = None
        self._still_s = 0.0

    def lasts_too_long(self) -> bool:
        """Look, if it is time to; say whether the host has done nothing for as long as it may."""
        now = time.monotonic()
        if now < self._next:
            return False
        used, before = process.cpu_seconds(self._pid), self._used
        gap, self._when = now - self._when, now
        self._used, self._next = used, now + LOOK_S
        if (
            used is None
            or before is None
            or used - before >= HUNG_SHARE * gap
            or wants_to_run(self._pid)
        ):
            self._still_s = 0.0
        else:
            self._still_s += min(gap, 2 * LOOK_S)
        return self._still_s >= self._allowed_s

    def forget(self) -> None:
        """Count anew: the host got on, or may wait where it is now."""
        self._next, self._used, self._still_s = time.monotonic() + AFTER_S, None, 0.0


def wants_to_run(pid: int) -> bool:
    """Say whether a thread of a process runs or waits for a processor (Linux)."""
    folder = f"/proc/{pid}/task"
    with suppress(OSError):
        for task in os.listdir(folder):  # noqa: PTH208
            with suppress(OSError, IndexError):
                if process.is_ready(f"{folder}/{task}"):
                    return True
    return False


class Patience:
    """How long to wait for a host that is at work on several calls.

    The host notes which call it is at and since when. Notes may be wrong: a call has its time once,
    counted from when it is first seen. A host that does nothing has less.

    Parameters
    ----------
    arena : Arena
    limits : sequence of float
        Seconds for each call.
    begin_s : float, optional
        Seconds until the first of them begins.
    stillness : Stillness, optional
        Says when a host that does nothing has done so for too long.
    waits : sequence of int
        The calls in which it may.

    Attributes
    ----------
    look_s : float
        How often to look at the notes: as soon as the shortest of the calls might be over.
    """

    def __init__(
        self, arena: Arena, limits: Sequence[float], begin_s: float | None = None,
        stillness: Stillness | None = None, waits: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._arena = arena
        self._limits = limits
        self._begin_s = CALL_S if begin_s is None else begin_s
        self._stillness = stillness
        self._waits = waits
        self.look_s = min(*limits, LOOK_S)
        self._began = time.monotonic()
        self.position = -1

    def deadline(self) -> float:
        """Return when the call under way should be over."""
        when, position = self._arena.told()
        if self.position < position <= len(self._limits):
            now = time.monotonic()
            self._began = min(now, when) if when >= self._began else now
            self.position = position
            if self._stillness is not None:
                self._stillness.forget()
        still = self._stillness
        if still is not None and self.position not in self._waits and still.lasts_too_long():
            return time.monotonic()
        is_at_one = 0 <= self.position < len(self._limits)
        return self._began + (self._limits[self.position] if is_at_one else self._begin_s)


class Opening(Patience):
    """Patience with a host that starts and opens its device: one deadline for both."""

    def __init__(self, arena: Arena, end: float) -> None:
        super().__init__(arena, [CALL_S])
        self._end = end

    def deadline(self) -> float:
        """Return when it should be open."""
        super().deadline()
        return self._end
