"""What the operators and built-ins of the language are in numpy, on float32 and int32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Value = Any
"""A numpy scalar or array of float32, int32 or bool; vectors have components first."""

DTYPES: dict[str, type[np.generic]] = {"float": np.float32, "int": np.int32, "bool": np.bool_}


def _dot(a: Value, b: Value) -> Value:
    products = a * b
    total = products[0]
    for part in products[1:]:
        total = total + part
    return total


BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.remainder,
    "<": np.less,
    ">": np.greater,
    "<=": np.less_equal,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "&&": np.logical_and,
    "||": np.logical_or,
}
UNARY: dict[str, Callable[[Value], Value]] = {"-": np.negative, "!": np.logical_not}
MATH: dict[str, Callable[..., Value]] = {
    "min": np.minimum,
    "max": np.maximum,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "inversesqrt": lambda x: np.float32(1) / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "roundeven": np.rint,
    "mix": lambda a, b, k: a * (np.float32(1) - k) + b * k,
    "step": lambda edge, x: np.where(x < edge, np.float32(0), np.float32(1)),
    "pow": np.power,
    "dot": _dot,
}
