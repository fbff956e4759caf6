"""Futures of work in another thread: waited for by the caller's thread, or awaited in asyncio."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from gpuedge.safety.interrupts import rlock, whole

T = TypeVar("T")

log = logging.getLogger("gpuedge")


class Answer(Future[T]):
    """A future that can be waited for in the main thread, whatever the handlers of signals raise.

    Else the thread that answers could wait for good for what they have left locked. In asyncio it
    can be awaited.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = threading.Condition(rlock())
        self._over = threading.Lock()
        self._over.acquire()
        self.add_done_callback(lambda _: self._over.release())

    @whole
    def result(self, timeout: float | None = None) -> T:
        """Return what the work returned; see `concurrent.futures.Future`."""
        return super().result(self._left(timeout))

    @whole
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the work raised; see `concurrent.futures.Future`."""
        return super().exception(self._left(timeout))

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def _left(self, timeout: float | None) -> float:
        """Wait until it is done, and return 0."""
        seconds = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if not self.done() and self._over.acquire(timeout=seconds):
            self._over.release()  # for others that wait
        return 0.0


def settle(future: Future[T], work: Callable[[], T]) -> None:
    """Do the work, tell the future what came of it, and survive what its callbacks raise.

    `concurrent.futures` logs exceptions; the rest, such as SystemExit, would end the thread that
    all others wait for.
    """
    try:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # belongs to whoever asks the future
            future.set_exception(error)
        else:
            future.set_result(result)
    except BaseException as error:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and isinstance(error, KeyboardInterrupt):
            raise  # Ctrl-C, which is nobody's callback
        log.exception("a callback of a future ended with this, which is ignored")
