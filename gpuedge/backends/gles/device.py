"""An open OpenGL ES device: the seam's calls, each handed to the part that does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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
from gpuedge.core.errors import (
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    InputError,
)

log = logging.getLogger("gpuedge.gles")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the backends' `open`.

    Attributes
    ----------
    storages : sequence of str, optional
        Storage kinds to offer, of those that work; all by default.
    context : moderngl.Context, optional
        The application's context, current in this thread, to share textures and buffers with.
    """

    storages: Sequence[str] | None = None
    context: Any = None


def open_device(info: DeviceInfo, options: Options) -> GlesDevice:
    """Open a device. Raises DeviceError."""
    wanted = physical.wants(info.candidate.backend)
    if "robust-access" in info.disabled:
        wanted = [replace(want, is_robust=False) for want in wanted]
    if options.context is None:
        opened = physical.open_device(info, wanted)
    else:
        opened = moderngl_context.open_beside(info, options.context)
    try:
        return GlesDevice(info, options, opened)
    except BaseException:
        opened.close()
        raise


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


class GlesDevice:
    """An open device; see `gpuedge.backends.base.DeviceImpl` for what each call promises."""

    def __init__(self, info: DeviceInfo, options: Options, opened: Opened) -> None:
        self.info = info
        self.counters = Counters()
        self._options = options
        self._opened = opened
        self._gl = gl = opened.gl
        self._context = opened.context
        self._closed = False
        self._flying: list[GlesTicket] = []
        level = opened.context.want.level
        with self._context.current():
            self._textures: Textures | None = None
            self._memory: Any
            self._corners = None if level == "gles31" else prepare_drawing(gl)
            if level == "gles31":
                self.caps = physical.compute_caps(gl, opened.is_software)
                self._memory = Buffers(gl)
            else:
                self._memory = self._textures = self._open_textures(opened, options.storages)
            self._fences = fences(gl, level, opened.display)
            self._reset_status = _reset_status(opened)
            self._check("opening the device")

    def _open_textures(self, opened: Opened, wanted: Sequence[str] | None) -> Textures:
        """Set the limits of a level that draws; return what keeps its tensors."""
        gl, level = opened.gl, opened.context.want.level
        kinds = physical.offered(level, opened.formats, wanted)
        if not kinds:
            raise InputError(
                "This device has none of the storage kinds asked for.",
                asked_by=f"storages={wanted!r}",
                known=", ".join(physical.offered(level, opened.formats, None)),
            )
        side = self.info.limits.get("max_texture_size", physical.NO_LIMIT)
        self.caps = physical.fragment_caps(gl, level, kinds, opened.is_software, side)
        return Textures(gl, opened.formats, kinds[0], self.caps.max_texture_size or 1)

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
        return self._context.current()

    # --- memory ---------------------------------------------------------------------------------

    def alloc(self, nbytes: int, usage: Usage, storage: Storage = FLOAT32) -> Buffer:
        """Reserve device memory; contents are undefined. Raises OutOfMemoryError."""
        with self._context.current():
            self._context.check()
            made: Buffer = self._memory.alloc(nbytes, usage, storage)
            self._check("allocating")
            self.counters.allocations += 1
            return made

    def free(self, buffer: Buffer) -> None:
        """Give memory back; the buffer must not be in flight."""
        if self._closed or self._context.lost is not None:
            return
        with self._context.current():
            self._memory.free(buffer)

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy contiguous host bytes of float32 into a buffer, converted to its storage."""
        with self._context.current():
            self._context.check()
            self._memory.write(buffer, data, offset)

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy a buffer to the host as float32. Raises DeviceError."""
        with self._context.current():
            self._context.check()
            self._memory.read(buffer, into, offset)
            self._check("reading back")

    @property
    def is_shared(self) -> bool:
        """Whether it was opened with the context of an application; only then `share` works."""
        return self._options.context is not None

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
        context = self._options.context
        if isinstance(source.buffer, GlesTexture):
            return source.buffer, moderngl_context.as_moderngl(context, source.buffer)
        made = cast(GlesBuffer, target or self.alloc(source.nbytes, Usage.OUTPUT))
        with self._context.current():
            self._context.check()
            original = cast(GlesBuffer, source.buffer)
            moderngl_context.copy(self._gl, original, source.offset, made)
            self._check("copying a result")
        return made, moderngl_context.as_moderngl(context, made)

    # --- kernels and work -----------------------------------------------------------------------

    def build(self, blob: Any, specs: Mapping[str, Any]) -> Program:
        """Compile a kernel; its workgroup size is the specs LX, LY, LZ."""
        with self._context.current():
            self._context.check()
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
        with self._context.current():
            self._context.check()
            if self._textures is not None:
                made = record_draws(self._gl, self._textures, dispatches)
            else:
                made = record_dispatches(self._gl, dispatches)
            self._check("recording")
            self.counters.recordings += 1
            return made

    def submit(self, recording: Recording) -> Ticket:
        """Start recorded work. Raises DeviceLostError, OutOfMemoryError."""
        with self._context.current():
            self._context.check()
            self.counters.submits += 1
            replay(cast(GlesRecording, recording))
            self._prune()
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
        with self._context.current():
            self._context.check()
            if one.fence is None or self._fences is None:
                return
            try:
                is_done = self._fences.wait(one.fence, timeout_s)
            except DriverError:
                self._check_reset()
                self._check("waiting")
                raise
            if not is_done:
                self._check_reset()
                raise DeviceTimeoutError(
                    f"Work on {self.info.identity.name} did not finish within {timeout_s:g} s.",
                    known="it is still running; wait again, or close the device",
                )
            self._finish(one)
            self._check_reset()

    def _finish(self, ticket: GlesTicket) -> None:
        """Forget a submission that is done."""
        fence, ticket.fence = ticket.fence, None
        self._flying = [other for other in self._flying if other is not ticket]
        if self._fences is not None:
            self._fences.delete(fence)

    def _prune(self) -> None:
        """Forget submissions that are done though nobody waited to the end, oldest first."""
        if self._fences is None:
            return
        try:
            while self._flying and self._fences.wait(self._flying[0].fence, 0.0):
                self._finish(self._flying[0])
        except DriverError as error:
            log.debug("asking for finished work: %s", error)

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
        with self._context.current():
            self._gl.DeleteProgram(thing.name)

    def close(self) -> None:
        """Free everything; may be called twice, and after the device was lost.

        Work that is still running when the time is up keeps its context, which is left to the end
        of the process: destroying it would wait for that work without limit.
        """
        if self._closed or self._context.is_inherited:
            return
        self._closed = True
        if self._context.lost is None:
            try:
                if not self._drain():
                    log.error("%s is still busy; it is not freed", self.info.identity.name)
                    return
                with self._context.current():
                    if self._corners is not None:
                        self._gl.delete("Buffers", self._corners)
            except DeviceError as error:
                log.debug("closing: %s", error)
        self._opened.close()  # with all objects of the context

    def _drain(self) -> bool:
        end = time.monotonic() + common.CLOSE_TIMEOUT_S
        for ticket in list(self._flying):
            try:
                self.wait(ticket, max(0.0, end - time.monotonic()))
            except DeviceTimeoutError:
                return False
        return True


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


