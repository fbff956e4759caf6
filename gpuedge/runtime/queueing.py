"""A request of `run_async` while it waits: its future, its time limit and the caller's settings."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic

from gpuedge.core.errors import GpuEdgeError
from gpuedge.graph.ir import Array
from gpuedge.safety.interrupts import rlock, whole

Outputs = dict[str, Array]

log = logging.getLogger("gpuedge")


class Answer(Future[Outputs]):
    """A future that can be waited for in the main thread, whatever the handlers of signals raise.

    Else the thread that answers requests could wait for good for what they have left locked.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = threading.Condition(rlock())
        self._over = threading.Lock()
        self._over.acquire()
        self.add_done_callback(lambda _: self._over.release())

    @whole
    def result(self, timeout: float | None = None) -> Outputs:
        """Return the outputs; see `concurrent.futures.Future`."""
        return super().result(self._left(timeout))

    @whole
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the request raised; see `concurrent.futures.Future`."""
        return super().exception(self._left(timeout))

    def _left(self, timeout: float | None) -> float:
        """Wait until it is done, and return 0."""
        seconds = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if not self.done() and self._over.acquire(timeout=seconds):
            self._over.release()  # for others that wait
        return 0.0


class Queued:
    """A request in the queue, and its future."""

    def __init__(self, work: Callable[[float | None], Outputs], timeout_s: float | None) -> None:
        self.future: Future[Outputs] = Answer()
        self.timeout_s = timeout_s
        self.until = None if timeout_s is None else monotonic() + timeout_s
        self._work = work
        self._context = contextvars.copy_context()

    @property
    def left_s(self) -> float | None:
        """Seconds that are left of its time limit."""
        return None if self.until is None else self.until - monotonic()

    def run(self) -> None:
        """Run it, and tell the future."""
        self._settle(lambda: self._context.run(self._work, self.left_s))

    def fail(self, error: GpuEdgeError) -> None:
        """End a request that did not run."""

        def work() -> Outputs:
            raise error

        self._settle(work)

    def _settle(self, work: Callable[[], Outputs]) -> None:
        """Tell the future what came of it, and survive what its callbacks raise.

        `concurrent.futures` logs exceptions; the rest, such as SystemExit, would end the thread
        that all others wait for.
        """
        try:
            if not self.future.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except BaseException as error:  # belongs to whoever asks the future
                self.future.set_exception(error)
            else:
                self.future.set_result(result)
        except BaseException as error:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and isinstance(error, KeyboardInterrupt):
                raise  # Ctrl-C, which is nobody's callback
            log.exception("a callback of a future ended with this, which is ignored")
