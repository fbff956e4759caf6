"""Checking the arguments of operations: numbers, sizes, padding, activations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from gpuedge.core.errors import InputError, ShapeError
from gpuedge.graph.build import GraphBuilder
from gpuedge.opset import FUNCTIONS
from gpuedge.runtime.inputs import brief

Size = int | Sequence[int]
Padding = int | Literal["same", "valid"] | Sequence[int] | Sequence[Sequence[int]]
FLOAT32_MAX = float(np.finfo(np.float32).max)
Nodes = Callable[[GraphBuilder, str], str]


LARGEST = 2**31 - 1
"""Kernels and ONNX count with 32-bit integers."""


def integer(name: str, value: Any) -> int:
    """Return an integer argument. Raises InputError (GE-203)."""
    try:
        if not isinstance(value, bool) and abs(number := operator.index(value)) <= LARGEST:
            return number
        why = f"integers lie between -{LARGEST} and {LARGEST}; True and False are none"
    except Exception as error:  # what the method of a class that is not ours raises
        why = f"{type(error).__name__}: {error}"
    raise InputError(
        f"{name}={brief(value)} is not an integer of 32 bits.",
        asked_by=f"{name}=...",
        known=why,
        hint=f"give an int, such as {name}=1",
    )


def number(name: str, value: Any) -> float:
    """Return a finite number argument. Raises InputError (GE-203)."""
    is_real = isinstance(value, (int, float, np.integer, np.floating))
    try:
        result = float(value) if is_real and not isinstance(value, bool) else math.nan
    except OverflowError:
        result = math.nan
    if not abs(result) <= FLOAT32_MAX:
        raise InputError(f"{name}={brief(value)} is not a finite float32 number.")
    return result


def flag(name: str, value: Any) -> bool:
    """Return a yes-or-no argument. Raises InputError (GE-203)."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name}={brief(value)} is neither True nor False.")
    return bool(value)


def integers(name: str, values: Any) -> tuple[int, ...]:
    """Return a sequence of integers. Raises InputError (GE-203)."""
    is_one = isinstance(values, (str, bytes)) or getattr(values, "ndim", 1) == 0
    if is_one or not hasattr(values, "__iter__"):
        raise InputError(f"{name}={brief(values)} is not a sequence of integers.")
    return tuple(integer(name, v) for v in values)


def axes(name: str, given: Any, rank: int) -> tuple[int, ...]:
    """Return axes counted from the front: one, several, or all for None. Raises ShapeError."""
    if given is None:
        return tuple(range(rank))
    axes_given = integers(name, given) if hasattr(given, "__iter__") else (integer(name, given),)
    counted = tuple(a + rank * (a < 0) for a in axes_given)
    if len(set(counted)) != len(counted) or not all(0 <= a < rank for a in counted):
        raise ShapeError(
            f"{name}={brief(given)} names no axes of an array of rank {rank}, each once.",
            asked_by=f"{name}=...",
        )
    return counted


def pair(name: str, value: Any) -> tuple[int, int]:
    """Return (y, x) of an int or a pair. Raises InputError (GE-203)."""
    if not hasattr(value, "__iter__") or getattr(value, "ndim", 1) == 0:
        both = integer(name, value)
        return both, both
    values = integers(name, value)
    if len(values) != 2:
        raise InputError(f"{name}={brief(value)} is neither an integer nor a pair of them.")
    return values[0], values[1]


def pad_attrs(padding: Any) -> dict[str, Any]:
    """Return the ONNX attributes of a padding argument. Raises InputError (GE-203)."""
    if isinstance(padding, str):
        modes = {"same": "SAME_UPPER", "valid": "VALID"}
        if padding.lower() not in modes:
            raise InputError(
                f"padding={brief(padding)} is not understood.", known="strings: 'same', 'valid'"
            )
        return {"auto_pad": modes[padding.lower()]}
    if _is_pair_of_pairs(padding):
        (top, bottom), (left, right) = (pair("padding", p) for p in padding)
    else:
        top, left = pair("padding", padding)
        bottom, right = top, left
    pads = (top, left, bottom, right)
    if min(pads) < 0:
        raise InputError(f"padding={brief(padding)} is negative.")
    return {"pads": pads}


def _is_pair_of_pairs(padding: Any) -> bool:
    is_list = hasattr(padding, "__iter__") and getattr(padding, "ndim", 1) > 0
    sides = list(padding) if is_list else []
    return len(sides) == 2 and all(hasattr(side, "__iter__") for side in sides)


def _named(op: str) -> Nodes:
    return lambda b, x: b.add(op, [x])


def _relu6(b: GraphBuilder, x: str) -> str:
    bounds = [b.constant(f"{x}.lo", np.float32(0)), b.constant(f"{x}.hi", np.float32(6))]
    return b.add("Clip", [x, *bounds])


ACTIVATIONS: dict[str, Nodes] = {
    **{name: _named(FUNCTIONS[name].op) for name in
       ("relu", "leaky_relu", "elu", "sigmoid", "tanh", "hard_swish")},
    "relu6": _relu6,
    "silu": lambda b, x: b.add("Mul", [x, b.add("Sigmoid", [x])]),
    "gelu": _named("Gelu"),
}  # fmt: skip
"""Activations that layers can be given, by name."""


def activation_nodes(name: str | None) -> Nodes:
    """Return what adds an activation to a graph. Raises InputError (GE-203)."""
    if name is None:
        return lambda b, x: x
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise InputError(
            f"activation={brief(name)} is not known.",
            known=f"activations: {', '.join(ACTIVATIONS)}",
        )
    return ACTIVATIONS[name]
