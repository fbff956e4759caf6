"""Kinds of numbers that cases are filled with, and how shapes are drawn and named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from gpuedge.opset.bounds import Array

T = TypeVar("T")
Shape = tuple[int, ...]

KINDS: dict[str, str] = {
    "integers": "small whole numbers: results must match bit for bit",
    "normal": "normally distributed: results within the derived bound",
    "extreme": "magnitudes from 2^-24 to 2^24 side by side",
    "ties": "few values, many of them equal, halves, 0 and -0: what rounding and comparing decide",
    "cancel": "large whole numbers that cancel: bit for bit, and wrong in anything below float32",
    "every": "every number there is of the dtype, NaN and infinity where the device keeps them",
}
"""Every kind and what it is good for."""

WHOLE = frozenset({"integers", "cancel"})
"""Kinds whose sums of products are exact."""

BYTES = {"uint8": (0, 255), "int8": (-128, 127)}
"""The whole range of a dtype: cases of closed operations use all of it."""


def fill(rng: np.random.Generator, shape: Sequence[int], data: str, reach: int = 4) -> Array:
    """Return float32 numbers of a kind; `reach` bounds the whole ones."""
    size = tuple(shape)
    numbers: Array
    if data == "integers":
        numbers = rng.integers(-reach, reach + 1, size)
    elif data == "cancel":
        # Neighbours are large and of opposite sign: sums stay small, partial sums do not.
        sign = 1 - 2 * (np.arange(int(np.prod(size))).reshape(size) % 2)
        numbers = sign * rng.integers(1020, 1029, size)
    elif data == "ties":
        numbers = rng.integers(0, 4, size) * rng.choice([-0.5, 0.5], size)  # -0 among them
    elif data == "extreme":
        numbers = rng.choice([-1.0, 1.0], size) * np.exp2(rng.uniform(-24, 24, size))
    else:
        numbers = rng.standard_normal(size)
    return np.asarray(numbers, np.float32)


def weights(rng: np.random.Generator, shape: Sequence[int], data: str) -> Array:
    """Return the second operand of products: small where the first is large, so sums stay exact."""
    return fill(rng, shape, "integers" if data == "cancel" else data, 2 if data == "cancel" else 4)


def operand(rng: np.random.Generator, shape: Sequence[int], data: str, dtype: str) -> Array:
    """Return numbers of a kind in a dtype; integers of 8 bits take all their values."""
    if dtype in BYTES:
        low, high = BYTES[dtype]
        return rng.integers(low, high + 1, tuple(shape)).astype(dtype)
    return np.asarray(fill(rng, shape, data, 100).astype(dtype))


def spread(rng: np.random.Generator, low: float, high: float, size: int) -> Array:
    """Return random numbers, whole ones, halves, both ends, and zero where it lies between."""
    some = rng.uniform(low, high, size).astype(np.float32)
    tenth = size // 10
    some[tenth : 2 * tenth] = np.rint(some[tenth : 2 * tenth])
    some[2 * tenth : 3 * tenth] = np.rint(some[2 * tenth : 3 * tenth]) + np.float32(0.5)
    some = np.clip(some, np.float32(low), np.float32(high))
    some[:2] = low, high
    if low <= 0 <= high:
        some[2] = 0
    return some


def every_half(*, is_finite: bool = False) -> Array:
    """Return all 65,536 numbers of float16; with zeros for those that are not finite."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return np.where(np.isfinite(numbers), numbers, np.float16(0)) if is_finite else numbers


def disguised(kind: str, array: Array) -> Array:
    """Return the same numbers in another guise: ``strided``, ``swapped`` bytes or ``plain``."""
    if kind == "strided" and array.ndim:
        wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
        wide[..., ::-2] = array
        return wide[..., ::-2]
    if kind == "swapped":
        return array.astype(array.dtype.newbyteorder(">"))
    return array


def pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """Return one of some choices."""
    return choices[int(rng.integers(len(choices)))]


def broadcastable(rng: np.random.Generator, count: int, low: int = 0) -> tuple[Shape, ...]:
    """Return shapes of up to six axes that broadcast together."""
    rank = int(rng.integers(low, 7))
    out = [pick(rng, (1, 2, 3, 4, 5)) for _ in range(rank)]
    while int(np.prod(out)) > 600:
        out[int(np.argmax(out))] = 1
    shapes: list[Shape] = []
    for _ in range(count):
        tail = out[rank - int(rng.integers(0, rank + 1)) :] if rank else []
        shapes.append(tuple(1 if rng.random() < 0.25 else d for d in tail))
    return tuple(shapes)


def dims(shape: Sequence[int]) -> str:
    """Return a shape as part of a name; ``0d`` for a scalar."""
    return "x".join(map(str, shape)) or "0d"


def short(values: Sequence[int], join: str = "x") -> str:
    """Return strides or padding as part of a name: one number where all are equal."""
    return str(values[0]) if len(set(values)) == 1 else join.join(map(str, values))


def padding(pads: Sequence[int]) -> Any:
    """Return padding (top, left, bottom, right) as operations take it."""
    top, left, bottom, right = pads
    return ((top, bottom), (left, right))
