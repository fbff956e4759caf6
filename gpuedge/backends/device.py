"""An open device of any API: the seam's calls, handed to the parts that do the work.

What all devices have in common is here: what a closed or a lost device answers, what is counted, in
which order a device is closed.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
from gpuedge.core.errors import ClosedError, DeviceError, DeviceLostError, DriverError
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.core.times import CLOSE_TIMEOUT_S
from gpuedge.safety.deadline import keep

log = logging.getLogger("gpuedge.backends")


class _Queue(Protocol):
    @property
    def lost(self) -> DeviceLostError | None: ...
    @property
    def scope(self) -> AbstractContextManager[None]: ...
    @property
    def is_idle(self) -> bool: ...
    def wait(self, ticket: Any, timeout_s: float) -> None: ...
    def finish(self, timeout_s: float) -> None: ...


class _Memory(Protocol):
    def alloc(self, nbytes: int, usage: Usage, storage: Storage, /) -> Buffer: ...
    def free(self, buffer: Any, /) -> None: ...
    def write(self, buffer: Any, data: memoryview, offset: int, /) -> None: ...
    def read(self, buffer: Any, into: memoryview, offset: int, /) -> None: ...


class _Programs(Protocol):
    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Program: ...
    def release(self, program: Any) -> None: ...


class _Recorder(Protocol):
    def submit(self, recording: Any, /) -> Ticket: ...
    def record(
        self, dispatches: Sequence[Dispatch], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Recording: ...
    def release(self, recording: Any) -> None: ...


class MappedMemory:
    """Memory of a device that the host reads and writes in place; numpy makes arrays of it.

    Attributes
    ----------
    owner : object
        What must not go while arrays refer to this.
    """

    __slots__ = ("__array_interface__", "__weakref__", "owner")

    def __init__(self, buffer: Buffer, address: int) -> None:
        self.owner: object = buffer
        self.__array_interface__ = {
            "data": (address, False), "shape": (buffer.nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip


class OpenDevice:
    """An open device; see `gpuedge.backends.base.DeviceImpl` for what each call promises.

    `destroy` frees everything; nothing is in flight then. `queue.is_idle` says whether all that was
    submitted is known to have ended; `queue.finish` waits for it, on a lost device as well.

    Attributes
    ----------
    queue, memory, programs, recorder
        The parts: waiting and what the driver reported, buffers, kernels, recorded work.
    sharing
        What hands results to the application, where it opened the device with a context of its own.
    is_kept
        Whether closing it has left everything to the end of the process, as work may still run.
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
        self.sharing: Any = None
        self.is_kept = False
        self._scope = self.queue.scope
        self._mapped: weakref.WeakSet[MappedMemory] = weakref.WeakSet()
        self._live: dict[Any, Callable[[Any], None]] = {}  # what was made, and what frees it
        self._destroy = destroy
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("This device was closed.", known=self.info.identity.name)
        lost = self.queue.lost
        if lost is not None:
            raise DeviceLostError(lost.what, known=lost.known, hint=lost.hint)

    def entered(self) -> AbstractContextManager[None]:
        """Take the device for this thread, and put back afterwards what was current."""
        return self._scope

    def alloc(self, nbytes: int, usage: Usage, storage: Storage = FLOAT32) -> Buffer:
        """Reserve device memory; contents are undefined. Raises OutOfMemoryError."""
        self._check()
        with self._scope:
            buffer = self.memory.alloc(nbytes, usage, storage)
        self._live[buffer] = self.memory.free
        self.counters.allocations += 1
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give memory back; the buffer must not be in flight."""
        self.release(buffer)

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy contiguous host bytes into a buffer."""
        self._check()
        with self._scope:
            self.memory.write(buffer, data, offset)

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy bytes of an OUTPUT buffer to the host; other buffers work too, more slowly."""
        self._check()
        with self._scope:
            self.memory.read(buffer, into, offset)

    def map(self, buffer: Buffer) -> MappedMemory | None:
        """Return the memory of an INPUT buffer where the device shares it with the host, else None.

        What the host writes there is read by what is submitted afterwards.

        While anything refers to it, closing the device leaves everything to the end of the process.
        """
        self._check()
        with self._scope:
            address = getattr(self.memory, "address", lambda _: None)(buffer)
        if address is None:
            return None
        mapped = MappedMemory(buffer, address)
        self._mapped.add(mapped)
        return mapped

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Program:
        """Compile a kernel; its workgroup size is the specs LX, LY, LZ."""
        self._check()
        try:
            with self._scope:
                program = self.programs.build(blob, specs)
        except DriverError as error:
            error.asked_by = f"kernel {blob.name!r}"
            error.hint = "report it with the output of: gpuedge info --json"
            raise
        self._live[program] = self.programs.release
        self.counters.compilations += 1
        return program

    def record(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
    ) -> Recording:
        """Record work once. `inputs` and `outputs` are made visible around it, with any staging."""
        self._check()
        with self._scope:
            recording = self.recorder.record(dispatches, inputs, outputs)
        self._live[recording] = self.recorder.release
        self.counters.recordings += 1
        return recording

    def submit(self, recording: Recording) -> Ticket:
        """Start recorded work. Raises DeviceLostError, OutOfMemoryError."""
        if self._closed or self.queue.lost is not None:
            self._check()
        self.counters.submits += 1
        with self._scope:
            return self.recorder.submit(recording)

    def wait(self, ticket: Ticket, timeout_s: float) -> None:
        """Wait until the work is done. Raises DeviceTimeoutError or DeviceLostError."""
        if self._closed or self.queue.lost is not None:
            self._check()
        with self._scope:
            self.queue.wait(ticket, min(max(0.0, timeout_s), common.MAX_WAIT_S))

    def release(self, thing: Recording | Program | Buffer) -> None:
        """Drop what was made and is not in flight; doing it twice does nothing."""
        if not self._closed and self.queue.lost is None and thing in self._live:
            with self._scope:
                self._live.pop(thing)(thing)

    def close(self) -> None:
        """Free everything; may be called twice, and after the device was lost.

        Work that is not known to have ended when the time is up keeps what it uses: freeing it
        could crash the driver or wait without limit, so it is left to the end of the process. That
        a device is lost does not say that its work has ended.
        """
        if self._closed:
            return
        self._closed = True
        if not self._has_ended() or len(self._mapped):
            self.is_kept = True
            keep(self)
            return
        try:
            with self._scope:
                while self._live:
                    thing, free = self._live.popitem()
                    free(thing)
        except (ClosedError, DeviceLostError) as error:  # its context is gone with all it has
            log.debug("closing: %s", error)
        self._destroy()

    def _has_ended(self) -> bool:
        """Wait for what is in flight; tell whether nothing can be running any more."""
        try:
            if self.queue.lost is None or not self.queue.is_idle:
                with self._scope:
                    self.queue.finish(CLOSE_TIMEOUT_S)
        except ClosedError as error:
            log.debug("closing: %s", error)
        except DeviceError as error:  # too late, or no answer: either way it may still run
            if isinstance(error, DeviceLostError) and self.queue.is_idle:
                return True
            log.error("%s is still busy; it is not freed: %s", self.info.identity.name, error)
            return False
        return True
