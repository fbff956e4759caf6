"""Running error of formulas: how far float32 on a GPU may be from the exact value.

Every function of a formula adds the error that it is allowed (`gpuedge.opset.functions`), and
carries on those of its operands; see `gpuedge.opset.bounds`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuedge.opset.bounds import Num
from gpuedge.opset.expr import Apply, Expr, Load, Number, lift, walk
from gpuedge.opset.functions import FUNCTIONS
from gpuedge.opset.index import ZERO
from gpuedge.opset.tensor import given


def running_error(formula: Callable[..., Expr | float], *operands: Num, **numbers: float) -> Num:
    """Return a formula of values with errors.

    Parameters
    ----------
    formula : callable
        Takes expressions and the `numbers` by name, as a row of `gpuedge.opset.elementwise` does.
    *operands : Num
        Exact values with bounds.

    Returns
    -------
    Num
        The formula's value in float64, and how far float32 on a GPU may be from it.
    """
    places = [Load(given("", (), "float32"), ZERO) for _ in operands]
    values: dict[int, Any] = {id(p): v for p, v in zip(places, operands, strict=True)}
    body = lift(formula(*places, **numbers))
    for one in walk(body):
        if isinstance(one, Number):
            values[id(one)] = Num.of(one.value)
        elif isinstance(one, Apply):
            args = [values[id(a)] for a in one.args]
            values[id(one)] = FUNCTIONS[one.function].error(*args)
    result: Num = values[id(body)]
    return result
