"""A request of `run_async` while it waits: its future, its time limit and the caller's settings."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from time import monotonic

from gpuedge.core.errors import GpuEdgeError
from gpuedge.graph.ir import Array
from gpuedge.safety.future import Answer, settle

Outputs = dict[str, Array]


class Queued:
    """A request in the queue, and its future."""

    def __init__(self, work: Callable[[float | None], Outputs], timeout_s: float | None) -> None:
        self.future = Answer[Outputs]()
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
        settle(self.future, lambda: self._context.run(self._work, self.left_s))

    def fail(self, error: GpuEdgeError) -> None:
        """End a request that did not run."""

        def work() -> Outputs:
            raise error

        settle(self.future, work)
