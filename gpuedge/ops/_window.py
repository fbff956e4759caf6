"""Reading the arguments that windows take: sizes, padding, activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuedge.core.errors import InputError
from gpuedge.graph.build import GraphBuilder

Size = int | Sequence[int]
Padding = int | str | Sequence[int] | Sequence[Sequence[int]]
Nodes = Callable[[GraphBuilder, str], str]


def _int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{name}={value!r} is not an integer.")
    return int(value)


def pair(name: str, value: Any) -> tuple[int, int]:
    """Return (y, x) of an int or a pair. Raises InputError (GE-203)."""
    if hasattr(value, "__index__"):
        both = _int(name, value)
        return both, both
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        return _int(name, value[0]), _int(name, value[1])
    raise InputError(f"{name}={value!r} is neither an integer nor a pair of them.")


def pad_attrs(padding: Any) -> dict[str, Any]:
    """Return the ONNX attributes of a padding argument. Raises InputError (GE-203)."""
    if isinstance(padding, str):
        modes = {"same": "SAME_UPPER", "valid": "VALID"}
        if padding.lower() not in modes:
            raise InputError(
                f"padding={padding!r} is not understood.", known="strings: 'same', 'valid'"
            )
        return {"auto_pad": modes[padding.lower()]}
    if isinstance(padding, Sequence) and len(padding) == 2 and isinstance(padding[0], Sequence):
        (top, bottom), (left, right) = (pair("padding", p) for p in padding)
    else:
        top, left = pair("padding", padding)
        bottom, right = top, left
    pads = (top, left, bottom, right)
    if min(pads) < 0:
        raise InputError(f"padding={padding!r} is negative.")
    return {"pads": pads}


def _named(op: str, **attrs: Any) -> Nodes:
    return lambda b, x: b.add(op, [x], attrs)


def _relu6(b: GraphBuilder, x: str) -> str:
    import numpy as np

    bounds = [b.constant(f"{x}.lo", np.float32(0)), b.constant(f"{x}.hi", np.float32(6))]
    return b.add("Clip", [x, *bounds])


ACTIVATIONS: dict[str, Nodes] = {
    "relu": _named("Relu"),
    "relu6": _relu6,
    "leaky_relu": _named("LeakyRelu"),
    "elu": _named("Elu"),
    "sigmoid": _named("Sigmoid"),
    "tanh": _named("Tanh"),
    "hard_swish": _named("HardSwish"),
    "silu": lambda b, x: b.add("Mul", [x, b.add("Sigmoid", [x])]),
    "gelu": _named("Gelu"),
}


def activation_nodes(name: str | None) -> Nodes:
    """Return what adds an activation to a graph. Raises InputError (GE-203)."""
    if name is None:
        return lambda b, x: x
    if name not in ACTIVATIONS:
        raise InputError(
            f"activation={name!r} is not known.", known=f"activations: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
