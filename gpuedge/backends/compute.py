"""An open device of an API of compute shaders: Vulkan's and WebGPU's are this with their own parts.

The parts do the work; what all such devices have in common is here: what a closed or a lost device
answers, what is counted, in which order a device is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from gpuedge.backends import common
from gpuedge.backends.base import (
    FLOAT32,
    Buffer,
    Counters,
    DeviceInfo,
    Dispatch,
    Program,
    Recording,
    Storage,
    Ticket,
    Usage,
)
from gpuedge.core.caps import Caps
from gpuedge.core.errors import ClosedError, DeviceLostError
from gpuedge.core.kernel import KernelBlob, Number

log = logging.getLogger("gpuedge.backends")


class _Queue(Protocol):
    lost: DeviceLostError | None

    def wait(self, ticket: Any, timeout_s: float) -> None: ...
    def drain(self, timeout_s: float) -> bool: ...
    def close(self) -> None: ...


class _Memory(Protocol):
    def alloc(self, nbytes: int, usage: Usage) -> Buffer: ...
    def free(self, buffer: Any) -> None: ...
    def write(self, buffer: Any, data: memoryview, offset: int) -> None: ...
    def read(self, buffer: Any, into: memoryview, offset: int) -> None: ...
    def close(self) -> None: ...


class _Programs(Protocol):
    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Program: ...
    def release(self, program: Any) -> None: ...
    def close(self) -> None: ...


class _Recorder(Protocol):
    def record(
        self, dispatches: Sequence[Dispatch], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Recording: ...
    def submit(self, recording: Any) -> Ticket: ...
    def release(self, recording: Any) -> None: ...
    def close(self) -> None: ...


class ComputeDevice:
    """An open device; see `gpuedge.backends.base.DeviceImpl` for what each call promises.

    Attributes
    ----------
    queue, memory, programs, recorder
        The parts: waiting and what the driver reported, buffers, kernels, recorded work.
    """

    def __init__(
        self,
        info: DeviceInfo,
        caps: Caps,
        parts: tuple[_Queue, _Memory, _Programs, _Recorder],
        destroy: Callable[[], None],
    ) -> None:
        self.info = info
        self.caps = caps
        self.counters = Counters()
        self.queue, self.memory, self.programs, self.recorder = parts
        self._destroy = destroy
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("This device was closed.", known=self.info.identity.name)
        lost = self.queue.lost
        if lost is not None:
            raise DeviceLostError(lost.what, known=lost.known)

    def entered(self) -> AbstractContextManager[None]:
        """Nothing to bind: objects of these APIs belong to no thread."""
        return nullcontext()

    def alloc(self, nbytes: int, usage: Usage, _: Storage = FLOAT32) -> Buffer:
        """Reserve device memory; contents are undefined. Raises OutOfMemoryError."""
        self._check()
        made = self.memory.alloc(nbytes, usage)
        self.counters.allocations += 1
        return made

    def free(self, buffer: Buffer) -> None:
        """Give memory back; the buffer must not be in flight."""
        if not self._closed:
            self.memory.free(buffer)

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy contiguous host bytes into a buffer."""
        self._check()
        self.memory.write(buffer, data, offset)

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy bytes of an OUTPUT buffer to the host; other buffers work too, more slowly."""
        self._check()
        self.memory.read(buffer, into, offset)

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Program:
        """Compile a kernel; its workgroup size is the specs LX, LY, LZ."""
        self._check()
        made = self.programs.build(blob, specs)
        self.counters.compilations += 1
        return made

    def record(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
    ) -> Recording:
        """Record work once. `inputs` and `outputs` are made visible around it, with any staging."""
        self._check()
        made = self.recorder.record(dispatches, inputs, outputs)
        self.counters.recordings += 1
        return made

    def submit(self, recording: Recording) -> Ticket:
        """Start recorded work. Raises DeviceLostError, OutOfMemoryError."""
        self._check()
        self.counters.submits += 1
        return self.recorder.submit(recording)

    def wait(self, ticket: Ticket, timeout_s: float) -> None:
        """Wait until the work is done. Raises DeviceTimeoutError or DeviceLostError."""
        self._check()
        self.queue.wait(ticket, timeout_s)

    def release(self, thing: Recording | Program) -> None:
        """Drop a recording or program that is not in flight."""
        if self._closed:
            return
        if hasattr(thing, "blob"):
            self.programs.release(thing)
        else:
            self.recorder.release(thing)

    def close(self) -> None:
        """Free everything; may be called twice, and after the device was lost.

        Work that is still running when the time is up keeps what it uses: freeing it could crash
        the driver, so it is left to the end of the process.
        """
        if self._closed:
            return
        self._closed = True
        if not self.queue.drain(common.CLOSE_TIMEOUT_S):
            log.error("%s is still busy; its memory is not freed", self.info.identity.name)
            return
        for part in (self.recorder, self.programs, self.memory, self.queue):
            part.close()
        self._destroy()
