"""The null backend: computes nothing, records every call, and is the skeleton of a new backend.

Tests use it to see what the layers above ask of a device, to make any call fail on purpose, and to
hold them to the seam's rules (alignment, ranges, limits, nothing used after it was freed), which
real drivers may or may not notice. `README.md` in this folder says how to make a backend of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

from gpuedge.backends.base import (
    FLOAT32,
    Buffer,
    Candidate,
    Counters,
    DeviceInfo,
    Dispatch,
    Program,
    Recording,
    Storage,
    Ticket,
    Usage,
)  # fmt: skip
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import ClosedError, InputError
from gpuedge.core.identity import Identity
from gpuedge.core.kernel import KernelBlob, Number

POISON = 0xAB
"""Every byte of a buffer that the host did not write: nothing else writes here."""

Failure = BaseException | Sequence[BaseException | None]
"""Raised at every call, or one per call in order (None: that call works; afterwards all work)."""


Hook = Callable[[Dispatch], None] | None
"""Called with every dispatch of a submit."""


class RecordedCall(NamedTuple):
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


@dataclass(frozen=True, eq=False)
class NullProgram:
    """A kernel that was built: its blob and all its specialisation values."""

    blob: KernelBlob
    specs: Mapping[str, Number]


@dataclass(frozen=True, eq=False)
class NullRecording:
    """Recorded work, as it was given."""

    dispatches: tuple[Dispatch, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]


@dataclass(frozen=True, eq=False)
class NullTicket:
    """One submission; done as soon as it is made."""

    recording: NullRecording


class NullDevice:
    """An open null device; `calls` are all calls so far, failed ones included."""

    def __init__(
        self, info: DeviceInfo, caps: Caps, fail: Mapping[str, Failure], on_dispatch: Hook
    ) -> None:
        self.info = info
        self.caps = caps
        self.counters = Counters()
        self.calls: list[RecordedCall] = []
        self.is_closed = False
        self._fail = {
            name: itertools.repeat(f) if isinstance(f, BaseException) else iter(f)
            for name, f in fail.items()
        }
        self._on_dispatch = on_dispatch

    def _note(self, method: str, *args: Any) -> None:
        self.calls.append(RecordedCall(method, args))
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
        names = (spec.name for spec in blob.specs)
        return NullProgram(blob, dict(zip(names, blob.values(specs), strict=True)))

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
        return NullRecording(tuple(dispatches), tuple(inputs), tuple(outputs))

    def _check(self, dispatch: Dispatch) -> None:
        blob = dispatch.program.blob
        _rule(len(dispatch.bindings) == len(blob.tensors), f"{blob.name}: one binding per tensor")
        _rule(len(dispatch.push) == blob.push_bytes, f"{blob.name}: {blob.push_bytes} push bytes")
        for count, most in zip(dispatch.groups, self.caps.max_groups, strict=True):
            _rule(0 < count <= most, f"{blob.name}: group counts from 1 to {most}")
        align, most = self.caps.offset_alignment, self.caps.max_storage_buffer_bytes
        for binding in dispatch.bindings:
            _within(binding.buffer, binding.offset, binding.nbytes)
            _rule(binding.offset % align == 0, f"{blob.name}: offsets are multiples of {align}")
            _rule(0 < binding.nbytes <= most, f"{blob.name}: bindings have 1 to {most} bytes")

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


class NullBackend:
    """A backend with one device that computes nothing.

    Parameters
    ----------
    caps : Caps
        What the device claims to be able to do.
    fail : mapping of str to Failure
        Method names (``enumerate``, ``open`` and those of a device) and what they raise.
    on_dispatch : callable, optional
        Called with every dispatch of a submit; may write into ``binding.buffer.data``, and so make
        the device compute after all.

    Examples
    --------
    >>> from gpuedge.backends.base import Usage
    >>> backend = NullBackend()
    >>> device = backend.open(backend.enumerate(backend.candidates({})[0])[0])
    >>> into = bytearray(2)
    >>> device.read(device.alloc(2, Usage.OUTPUT), memoryview(into))
    >>> into.hex()
    'abab'
    """

    name: ClassVar[str] = "null"

    def __init__(
        self,
        caps: Caps = VULKAN_MINIMUM,
        *,
        fail: Mapping[str, Failure] | None = None,
        on_dispatch: Hook = None,
    ) -> None:
        self.caps = caps
        self.fail = dict(fail or {})
        self.on_dispatch = on_dispatch

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List the one driver there is."""
        return [Candidate(self.name, "null", "null-1")]

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """List the one device there is."""
        self._raise("enumerate")
        identity = Identity(api="null", name="null device", os="any", device_type="OTHER")
        return [DeviceInfo(candidate, 0, identity, self.caps.is_software)]

    def open(self, info: DeviceInfo, **options: Any) -> NullDevice:
        """Open the device; it has no options and ignores those of other backends."""
        self._raise("open")
        return NullDevice(info, self.caps, self.fail, self.on_dispatch)

    def _raise(self, method: str) -> None:
        failure = self.fail.get(method)
        if isinstance(failure, BaseException):
            raise failure
