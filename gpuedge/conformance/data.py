"""Kinds of numbers that cases are filled with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuedge.opset.bounds import Array

KINDS: dict[str, str] = {
    "integers": "small whole numbers: results must match bit for bit",
    "normal": "normally distributed: results within the derived bound",
    "extreme": "magnitudes from 2^-24 to 2^24 side by side",
    "ties": "few values, many of them equal, and halves: what rounding and comparing decide",
    "cancel": "large whole numbers that cancel: bit for bit, and wrong in anything below float32",
}
"""Every kind and what it is good for."""

WHOLE = frozenset({"integers", "cancel"})
"""Kinds whose sums of products are exact."""


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
        numbers = rng.integers(-3, 4, size) * 0.5
    elif data == "extreme":
        numbers = rng.choice([-1.0, 1.0], size) * np.exp2(rng.uniform(-24, 24, size))
    else:
        numbers = rng.standard_normal(size)
    return np.asarray(numbers, np.float32)


def weights(rng: np.random.Generator, shape: Sequence[int], data: str) -> Array:
    """Return the second operand of products: small where the first is large, so sums stay exact."""
    return fill(rng, shape, "integers" if data == "cancel" else data, 2 if data == "cancel" else 4)


def disguised(kind: str, array: Array) -> Array:
    """Return the same numbers in another guise: ``strided``, ``swapped`` bytes or ``plain``."""
    if kind == "strided" and array.ndim:
        wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
        wide[..., ::-2] = array
        return wide[..., ::-2]
    if kind == "swapped":
        return array.astype(array.dtype.newbyteorder(">"))
    return array
