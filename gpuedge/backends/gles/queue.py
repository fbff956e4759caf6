"""The context of a device, made current beside the application's, and the work in flight on it.

A context of our own is of an exact version and belongs to one thread at a time. ``with context:``
takes it for this thread, notes what the application had current, and puts that back at the end;
nested blocks cost next to nothing. Work is waited for by fences, with a limit.
"""

from __future__ import annotations

import ctypes
import os
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuedge.backends import common
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Display, Gl, attributes
from gpuedge.core.errors import (
    FORK_HINT,
    BackendUnavailableError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    DriverError,
)
from gpuedge.safety.interrupts import rlock

if TYPE_CHECKING:
    from gpuedge.backends.gles.physical import Opened
    from gpuedge.backends.gles.record import GlesRecording


VERSIONS = {"gles20": (2, 0), "gles30": (3, 0), "gles31": (3, 1)}
DESKTOP_VERSION = (4, 3)
"""The first desktop OpenGL whose core has the compute shaders of OpenGL ES 3.1."""


@dataclass(frozen=True, slots=True)
class Want:
    """The context to make.

    `is_desktop` asks for desktop OpenGL, to share with an application's context of it; `is_robust`
    for a context that tells of resets, where the driver has such.
    """

    level: str
    is_desktop: bool = False
    is_robust: bool = True

    @property
    def version(self) -> tuple[int, int]:
        """(major, minor) to ask for."""
        return DESKTOP_VERSION if self.is_desktop else VERSIONS[self.level]


