"""The requests of `run_async`: they wait for one worker thread, first come, first served.

Unlike `concurrent.futures.ThreadPoolExecutor` the thread does not hold up the end of the
interpreter, the number of waiting requests is bounded, and a request may have a time limit that
also counts while it waits.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from time import monotonic
from typing import Any

from gpuedge.core.errors import ClosedError, DeviceError, RequestTimeoutError, UsageError

MOST = 1024
"""Requests that may wait; who brings one more waits for a place."""

LOOK_S = 0.5
"""How often `Queue.close` looks whether the request under way is stuck."""

Call = Callable[[float | None], Any]
"""Answers a request, given the seconds it has left."""


log = logging.getLogger("gpuedge")


class _Queued:
    def __init__(self, call: Call, timeout_s: float | None) -> None:
        self.future: Future[Any] = Future()
        self.call = call
        self.context = contextvars.copy_context()
        self.timeout_s = timeout_s
        self.until = None if timeout_s is None else monotonic() + timeout_s

    def left_s(self) -> float | None:
        return None if self.until is None else self.until - monotonic()

    def expire(self) -> None:
        """Fail a request whose time was over before its turn came."""
        self.fail(
            RequestTimeoutError(
                f"The request waited for all of its {self.timeout_s:g} s.",
                asked_by="timeout_s",
                known="requests before it were not done",
            )
        )

    def fail(self, error: BaseException) -> None:
        """End a request that did not run."""
        with _callbacks():
            if self.future.set_running_or_notify_cancel():
                self.future.set_exception(error)

    def run(self) -> None:
        with _callbacks():
            if not self.future.set_running_or_notify_cancel():
                return
            try:
                result = self.context.run(self.call, self.left_s())
            except BaseException as error:  # belongs to whoever asks the future
                self.future.set_exception(error)
            else:
                self.future.set_result(result)


@contextmanager
def _callbacks() -> Iterator[None]:
    """Survive what callbacks of a future raise that is no Exception, such as SystemExit.

    `concurrent.futures` logs exceptions; the rest would end the thread that all others wait for.
    """
    try:
        yield
    except BaseException as error:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and isinstance(error, KeyboardInterrupt):
            raise  # Ctrl-C, which is nobody's callback
        log.exception("a callback of a future ended with this, which is ignored")


class Queue:
    """A queue and its worker. Threads are started when they are first needed.

    Parameters
    ----------
    changed : Condition, optional
        The lock of the session.
    most : int
        Requests that may wait.
    """

    def __init__(self, changed: threading.Condition | None = None, most: int = MOST) -> None:
        self._most = most
        self._waiting: deque[_Queued] = deque()
        self._changed = changed or threading.Condition()
        self._is_closed = False
        self._worker: threading.Thread | None = None
        self._clock: threading.Thread | None = None
        self._owner = os.getpid()

    def submit(self, call: Call, timeout_s: float | None = None) -> Future[Any]:
        """Queue a request and return its future; waits while too many are waiting.

        Raises
        ------
        ClosedError (GE-204)
            The queue was closed, perhaps while this call waited for a place.
        UsageError (GE-200)
            The queue is full, and this is a callback of one of its futures, which cannot wait.
        """
        entry = _Queued(call, timeout_s)
        with self._changed:
            self._find_place(entry)
            if self._is_closed:
                raise ClosedError("The session was closed before this call.")
            self._waiting.append(entry)
            self._worker = self._running(self._worker, self._work, "gpuedge-session")
            if entry.until is not None:
                self._clock = self._running(self._clock, self._watch, "gpuedge-timeouts")
            self._changed.notify_all()
        return entry.future

    def _find_place(self, entry: _Queued) -> None:
        """Wait until fewer than the most are waiting, leaving out those that were cancelled."""
        if len(self._waiting) < self._most:
            return
        self._waiting = deque(e for e in self._waiting if not e.future.cancelled())
        if len(self._waiting) >= self._most and threading.current_thread() is self._worker:
            raise UsageError(
                f"{self._most} requests are waiting already.",
                hint="wait for earlier futures before asking for more",
            )
        self._changed.wait_for(
            lambda: len(self._waiting) < self._most or self._is_closed, entry.left_s()
        )
        if len(self._waiting) >= self._most and not self._is_closed:
            raise RequestTimeoutError(
                f"No place among {self._most} waiting requests in {entry.timeout_s:g} s.",
                asked_by="timeout_s",
            )

    @staticmethod
    def _running(
        thread: threading.Thread | None, work: Callable[[], None], name: str
    ) -> threading.Thread:
        if thread is not None:
            return thread
        made = threading.Thread(target=work, name=name, daemon=True)
        try:
            made.start()
        except RuntimeError as error:
            raise DeviceError(f"No thread can be started for run_async: {error}.") from None
        return made

    def close(self, is_stuck: Callable[[], bool] = lambda: False) -> None:
        """Take no more requests, and wait until those that are waiting are answered.

        Called from a future's callback it cannot wait: the requests after that one fail. So do
        they once `is_stuck` says that the one under way will not come back.
        """
        if self._owner != os.getpid():
            return  # threads and locks of the parent are not here
        with self._changed:
            self._is_closed = True
            worker = self._worker
            self._changed.notify_all()
        if worker is None:
            return
        if worker is not threading.current_thread():
            worker.join(LOOK_S)
            while worker.is_alive() and not is_stuck():
                worker.join(LOOK_S)
            if not worker.is_alive():
                return
        with self._changed:
            left, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for entry in left:
            entry.fail(ClosedError("The session was closed before this call."))

    def cancel(self) -> None:
        """Take no more requests and cancel those that are waiting. Waits for nothing."""
        if self._owner != os.getpid():
            return
        with self._changed:
            self._is_closed = True
            left, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for entry in left:
            with _callbacks():
                entry.future.cancel()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                entry = self._waiting.popleft()
                self._changed.notify_all()
            entry.run()
            del entry  # or its inputs stay until the next request

    def _watch(self) -> None:
        """Fail requests whose time is over while they wait."""
        while True:
            with self._changed:
                now = monotonic()
                limited = [e for e in self._waiting if e.until is not None]
                late = [e for e in limited if e.until is not None and e.until <= now]
                if not late:
                    if self._is_closed and not limited:
                        return
                    ends = (e.until - now for e in limited if e.until is not None)
                    self._changed.wait(min(ends, default=None))
                    continue
                self._waiting = deque(e for e in self._waiting if e not in late)
                self._changed.notify_all()
            for entry in late:
                entry.expire()
