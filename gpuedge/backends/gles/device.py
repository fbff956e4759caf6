"""An open OpenGL ES device: the seam's calls, each handed to the part that does it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from gpuedge.backends import common
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
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles import moderngl_context, physical
from gpuedge.backends.gles.api import Display, Gl
from gpuedge.backends.gles.memory import Buffers, GlesBuffer, GlesTexture, Textures
from gpuedge.backends.gles.physical import Opened
from gpuedge.backends.gles.program import GlesProgram, build, prepare_drawing
from gpuedge.backends.gles.record import GlesRecording, record_dispatches, record_draws
from gpuedge.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError, DriverError

log = logging.getLogger("gpuedge.gles")


def open_device(info: DeviceInfo, context: Any = None) -> GlesDevice:
    """Open a device, beside an application's `context` if there is one. Raises DeviceError."""
    if context is None:
        opened = physical.open_device(info)
    else:
        opened = moderngl_context.open_beside(info, context)
    try:
        return GlesDevice(info, opened, context)
    except BaseException:
        opened.context.close()
        raise


def replay(recording: GlesRecording) -> None:
    """Make all calls of recorded work in order; the context is current."""
    for one in recording.launches:
        for call, args in one.binds:
            call(*args)
        program = one.program
        if program.applied is not one.values:
            for call, args in one.sets:
                call(*args)
            program.applied = one.values
        one.call(*one.args)
    for call, args in recording.after:
        call(*args)