# --- fences: knowing when submitted work is done, with a limit to the waiting ---------------------

MAX_NANOSECONDS = (1 << 62) - 1
"""Waits of a century and more have no limit; larger numbers need not fit a driver's arithmetic."""


GL_ANSWERS = (c.ALREADY_SIGNALED, c.CONDITION_SATISFIED, c.TIMEOUT_EXPIRED)
"""Answers of a wait that say how it went; any other one, known or not, is a failure."""


@dataclass(slots=True, eq=False)
class GlesTicket:
    """One submission; `fence` is None once it is known to be done."""

    fence: Any


def nanoseconds(seconds: float) -> int:
    """Return a time as drivers take it."""
    return int(min(max(0.0, seconds) * 1e9, MAX_NANOSECONDS))


class GlFences:
    """Fences of OpenGL ES 3.0."""

    def __init__(self, gl: Gl) -> None:
        self._gl = gl

    def make(self) -> Any:
        """Return a fence."""
        return self._gl.FenceSync(c.SYNC_GPU_COMMANDS_COMPLETE, 0)

    def wait(self, fence: Any, seconds: float) -> bool:
        """Wait for a fence."""
        flags, limit = c.SYNC_FLUSH_COMMANDS, nanoseconds(seconds)
        answer = self._gl.ClientWaitSync(fence, flags, limit)
        if answer not in GL_ANSWERS:
            known = f"glClientWaitSync answers {answer:#06x}"
            raise DriverError("The driver does not wait.", known=known)
        return bool(answer != c.TIMEOUT_EXPIRED)

    def delete(self, fence: Any) -> None:
        """Delete a fence."""
        self._gl.DeleteSync(fence)


class EglFences:
    """Fences of EGL, for OpenGL ES 2.0."""

    def __init__(self, display: Display) -> None:
        self._egl: Any = display.library
        self._display = display.handle

    def make(self) -> Any:
        """Return a fence."""
        return self._egl.CreateSyncKHR(self._display, c.EGL_SYNC_FENCE, None)

    def wait(self, fence: Any, seconds: float) -> bool:
        """Wait for a fence."""
        flags, limit = c.EGL_SYNC_FLUSH, nanoseconds(seconds)
        answer = self._egl.ClientWaitSyncKHR(self._display, fence, flags, limit)
        if answer not in (c.EGL_TIMEOUT_EXPIRED, c.EGL_CONDITION_SATISFIED):
            raise DriverError("The driver does not wait.", known=f"EGL: {self._egl.error()}")
        return bool(answer == c.EGL_CONDITION_SATISFIED)

    def delete(self, fence: Any) -> None:
        """Delete a fence."""
        self._egl.DestroySyncKHR(self._display, fence)


def fences(gl: Gl, level: str, display: Display) -> GlFences | EglFences | None:
    """Return the best kind of fence that a context has; None: work must be finished at once."""
    if level != "gles20" and gl.has("FenceSync", "ClientWaitSync", "DeleteSync"):
        return GlFences(gl)
    functions = ("CreateSyncKHR", "ClientWaitSyncKHR", "DestroySyncKHR")
    if "EGL_KHR_fence_sync" in display.extensions and display.library.has(*functions):
        return EglFences(display)
    return None
