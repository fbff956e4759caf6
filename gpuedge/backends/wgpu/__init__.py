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
    """Finds adapters, one driver at a time, and opens them."""

    name: ClassVar[str]

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List drivers that may exist, without loading any. Never raises for absence."""
        from gpuedge.backends.wgpu import candidates

        return candidates.candidates(self.name, environ)

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load a driver and list its adapters.

        Raises
        ------
        BackendUnavailableError (GE-404)
            The Python package is missing, or the driver cannot be loaded or has no adapter. The
            error's `reason` is a `Reason`: ``no-loader``, ``bad-manifest``, ``missing-library``,
            ``no-device``, ``open-failed``.
        """
        from gpuedge.backends.base import DeviceInfo
        from gpuedge.backends.wgpu.physical import Instance

        instance = Instance(candidate)
        try:
            return [
                DeviceInfo(candidate, index, one.identity, one.caps.is_software)
                for index, one in enumerate(instance.adapters())
            ]
        finally:
            instance.close()

    def open(self, info: DeviceInfo, **options: Any) -> DeviceImpl:
        """Open an adapter; there are no options.

        Raises
        ------
        DeviceError (GE-400)
            The driver refused, lost the device or ran out of memory.
        """
        from gpuedge.backends.wgpu.device import open_device

        return open_device(info, **options)


class WgpuBackend(_Wgpu):
    """Every adapter."""

    name: ClassVar[str] = "wgpu"


class MetalBackend(_Wgpu):
    """Metal adapters; there are none but on macOS."""

    name: ClassVar[str] = "metal"


class Dx12Backend(_Wgpu):
    """Direct3D 12 adapters; there are none but on Windows."""

    name: ClassVar[str] = "dx12"
