"""OpenCL for gpuedge, through pyopencl: device strings ``opencl`` and ``opencl:N``.

Importing this package loads no driver and not pyopencl either: the application imports it to list
drivers, and only a child process that may die has opened one before.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gpuedge.backends.base import Candidate, DeviceImpl, DeviceInfo

__all__ = ["OpenClBackend"]


class OpenClBackend:
    """The backend ``opencl``; see `gpuedge.backends.base.Backend` for what each call promises."""

    name = "opencl"

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List the installed drivers, without loading any. Raises BackendUnavailableError."""
        from gpuedge_opencl.candidates import candidates

        return candidates(environ, self.name)

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load a driver and list its devices. Raises BackendUnavailableError."""
        from gpuedge_opencl.physical import enumerate_devices

        return enumerate_devices(candidate)

    def open(self, info: DeviceInfo, **options: Any) -> DeviceImpl:
        """Open a device; it has no options. Raises a DeviceError."""
        from gpuedge_opencl.device import open_device

        return open_device(info)
