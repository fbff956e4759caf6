"""A context of our own, of an exact version, and its turn-taking with the application's contexts.

A context belongs to one thread at a time. `with context:` takes it for this thread, remembers what
the application had current, and puts that back at the end; nested uses cost next to nothing.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from gpuedge.backends.gles import names
from gpuedge.backends.gles.egl import Display, attributes
from gpuedge.backends.gles.names import GlesUnavailableError, egl_error_for
from gpuedge.core.errors import ClosedError, DeviceLostError

VERSIONS = {"gles20": (2, 0), "gles30": (3, 0), "gles31": (3, 1)}
DESKTOP_VERSION = (4, 3)
"""The first desktop OpenGL whose core has the compute shaders of OpenGL ES 3.1."""


@dataclass(frozen=True, slots=True)
class Want:
    """The context to make.

    Attributes
    ----------
    level : str
    is_desktop : bool
        Desktop OpenGL, whose compute shaders serve ``gles31`` where there is no OpenGL ES.
    is_webgl : bool
        A context that refuses what WebGL forbids; only ANGLE makes such.
    """

    level: str
    is_desktop: bool = False
    is_webgl: bool = False

    @property
    def version(self) -> tuple[int, int]:
        """(major, minor) to ask for."""
        return DESKTOP_VERSION if self.is_desktop else VERSIONS[self.level]


class Context:
    """A context on a display; `close` destroys it, not the display.

    Raises
    ------
    GlesUnavailableError
        ``no-context``: the driver makes none of this version.
    """

    def __init__(self, display: Display, want: Want) -> None:
        self.display = display
        self.want = want
        self.api = names.EGL_OPENGL_API if want.is_desktop else names.EGL_OPENGL_ES_API
        self.lost: DeviceLostError | None = None
        self._egl: Any = display.library
        self._lock = threading.RLock()
        self._depth = 0
        self._before: tuple[Any, ...] = ()
        self._owner = os.getpid()
        self._surface: int | None = None
        self.tells_resets = False
        before = self._egl.QueryAPI()
        try:
            self._handle: int | None = self._create()
        finally:
            self._egl.BindAPI(before)

    def _create(self) -> int:
        egl, display = self._egl, self.display
        if not egl.BindAPI(self.api):
            raise self._refused(f"eglBindAPI: {egl.error()}")
        surfaceless = "EGL_KHR_surfaceless_context" in display.extensions
        config = self._config(names.EGL_PBUFFER_BIT)
        if config is None and surfaceless:
            config = self._config(0)
        if config is None:
            raise self._refused("there is no configuration for it")
        handle: int | None = None
        for attempt in self._attempts():
            handle = egl.CreateContext(display.handle, config, None, attributes(*attempt))
            if handle:
                self.tells_resets = any(k == names.EGL_RESET_STRATEGY_EXT for k, _ in attempt)
                break
        if not handle:
            raise self._refused(f"eglCreateContext: {egl.error()}")
        if not surfaceless:
            size = attributes((names.EGL_WIDTH, 1), (names.EGL_HEIGHT, 1))
            self._surface = egl.CreatePbufferSurface(display.handle, config, size)
            if not self._surface:
                egl.DestroyContext(display.handle, handle)
                raise self._refused(f"eglCreatePbufferSurface: {egl.error()}")
        return handle

    def _refused(self, known: str) -> GlesUnavailableError:
        version = ".".join(map(str, self.want.version))
        name = "OpenGL" if self.want.is_desktop else "OpenGL ES"
        return GlesUnavailableError(
            f"The driver makes no context of {name} {version}.", known=known, reason="no-context"
        )

    def _config(self, surfaces: int) -> int | None:
        """Return a configuration; its surfaces are never used, so any will do."""
        kind = names.EGL_ES2_BIT if self.want.level == "gles20" else names.EGL_ES3_BIT
        kind = names.EGL_OPENGL_BIT if self.want.is_desktop else kind
        # EGL 1.4 knows no bit for 3.x; drivers that make such contexts take the one of 2.0.
        for bit in (kind, names.EGL_ES2_BIT):
            wanted = attributes(
                (names.EGL_SURFACE_TYPE, surfaces), (names.EGL_RENDERABLE_TYPE, bit)
            )
            found, count = (ctypes.c_void_p * 1)(), ctypes.c_int(0)
            self._egl.ChooseConfig(self.display.handle, wanted, found, 1, ctypes.byref(count))
            self._egl.GetError()
            if count.value and found[0]:
                return found[0]
        return None

    def _attempts(self) -> list[list[tuple[int, int]]]:
        """Return attribute lists to try in turn: with the notice of resets, then without."""
        major, minor = self.want.version
        extensions, version = self.display.extensions, self.display.version
        wanted = [(names.EGL_CONTEXT_MAJOR, major)]
        if version >= (1, 5) or "EGL_KHR_create_context" in extensions:
            wanted.append((names.EGL_CONTEXT_MINOR, minor))
        if self.want.is_desktop:
            wanted.append((names.EGL_CONTEXT_PROFILE_MASK, names.EGL_CORE_PROFILE))
        if self.want.is_webgl:
            wanted.append((names.EGL_ANGLE_WEBGL, 1))
        if "EGL_ANGLE_create_context_backwards_compatible" in extensions:
            wanted.append((names.EGL_ANGLE_BACKWARDS_COMPATIBLE, 0))
        attempts = [wanted]
        if "EGL_EXT_create_context_robustness" in extensions:
            notice = (names.EGL_RESET_STRATEGY_EXT, names.EGL_LOSE_CONTEXT_ON_RESET)
            attempts.insert(0, [*wanted, notice])
        return attempts

    # --- taking turns ---------------------------------------------------------------------------

    @property
    def is_inherited(self) -> bool:
        """True in a forked child, where the driver's threads and locks are dead."""
        return self._owner != os.getpid()

    def __enter__(self) -> None:
        """Take the context for this thread. Raises ClosedError, DeviceLostError."""
        if self.is_inherited:
            raise ClosedError(
                "This OpenGL ES device was opened before this process was forked off.",
                hint="open devices after forking, or start processes by 'spawn'",
            )
        self._lock.acquire()
        if self._depth == 0:
            try:
                self._take()
            except BaseException:
                self._lock.release()
                raise
        self._depth += 1

    def _take(self) -> None:
        egl = self._egl
        if self._handle is None:
            raise ClosedError("This OpenGL ES device was closed.")
        api = egl.QueryAPI()
        self._before = (
            api,
            egl.GetCurrentDisplay(),
            egl.GetCurrentSurface(names.EGL_DRAW),
            egl.GetCurrentSurface(names.EGL_READ),
            egl.GetCurrentContext(),
        )
        if api != self.api:
            egl.BindAPI(self.api)
        if not egl.MakeCurrent(self.display.handle, self._surface, self._surface, self._handle):
            error = egl_error_for(egl.GetError(), "eglMakeCurrent")
            self._restore()
            if isinstance(error, DeviceLostError):
                self.lost = error
            raise error

    def _restore(self) -> None:
        egl = self._egl
        api, display, draw, read, context = self._before
        if context and display:
            egl.MakeCurrent(display, draw, read, context)
        else:
            egl.MakeCurrent(self.display.handle, None, None, None)
        if api != self.api:
            egl.BindAPI(api)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put back what the application had current."""
        self._depth -= 1
        try:
            if self._depth == 0:
                self._restore()
        finally:
            self._lock.release()

    def check(self) -> None:
        """Raise DeviceLostError if the device was lost before."""
        if self.lost is not None:
            raise DeviceLostError(self.lost.what, known=self.lost.known)

    def close(self) -> None:
        """Destroy the context with all its objects; may be called twice, not within `with`."""
        with self._lock:
            if self._handle is None or self.is_inherited:
                return
            handle, self._handle = self._handle, None
            self._egl.DestroyContext(self.display.handle, handle)
            if self._surface:
                self._egl.DestroySurface(self.display.handle, self._surface)
                self._surface = None
