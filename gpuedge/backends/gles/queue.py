"""Fences: knowing when submitted work is done, with a limit to the waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Display, Gl
from gpuedge.core.errors import DriverError

MAX_NANOSECONDS = (1 << 62) - 1
"""Waits of a century and more have no limit; larger numbers need not fit a driver's arithmetic."""


GL_ANSWERS = (c.ALREADY_SIGNALED, c.CONDITION_SATISFIED, c.TIMEOUT_EXPIRED)
"""Answers of a wait that say how it went; any other one, known or not, is a failure."""


@dataclass(slots=True, eq=False)
class GlesTicket:
    """One submission; `fence` is None once it is known to be done."""

    fence: Any


class Fences(Protocol):
    """Makes fences in the current context."""

    def make(self) -> Any:
        """Return a fence behind everything submitted so far; None if it is done already."""

    def wait(self, fence: Any, seconds: float) -> bool:
        """Wait for a fence; False if it was not reached in time. Raises DriverError."""

    def delete(self, fence: Any) -> None:
        """Delete a fence."""


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


class NoFences:
    """For drivers without fences: work is done when it is submitted; nothing limits the wait."""

    def __init__(self, gl: Gl) -> None:
        self._gl = gl

    def make(self) -> Any:
        """Finish everything."""
        self._gl.Finish()

    def wait(self, fence: Any, seconds: float) -> bool:
        """Return at once."""
        return True

    def delete(self, fence: Any) -> None:
        """Do nothing."""


def fences(gl: Gl, level: str, display: Display) -> Fences:
    """Return the best kind of fence that a context has."""
    if level != "gles20" and gl.has("FenceSync", "ClientWaitSync", "DeleteSync"):
        return GlFences(gl)
    functions = ("CreateSyncKHR", "ClientWaitSyncKHR", "DestroySyncKHR")
    if "EGL_KHR_fence_sync" in display.extensions and display.library.has(*functions):
        return EglFences(display)
    return NoFences(gl)