class GLContext:
    """A context on a display; `close` destroys it, not the display.

    `share` is a context of the same display and API whose textures and buffers this one sees as
    well. Raises BackendUnavailableError: ``no-context``, ``out-of-memory``, ``device-lost``.
    """

    def __init__(self, display: Display, want: Want, share: int | None = None) -> None:
        self.display = display
        self.want = want
        self.api = c.EGL_OPENGL_API if want.is_desktop else c.EGL_OPENGL_ES_API
        self.lost: DeviceLostError | None = None
        self.is_gone = False  # the driver said that there is no such context, or display
        self.tells_resets = False
        self._egl: Any = display.library
        self._lock = rlock()
        self._thread = self._depth = 0  # the one that has it, and how often it took it
        self._before_api = 0
        self._before: tuple[Any, ...] | None = None
        self._owner = os.getpid()
        self._surface: int | None = None
        before = self._egl.QueryAPI()
        try:
            self._handle: int | None = self._create(share)
        finally:
            self._egl.BindAPI(before)
        make, surface = self._egl.MakeCurrent, self._surface
        self._make_current = self._egl.ready(make, display.handle, surface, surface, self._handle)
        self._make_none = self._egl.ready(make, display.handle, None, None, None)

    def _create(self, share: int | None) -> int:
        egl, display = self._egl, self.display
        if not egl.BindAPI(self.api):
            raise self._refused("eglBindAPI")
        surfaceless = "EGL_KHR_surfaceless_context" in display.extensions
        config = self._config(c.EGL_PBUFFER_BIT)
        if config is None and surfaceless:
            config = self._config(0)
        if config is None:
            raise self._refused("eglChooseConfig")
        handle: int | None = None
        for attempt in self._attempts():
            handle = egl.CreateContext(display.handle, config, share, attributes(*attempt))
            if handle:
                self.tells_resets = any(k == c.EGL_RESET_STRATEGY_EXT for k, _ in attempt)
                break
        if not handle:
            raise self._refused("eglCreateContext")
        if not surfaceless:
            size = attributes((c.EGL_WIDTH, 1), (c.EGL_HEIGHT, 1))
            self._surface = egl.CreatePbufferSurface(display.handle, config, size)
            if not self._surface:
                refused = self._refused("eglCreatePbufferSurface")
                egl.DestroyContext(display.handle, handle)
                raise refused
        return handle

    def _refused(self, call: str) -> BackendUnavailableError:
        error = c.error_for(self._egl.GetError(), call)
        version = ".".join(map(str, self.want.version))
        name = "OpenGL" if self.want.is_desktop else "OpenGL ES"
        return BackendUnavailableError(
            f"The driver makes no context of {name} {version}.",
            known=error.known,
            reason=c.reason_for(error, "no-context"),
        )

    def _config(self, surfaces: int) -> int | None:
        """Return a configuration; its surfaces are never used, so any will do."""
        kind = c.EGL_ES2_BIT if self.want.level == "gles20" else c.EGL_ES3_BIT
        kind = c.EGL_OPENGL_BIT if self.want.is_desktop else kind
        # EGL 1.4 knows no bit for 3.x; drivers that make such contexts take the one of 2.0.
        for bit in (kind, c.EGL_ES2_BIT):
            wanted = attributes((c.EGL_SURFACE_TYPE, surfaces), (c.EGL_RENDERABLE_TYPE, bit))
            configs, count = (ctypes.c_void_p * 1)(), ctypes.c_int(0)
            self._egl.ChooseConfig(self.display.handle, wanted, configs, 1, ctypes.byref(count))
            if count.value and configs[0]:
                return configs[0]
        return None

    def _attempts(self) -> list[list[tuple[int, int]]]:
        """Return attribute lists to try in turn: with the notice of resets, then without."""
        major, minor = self.want.version
        extensions, version = self.display.extensions, self.display.version
        wanted = [(c.EGL_CONTEXT_MAJOR, major)]
        if version >= (1, 5) or "EGL_KHR_create_context" in extensions:
            wanted.append((c.EGL_CONTEXT_MINOR, minor))
        if self.want.is_desktop:
            wanted.append((c.EGL_CONTEXT_PROFILE_MASK, c.EGL_CORE_PROFILE))
        if "EGL_ANGLE_create_context_backwards_compatible" in extensions:
            wanted.append((c.EGL_ANGLE_BACKWARDS_COMPATIBLE, 0))
        attempts = [wanted]
        if self.want.is_robust and "EGL_EXT_create_context_robustness" in extensions:
            notice = (c.EGL_RESET_STRATEGY_EXT, c.EGL_LOSE_CONTEXT_ON_RESET)
            attempts.insert(0, [*wanted, notice])
        return attempts

    # --- being current --------------------------------------------------------------------------

    @property
    def is_inherited(self) -> bool:
        """True in a forked child, where the driver's threads and locks are dead."""
        return self._owner != os.getpid()

    def __enter__(self) -> None:
        """Take the context for this thread. Raises ClosedError, DeviceLostError, DriverError."""
        if self._thread == get_ident():
            self._depth += 1
            return
        if self.is_inherited:
            raise ClosedError(
                "This OpenGL ES device was opened before this process was forked off.",
                hint=FORK_HINT,
            )
        self._lock.acquire()
        try:
            if self._handle is None:
                raise ClosedError("This OpenGL ES device was closed.")
            if self.lost is not None:
                raise DeviceLostError(self.lost.what, known=self.lost.known, hint=self.lost.hint)
            self._take()
            self._thread, self._depth = get_ident(), 1
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        """Put back what the application had current."""
        self._depth -= 1
        if self._depth:
            return
        self._thread = 0
        try:
            self._restore()
        finally:
            self._lock.release()

    def _take(self) -> None:
        egl = self._egl
        self._before_api = api = egl.QueryAPI()
        self._before = None
        if context := egl.GetCurrentContext():
            draw, read = egl.GetCurrentSurface(c.EGL_DRAW), egl.GetCurrentSurface(c.EGL_READ)
            self._before = egl.GetCurrentDisplay(), draw, read, context
        if api != self.api:
            egl.BindAPI(self.api)
        if not self._make_current():
            code = egl.GetError()
            egl.BindAPI(api)  # what was current still is
            raise self._not_current(code)

    def _not_current(self, code: int) -> DeviceError:
        error = c.error_for(code, "eglMakeCurrent")
        if code in c.EGL_GONE:
            self.is_gone = True
            error = DeviceLostError(
                "The EGL display of this device was terminated.",
                known=error.known,
                hint="something else in this process did that (eglTerminate); open it again",
            )
        if isinstance(error, DeviceLostError):
            self.lost = error
        return error

    def _restore(self) -> None:
        if self._before is not None:
            self._egl.MakeCurrent(*self._before)
        else:
            self._make_none()
        if self._before_api != self.api:
            self._egl.BindAPI(self._before_api)

    def close(self) -> None:
        """Destroy the context with all its objects; may be called twice, not while current."""
        with self._lock:
            if self._handle is None or self.is_inherited:
                return
            handle, self._handle = self._handle, None
            if self.is_gone:
                return  # the number may be another context's by now
            self._egl.DestroyContext(self.display.handle, handle)
            if self._surface:
                self._egl.DestroySurface(self.display.handle, self._surface)
                self._surface = None


