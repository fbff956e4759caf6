"""Calls with a deadline: the one way to wait for something that may never return.

A call into a driver, a file system or a network library may hang and cannot be interrupted. It runs
in a daemon thread, and whoever asked for it waits only as long as there is time. A thread that is
stuck holds up neither its caller nor the end of the interpreter.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from gpuedge.core.text import duration
from gpuedge.safety.interrupts import held, is_of_handler, rlock

T = TypeVar("T")


class NoThreadError(RuntimeError):
    """No thread can be started: there are too many, or the interpreter is ending."""


def started(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread, and return it. Raises NoThreadError."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        with held:  # or its first step would wait for good for what an exception left locked
            thread.start()
    except RuntimeError as error:
        if is_of_handler(error):
            raise
        raise NoThreadError(str(error)) from None
    return thread


class DeadlineCall(Generic[T]):
    """A call under way in a daemon thread, in the context of the caller (`gpuedge.config`).

    `ended` is when it returned, in monotonic seconds. Raises NoThreadError.
    """

    def __init__(self, work: Callable[[], T], name: str = "gpuedge-call") -> None:
        self.ended: float | None = None
        self._work = work
        self._lock = rlock()
        self._done = threading.Lock()  # free once it is over; written in C, unlike events
        self._done.acquire()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._is_given_up = False
        self._on_return: Callable[[], object] | None = None
        context = contextvars.copy_context()
        started(lambda: context.run(self._run), name)

    @property
    def is_over(self) -> bool:
        """Whether the call has returned."""
        return self.ended is not None

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits for it any more; long work may look at this and stop."""
        return self._is_given_up

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for the call to return; tell whether it has."""
        seconds = min(max(seconds, 0.0), threading.TIMEOUT_MAX)
        if self.ended is None and self._done.acquire(timeout=seconds):
            self._done.release()  # for others that wait
        return self.ended is not None

    def result(self) -> T:
        """Return what the call returned, or raise what it raised; only once it is over."""
        if self._error is not None:
            raise self._error
        return self._result[0]

    def give_up(self, on_return: Callable[[], object] | None = None) -> bool:
        """Wait no longer; False if the call was over already: it is in time or late, never both.

        `on_return` runs in the thread of the call if that returns after all.
        """
        with self._lock:
            if self.ended is not None:
                return False
            self._is_given_up, self._on_return = True, on_return
            return True

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # handed to whoever waits
            self._error = error
        with self._lock:
            self.ended = monotonic()
        self._done.release()
        if self._on_return is not None:
            self._on_return()


def call_within(seconds: float, work: Callable[[], T]) -> T:
    """Return what a call returns, or raise what it raises; TimeoutError if it does not in time.

    Then it runs on, and its result is dropped.
    """
    call = DeadlineCall(work, "gpuedge-call")
    if not call.wait(seconds) and call.give_up():
        raise TimeoutError(f"no answer within {duration(seconds * 1e9)}")
    return call.result()


def keep(thing: object) -> None:
    """Keep what a driver may still be working on to the end of the process, and beyond Python's."""
    import ctypes  # the CPU does without it, as some Pythons must

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
