"""One OpenCL driver loaded alone, and its devices. Does not open anything: `device.py` does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpuedge.backends import common
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.backends.loading import driver_environment, library_fault
from gpuedge.core.caps import Caps
from gpuedge.core.errors import BackendUnavailableError
from gpuedge.core.identity import Identity
from gpuedge.safety.packages import needed
from gpuedge_opencl import constants as c
from gpuedge_opencl.candidates import VENDORS, library_of

MOST_BYTES = 1 << 32
"""Of a tensor: kernels count its float32 elements in 32 bits, of which one is the sign."""

MOST_GROUPS = 65535
"""Workgroups along an axis: OpenCL tells no limit; this is the least that Vulkan asks for."""

MOST_TENSORS = 32
"""More than any kernel has."""

_TENSOR_BYTES = 32
"""What a tensor takes of a kernel's arguments: pointer, place, extents."""

_ENTRIES = ("clIcdGetPlatformIDsKHR", "clGetExtensionFunctionAddress", "clGetPlatformIDs")

_loaded: list[str] = []
"""The driver that the loader of this process has; it reads where drivers are only once."""


def load(candidate: Candidate) -> list[common.Found]:
    """Load a driver and describe its devices, in its order.

    Raises BackendUnavailableError where the package or the driver is missing, the driver has no
    device, or the loader has another driver already.
    """
    with driver_environment(candidate):
        with needed("pyopencl", c.LEVEL, BackendUnavailableError, reason="no-loader"):
            import pyopencl as cl
        if _loaded and _loaded[0] != candidate.key:
            raise BackendUnavailableError(
                "The OpenCL loader of this process has another driver.",
                asked_by=candidate.key, known=f"it was told to load {_loaded[0]}",
                hint="isolation='process' gives each driver a process", reason="open-failed",
            )  # fmt: skip
        _loaded[:] = [candidate.key]
        try:
            return [_found(p, d) for p in cl.get_platforms() for d in _devices(cl, p)]
        except cl.Error as error:
            raise _unavailable(candidate, error) from None


def enumerate_devices(candidate: Candidate) -> list[DeviceInfo]:
    """Load a driver and list its devices. Raises BackendUnavailableError."""
    found = load(candidate)
    if not found:
        raise BackendUnavailableError(
            "The OpenCL driver has no device.", asked_by=candidate.key, reason="no-device"
        )
    return [DeviceInfo(candidate, i, f.identity, f.caps.is_software) for i, f in enumerate(found)]


def _devices(cl: Any, platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error as error:
        if error.code == c.DEVICE_NOT_FOUND:
            return []
        raise


def _unavailable(candidate: Candidate, error: Any) -> BackendUnavailableError:
    reason = "no-device" if error.code == c.PLATFORM_NOT_FOUND else "open-failed"
    known = str(error)
    if reason == "no-device" and VENDORS in candidate.env:
        fault = library_fault(library_of(Path(candidate.key)), _ENTRIES)
        reason, known = ("missing-library", fault) if fault else (reason, known)
    return BackendUnavailableError(
        "OpenCL lists no driver.", asked_by=candidate.key, known=known, reason=reason
    )


def _found(platform: Any, device: Any) -> common.Found:
    is_software = bool(device.type & c.TYPE_CPU)
    kind = "CPU" if is_software else "OTHER"
    if device.type & c.TYPE_GPU:
        kind = "INTEGRATED_GPU" if device.host_unified_memory else "DISCRETE_GPU"
    identity = Identity(
        api=c.LEVEL,
        name=device.name.strip(),
        os=sys.platform,
        # of a software driver that is the maker of the processor
        vendorID=None if is_software else int(device.vendor_id) or None,
        apiVersion=device.version.removeprefix("OpenCL ").split(" ")[0],
        driverName=platform.name.strip(),
        driverInfo=f"{device.driver_version.strip()}; {platform.version.strip()}",
        device_type=kind,
    )
    return common.Found(device, identity, _caps(device, is_software=is_software))


def _caps(device: Any, *, is_software: bool) -> Caps:
    largest, arguments = int(device.max_mem_alloc_size), int(device.max_parameter_size)
    tensors = min(MOST_TENSORS, arguments // 2 // _TENSOR_BYTES)
    x, y, z = map(int, device.max_work_item_sizes[:3])
    return Caps(
        level=c.LEVEL,
        dialect=c.DIALECT,
        forms=frozenset({"map", "group"}),
        is_software=is_software,
        max_invocations=int(device.max_work_group_size),
        max_local_size=(x, y, z),
        max_groups=(MOST_GROUPS, MOST_GROUPS, MOST_GROUPS),
        max_shared_bytes=int(device.local_mem_size),
        max_storage_buffers=tensors,
        max_storage_buffer_bytes=min(largest, MOST_BYTES),
        max_allocation_bytes=largest,
        offset_alignment=16,  # of a float4
        max_push_bytes=arguments // 2,
        has_fp16_storage=False,  # kernels that users bring do not run here
        has_int8_storage=False,
        has_fp16_arithmetic=False,
        max_outputs=tensors,
    )
