"""The queue of a device: calls of OpenCL with its errors made ours, and waiting with a time-out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pyopencl as cl

from gpuedge.backends import common
from gpuedge.core.errors import DeviceLostError
from gpuedge_opencl import constants as c
from gpuedge_opencl.calls import CallError

_SPIN_S = 1e-3
"""Shorter work is waited for without sleeping, which may take 100 us longer than asked."""
_SHARE, _LONGEST_NAP_S = 0.05, 2e-3
"""Between later looks at the device, sleep this share of the time waited so far."""


class Queue:
    """An open device: its context and its queue, which works in order.

    `lost` is set once the device is lost; whoever asks for anything gets that from then on.
    """

    scope: AbstractContextManager[None] = nullcontext()  # objects of OpenCL belong to no thread

    def __init__(self, name: str, context: Any, queue: Any) -> None:
        self.name, self.context, self.handle = name, context, queue
        self.lost: DeviceLostError | None = None
        self._last: Any = None  # the event of what was submitted last

    @contextmanager
    def calling(self, what: str = "") -> Iterator[None]:
        """Raise errors of OpenCL in this block as ours: DeviceError."""
        try:
            yield
        except (cl.Error, CallError, MemoryError) as error:
            ours = c.error_for(error, self.name, what)
            if isinstance(error, MemoryError):  # as pyopencl has it, too
                ours = common.memory_error(self.name, str(error))
            if isinstance(ours, DeviceLostError):
                self.lost = ours
            raise ours from None

    def submitted(self, event: Any) -> Any:
        """Note and return the event of what was submitted last."""
        self._last = event
        return event

    def _is_done(self, event: Any) -> bool:
        with self.calling():
            status = event.command_execution_status
        if status < 0:
            self.lost = common.lost_error(self.name, f"the work ended with the error {status}")
            raise self.lost
        return bool(status == cl.command_execution_status.COMPLETE)

    def wait(self, ticket: Any, timeout_s: float) -> None:
        """Wait until an event has come. Raises DeviceTimeoutError or DeviceLostError."""
        start = time.monotonic()
        while not self._is_done(ticket):
            waited = time.monotonic() - start
            if waited >= timeout_s:
                raise common.timeout_error(self.name, timeout_s)
            nap = 0.0 if waited < _SPIN_S else min(_LONGEST_NAP_S, waited * _SHARE)
            time.sleep(min(nap, timeout_s - waited))

    @property
    def is_idle(self) -> bool:
        """Whether everything that was submitted is known to have ended."""
        if self._last is None:
            return True
        try:
            status = self._last.command_execution_status
        except cl.Error:
            return False
        return bool(status <= cl.command_execution_status.COMPLETE)

    def finish(self, timeout_s: float) -> None:
        """Wait for everything in flight. Raises DeviceError."""
        if self._last is not None:
            self.wait(self._last, timeout_s)

    def close(self) -> None:
        """Give queue and context back: pyopencl does with the last that refers to them."""
        self._last = self.handle = self.context = None
