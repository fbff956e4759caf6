"""The wgpu backends: WebGPU over Vulkan, OpenGL, Metal and Direct3D 12.

Importing this loads neither `wgpu` nor a driver; `enumerate` and `open` do.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, ClassVar

    from gpuedge.backends.base import Candidate, DeviceImpl, DeviceInfo


class _Wgpu:
    """Finds adapters and opens them."""

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


class WgpuBackend(_Wgpu):
    """Every adapter."""

    name: ClassVar[str] = "wgpu"


class MetalBackend(_Wgpu):
    """Metal adapters."""

    name: ClassVar[str] = "metal"


class Dx12Backend(_Wgpu):
    """Direct3D 12 adapters."""

    name: ClassVar[str] = "dx12"
