"""What functions of one element or two must give: float64 by ONNX's own reference, with a bound.

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
from gpuedge.opset import FUNCTIONS, angles
from gpuedge.opset.bounds import ULP, Array, Num
from gpuedge.opset.elementwise import BY_NAME, ROWS, gelu, gelu_tanh, larger, smaller
from gpuedge.opset.expr import Expr
from gpuedge.opset.logic import COMPARISONS
from gpuedge.opset.logic import FUNCTIONS as COMPARED

STEEPEST = 1.5
"""No activation that can be fused has a steeper slope."""


_ERF = np.vectorize(math.erf, otypes=[float])


def _logistic(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


WHOLE: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "relu": lambda x: np.maximum(x, 0),
}
"""What known answers are made of, without onnx: exact for whole numbers."""

DEFINITIONS: dict[str, Callable[..., Array]] = {
    "relu6": lambda x: np.clip(x, 0, 6),
    "silu": lambda x: x * _logistic(x),
    "swish": lambda x, alpha=1.0: x * _logistic(alpha * x),
    "gelu": lambda x: 0.5 * x * (1 + _ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    # where the reference rounds to float32 on the way, or takes an attribute as float32
    "celu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)),
    "erf": _ERF,
    "hard_sigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "leaky_relu": lambda x, alpha=0.01: np.where(x > 0, x, alpha * x),
    **WHOLE,
}
"""What functions mean, in float64, where ONNX's reference does not say it."""

FORMULAS: dict[str, Callable[..., Expr]] = {
    **{row.function: row.formula for row in ROWS if row.function},
    **{function.name: COMPARISONS[function.op] for function in COMPARED},
    **{op.lower(): formula for op, formula in angles.FORMULAS.items()},
    "relu6": lambda x: smaller(larger(x, 0.0), 6.0),
    "silu": lambda x: x * BY_NAME["Sigmoid"].formula(x),
    "swish": BY_NAME["Swish"].formula,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}
"""The formulas that kernels compute, which running errors are carried through."""


def elementwise(name: str, *operands: Any, is_last: bool = True, **attrs: Any) -> Num:
    """Return what a function of gpuedge gives for arrays, or for values with errors.

    The value is the definition's, the bound that of the kernels' formula. What is exactly rounded
    is given as float32 has it, unless more may be computed with it before it is rounded
    (`is_last`).
    """
    from gpuedge.opset.errors import running_error  # known answers start without it

    row = FUNCTIONS.get(name)
    promised = row.bound if row else "exact" if name == "relu6" else ""
    given = [o if isinstance(o, Num) else Num.of(np.asarray(o)) for o in operands]
    with np.errstate(all="ignore"):
        values = [g.v for g in given]
        if name in DEFINITIONS:
            value = np.asarray(DEFINITIONS[name](*values, **attrs), np.float64)
        else:
            op = row.op if row else name.title()
            # the evaluator takes no single numbers for some
            rows = [np.atleast_1d(v) for v in values]
            value = by_reference(op, rows, attrs).astype(np.float64)
            value = value.reshape(np.broadcast_shapes(*(v.shape for v in values)))
        numbers = {**(BY_NAME[row.op].numbers if row and row.op in BY_NAME else {}), **attrs}
        error = running_error(FORMULAS[name], *given, **numbers).e
        if promised == "exactly rounded":
            is_exact = np.all(np.broadcast_arrays(*(g.e == 0 for g in given)), axis=0)
            rounded = value.astype(np.float32).astype(np.float64)
            if is_last:
                value = np.where(is_exact, rounded, value)
            error = np.where(is_exact & (is_last | (value == rounded)), 0, error)
        elif promised != "exact":
            # no less than the unit in the last place that C libraries allow themselves, on the CPU
            error = np.maximum(error, ULP * np.abs(value))
        return Num(value, np.broadcast_to(error, value.shape))


def clip(x: Num, low: Any = None, high: Any = None) -> Num:
    """Apply a limit on one side, or on both."""
    x = x if low is None else elementwise("maximum", x, low)
    return x if high is None else elementwise("minimum", x, high)


def activated(name: str | None, wanted: Num) -> Num:
    """Apply an activation to a result within a bound."""
    if name is None:
        return wanted
    own = elementwise(name, wanted.v)
    # Where its operand is exact, so is an activation that only compares.
    bound = STEEPEST * wanted.e + 1.05 * own.e
    usual = wanted.e if wanted.likely is None else wanted.likely
    return Num(own.v, bound, likely=STEEPEST * usual + 1.05 * own.e)
