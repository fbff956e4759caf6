"""The seam: everything gpuedge asks of a GPU API, and nothing else.

A backend enumerates drivers, opens devices, moves bytes and runs recorded work. It does not check
shapes, dtypes or limits (that happened above), does not choose kernels and does not fall back.
It reports only what could not be foreseen: a lost device, exhausted memory, a timeout, a refusal.

To add a GPU API copy ``backends/null/``, fill it in, and name the class under the entry-point group
``gpuedge.backends``; what prints a language of its own, under ``gpuedge.printers``. All backend
code may import ``gpuedge.core`` and its own GPU library only.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from gpuedge.core.caps import Caps
from gpuedge.core.driver import Candidate, DeviceInfo
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.core.storage import FLOAT32, Storage

__all__ = [
    "FLOAT32", "Backend", "Binding", "Buffer", "Candidate", "Counters", "DeviceImpl", "DeviceInfo",
    "Dispatch", "Program", "Recording", "Storage", "Ticket", "Usage",
]  # fmt: skip


class Usage(enum.Enum):
    """What a buffer is for; the backend picks memory and staging from it."""

    CONSTANT = "constant"  # written by the host before the first submit, then only read by kernels
    INPUT = "input"  # written by the host before each submit
    OUTPUT = "output"  # read by the host after each submit
    SCRATCH = "scratch"  # never seen by the host


class Buffer(Protocol):
    """Device memory, opaque above the seam."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


class Program(Protocol):
    """A kernel built for one device with its specialisation values, ready to dispatch."""

    @property
    def blob(self) -> KernelBlob:
        """The kernel it was built from."""


class Recording(Protocol):
    """Recorded work that can be submitted again and again."""


class Ticket(Protocol):
    """One submission in flight."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A byte range of a buffer bound to one tensor of a kernel; `offset` meets the alignment."""

    buffer: Buffer
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel launch. `depends` is true if it must see the writes of earlier dispatches.

    A fragment level has no workgroups: it draws one fragment per physical texel of the output.
    """

    program: Program
    bindings: tuple[Binding, ...]
    push: bytes
    groups: tuple[int, int, int]
    depends: bool = True


@dataclass(slots=True)
class Counters:
    """How often a device did costly things; tests assert on these instead of on time."""

    allocations: int = 0
    compilations: int = 0
    recordings: int = 0
    submits: int = 0

    def snapshot(self) -> dict[str, int]:
        """Return the counts as a dictionary."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class DeviceImpl(Protocol):
    """An open device. Methods may be called from one thread at a time.

    One that shares memory with the host may have a method ``map`` (`gpuedge.backends.device`).
    """

    info: DeviceInfo
    caps: Caps
    counters: Counters

    def entered(self) -> AbstractContextManager[None]:
        """Hold the device for several calls in a row from one thread; calls work outside too.

        An API whose contexts belong to threads binds its context once for all of them, and puts
        back what the application had bound.
        """

    def alloc(self, nbytes: int, usage: Usage, storage: Storage = FLOAT32) -> Buffer:
        """Reserve device memory; contents are undefined. Raises OutOfMemoryError.

        `nbytes`, like the offsets and data of `write` and `read`, counts what the host holds:
        elements of ``storage.dtype`` in C order, whatever a texture makes of them on the device.
        So a logical texel is 16 bytes of float32, 8 of float16, 4 of int8. A buffer keeps the
        bytes of every dtype; a texture takes float32 and converts, or the bytes that it keeps.
        """

    def free(self, buffer: Buffer) -> None:
        """Give memory back; the buffer must not be in flight."""

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy host bytes into a buffer; OUTPUT buffers too (probes poison them before a run).

        Any offset and length that lie inside: a range need not be whole texels or words.
        """

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy bytes of an OUTPUT buffer to the host; the work that wrote it was waited for."""

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Program:
        """Compile a kernel; its workgroup size is the specs LX, LY, LZ. Raises DriverError."""

    def record(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
    ) -> Recording:
        """Record work once. `inputs` and `outputs` are made visible around it, with any staging."""

    def submit(self, recording: Recording) -> Ticket:
        """Start recorded work. Raises DeviceLostError, OutOfMemoryError."""

    def wait(self, ticket: Ticket, timeout_s: float) -> None:
        """Wait until the work is done. Raises DeviceTimeoutError or DeviceLostError."""

    def release(self, thing: Recording | Program) -> None:
        """Drop a recording or program that is not in flight."""

    def close(self) -> None:
        """Free everything; may be called twice, and after the device was lost."""


class Backend(Protocol):
    """One GPU API. Stateless; instances are made by the registry."""

    @property
    def name(self) -> str:
        """The backend's name in device strings."""

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List drivers that may exist, without loading any. Never raises for absence of one."""

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load a driver and list its devices.

        Raises
        ------
        BackendUnavailableError (GE-404)
            A package or the driver is missing, or it has no device. The error's `reason` is a
            `Reason` such as ``no-loader``, ``bad-manifest``, ``missing-library``, ``no-device``,
            ``open-failed``; OpenGL ES has ``no-context``, ``no-shaders``, ``no-highp`` and
            ``no-format`` as well.
        """

    def open(self, info: DeviceInfo, **options: Any) -> DeviceImpl:
        """Open a device. Raises a DeviceError."""
