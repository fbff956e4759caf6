"""Arrays of other packages as arrays of numpy: DLPack, ``__array__`` and the buffer protocol."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuedge.core.errors import GpuEdgeError, InputError

ON_HOST = (1, 3, 11, 13)
"""Devices of DLPack (``DLDeviceType`` of dlpack.h) whose memory the host reads: ``kDLCPU``, pinned
memory of CUDA and ROCm, managed memory of CUDA."""

ELSEWHERE = {
    2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm", 12: "extension",
    14: "oneapi", 15: "webgpu", 16: "hexagon",
}  # fmt: skip
"""Names of those that it does not."""

_OURS = (np.ndarray, np.generic, int, float, complex, str, bytes, list, tuple, type(None))


def as_numpy(value: Any, what: str) -> Any:
    """Return an array of another package as one of numpy; anything else as it is.

    It has the same memory where that can be: of tensors of PyTorch and arrays of JAX on the CPU, of
    whatever offers DLPack or a buffer (`memoryview`, `array.array`). `what` begins the sentence of
    an error.

    Raises
    ------
    InputError (GE-203)
        It is on another device, or cannot be read.
    """
    if isinstance(value, _OURS):
        return value
    kind = type(value)
    try:
        if hasattr(kind, "__dlpack_device__"):
            _check_on_host(value.__dlpack_device__(), what)
        if hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
            return np.asarray(value)
        if hasattr(kind, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(value) if is_buffer(value) else value
    except GpuEdgeError:
        raise
    except Exception as error:  # whatever the protocols of other packages raise
        hint = "x.detach()" if getattr(value, "requires_grad", False) is True else None
        raise InputError(f"{what} cannot be read as an array: {error}", hint=hint) from None


def is_shared(value: Any) -> bool:
    """Tell whether what `as_numpy` returns of an array of another package has the same memory."""
    return hasattr(type(value), "__dlpack__") or is_buffer(value)


def is_buffer(value: Any) -> bool:
    """Tell whether a value offers its memory by the buffer protocol."""
    try:
        memoryview(value).release()
    except (TypeError, BufferError):
        return False
    return True


def _check_on_host(device: tuple[int, int], what: str) -> None:
    kind, index = map(int, device)
    if kind not in ON_HOST:
        raise InputError(
            f"{what} is on {ELSEWHERE.get(kind, f'device type {kind} of DLPack')}:{index}, "
            "and arrays are taken from the host.",
            hint="copy it first: x.cpu() in PyTorch, jax.device_get(x) in JAX, x.get() in CuPy",
        )