class GlesDevice:
    """An open device; see `gpuedge.backends.base.DeviceImpl` for what each call promises."""

    def __init__(self, info: DeviceInfo, opened: Opened, application: Any = None) -> None:
        self.info = info
        self.counters = Counters()
        self._application = application
        self._opened = opened
        self._gl = gl = opened.gl
        self._context = opened.context
        self._closed = False
        self._flying: deque[GlesTicket] = deque()
        self._textures: Textures | None = None
        self._memory: Any
        level = opened.context.want.level
        with self._context:
            if level == "gles31":
                self.caps = physical.compute_caps(opened)
                self._memory = Buffers(gl)
            else:
                side = info.limits.get("max_texture_size", physical.NO_LIMIT)
                self.caps = caps = physical.fragment_caps(opened, side)
                self._textures = Textures(
                    gl, opened.formats, caps.storages[0], caps.max_texture_size or 1
                )
                self._memory = self._textures
                self._corners = prepare_drawing(gl)
            self._fences = fences(gl, level, opened.display)
            self._reset_status = _reset_status(opened)
            self._check("opening the device")

    def _check(self, what: str) -> None:
        """Raise the error of the calls since the last check, if there was one."""
        code = self._gl.GetError()
        if code:
            self._gl.error()
            self._raise(c.error_for(code, what, self.info.identity.name))

    def _raise(self, error: DeviceError) -> None:
        if isinstance(error, DeviceLostError):
            self._context.lost = error
        raise error

    def entered(self) -> AbstractContextManager[None]:
        """Take the context for this thread, and put back afterwards what was current."""
        return self._context

    # --- memory ---------------------------------------------------------------------------------

    def alloc(self, nbytes: int, usage: Usage, storage: Storage = FLOAT32) -> Buffer:
        """Reserve device memory; contents are undefined. Raises OutOfMemoryError."""
        with self._context:
            made: Buffer = self._memory.alloc(nbytes, usage, storage)
            self._check("allocating")
            self.counters.allocations += 1
            return made

    def free(self, buffer: Buffer) -> None:
        """Give memory back; the buffer must not be in flight."""
        if self._closed or self._context.lost is not None:
            return
        with self._context:
            self._memory.free(buffer)

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy contiguous host bytes into a buffer; a texture converts float32 to its storage."""
        with self._context:
            self._memory.write(buffer, data, offset)

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy a buffer to the host; a texture converts to float32. Raises DeviceError."""
        with self._context:
            self._memory.read(buffer, into, offset)
            self._check("reading back")

    @property
    def is_shared(self) -> bool:
        """Whether it was opened with the context of an application; only then `share` works."""
        return self._application is not None

    def share(self, source: Binding, target: Buffer | None = None) -> tuple[Buffer, Any]:
        """Hand a result to the application's moderngl context, without a copy through the host.

        Parameters
        ----------
        source : Binding
            Where the result lies.
        target : Buffer, optional
            What an earlier call returned for it.

        Returns
        -------
        target : Buffer
            What holds it, to be freed by the caller unless it is `source`'s own: a buffer of just
            its size, filled on the device, or the texture that it lies in.
        thing : moderngl.Buffer or moderngl.Texture
        """
        if isinstance(source.buffer, GlesTexture):
            return source.buffer, moderngl_context.as_moderngl(self._application, source.buffer)
        made = cast(GlesBuffer, target or self.alloc(source.nbytes, Usage.OUTPUT))
        with self._context:
            original = cast(GlesBuffer, source.buffer)
            moderngl_context.copy(self._gl, original, source.offset, made)
            self._check("copying a result")
        return made, moderngl_context.as_moderngl(self._application, made)

    # --- kernels and work -----------------------------------------------------------------------

    def build(self, blob: Any, specs: Mapping[str, Any]) -> Program:
        """Compile a kernel; its workgroup size is the specs LX, LY, LZ."""
        with self._context:
            row = self._textures.row if self._textures is not None else None
            made = build(self._gl, self.caps, blob, specs, row)
            self._check(f"building kernel {blob.name!r}")
            self.counters.compilations += 1
            return made

    def record(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
    ) -> Recording:
        """Record work once; see `gpuedge.backends.gles.record`. OpenGL orders host access."""
        with self._context:
            if self._textures is not None:
                made = record_draws(self._gl, self._textures, dispatches)
            else:
                made = record_dispatches(self._gl, dispatches)
            self._check("recording")
            self.counters.recordings += 1
            return made

    def submit(self, recording: Recording) -> Ticket:
        """Start recorded work. Raises DeviceLostError, OutOfMemoryError."""
        with self._context:
            self.counters.submits += 1
            replay(cast(GlesRecording, recording))
            if self._fences is None:
                self._gl.Finish()
                ticket = GlesTicket(None)
            else:
                ticket = GlesTicket(self._fences.make())
                self._gl.Flush()
                if ticket.fence is not None:
                    self._flying.append(ticket)
            self._check("submitting")
            return ticket

    def wait(self, ticket: Ticket, timeout_s: float) -> None:
        """Wait until the work is done. Raises DeviceTimeoutError or DeviceLostError."""
        one = cast(GlesTicket, ticket)
        with self._context:
            if one.fence is None or self._fences is None:
                return
            try:
                is_done = self._fences.is_done(one.fence, timeout_s)
            except DriverError:
                self._check_reset()
                self._check("waiting")
                raise
            self._check_reset()
            if not is_done:
                raise DeviceTimeoutError(
                    f"Work on {self.info.identity.name} did not finish within {timeout_s:g} s.",
                    known="it is still running; wait again, or close the device",
                )
            while one.fence is not None:  # work is done in order: this one's and what was before
                done = self._flying.popleft()
                self._fences.delete(done.fence)
                done.fence = None

    def _check_reset(self) -> None:
        """Raise DeviceLostError if the driver tells of a reset, where it was asked to."""
        why = c.RESETS.get(self._reset_status()) if self._reset_status else None
        if why:
            name = self.info.identity.name
            self._raise(DeviceLostError(f"The driver lost {name}.", known=why))

    def release(self, thing: Recording | Program) -> None:
        """Drop a recording or program that is not in flight."""
        if self._closed or not isinstance(thing, GlesProgram) or self._context.lost is not None:
            return
        with self._context:
            self._gl.DeleteProgram(thing.name)

    def close(self) -> None:
        """Free everything; may be called twice, and after the device was lost.

        Work that is still running when the time is up keeps its context, which is left to the end
        of the process: destroying it would wait for that work without limit.
        """
        if self._closed or self._context.is_inherited:
            return
        self._closed = True
        try:
            if self._context.lost is None:
                if self._flying:
                    self.wait(self._flying[-1], common.CLOSE_TIMEOUT_S)
                if self._textures is not None:
                    with self._context:
                        self._gl.delete("Buffers", self._corners)
        except DeviceTimeoutError:
            log.error("%s is still busy; it is not freed", self.info.identity.name)
            return
        except DeviceError as error:
            log.debug("closing: %s", error)
        self._opened.context.close()  # with all objects of the context


