"""One request of a session at a time, also when one of them does not come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from gpuedge.core.errors import RequestTimeoutError
from gpuedge.runtime.attempt import Attempt

POLL_S = 0.2
"""How often a request that waits for its turn looks whether the one before it is stuck."""

STILL_S = 5.0
"""A wait that ends so much too late says that the whole process stood still."""


class Turns:
    """The lock of a session, and the request that was given up while it held it.

    Attributes
    ----------
    late : Attempt or None
        The request that its caller no longer waits for, and that has not returned.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._late: Attempt[Any] | None = None

    @property
    def late(self) -> Attempt[Any] | None:
        """The request that nobody waits for any more and that still runs."""
        late = self._late
        if late is not None and late.is_over:
            self._late = late = None
        return late

    def take(
        self, attempt: Attempt[Any] | None = None, look: Callable[[], None] = lambda: None
    ) -> threading.RLock | None:
        """Wait for the turn of a request; return the lock to release, None behind a late one.

        Parameters
        ----------
        attempt : Attempt, optional
            The request, where it has a time limit.
        look : callable
            Called now and then while it waits: may find that the request under way is stuck.

        Raises
        ------
        RequestTimeoutError (GE-406)
            The attempt was given up before its turn came.
        """
        while True:
            if self._late is not None and self.late is not None:
                return None
            lock = self._lock
            if lock.acquire(timeout=POLL_S):
                if lock is not self._lock:  # it was left to a stuck request meanwhile
                    lock.release()
                elif attempt is None or attempt.begin():
                    return lock
                else:
                    lock.release()
                    raise _given_up()
            elif attempt is not None and attempt.is_given_up:
                raise _given_up()
            else:
                look()

    def be_late(self, attempt: Attempt[Any], seconds: float, leave: Callable[[], None]) -> None:
        """Note that a request runs on without its caller; `leave` it if it runs for too long."""
        self._late = attempt

        def watch() -> None:
            until = attempt.began + seconds
            while not attempt.wait(until - monotonic()):
                if monotonic() - until < STILL_S:
                    return leave()
                until = monotonic() + seconds  # the process stood still, and the driver with it

        # Without a thread for it, the CPU answers for as long as the request is stuck.
        with suppress(RuntimeError):
            threading.Thread(target=watch, name="gpuedge-late", daemon=True).start()

    def renew(self) -> None:
        """Go on without the late request: what it holds stays its own."""
        self._lock = threading.RLock()
        self._late = None

    def take_within(self, seconds: float) -> threading.RLock | None:
        """Wait so long at most for a turn; None if there is none by then, or behind a late one."""
        until = monotonic() + seconds
        while self.late is None:
            lock = self._lock
            if lock.acquire(timeout=max(0.0, min(until - monotonic(), POLL_S))):
                if lock is self._lock:
                    return lock
                lock.release()
            elif monotonic() >= until:
                return None
        return None

    def hold(self, seconds: float) -> bool:
        """Let no other thread have a turn any more, at the end of the interpreter."""
        return self._lock.acquire(timeout=max(seconds, 0))


def _given_up() -> RequestTimeoutError:
    return RequestTimeoutError("The request was given up before its turn came.")
