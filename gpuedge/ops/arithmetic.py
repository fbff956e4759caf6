"""Arithmetic on arrays, with numpy broadcasting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.dtypes import BYTES, rounded
from gpuedge.core.errors import InputError
from gpuedge.graph.build import GraphBuilder
from gpuedge.ops._arguments import number
from gpuedge.ops._run import Array, call, simple
from gpuedge.ops._warm import warm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuedge.device import Device


@warm
def abs(x: Any, *, device: str | Device | None = None) -> Array:
    """Absolute value, element by element. Error bound: exact."""
    return simple("abs", "Abs", [("x", x)], device)


@warm
def ceil(x: Any, *, device: str | Device | None = None) -> Array:
    """Least integer not below, element by element. Error bound: exact."""
    return simple("ceil", "Ceil", [("x", x)], device)


@warm
def cos(x: Any, *, device: str | Device | None = None) -> Array:
    """Cosine, angles in radians, element by element.

    Error bound: 2e-6 absolute for abs(x) <= 1000.
    """
    return simple("cos", "Cos", [("x", x)], device)


@warm
def erf(x: Any, *, device: str | Device | None = None) -> Array:
    """Gauss error function, element by element. Error bound: 3e-6 absolute."""
    return simple("erf", "Erf", [("x", x)], device)


@warm
def exp(x: Any, *, device: str | Device | None = None) -> Array:
    """Exponential, element by element.

    Error bound: (3 + 2 abs(x)) ULP (Vulkan specification, precision of exp).
    """
    return simple("exp", "Exp", [("x", x)], device)


@warm
def floor(x: Any, *, device: str | Device | None = None) -> Array:
    """Greatest integer not above, element by element. Error bound: exact."""
    return simple("floor", "Floor", [("x", x)], device)


@warm
def log(x: Any, *, device: str | Device | None = None) -> Array:
    """Natural logarithm, element by element.

    Error bound: 3 ULP outside [0.5, 2], 2^-21 absolute inside (Vulkan specification).
    """
    return simple("log", "Log", [("x", x)], device)


@warm
def neg(x: Any, *, device: str | Device | None = None) -> Array:
    """Negation, element by element. Error bound: exact."""
    return simple("neg", "Neg", [("x", x)], device)


@warm
def reciprocal(x: Any, *, device: str | Device | None = None) -> Array:
    """1 / x, element by element.

    Error bound: 2.5 ULP (Vulkan specification, division).
    """
    return simple("reciprocal", "Reciprocal", [("x", x)], device)


@warm
def round(x: Any, *, device: str | Device | None = None) -> Array:
    """Nearest integer, ties to even, element by element. Error bound: exact."""
    return simple("round", "Round", [("x", x)], device)


@warm
def sign(x: Any, *, device: str | Device | None = None) -> Array:
    """-1, 0 or 1, element by element. Error bound: exact."""
    return simple("sign", "Sign", [("x", x)], device, also=BYTES)


@warm
def sin(x: Any, *, device: str | Device | None = None) -> Array:
    """Sine, angles in radians, element by element.

    Error bound: 2e-6 absolute for abs(x) <= 1000.
    """
    return simple("sin", "Sin", [("x", x)], device)


@warm
def sqrt(x: Any, *, device: str | Device | None = None) -> Array:
    """Square root, element by element.

    Error bound: 4.5 ULP (Vulkan specification: inherited from 1 / inversesqrt).
    """
    return simple("sqrt", "Sqrt", [("x", x)], device)


@warm
def add(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """A + b, with broadcasting.

    Parameters
    ----------
    a, b : array_like, float32 or float16
        Shapes that broadcast by numpy's rules.
    device : str or Device, optional

    Returns
    -------
    ndarray of the broadcast shape

    Notes
    -----
    Error bound: exactly rounded.
    """
    return simple("add", "Add", [("a", a), ("b", b)], device)


@warm
def sub(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """A - b, with broadcasting.

    Parameters
    ----------
    a, b : array_like, float32 or float16
        Shapes that broadcast by numpy's rules.
    device : str or Device, optional

    Returns
    -------
    ndarray of the broadcast shape

    Notes
    -----
    Error bound: exactly rounded.
    """
    return simple("sub", "Sub", [("a", a), ("b", b)], device)


@warm
def mul(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """A * b, with broadcasting.

    Parameters
    ----------
    a, b : array_like, float32 or float16
        Shapes that broadcast by numpy's rules.
    device : str or Device, optional

    Returns
    -------
    ndarray of the broadcast shape

    Notes
    -----
    Error bound: exactly rounded.
    """
    return simple("mul", "Mul", [("a", a), ("b", b)], device)


@warm
def div(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """A / b, with broadcasting.

    Parameters
    ----------
    a, b : array_like, float32 or float16
        Shapes that broadcast by numpy's rules.
    device : str or Device, optional

    Returns
    -------
    ndarray of the broadcast shape

    Notes
    -----
    Error bound: 2.5 ULP (Vulkan specification, division).
    """
    return simple("div", "Div", [("a", a), ("b", b)], device)


@warm
def maximum(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """The larger of a and b, with broadcasting.

    Parameters
    ----------
    a, b : array_like, float32 or float16, or both int8 or uint8
        Shapes that broadcast by numpy's rules.
    device : str or Device, optional

    Returns
    -------
    ndarray of the broadcast shape

    Notes
    -----
    Error bound: exact.
    """
    return simple("maximum", "Max", [("a", a), ("b", b)], device, also=BYTES)


@warm
def minimum(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """The smaller of a and b, with broadcasting.

    Parameters
    ----------
    a, b : array_like, float32 or float16, or both int8 or uint8
        Shapes that broadcast by numpy's rules.
    device : str or Device, optional

    Returns
    -------
    ndarray of the broadcast shape

    Notes
    -----
    Error bound: exact.
    """
    return simple("minimum", "Min", [("a", a), ("b", b)], device, also=BYTES)


@warm
def pow(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """A ** b with broadcasting; a negative base needs an integer exponent, else NaN.

    Parameters
    ----------
    a, b : array_like, float32 or float16
        Shapes that broadcast by numpy's rules.
    device : str or Device, optional

    Returns
    -------
    ndarray of the broadcast shape

    Notes
    -----
    Error bound: that of exp2(b * log2(abs(a))) (Vulkan specification, pow).
    """
    return simple("pow", "Pow", [("a", a), ("b", b)], device)


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
