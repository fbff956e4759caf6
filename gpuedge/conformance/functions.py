"""What functions of one element or two must give: float64 numpy by definition, with a bound.

Nothing here shares code with the kernels or the CPU executor. The bounds follow the derivations of
``docs/numerics.md``; operands may carry errors of their own. A bound of zero means bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuedge.conformance import running_error as run
from gpuedge.conformance.running_error import TINY, ULP, Array, Num

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


def _both(f: Callable[..., Array], bound: Callable[..., Num]) -> Function:
    """Join a function's definition and the running error of the kernels' formula for it."""

    def both(*x: Num, **k: float) -> Num:
        value = np.asarray(f(*(i.v for i in x), **k), np.float64)
        return Num(value, np.broadcast_to(bound(*x, **k).e, value.shape))

    return both


def _pow(a: Num, b: Num, **_: float) -> Num:
    value = np.power(a.v, b.v)
    size = Num(np.maximum(np.abs(a.v), TINY), a.e).log(2.0) * b
    exact = np.exp2(size.v)
    e = exact * np.expm1(size.e * math.log(2)) + (3 + 2 * np.abs(size.v)) * ULP * exact + TINY
    return Num(value, np.where((b.v == 0) | (a.v == 0), 0, e))


ELEMENTWISE: dict[str, Function] = {
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
    "div": _both(lambda a, b: a / b, lambda a, b: a / b),
    "pow": _pow,
    "prelu": _both(
        lambda x, s: np.where(x > 0, x, s * x),
        lambda x, s: x.clip(0, math.inf) + s * x.clip(-math.inf, 0),
    ),
    "exp": _both(np.exp, Num.exp),
    "log": _both(np.log, Num.log),
    "sqrt": _both(np.sqrt, Num.sqrt),
    "reciprocal": _both(lambda x: 1 / x, lambda x: 1.0 / x),
    "sin": _both(np.sin, lambda x: run.sine(x, 0)),
    "cos": _both(np.cos, lambda x: run.sine(x, math.pi / 2)),
    "erf": _both(_ERF, run.erf),
    "sigmoid": _both(_logistic, run.sigmoid),
    "tanh": _both(np.tanh, Num.tanh),
    "softplus": _both(lambda x: np.logaddexp(0, x), run.softplus),
    "softsign": _both(lambda x: x / (1 + np.abs(x)), lambda x: x / (1.0 + x.abs())),
    "mish": _both(
        lambda x: x * np.tanh(np.logaddexp(0, x)), lambda x: x * run.softplus(x).tanh()
    ),
    "silu": _both(lambda x: x * _logistic(x), lambda x: x * run.sigmoid(x)),
    "hard_swish": _both(
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1), lambda x: x * (x * (1 / 6) + 0.5).clip(0, 1)
    ),
    "hard_sigmoid": _both(
        lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
        lambda x, alpha=0.2, beta=0.5: x * alpha + beta,
    ),
    "leaky_relu": _both(
        lambda x, alpha=0.01: np.where(x > 0, x, alpha * x),
        lambda x, alpha=0.01: x.clip(0, math.inf) + alpha * x.clip(-math.inf, 0),
    ),
    "elu": _both(
        lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
        lambda x, alpha=1.0: run.tail(x, alpha),
    ),
    "celu": _both(
        lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)),
        lambda x, alpha=1.0: run.tail(x, alpha, 1 / alpha),
    ),
    "selu": _both(
        lambda x: LAMBDA * np.where(x > 0, x, ALPHA * np.expm1(np.minimum(x, 0))),
        lambda x: LAMBDA * run.tail(x, ALPHA),
    ),
    "gelu": _both(
        lambda x: 0.5 * x * (1 + _ERF(x / math.sqrt(2))), lambda x: run.gelu(x, tanh=False)
    ),
    "gelu_tanh": _both(
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: run.gelu(x, tanh=True),
    ),
}  # fmt: skip
"""Functions of float64 values with errors, by their name in gpuedge."""


def elementwise(name: str, *operands: Any, **attrs: float) -> Num:
    """Apply a function of `ELEMENTWISE` to arrays, or to values with errors."""
    with np.errstate(all="ignore"):
        given = [o if isinstance(o, Num) else Num.of(np.asarray(o)) for o in operands]
        return ELEMENTWISE[name](*given, **attrs)


def activated(name: str | None, wanted: Num) -> Num:
    """Apply an activation to a result within a bound."""
    if name is None:
        return wanted
    own = elementwise(name, wanted.v)
    # Where its operand is exact, so is an activation that only compares.
    return Num(own.v, STEEPEST * wanted.e + 1.05 * own.e)
