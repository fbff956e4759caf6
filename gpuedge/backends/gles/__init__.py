"""The OpenGL ES backends: one folder, three levels (2.0 and 3.0 fragment, 3.1 compute).

Importing this loads no library and no driver; `enumerate` and `open` do.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, ClassVar

    from gpuedge.backends.base import Candidate, DeviceImpl, DeviceInfo


class _GlesBackend:
    """Finds EGL drivers and opens them at one level."""

    name: ClassVar[str]

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List drivers that may exist, without loading any. Never raises for absence."""
        from gpuedge.backends.gles import candidates

        return candidates.candidates(environ, self.name)

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load a driver and list its devices.

        Raises
        ------
        BackendUnavailableError (GE-404)
            The error's `reason` is a `Reason`: ``no-loader``, ``bad-manifest``,
            ``missing-library``, ``no-device``, ``no-context``, ``no-shaders``, ``no-highp``,
            ``no-format``, ``open-failed``.
        """
        from gpuedge.backends.gles import candidates, physical

        candidates.require(candidate)
        return physical.enumerate_devices(candidate, self.name)

    def open(self, info: DeviceInfo, **options: Any) -> DeviceImpl:
        """Open a device; the one option is `context`, a moderngl.Context that is current.

        The device then shares textures and buffers with that context of the application.

        Raises
        ------
        DeviceError (GE-400)
            The driver refused, lost the device or ran out of memory.
        """
        from gpuedge.backends.gles.device import open_device

        return open_device(info, **options)


class Gles31Backend(_GlesBackend):
    """OpenGL ES 3.1: compute shaders on storage buffers."""

    name: ClassVar[str] = "gles31"


class Gles30Backend(_GlesBackend):
    """OpenGL ES 3.0: fragment shaders, float or integer textures."""

    name: ClassVar[str] = "gles30"


class Gles20Backend(_GlesBackend):
    """OpenGL ES 2.0: fragment shaders, RGBA8 textures."""

    name: ClassVar[str] = "gles20"
