"""A lock and the changes of what it protects, which threads wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from gpuedge.safety.interrupts import held, rlock

T = TypeVar("T")

POLL_S = 0.2
"""How often a thread that waits looks by itself: a change may not have been told to the end."""


class Monitor:
    """What `threading.Condition` is for, where a signal may come between any two instructions.

    A condition is entered, left and waited for in Python: interrupted there its lock stays held, or
    is not held where it is released next. Here ``with monitor.lock`` is one instruction, and
    waiting is done without the lock.
    """

    def __init__(self) -> None:
        self.lock = rlock()
        self._waiting: list[threading.Lock] = []

    def notify(self) -> None:
        """Wake all that wait; to be called with the lock."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                waiter.release()

    def wait_for(self, step: Callable[[], T | None], seconds: float | None = None) -> T | None:
        """Return what `step` returns once that is not None; None if it is not in time.

        `step` is called with the lock, at once and after each change, and may do what was waited
        for. Not to be called with the lock.
        """
        until = None if seconds is None else monotonic() + seconds
        change: threading.Lock | None = None
        while True:
            with held, self.lock:  # a handler that waits for others must not keep it from them
                result = step()
                if result is not None:
                    return result
                if change is None:
                    change = threading.Lock()
                    change.acquire()
                    self._waiting.append(change)
            left_s = POLL_S if until is None else min(until - monotonic(), POLL_S)
            if left_s <= 0:
                return None
            if change.acquire(timeout=left_s):
                change = None
