"""What functions of one element or two must give: float64 numpy by definition, with a bound.

The values share no code with the kernels or the CPU executor. The bounds are the running errors
of the kernels' formulas (``docs/numerics.md``); operands may carry errors of their own. A bound of
zero means bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuedge.graph.reference import by_reference
from gpuedge.opset import FUNCTIONS
from gpuedge.opset.bounds import ULP, Array, Num
from gpuedge.opset.elementwise import BY_NAME as ROW
from gpuedge.opset.elementwise import ROWS, gelu, gelu_tanh
from gpuedge.opset.errors import running_error
from gpuedge.opset.expr import Expr

Function = Callable[..., Num]

_ERF = np.vectorize(math.erf, otypes=[float])
LAMBDA, ALPHA = 1.05070102214813232421875, 1.67326319217681884765625
"""Selu's constants as ONNX gives them."""

STEEPEST = 1.5
"""No activation that can be fused has a steeper slope."""


def _logistic(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _monotone(f: Callable[[Array], Array]) -> Function:
    """Wrap an exact function: results lie between f(x - e) and f(x + e)."""

    def both(x: Num, **_: float) -> Num:
        value = np.asarray(f(x.v), np.float64)
        up, down = np.abs(f(x.v + x.e) - value), np.abs(f(x.v - x.e) - value)
        return Num(value, np.asarray(np.maximum(up, down)))

    return both


def _steady(f: Callable[..., Array]) -> Function:
    """Wrap an exact function whose result moves by no more than its operands do."""

    def both(*x: Num, **_: float) -> Num:
        value = np.asarray(f(*(i.v for i in x)), np.float64)
        error = x[0].e
        for other in x[1:]:
            error = np.maximum(error, other.e)
        return Num(value, np.broadcast_to(error, value.shape).astype(np.float64))

    return both


def _operator(f: Callable[..., Any]) -> Function:
    """Wrap an operator that is correctly rounded: exact where its operands are."""

    def both(a: Num, b: Num, **_: float) -> Num:
        tracked: Num = f(a, b)
        exact = np.asarray(f(a.v, b.v)).astype(np.float32).astype(np.float64)
        is_exact = np.broadcast_to((a.e == 0) & (b.e == 0), exact.shape)
        return Num(np.where(is_exact, exact, tracked.v), np.where(is_exact, 0, tracked.e))

    return both


DEFINITIONS: dict[str, Callable[..., Array]] = {
    "div": lambda a, b: a / b,
    "prelu": lambda x, s: np.where(x > 0, x, s * x),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "erf": _ERF,
    "sigmoid": _logistic,
    "tanh": np.tanh,
    "softplus": lambda x: np.asarray(np.logaddexp(0, x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "silu": lambda x: x * _logistic(x),
    "swish": lambda x, alpha: x * _logistic(alpha * x),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_sigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "leaky_relu": lambda x, alpha=0.01: np.where(x > 0, x, alpha * x),
    "elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "celu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)),
    "selu": lambda x: LAMBDA * np.where(x > 0, x, ALPHA * np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: 0.5 * x * (1 + _ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "pow": np.power,
}
"""What functions mean, in float64. ONNX's own reference says it for those that are missing here."""

EXACT: dict[str, Function] = {
    "abs": _steady(np.abs),
    "neg": _steady(np.negative),
    "floor": _monotone(np.floor),
    "ceil": _monotone(np.ceil),
    "round": _monotone(np.rint),
    "sign": _monotone(np.sign),
    "relu": _steady(lambda x: np.maximum(x, 0)),
    "relu6": _steady(lambda x: np.clip(x, 0, 6)),
    "maximum": _steady(np.maximum),
    "minimum": _steady(np.minimum),
    "add": _operator(lambda a, b: a + b),
    "sub": _operator(lambda a, b: a - b),
    "mul": _operator(lambda a, b: a * b),
}
"""Functions that are exact, or exactly rounded, where their operands are exact."""

FORMULAS: dict[str, Callable[..., Expr]] = {
    **{row.function: row.formula for row in ROWS if row.function},
    "silu": lambda x: x * ROW["Sigmoid"].formula(x),
    "swish": ROW["Swish"].formula,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}
"""The formulas that kernels compute, which running errors are carried through."""


def elementwise(name: str, *operands: Any, **attrs: float) -> Num:
    """Return what a function of gpuedge gives for arrays, or for values with errors.

    The value is the definition's, the bound that of the kernels' formula.
    """
    with np.errstate(all="ignore"):
        given = [o if isinstance(o, Num) else Num.of(np.asarray(o)) for o in operands]
        if name in EXACT:
            return EXACT[name](*given, **attrs)
        if name in DEFINITIONS:
            value = np.asarray(DEFINITIONS[name](*(g.v for g in given), **attrs), np.float64)
        else:
            value = by_reference(FUNCTIONS[name].op, [g.v for g in given], attrs)
        row = ROW.get(FUNCTIONS[name].op) if name in FUNCTIONS else None
        numbers = {**(row.numbers if row else {}), **attrs}
        found = running_error(FORMULAS[name], *given, **numbers)
        # no less than the unit in the last place that C libraries allow themselves, on the CPU
        is_exact = name in FUNCTIONS and FUNCTIONS[name].bound == "exact"
        error = found.e if is_exact else np.maximum(found.e, ULP * np.abs(value))
        return Num(value, np.broadcast_to(error, value.shape))


def activated(name: str | None, wanted: Num) -> Num:
    """Apply an activation to a result within a bound."""
    if name is None:
        return wanted
    own = elementwise(name, wanted.v)
    # Where its operand is exact, so is an activation that only compares.
    return Num(own.v, STEEPEST * wanted.e + 1.05 * own.e)
