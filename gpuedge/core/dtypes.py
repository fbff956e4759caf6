"""Which dtypes the kernels compute in, and how others get in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.errors import DTypeError, InputError

ACCEPTED = ("float32", "float16")


def rounded(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return `array` in `dtype`; float16 overflows to infinity, as IEEE 754 has it, silently."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def as_float32(value: Any, what: str) -> tuple[npt.NDArray[np.float32], np.dtype[Any]]:
    """Return `value` as a C-contiguous float32 array, and the dtype results are to be given in.

    float32 passes through; float16 is computed in float32 and rounded once at the end. Python
    numbers and lists of them become float32. Byte order and strides may be anything.

    Raises
    ------
    DTypeError (GE-202)
        Any other dtype: converting it silently would lose precision or mean something else.
    InputError (GE-203)
        It is no array, masked, or holds Python numbers too large for float32.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{what} is a masked array; its mask would be lost.", hint="x.filled(0)")
    try:
        array = np.asarray(value)
    except Exception as error:  # ragged or endless lists, or whatever __array__ raises
        raise InputError(f"{what} cannot be read as an array: {error}") from None
    if not hasattr(value, "dtype") and array.dtype.kind in "fiu" and array.dtype != np.float16:
        wide = array
        with np.errstate(over="ignore"):
            array = wide.astype(np.float32)
        if (np.isinf(array) & np.isfinite(wide)).any():
            raise InputError(f"{what} holds numbers too large for float32.")
    native = array.dtype.newbyteorder("=")
    if native.name not in ACCEPTED:
        raise DTypeError(
            f"{what} has dtype {array.dtype}, which is not supported.",
            known=f"supported dtypes: {', '.join(ACCEPTED)}",
            hint="convert it yourself, for example x.astype(numpy.float32)",
        )
    return np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape), native
