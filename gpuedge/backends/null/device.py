"""The null device: records every call and holds its callers to the rules of the seam."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

from gpuedge.backends.base import (
    FLOAT32,
    Binding,
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
from gpuedge.core.errors import ClosedError, InputError
from gpuedge.core.kernel import KernelBlob, Number

POISON = 0xAB
"""Every byte of a buffer that the host did not write: nothing else writes here."""

Failure = BaseException | Sequence[BaseException | None]
"""Raised at every call, or one per call in order (None: that call works; afterwards all work)."""


class Call(NamedTuple):
    """One call of a device, with its arguments."""

    method: str
    args: tuple[Any, ...]


class NullBuffer:
    """Host memory standing in for device memory."""

    def __init__(self, nbytes: int, usage: Usage, storage: Storage = FLOAT32) -> None:
        self.nbytes = nbytes
        self.usage = usage
        self.storage = storage
        self.data = bytearray([POISON]) * nbytes
        self.is_freed = False


class NullProgram:
    """A kernel that was built: its blob and all its specialisation values."""

    def __init__(self, blob: KernelBlob, specs: Mapping[str, Number]) -> None:
        self.blob = blob
        self.specs = dict(zip((s.name for s in blob.specs), blob.values(specs), strict=True))


class NullRecording:
    """Recorded work, as it was given."""

    def __init__(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
    ) -> None:
        self.dispatches = tuple(dispatches)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)


class NullTicket:
    """One submission; done as soon as it is made."""

    def __init__(self, recording: NullRecording) -> None:
        self.recording = recording


class NullDevice:
    """An open null device.

    Attributes
    ----------
    calls : list of Call
        Every call so far, failed ones included.
    """

    def __init__(
        self,
        info: DeviceInfo,
        caps: Caps,
        fail: Mapping[str, Failure],
        on_dispatch: Callable[[Dispatch], None] | None,
    ) -> None:
        self.info = info
        self.caps = caps
        self.counters = Counters()
        self.calls: list[Call] = []
        self.is_closed = False
        self._fail = {
            name: itertools.repeat(f) if isinstance(f, BaseException) else iter(f)
            for name, f in fail.items()
        }
        self._on_dispatch = on_dispatch

    def _note(self, method: str, *args: Any) -> None:
        self.calls.append(Call(method, args))
        error = next(self._fail.get(method, iter(())), None)
        if error is not None:
            raise error
        if self.is_closed and method != "close":
            raise ClosedError("This null device was closed.")

    def entered(self) -> AbstractContextManager[None]:
        """Nothing to bind."""
        return nullcontext()

    def alloc(self, nbytes: int, usage: Usage, storage: Storage = FLOAT32) -> Buffer:
        """Hand out poisoned memory."""
        self._note("alloc", nbytes, usage)
        self.counters.allocations += 1
        return NullBuffer(nbytes, usage, storage)

    def free(self, buffer: Buffer) -> None:
        """Mark a buffer as freed; using it afterwards is an error."""
        self._note("free", buffer)
        _alive(buffer).is_freed = True

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy host bytes in."""
        self._note("write", buffer, data.nbytes, offset)
        target = _within(buffer, offset, data.nbytes)
        target.data[offset : offset + data.nbytes] = data.cast("B")

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy bytes out: what the host wrote, else poison."""
        self._note("read", buffer, into.nbytes, offset)
        source = _within(buffer, offset, into.nbytes)
        into.cast("B")[:] = source.data[offset : offset + into.nbytes]

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Program:
        """Keep a kernel and its values."""
        self._note("build", blob, dict(specs))
        self.counters.compilations += 1
        return NullProgram(blob, specs)

    def record(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
    ) -> Recording:
        """Keep work after holding it to the seam's rules."""
        self._note("record", tuple(dispatches), tuple(inputs), tuple(outputs))
        for dispatch in dispatches:
            self._check(dispatch)
        for buffer in (*inputs, *outputs):
            _alive(buffer)
        self.counters.recordings += 1
        return NullRecording(dispatches, inputs, outputs)

    def _check(self, dispatch: Dispatch) -> None:
        blob = dispatch.program.blob
        _rule(len(dispatch.bindings) == len(blob.tensors), f"{blob.name}: one binding per tensor")
        _rule(len(dispatch.push) == blob.push_bytes, f"{blob.name}: {blob.push_bytes} push bytes")
        for count, most in zip(dispatch.groups, self.caps.max_groups, strict=True):
            _rule(0 < count <= most, f"{blob.name}: group counts from 1 to {most}")
        for binding in dispatch.bindings:
            self._check_binding(blob.name, binding)

    def _check_binding(self, name: str, binding: Binding) -> None:
        align, most = self.caps.offset_alignment, self.caps.max_storage_buffer_bytes
        _within(binding.buffer, binding.offset, binding.nbytes)
        _rule(binding.offset % align == 0, f"{name}: offsets are multiples of {align}")
        _rule(0 < binding.nbytes <= most, f"{name}: bindings have 1 to {most} bytes")

    def submit(self, recording: Recording) -> Ticket:
        """Count a run; call the hook for each dispatch, if there is one."""
        self._note("submit", recording)
        self.counters.submits += 1
        work = cast(NullRecording, recording)
        for dispatch in work.dispatches:
            for binding in dispatch.bindings:
                _alive(binding.buffer)
            if self._on_dispatch is not None:
                self._on_dispatch(dispatch)
        return NullTicket(work)

    def wait(self, ticket: Ticket, timeout_s: float) -> None:
        """Return at once."""
        self._note("wait", ticket, timeout_s)

    def release(self, thing: Recording | Program) -> None:
        """Note that something was released."""
        self._note("release", thing)

    def close(self) -> None:
        """Close; may be called twice."""
        self._note("close")
        self.is_closed = True


def _rule(holds: bool, rule: str) -> None:
    if not holds:
        raise InputError("A rule of the device seam was broken.", known=rule)


def _alive(buffer: Buffer) -> NullBuffer:
    known = cast(NullBuffer, buffer)
    _rule(not known.is_freed, "buffers are not used after they were freed")
    return known


def _within(buffer: Buffer, offset: int, nbytes: int) -> NullBuffer:
    known = _alive(buffer)
    inside = offset >= 0 and offset + nbytes <= known.nbytes
    _rule(inside, f"bytes {offset} to {offset + nbytes} of a buffer of {known.nbytes}")
    return known
