"""Elementwise functions that are more than one node, or whose arguments are not plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.dtypes import BYTES, rounded
from gpuedge.core.errors import InputError
from gpuedge.graph.build import GraphBuilder
from gpuedge.ops.arguments import flag, number
from gpuedge.ops.call import Array, call, simple, warm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuedge.device import Device


@warm
def relu6(x: Any, *, device: str | Device | None = None) -> Array:
    """Limit x to [0, 6]. Exact."""
    return clip(x, 0.0, 6.0, device=device)


@warm
def silu(x: Any, *, device: str | Device | None = None) -> Array:
    """Return `x * sigmoid(x)`, also called swish. Error bound: 2e-6 * max(1, abs(x))."""

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        return b.add("Mul", [names[0], b.add("Sigmoid", names)])

    return call("silu", [("x", x)], write, device=device)


@warm
def gelu(x: Any, *, approximate: bool = False, device: str | Device | None = None) -> Array:
    """Return `x * Phi(x)`, exactly by erf or by the tanh formula.

    Error bound: 1e-6 * max(1, abs(x)); by the tanh formula 1e-5 * max(1, abs(x)).
    """
    return simple(
        "gelu",
        "Gelu",
        [("x", x)],
        device,
        approximate="tanh" if flag("approximate", approximate) else "none",
    )


@warm
def clip(
    x: Any, lo: float | None, hi: float | None, *, device: str | Device | None = None
) -> Array:
    """Limit every element to [lo, hi]; None leaves a side open. Exact.

    Raises
    ------
    InputError (GE-203)
        A bound is NaN, `lo` is above `hi`, or of bytes a bound is no whole number of theirs.
    """
    low, high = _bound("lo", lo, -np.inf), _bound("hi", hi, np.inf)
    if not low <= high:
        raise InputError(f"clip has the bounds {lo} and {hi}, which enclose nothing.")

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        bounds = _bounds(low, high, b.type(names[0]).dtype)
        return b.add("Clip", [*names, b.constant("lo", bounds[0]), b.constant("hi", bounds[1])])

    key = (repr(low), repr(high))
    return call("clip", [("x", x)], write, device=device, key=key, also=BYTES)


def _bounds(low: float, high: float, dtype: str) -> Array:
    """Return the bounds of clip in the dtype of its operand."""
    if dtype not in BYTES:
        limit = np.finfo(np.float32).max
        return np.array([max(low, -limit), min(high, limit)], np.float32)
    limits = np.iinfo(dtype)
    bounds = np.array([max(low, limits.min), min(high, limits.max)])
    if not np.array_equal(bounds, rounded(bounds, dtype)):
        raise InputError(
            f"clip has the bounds {low:g} and {high:g}, which do not fit {dtype}.",
            known=f"whole numbers; {dtype} goes from {limits.min} to {limits.max}",
        )
    return rounded(bounds, dtype)


def _bound(name: str, value: Any, default: float) -> float:
    """Return a bound of clip, which may be infinite."""
    if value is None or (isinstance(value, float) and np.isinf(value)):
        return default if value is None else value
    return number(name, value)
