"""Buffers of OpenCL; the driver stages what has to be staged."""

from __future__ import annotations

from typing import Any

import pyopencl as cl

from gpuedge.backends import common
from gpuedge.backends.base import FLOAT32, Storage, Usage
from gpuedge_opencl.queue import Queue

_UNIT = 16
"""Sizes are made a multiple of this: kernels read whole texels."""


class ClBuffer:
    """Device memory; `nbytes` is what was asked for."""

    __slots__ = ("handle", "nbytes")

    def __init__(self, handle: Any, nbytes: int) -> None:
        self.handle, self.nbytes = handle, nbytes


class Memory:
    """The buffers of one device."""

    def __init__(self, queue: Queue, largest: int) -> None:
        self._queue, self._largest = queue, largest

    def alloc(self, nbytes: int, usage: Usage, storage: Storage = FLOAT32) -> ClBuffer:
        """Reserve memory. Raises OutOfMemoryError."""
        common.check_size(self._queue.name, nbytes, self._largest, "buffer")
        size = max(_UNIT, -(-nbytes // _UNIT) * _UNIT)
        with self._queue.calling():
            handle = cl.Buffer(self._queue.context, cl.mem_flags.READ_WRITE, size)
        return ClBuffer(handle, nbytes)

    def free(self, buffer: ClBuffer) -> None:
        """Give memory back."""
        handle, buffer.handle = buffer.handle, None
        handle.release()

    def write(self, buffer: ClBuffer, data: memoryview, offset: int) -> None:
        """Copy host bytes into a buffer."""
        if data.nbytes:
            with self._queue.calling():
                cl.enqueue_copy(self._queue.handle, buffer.handle, data, dst_offset=offset)

    def read(self, buffer: ClBuffer, into: memoryview, offset: int) -> None:
        """Copy a buffer's bytes to the host."""
        if into.nbytes:
            with self._queue.calling():
                cl.enqueue_copy(self._queue.handle, into, buffer.handle, src_offset=offset)
