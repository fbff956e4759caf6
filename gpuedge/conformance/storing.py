"""What a coarser storage does to numbers: how far a stored value may be from the one computed.

``float32`` stands for every exact kind (buffers, float textures, bit patterns, float codecs).
``float16`` rounds each value once, to nearest or towards zero: at most one unit in the last place
of binary16. ``fixed16`` keeps fractions of a tensor's range, in 65,535 steps: half a step, and what
computing the fraction in float32 costs. Values that are stored again on their way are on the grid
already and do not move. Derivations are in ``docs/numerics.md``, "Storage kinds".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from gpuedge.core.storage import FIXED16_STEPS
from gpuedge.opset.bounds import ULP, Num
from gpuedge.plan.storages import HALVES

HALF_ULP = 2.0**-10
"""A unit in the last place of binary16, relative."""

HALF_TINY = 2.0**-14
"""The smallest normal binary16; what is smaller may become zero."""

HALF_OVER = 65520.0
"""What is no smaller rounds to infinity in float16."""


def _half(x: Num) -> Num:
    size = np.abs(x.v)
    step = HALF_ULP * (size + x.e) + np.where(size < HALF_TINY, HALF_TINY, 0)
    with np.errstate(over="ignore"):
        is_exact = (x.v.astype(np.float16) == x.v) & (x.e == 0)
    normal = (size >= HALF_TINY) | (size == 0)
    # rounding to nearest makes infinity of what is larger, towards zero the largest number
    error = np.where(size + x.e < HALF_OVER, x.e + step, np.inf)
    return Num(x.v, np.where(is_exact & normal, 0, error))


def _fixed(x: Num) -> Num:
    if not x.v.size:
        return x
    low, high = float((x.v - x.e).min()), float((x.v + x.e).max())
    low, high = min(low, 0.0), max(high, 0.0)
    # Ranges include zero and are widened so that a step has 8 significant bits: twice 1 part in
    # 128 at most. The fraction v / step is then one division away from exact (2.5 ULP).
    step = (high - low) / FIXED16_STEPS * (1 + 2.0**-6)
    return Num(x.v, x.e + step / 2 + 4 * ULP * (high - low))


class Keeper(NamedTuple):
    """One storage: the kinds of which a device must offer one, and what they do to values."""

    kinds: tuple[str, ...]
    store: Callable[[Num], Num]

    def is_among(self, kinds: Collection[str]) -> bool:
        """Tell whether storage kinds keep tensors so, or nothing special is asked for."""
        return not self.kinds or any(kind in kinds for kind in self.kinds)

    def __call__(self, x: Any) -> Num:
        """Return an operand or a result as the next kernel finds it, or as it comes back."""
        return self.store(Num.of(x))


KEEPERS = {
    "float32": Keeper((), lambda x: x),
    "float16": Keeper(tuple(HALVES), _half),
    "fixed16": Keeper(("rgba8_fixed16",), _fixed),
}
"""Storages by the name that `Policy(storage=...)` gives them."""
