"""Which dtypes the kernels compute in, and how others get in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.errors import DTypeError, InexactError, InputError, OutOfMemoryError
from gpuedge.core.interchange import as_array, as_numpy

ACCEPTED = ("float32", "float16")
BYTES = ("uint8", "int8")
"""Integers that float32 holds exactly; operations whose results are such again take them."""

NIBBLES = ("int4", "uint4")
"""Integers of 4 bits, which numpy knows by way of ml_dtypes."""
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
"""Floats of a byte, which float32 holds exactly; known in the same way."""

SMALL = (*BYTES, "int16", "uint16")
"""Integers whose every value float32 holds exactly."""
WIDE = ("int32", "int64", "uint32", "uint64")
"""Integers that kernels compute in float32 as far as that is exact."""
INTEGERS = (*SMALL, *WIDE)

EXACT = 2**24
"""Integers up to this, and no further, are all float32."""


def rounded(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return `array` in `dtype`, silently.

    float16 overflows to infinity, as IEEE 754 has it; integers stay within their range.
    """
    if array.dtype == dtype:
        return array
    if np.dtype(dtype).kind == "b":
        return np.asarray(array != 0)
    if np.dtype(dtype).kind in "iu":
        about = np.iinfo(np.dtype(dtype))
        with np.errstate(invalid="ignore"):
            return np.asarray(np.clip(np.rint(array), about.min, about.max)).astype(dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def is_numpys(dtype: str) -> bool:
    """Tell whether numpy itself has a dtype; bfloat16 and others come with ml_dtypes."""
    try:
        return np.dtype(dtype).isbuiltin != 2
    except TypeError:
        return False


def require_exact(
    what: str, array: npt.NDArray[Any], device: str, most: int | None = None, dtype: str = ""
) -> None:
    """Check integers that come to or from kernels, which compute in float32.

    Raises
    ------
    InexactError (GE-206)
        One of them may not be what it was.
    """
    most = EXACT if most is None else most
    if dtype[:1] == "u" and array.size and array.min() < 0:
        raise InexactError(
            f"'{what}' would hold negative integers, which {dtype} wraps and {device} does not.",
            known="kernels compute in float32",
            hint="device='cpu' computes it",
        )
    if array.size and max(abs(float(array.min())), abs(float(array.max()))) > most:
        raise InexactError(
            f"'{what}' holds integers beyond {most}, of which {device} may lose digits.",
            known="kernels compute in float32",
            hint="device='cpu' computes it",
        )


def no_copy(what: str, error: MemoryError) -> OutOfMemoryError:
    """Return the error for a copy of what the caller gave that there is no memory for."""
    return OutOfMemoryError(f"There is no memory for a copy of {what}.", known=str(error) or None)


def _in_order(array: npt.NDArray[Any], dtype: npt.DTypeLike, what: str) -> npt.NDArray[Any]:
    try:
        return np.ascontiguousarray(array, dtype).reshape(array.shape)
    except MemoryError as error:
        raise no_copy(what, error) from None


def as_operand(
    value: Any, what: str, also: Sequence[str] = ()
) -> tuple[npt.NDArray[Any], np.dtype[Any]]:
    """Return what `as_float32` does, or an array whose dtype is in `also` as it is, in C order.

    Raises
    ------
    DTypeError (GE-202), InputError (GE-203)
        As `as_float32`.
    """
    value = as_numpy(value, what)
    if isinstance(value, np.ma.MaskedArray) or not isinstance(value, (np.ndarray, np.generic)):
        return as_float32(value, what)
    if value.dtype.name not in also:
        return as_float32(value, what, also)
    array = np.asarray(value)
    return _in_order(array, array.dtype, what), array.dtype


def as_float32(
    value: Any, what: str, also: Sequence[str] = ()
) -> tuple[npt.NDArray[np.float32], np.dtype[Any]]:
    """Return `value` as a C-contiguous float32 array, and the dtype results are to be given in.

    float32 passes through; float16 is computed in float32 and rounded once at the end. Python
    numbers and lists of them become float32. Byte order and strides may be anything. `also` names
    dtypes that the caller takes in another way.

    Raises
    ------
    DTypeError (GE-202)
        Any other dtype: converting it silently would lose precision or mean something else.
    InputError (GE-203)
        It is no array, masked, or holds Python numbers too large for float32.
    OutOfMemoryError (GE-402)
        It has to be copied, and there is no memory for that.
    """
    value = as_numpy(value, what)
    array = as_array(value, what)
    is_typed = isinstance(value, (np.ndarray, np.generic))
    if not is_typed and array.dtype.kind in "fiu" and array.dtype != np.float16:
        wide = array
        with np.errstate(over="ignore"):
            array = wide.astype(np.float32)
        if (np.isinf(array) & np.isfinite(wide)).any():
            raise InputError(f"{what} holds numbers too large for float32.")
    native = array.dtype.newbyteorder("=")
    if native.name not in ACCEPTED:
        raise DTypeError(
            f"{what} has dtype {array.dtype}, which is not supported.",
            known=f"supported dtypes: {', '.join((*ACCEPTED, *also))}",
            hint="convert it yourself, for example x.astype(numpy.float32)",
        )
    return _in_order(array, np.float32, what), native