def _reset_status(opened: Opened) -> Callable[[], int] | None:
    """Return the function that tells of resets, if the context was made to tell of them."""
    if not opened.context.tells_resets:
        return None
    extensions = opened.gl.extensions(opened.context.want.version[0])
    for suffix in ("EXT", "KHR"):
        name = f"GetGraphicsResetStatus{suffix}"
        if f"GL_{suffix}_robustness" in extensions and opened.gl.has(name):
            function: Callable[[], int] = getattr(opened.gl, name)
            return function
    return None


# --- fences: knowing when submitted work is done, with a limit to the waiting ---------------------

MAX_NANOSECONDS = (1 << 62) - 1
"""Waits of a century and more have no limit; larger numbers need not fit a driver's arithmetic."""


@dataclass(slots=True, eq=False)
class GlesTicket:
    """One submission; `fence` is None once it is known to be done."""

    fence: Any


def nanoseconds(seconds: float) -> int:
    """Return a time as drivers take it."""
    return int(min(max(0.0, seconds) * 1e9, MAX_NANOSECONDS))


@dataclass(frozen=True, slots=True)
class Fences:
    """How a context tells when submitted work is done.

    `wait` takes a fence and nanoseconds; `done` and `late` are its answers that say how it went,
    any other one, known or not, is a failure.
    """

    make: Callable[[], Any]
    wait: Callable[[Any, int], int]
    delete: Callable[[Any], Any]
    done: tuple[int, ...]
    late: int

    def is_done(self, fence: Any, seconds: float) -> bool:
        """Wait for a fence; return False if the time is up. Raises DriverError."""
        answer = self.wait(fence, nanoseconds(seconds))
        if answer not in (*self.done, self.late):
            known = f"the wait for a fence answers {answer:#06x}"
            raise DriverError("The driver does not wait.", known=known)
        return answer != self.late


def fences(gl: Gl, level: str, display: Display) -> Fences | None:
    """Return the best kind of fence that a context has; None: work must be finished at once."""
    if level != "gles20" and gl.has("FenceSync", "ClientWaitSync", "DeleteSync"):
        return Fences(
            partial(gl.FenceSync, c.SYNC_GPU_COMMANDS_COMPLETE, 0),
            lambda fence, limit: int(gl.ClientWaitSync(fence, c.SYNC_FLUSH_COMMANDS, limit)),
            gl.DeleteSync,
            (c.ALREADY_SIGNALED, c.CONDITION_SATISFIED),
            c.TIMEOUT_EXPIRED,
        )
    egl: Any = display.library
    handle = display.handle
    has_all = egl.has("CreateSyncKHR", "ClientWaitSyncKHR", "DestroySyncKHR")
    if "EGL_KHR_fence_sync" in display.extensions and has_all:
        return Fences(
            partial(egl.CreateSyncKHR, handle, c.EGL_SYNC_FENCE, None),
            lambda fence, limit: int(egl.ClientWaitSyncKHR(handle, fence, c.EGL_SYNC_FLUSH, limit)),
            partial(egl.DestroySyncKHR, handle),
            (c.EGL_CONDITION_SATISFIED,),
            c.EGL_TIMEOUT_EXPIRED,
        )
    return None
