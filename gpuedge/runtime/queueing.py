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

Outputs = dict[str, Array]

log = logging.getLogger("gpuedge")


class Queued:
    """A request in the queue, and its future."""

    def __init__(self, work: Callable[[float | None], Outputs], timeout_s: float | None) -> None:
        self.future: Future[Outputs] = Future()
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
