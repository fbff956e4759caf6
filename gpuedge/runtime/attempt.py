"""A call in a thread of its own, which is waited for no longer than somebody has time."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from gpuedge.core.errors import DeviceError

T = TypeVar("T")

WAITING, RUNNING, DONE, GIVEN_UP = "waiting", "running", "done", "given up"


class Attempt(Generic[T]):
    """Runs `call(attempt)` in a daemon thread; `call` says with `begin` when its turn has come.

    A thread that is stuck in a driver holds up neither the caller nor the end of the interpreter.

    Raises
    ------
    DeviceError (GE-400)
        No thread can be started.
    """

    def __init__(self, call: Callable[[Attempt[T]], T]) -> None:
        self.began = self.ended = monotonic()
        self._call = call
        self._lock = threading.Lock()
        self._state = WAITING
        self._done = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        context = contextvars.copy_context()  # gpuedge.config() of the caller holds there too
        try:
            threading.Thread(
                target=context.run, args=(self._work,), name="gpuedge-run", daemon=True
            ).start()
        except RuntimeError as error:
            raise DeviceError(
                f"No thread can be started for a run with timeout_s: {error}."
            ) from None

    def begin(self) -> bool:
        """Note that the work starts now; False if nobody waits for it any more."""
        with self._lock:
            if self._state == WAITING:
                self._state, self.began = RUNNING, monotonic()
            return self._state == RUNNING

    def wait(self, seconds: float) -> bool:
        """Wait for the result; False if there is none by then."""
        return self._done.wait(min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def give_up(self) -> str:
        """Stop waiting; return what the call was doing: waiting, running or done."""
        with self._lock:
            before = self._state
            if before == WAITING:
                self._state = GIVEN_UP
            return before

    @property
    def is_given_up(self) -> bool:
        """Tell whether it was given up before its turn came."""
        return self._state == GIVEN_UP

    @property
    def is_over(self) -> bool:
        """Tell whether the call has returned."""
        return self._done.is_set()

    def result(self) -> T:
        """Return what the call returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _work(self) -> None:
        try:
            self._result.append(self._call(self))
        except BaseException as error:  # handed to whoever waits
            self._error = error
        finally:
            with self._lock:
                self._state, self.ended = DONE, monotonic()
            self._done.set()
