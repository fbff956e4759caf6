"""The OpenGL ES backends: one folder, three levels (2.0 and 3.0 fragment, 3.1 compute).

Importing this loads neither `moderngl` nor a driver; `enumerate` and `open` do.
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
        return []

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load a driver and list its devices."""
        raise NotImplementedError

    def open(self, info: DeviceInfo, **options: Any) -> DeviceImpl:
        """Open a device."""
        raise NotImplementedError


class Gles31Backend(_GlesBackend):
    """OpenGL ES 3.1: compute shaders on storage buffers."""

    name: ClassVar[str] = "gles31"


class Gles30Backend(_GlesBackend):
    """OpenGL ES 3.0: fragment shaders, float or integer textures."""

    name: ClassVar[str] = "gles30"


class Gles20Backend(_GlesBackend):
    """OpenGL ES 2.0: fragment shaders, RGBA8 textures."""

    name: ClassVar[str] = "gles20"
