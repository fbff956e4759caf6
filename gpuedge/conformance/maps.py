"""Where a wrong result is wrong: a small map of the errors, in units of the bound."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuedge.opset.bounds import Array

MOST = 64
"""Rows and columns of a map."""

BEYOND = 9
"""The level of what is off by ``10**7`` bounds or more, had to be exact, or is no number."""


def error_map(error: Array, limit: Array, wrong: Array) -> list[str]:
    """Return a map of at most 64 by 64 digits, a text per row.

    The last axis runs along a row; all others are put below each other. A digit is of the worst
    element of its block: 0 is exact, 1 within the bound, and n from 2 to 9 is off by at least
    ``10**(n - 2)`` bounds.

    Parameters
    ----------
    error, limit : ndarray of float64
        Errors, NaN or infinity where the result is no number, and their bounds.
    wrong : ndarray of bool
        Which elements are not within their bound.
    """
    if not error.size:
        return []
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.nan_to_num(error / limit, nan=np.inf, posinf=np.inf)
        flat = np.where(wrong, ratio, (error > 0).astype(float))
        flat = flat.reshape(-1, error.shape[-1] if error.ndim else 1)
        for axis in (0, 1):
            block = math.ceil(flat.shape[axis] / MOST)
            flat = np.maximum.reduceat(flat, np.arange(0, flat.shape[axis], block), axis=axis)
        levels = np.where(flat > 1, np.minimum(2 + np.floor(np.log10(flat)), BEYOND), flat)
    return ["".join(map(str, row)) for row in levels.astype(int).tolist()]
