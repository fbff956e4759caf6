"""How texels of float32 become the bytes of a texture, and back: what host and shaders agree on.

Shaders read and store the same bytes (``gpuedge/lang/essl_storage.py``). Bytes of a physical texel
stand in the order red, green, blue, alpha:

* ``rgba8_float``: the float32 as it lies in memory, lowest byte first.
* ``rgba8_fixed16``: two numbers k of 16 bits, lowest byte first, each meaning ``low + step * k``.
* ``rgba8_u8``, ``rgba8_s8``: four integers; signed ones with 128 added.
* ``rgba16f``, ``buffer_f16``: four halves, rounded to nearest, ties to even.
* the others: float32, unchanged.

Bytes of the host are the integers of a texel already; to signed ones 128 is added here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.storage import FIXED16_STEPS, HALF_BUFFER, Storage

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_INTEGERS = {"rgba8_u8": (0, 255), "rgba8_s8": (-128, 127)}
"""Kinds of four integers in four bytes, with their least and greatest; byte 0 is the least."""


_HALVES = ("rgba16f", HALF_BUFFER)


def fixed16_step(storage: Storage) -> float:
    """Return the distance of neighbouring values of ``rgba8_fixed16``, a float32; 0 for one value.

    >>> fixed16_step(Storage("rgba8_fixed16", 0.0, 65535.0))
    1.0
    """
    with np.errstate(over="ignore"):
        return float(np.float32((storage.high - storage.low) / FIXED16_STEPS))


def encode(values: npt.ArrayLike, storage: Storage) -> bytes:
    """Return the bytes that hold values, in C order, in a storage.

    Values outside what a kind can hold become the nearest it can, NaN the lowest.
    """
    return encoded(np.ascontiguousarray(values, np.float32).reshape(-1), storage).tobytes()


def encoded(values: Floats, storage: Storage) -> Bytes:
    """Return what `encode` does as an array, without a copy where the bytes stay as they are."""
    kind = storage.kind
    if kind == "rgba8_fixed16":
        first, step = np.float32(storage.low), np.float32(fixed16_step(storage))
        with np.errstate(over="ignore", invalid="ignore"):
            # In float32 throughout, as shaders compute it.
            k = (values - first) / (step if step > 0 else np.float32(1))
        pairs: Bytes = _whole(k, 0, FIXED16_STEPS).astype("<u2").view(np.uint8)
        return pairs
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        integers: Bytes = (_whole(values, low, high) - np.float32(low)).astype(np.uint8)
        return integers
    if kind in _HALVES:
        with np.errstate(over="ignore"):
            halves: Bytes = values.astype("<f2").view(np.uint8)
            return halves
    plain: Bytes = values.astype("<f4", copy=False).view(np.uint8)
    return plain


def _whole(values: Floats, low: int, high: int) -> Floats:
    """Return the nearest integer, halves upwards, kept between two bounds."""
    with np.errstate(invalid="ignore"):
        bounded = np.fmin(np.fmax(values, np.float32(low)), np.float32(high))
        whole: Floats = np.floor(bounded + np.float32(0.5))
        return whole


def moved(data: Bytes, storage: Storage) -> Bytes:
    """Return bytes of the host as those of a texture that keeps bytes, and back."""
    return data ^ np.uint8(128) if storage.dtype == "int8" else data


def decode(data: Any, storage: Storage) -> Floats:
    """Return the float32 values that whole texels stand for, as a flat array."""
    raw = np.frombuffer(data, np.uint8)
    kind = storage.kind
    if kind == "rgba8_fixed16":
        low, step = np.float32(storage.low), np.float32(fixed16_step(storage))
        scaled: Floats = low + step * raw.view("<u2").astype(np.float32)
        return scaled
    if kind in _INTEGERS:
        integers: Floats = raw.astype(np.float32) + np.float32(_INTEGERS[kind][0])
        return integers
    if kind in _HALVES:
        halves: Floats = raw.view("<f2").astype(np.float32)
        return halves
    plain: Floats = raw.view("<f4").astype(np.float32, copy=False)
    return plain
