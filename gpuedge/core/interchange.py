"""Arrays of other packages as arrays of numpy: DLPack, ``__array__`` and the buffer protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.errors import GpuEdgeError, InputError
from gpuedge.core.text import said

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
        It is on another device, gives a masked array, or cannot be read.
    """
    if isinstance(value, _OURS):
        return value
    kind = type(value)
    with _reading(value, what):
        if hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
            array = np.asanyarray(value)
            _check_unmasked(array, what)
            return np.asarray(array)
        if hasattr(kind, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(value) if is_buffer(value) else value


def as_array(value: Any, what: str) -> npt.NDArray[Any]:
    """Return an array of numpy of what `as_numpy` takes, of numbers, and of lists of them.

    Raises
    ------
    InputError (GE-203)
        As `as_numpy`; it is a masked array.
    """
    value = as_numpy(value, what)
    _check_unmasked(value, what)
    try:
        return np.asarray(value)
    except Exception as error:  # ragged or endless lists, or whatever __array__ in them raises
        raise _unreadable(value, what, error) from None


def memory_of(value: Any, what: str) -> npt.NDArray[Any] | None:
    """Return an array of numpy over the very memory of an array; None for what offers none.

    That memory is what DLPack gives, else the buffer protocol: ``__array__`` may copy.

    Raises
    ------
    InputError (GE-203)
        As `as_numpy`.
    """
    if isinstance(value, np.ndarray):
        return None if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    if isinstance(value, _OURS):
        return None
    with _reading(value, what):
        if hasattr(type(value), "__dlpack__"):
            memory = np.from_dlpack(value)
        elif is_buffer(value):
            memory = np.asarray(memoryview(value))
        else:
            return None
    if memory.flags.writeable:
        return memory
    # numpy does not write to what older packages give by DLPack: that says not whether one may
    array: npt.NDArray[Any] = as_numpy(value, what)
    return array if np.may_share_memory(array, memory) else memory


@contextmanager
def _reading(value: Any, what: str) -> Iterator[None]:
    """Check that an array lies in memory of the host; what its protocols raise is InputError."""
    try:
        if hasattr(type(value), "__dlpack_device__"):
            _check_on_host(value.__dlpack_device__(), what)
        yield
    except GpuEdgeError:
        raise
    except Exception as error:  # whatever the protocols of other packages raise
        raise _unreadable(value, what, error) from None


def _unreadable(value: Any, what: str, error: Exception) -> InputError:
    hint = None
    with suppress(Exception):  # of a property
        hint = "x.detach()" if value.requires_grad is True else None
    return InputError(f"{what} cannot be read as an array: {said(error)}", hint=hint)


def is_buffer(value: Any) -> bool:
    """Tell whether a value offers its memory by the buffer protocol."""
    try:
        memoryview(value).release()
    except (TypeError, BufferError):
        return False
    return True


def _check_unmasked(value: Any, what: str) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{what} is a masked array; its mask would be lost.", hint="x.filled(0)")


def _check_on_host(device: tuple[int, int], what: str) -> None:
    kind, index = map(int, device)
    if kind not in ON_HOST:
        raise InputError(
            f"{what} is on {ELSEWHERE.get(kind, f'device type {kind} of DLPack')}:{index}, "
            "and arrays are taken from the host.",
            hint="copy it first: x.cpu() in PyTorch, jax.device_get(x) in JAX, x.get() in CuPy",
        )
