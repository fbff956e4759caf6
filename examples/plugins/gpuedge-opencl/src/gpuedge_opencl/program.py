"""Building kernels: one program per specialisation, whose values are macros."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyopencl as cl

from gpuedge.core.kernel import KernelBlob, Number
from gpuedge_opencl.printer import ENTRY, literal
from gpuedge_opencl.queue import Queue


@dataclass(frozen=True, eq=False)
class ClProgram:
    """A kernel that was built; `local_size` is that of its workgroups."""

    blob: KernelBlob
    program: Any
    local_size: tuple[int, int, int]


class Programs:
    """The programs of one device."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> ClProgram:
        """Compile a kernel. Raises DriverError."""
        values = zip(blob.specs, blob.values(specs), strict=True)
        options = [f"-DS_{spec.name}={literal(spec.type, value)}" for spec, value in values]
        what = f"{self._queue.name} does not compile a kernel."
        with self._queue.calling(what), warnings.catch_warnings(action="ignore"):
            # what a compiler says of a kernel that it takes is no news
            program = cl.Program(self._queue.context, blob.code.decode())
            program.build(options)
            x, y, z = cl.Kernel(program, ENTRY).get_work_group_info(
                cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, self._queue.handle.device
            )
        return ClProgram(blob, program, (x, y, z))

    def release(self, program: ClProgram) -> None:
        """Drop a program: pyopencl does with the last that refers to it."""
