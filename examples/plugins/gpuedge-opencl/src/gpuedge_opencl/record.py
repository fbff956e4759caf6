"""Recording work once: kernels with their arguments, ready to be put into the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyopencl as cl

from gpuedge.backends.base import Dispatch
from gpuedge_opencl.memory import ClBuffer
from gpuedge_opencl.printer import ENTRY, PLACE_UNIT
from gpuedge_opencl.program import ClProgram
from gpuedge_opencl.queue import Queue

_Step = tuple[Any, tuple[int, int, int], tuple[int, int, int]]


@dataclass(frozen=True, eq=False)
class ClRecording:
    """Kernels with their arguments, and their sizes: of all invocations, of a workgroup."""

    steps: tuple[_Step, ...]


class Recorder:
    """Records and submits the work of one device."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def record(
        self, dispatches: Sequence[Dispatch], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> ClRecording:
        """Record work once. The queue works in order, so nothing else makes writes visible."""
        with self._queue.calling():
            return ClRecording(tuple(_step(dispatch) for dispatch in dispatches))

    def submit(self, recording: ClRecording) -> Any:
        """Put recorded work into the queue; return the event of its end."""
        queue, event = self._queue.handle, None
        with self._queue.calling():
            for kernel, size, local in recording.steps:
                event = cl.enqueue_nd_range_kernel(queue, kernel, size, local)
            event = event if event is not None else cl.enqueue_marker(queue)
            queue.flush()
        return self._queue.submitted(event)

    def release(self, recording: ClRecording) -> None:
        """Drop a recording: pyopencl does with the last that refers to it."""


def _step(dispatch: Dispatch) -> _Step:
    program = cast(ClProgram, dispatch.program)
    kernel = cl.Kernel(program.program, ENTRY)
    arguments: list[Any] = []
    for binding in dispatch.bindings:
        handle = cast(ClBuffer, binding.buffer).handle
        arguments += [handle, np.uint32(binding.offset // PLACE_UNIT)]
    for arg in program.blob.push:
        count = 4 if arg.type == "ivec4" else 1
        kind = np.float32 if arg.type == "float" else np.int32
        arguments.append(np.frombuffer(dispatch.push, kind, count, arg.offset))
    kernel.set_args(*arguments)
    local = program.local_size
    x, y, z = (n * size for n, size in zip(dispatch.groups, local, strict=True))
    return kernel, (x, y, z), local
