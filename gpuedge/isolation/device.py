"""The application's side: a device whose every call is passed to a worker process.

Calls that need no answer (`write`, `submit`) wait for the next that does and go with it. What a
recording's outputs were read as last time is read together with waiting for it, so that an
inference is one request and one reply.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, cast

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
from gpuedge.core.errors import ClosedError, GpuEdgeError
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.core.times import MARGIN_S, WORKER_BUILD_S, WORKER_CALL_S, WORKER_CLOSE_S
from gpuedge.isolation.client import Op, WorkerClient
from gpuedge.isolation.shared import PIECE
from gpuedge.safety.interrupts import rlock

MAX_FETCHED = 8
"""Reads of one recording that are foreseen."""


@dataclass(slots=True, eq=False)
class Handle:
    """A buffer, program, recording or submission of a worker, by the number that it has there."""

    number: int
    nbytes: int = 0
    blob: KernelBlob | None = None
    recording: Handle | None = None
    """What was submitted; None once it was waited for."""

    reads: dict[tuple[int, int, int], None] = field(default_factory=dict)
    """Of a recording: what was read after its last run."""


class IsolatedDevice:
    """A device that is open in a process of its own; see `gpuedge.backends.base.DeviceImpl`.

    Starting the worker and opening the device may take `deadline_s`. `command` is the program of
    the worker; tests put a misbehaving one here.
    """

    def __init__(
        self, info: DeviceInfo, deadline_s: float, command: Sequence[str] | None = None
    ) -> None:
        self.info = info
        self.counters = Counters()
        self._client = WorkerClient(info, self.counters, command)
        self._lock = rlock()
        # When it is dropped, and when the interpreter ends: no orphan, and not a word.
        self._end = weakref.finalize(self, _forget, self._client, self._lock, os.getpid())
        self._is_closed = False
        self._made = 0
        self._fetched: dict[tuple[int, int, int], int] = {}
        self._latest: Handle | None = None
        try:
            self.caps = self._client.open(deadline_s)
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._client.pid

    @property
    def is_lost(self) -> bool:
        """True once the worker is known to be gone; every call raises DeviceLostError then."""
        return self._client.is_lost

    def _locked(self) -> threading.RLock:
        """Return the lock; in a forked child it may be held by a thread that is not there."""
        self._client.check_here()
        lock: threading.RLock = self._lock
        return lock

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("This device was closed.", known=self.info.identity.name)
        self._client.check_lost()

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _begin(self) -> None:
        """Forget what was fetched: places and contents are about to change."""
        if self._fetched and self._latest is not None:
            for key in self._fetched:  # what nobody asked for is not fetched again
                self._latest.reads.pop(key, None)
        self._fetched, self._latest = {}, None

    # --- memory ---------------------------------------------------------------------------------

    def entered(self) -> AbstractContextManager[None]:
        """Nothing to bind here; the worker binds its device around each batch of work."""
        return nullcontext()

    def alloc(self, nbytes: int, usage: Usage, storage: Storage = FLOAT32) -> Buffer:
        """Reserve device memory; contents are undefined. Raises OutOfMemoryError."""
        with self._locked():
            self._check()
            self._begin()
            handle = Handle(self._number(), int(nbytes))
            kind = [storage.kind, storage.low, storage.high, storage.dtype]
            self._client.ask(
                Op("alloc", [handle.number, handle.nbytes, usage.value, kind], WORKER_CALL_S)
            )
            return handle

    def free(self, buffer: Buffer) -> None:
        """Give memory back; the buffer must not be in flight."""
        self._drop("free", _number(buffer))

    def release(self, thing: Recording | Program) -> None:
        """Drop a recording or program that is not in flight."""
        self._drop("release", _number(thing))

    def _drop(self, verb: str, number: int) -> None:
        if not self._client.is_here:  # tidying up is quiet in a forked child
            return
        with self._lock:
            if self._is_closed or self._client.is_lost:
                return
            self._begin()
            with suppress(GpuEdgeError):  # what was queued concerned it, or was not waited for
                self._client.flush()
            with suppress(GpuEdgeError):  # a worker that dies of it is noticed by the next call
                self._client.ask(Op(verb, [number], WORKER_CALL_S))

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy contiguous host bytes into a buffer."""
        with self._locked():
            self._check()
            self._begin()
            flat = data.cast("B") if data.ndim != 1 or data.format != "B" else data
            number = _number(buffer)
            for start in range(0, flat.nbytes, PIECE):
                piece = flat[start : start + PIECE]
                place = self._client.place(piece.nbytes)
                self._client.arena.view(place, piece.nbytes)[:] = piece
                where = [number, offset + start, piece.nbytes, place]
                self._client.queue(Op("write", where, WORKER_CALL_S))

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy bytes of an OUTPUT buffer to the host; the work that wrote it was waited for."""
        with self._locked():
            self._check()
            flat = into.cast("B") if into.ndim != 1 or into.format != "B" else into
            key = (_number(buffer), offset, flat.nbytes)
            place = self._fetched.pop(key, None)
            if place is not None:
                flat[:] = self._client.arena.view(place, flat.nbytes)
                return
            latest = self._latest
            self._begin()
            for start in range(0, flat.nbytes, PIECE):
                piece = flat[start : start + PIECE]
                self._fetch(key[0], offset + start, piece)
            if latest is not None and flat.nbytes <= PIECE and len(latest.reads) < MAX_FETCHED:
                latest.reads[key] = None
                self._latest = latest

    def _fetch(self, number: int, offset: int, into: memoryview) -> None:
        place = self._client.place(into.nbytes)
        self._client.ask(Op("read", [number, offset, into.nbytes, place], WORKER_CALL_S))
        into[:] = self._client.arena.view(place, into.nbytes)

    @property
    def was_alive(self) -> bool:
        """Whether the worker computed, or wanted to, when it last answered late."""
        return self._client.was_alive

    def limit_idle(self, watchdog_s: float | None) -> None:
        """Take a worker for hung that neither answers nor computes for the time a run may take.

        That is at least 2 s; where `watchdog_s` is None, 10 s.
        """
        self._client.limit_idle(watchdog_s)

    # --- kernels and work -----------------------------------------------------------------------

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Program:
        """Compile a kernel; its workgroup size is the specs LX, LY, LZ. Raises DriverError."""
        with self._locked():
            self._check()
            self._begin()
            self._client.flush()  # an error of what came before is not the kernel's
            number = self._number()
            op = Op("build", [number, blob.to_record(), dict(specs)], WORKER_BUILD_S)
            self._client.ask(op, code=blob.code)
            return cast("Program", Handle(number, blob=blob))

    def record(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
    ) -> Recording:
        """Record work once. `inputs` and `outputs` are made visible around it, with any staging."""
        with self._locked():
            self._check()
            self._begin()
            handle = Handle(self._number())
            works = [_work(dispatch) for dispatch in dispatches]
            numbers = [[_number(b) for b in some] for some in (inputs, outputs)]
            self._client.ask(Op("record", [handle.number, works, *numbers], WORKER_BUILD_S))
            self._client.arena.trim()
            return handle

    def submit(self, recording: Recording) -> Ticket:
        """Have recorded work started together with the next call that waits for an answer."""
        with self._locked():
            self._check()
            self._begin()
            work = cast("Handle", recording)
            ticket = Handle(self._number(), recording=work)
            self._client.queue(Op("submit", [work.number, ticket.number], WORKER_CALL_S))
            return ticket

    def wait(self, ticket: Ticket, timeout_s: float) -> None:
        """Wait until the work is done. Raises DeviceTimeoutError or DeviceLostError."""
        with self._locked():
            self._check()
            known = cast("Handle", ticket)
            recording = known.recording
            if recording is None:  # it was waited for
                return
            self._begin()
            limit = max(0.0, float(timeout_s))
            ops = [Op("wait", [known.number, limit], limit + MARGIN_S)]
            fetched: dict[tuple[int, int, int], int] = {}
            for key in recording.reads:
                place = self._client.room(key[2])
                if place is not None:
                    ops.append(Op("read", [*key, place], WORKER_CALL_S))
                    fetched[key] = place
            self._client.ask(*ops)
            known.recording = None
            self._fetched, self._latest = fetched, recording

    def close(self) -> None:
        """Free everything; may be called twice, and after the device was lost."""
        if not self._client.is_here or self._is_closed:
            return
        seconds = WORKER_CLOSE_S
        if not self._lock.acquire(blocking=False):
            # A call that another thread is waiting in ends with the worker; it is not waited for.
            self._client.kill()
            seconds = 0.0
            if not self._lock.acquire(timeout=WORKER_CLOSE_S):
                return
        try:
            if not self._is_closed:
                self._is_closed = True
                self._client.close(seconds)
                self._end.detach()
        finally:
            self._lock.release()


def _number(thing: Buffer | Program | Recording) -> int:
    return cast("Handle", thing).number


def _work(dispatch: Dispatch) -> list[Any]:
    bindings = [[_number(b.buffer), b.offset, b.nbytes] for b in dispatch.bindings]
    program = _number(dispatch.program)
    return [program, bindings, dispatch.push.hex(), list(dispatch.groups), dispatch.depends]


def _forget(client: WorkerClient, lock: threading.RLock, owner: int) -> None:
    # Where a thread is in a call as the interpreter ends, the worker ends with the process.
    if os.getpid() == owner and lock.acquire(blocking=False):
        try:
            client.close(0.0)
        finally:
            lock.release()