@dataclass(slots=True, eq=False)
class GlesTicket:
    """One submission; `fence` is None once it is known to be done."""

    fence: Any


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
        answer = self.wait(fence, int(seconds * 1e9))
        if answer not in self.done and answer != self.late:
            known = f"the wait for a fence answers {answer:#06x}"
            raise DriverError("The driver does not wait.", known=known)
        return answer != self.late


def fences(gl: Gl, level: str, display: Display) -> Fences | None:
    """Return the best kind of fence that a context has; None: work must be finished at once."""
    if level != "gles20" and gl.has("FenceSync", "ClientWaitSync", "DeleteSync"):
        return Fences(
            gl.ready(gl.FenceSync, c.SYNC_GPU_COMMANDS_COMPLETE, 0),
            lambda fence, limit: gl.ClientWaitSync(fence, c.SYNC_FLUSH_COMMANDS, limit),
            gl.DeleteSync,
            (c.ALREADY_SIGNALED, c.CONDITION_SATISFIED),
            c.TIMEOUT_EXPIRED,
        )
    egl: Any = display.library
    handle = display.handle
    has_all = egl.has("CreateSyncKHR", "ClientWaitSyncKHR", "DestroySyncKHR")
    if "EGL_KHR_fence_sync" in display.extensions and has_all:
        return Fences(
            egl.ready(egl.CreateSyncKHR, handle, c.EGL_SYNC_FENCE, None),
            lambda fence, limit: egl.ClientWaitSyncKHR(handle, fence, c.EGL_SYNC_FLUSH, limit),
            partial(egl.DestroySyncKHR, handle),
            (c.EGL_CONDITION_SATISFIED,),
            c.EGL_TIMEOUT_EXPIRED,
        )
    return None


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


def replay(recording: GlesRecording) -> None:
    """Make all calls of recorded work in order; the context is current."""
    for binds, program, values, sets, launch in recording.launches:
        for call in binds:
            call()
        if program.applied is not values:
            for call in sets:
                call()
            program.applied = values
        launch()
    for call in recording.after:
        call()


class Queue:
    """The work in flight on an open device, and `scope`: its context, entered for every call."""

    def __init__(self, opened: Opened) -> None:
        self.gl = opened.gl
        self.scope = opened.context
        self.fences = fences(opened.gl, opened.context.want.level, opened.context.display)
        self.reset_status = _reset_status(opened)
        self.flying: deque[GlesTicket] = deque()

    @property
    def lost(self) -> DeviceLostError | None:
        """Set once the driver reports a lost device; everything raises it from then on."""
        return self.scope.lost or self.gl.lost

    def submit(self, recording: GlesRecording) -> GlesTicket:
        """Start recorded work."""
        replay(recording)
        ticket = GlesTicket(None)
        if self.fences is None:
            self.gl.Finish()
        else:
            ticket.fence = self.fences.make()
            self.gl.Flush()
            if ticket.fence is not None:
                self.flying.append(ticket)
        if code := self.gl.GetError():
            self.gl.fail(code, "submitting")
        return ticket

    def wait(self, ticket: GlesTicket, timeout_s: float) -> None:
        """Wait until `ticket` is done, at most `timeout_s` seconds."""
        if ticket.fence is None or self.fences is None:
            return
        try:
            is_done = self.fences.is_done(ticket.fence, timeout_s)
        except DriverError:
            self._check_reset()
            self.gl.check("waiting")
            raise
        while is_done and ticket.fence is not None:  # in order: this one's and what was before
            done = self.flying.popleft()
            self.fences.delete(done.fence)
            done.fence = None
        self._check_reset()
        if not is_done:
            raise common.timeout_error(self.gl.device, timeout_s)

    def _check_reset(self) -> None:
        """Raise DeviceLostError if the driver tells of a reset, where it was asked to."""
        why = c.RESETS.get(self.reset_status()) if self.reset_status else None
        if why:
            self.gl.lost = common.lost_error(self.gl.device, why)
            raise self.gl.lost

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was submitted can still run."""
        return not self.flying or self.scope.is_gone

    def finish(self, timeout_s: float) -> None:
        """Wait for everything in flight. Raises DeviceError."""
        if self.flying:
            self.wait(self.flying[-1], timeout_s)
