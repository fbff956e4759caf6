"""Recording work once: kernels with their arguments, ready to be put into the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyopencl as cl

from gpuedge.backends.base import Dispatch
from gpuedge_opencl.calls import SIZES, submit
from gpuedge_opencl.memory import ClBuffer
from gpuedge_opencl.printer import ENTRY, PLACE_UNIT
from gpuedge_opencl.program import ClProgram
from gpuedge_opencl.queue import Queue

_Step = tuple[int, Any, Any]


@dataclass(frozen=True, eq=False)
class ClRecording:
    """Kernels with their arguments, and what `submit` takes of each."""

    kernels: tuple[Any, ...]
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
            kernels = tuple(_kernel(dispatch) for dispatch in dispatches)
        pairs = zip(kernels, dispatches, strict=True)
        return ClRecording(kernels, tuple(_step(kernel, dispatch) for kernel, dispatch in pairs))

    def submit(self, recording: ClRecording) -> Any:
        """Put recorded work into the queue; return the event of its end."""
        with self._queue.calling():
            return self._queue.submitted(submit(self._queue.handle.int_ptr, recording.steps))

    def release(self, recording: ClRecording) -> None:
        """Drop a recording: pyopencl does with the last that refers to it."""


def _kernel(dispatch: Dispatch) -> Any:
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
    return kernel


def _step(kernel: Any, dispatch: Dispatch) -> _Step:
    local = cast(ClProgram, dispatch.program).local_size
    size = (n * each for n, each in zip(dispatch.groups, local, strict=True))
    return kernel.int_ptr, SIZES(*size), SIZES(*local)
