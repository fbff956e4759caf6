"""The Vulkan backend: Vulkan 1.0 and newer, compute only.

Importing this loads neither the `vulkan` package nor a driver; `enumerate` and `open` do.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, ClassVar

    from gpuedge.backends.base import Candidate, DeviceImpl, DeviceInfo


class VulkanBackend:
    """Finds Vulkan drivers by their manifests and opens their devices, one driver at a time."""

    name: ClassVar[str] = "vulkan"

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List drivers that may exist, without loading any. Never raises for absence."""
        from gpuedge.backends import manifests

        return manifests.candidates(environ)

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load a driver and list its devices.

        Raises
        ------
        BackendUnavailableError (GE-404)
            The Python package or the loader is missing, or the driver cannot be loaded or has no
            device. The error's `reason` is a `Reason`: ``no-loader``, ``bad-manifest``,
            ``missing-library``, ``no-device``, ``open-failed``.
        """
        from gpuedge.backends import manifests
        from gpuedge.backends.base import DeviceInfo
        from gpuedge.backends.vulkan.physical import Instance, describe

        manifests.require(candidate)
        instance = Instance(candidate)
        try:
            found = [describe(instance, handle) for handle in instance.physical_devices()]
            return [
                DeviceInfo(candidate, index, one.identity, one.caps.is_software)
                for index, one in enumerate(found)
            ]
        finally:
            instance.close()

    def open(self, info: DeviceInfo, **options: Any) -> DeviceImpl:
        """Open a device; there are no options.

        Raises
        ------
        DeviceError (GE-400)
            The driver refused, lost the device or ran out of memory.
        """
        from gpuedge.backends.vulkan.device import open_device

        return open_device(info, **options)
