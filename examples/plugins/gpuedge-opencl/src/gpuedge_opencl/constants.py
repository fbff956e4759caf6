"""Numbers of OpenCL, and which error of gpuedge each of its errors becomes."""

from __future__ import annotations

from typing import Any

from gpuedge.backends import common
from gpuedge.core.errors import DeviceError, DriverError

LEVEL = "opencl"
DIALECT = "opencl_c"

TYPE_CPU, TYPE_GPU = 2, 4
"""CL_DEVICE_TYPE_CPU and CL_DEVICE_TYPE_GPU."""

PLATFORM_NOT_FOUND, DEVICE_NOT_FOUND = -1001, -1

_MEMORY = (-4, -6, -61)
"""CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_INVALID_BUFFER_SIZE."""

_LOST = (-2, -5, -14, -36)
"""CL_DEVICE_NOT_AVAILABLE; CL_OUT_OF_RESOURCES, which NVIDIA's driver gives for an address that is
not there; CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST; CL_INVALID_COMMAND_QUEUE."""


def error_for(error: Any, device: str, what: str = "") -> DeviceError:
    """Return the error that a `pyopencl.Error` or `CallError` becomes (not raised here)."""
    known = str(error).strip()[:2000]
    code = getattr(error, "code", None)
    if code in _LOST:
        return common.lost_error(device, known)
    if code in _MEMORY:
        return common.memory_error(device, known)
    return DriverError(what or f"OpenCL refused a call on {device}.", known=known)
