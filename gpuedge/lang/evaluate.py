"""Values of scalar expressions without running a kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from gpuedge.core.kernel import Number
from gpuedge.lang import tree as t

INT_MIN, INT_MAX = -(2**31), 2**31 - 1


class Unknown(Exception):  # noqa: N818  (never leaves this package; not an error)
    """The value depends on something that was not given."""


def _quotient(a: Number, b: Number) -> Number:
    if not isinstance(a, int):
        return a / b
    if b == 0:
        raise ArithmeticError("an int divided by 0")
    return abs(a) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: Number, b: Number) -> Number:
    return a - b * _quotient(a, b)


OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&": operator.and_,
    "neg": operator.neg,
}
"""Operators that Python spells alike for its numbers and for arrays."""
_FOLDED: dict[str, Callable[..., Number]] = {
    **OPERATIONS,
    "/": _quotient,
    "%": _remainder,
    "&&": lambda a, b: bool(a and b),
    "||": lambda a, b: bool(a or b),
    ">>": lambda a, b: a >> (b & 31),
    "!": operator.not_,
    "min": min,
    "max": max,
    "abs": abs,
    "clamp": lambda x, low, high: min(max(x, low), high),
}

Lookup = Callable[[t.Expr], Number]
"""Gives the value of a Spec, a Param, or a Swizzle of one component of a Dims."""


def nothing(_: t.Expr) -> Number:
    """Look up what is never known."""
    raise Unknown


def evaluate(expr: t.Expr, lookup: Lookup = nothing) -> Number:
    """Return the value of a scalar expression whose locals all keep their first value.

    Raises
    ------
    Unknown
        The expression contains a load, an identifier or something `lookup` does not know.
    ArithmeticError
        An int leaves 32 bits or is divided by zero. The message says which.
    """
    if isinstance(expr, t.Literal):
        return expr.value
    if isinstance(expr, t.LocalRef):
        if expr.local.assigned or expr.local.value is None:
            raise Unknown
        return evaluate(expr.local.value, lookup)
    if isinstance(expr, t.Op):
        return _operation(expr, lookup)
    if isinstance(expr, t.Swizzle) and not isinstance(expr.base, t.Dims):
        return evaluate(component(expr.base, expr.components[0]), lookup)
    return lookup(expr)


def _operation(expr: t.Op, lookup: Lookup) -> Number:
    value: Number
    if expr.name == "?:":
        value = evaluate(expr.args[1 if evaluate(expr.args[0], lookup) else 2], lookup)
    elif expr.name == "cast":
        value = evaluate(expr.args[0], lookup)
        value = float(value) if expr.type == "float" else int(value)
    elif expr.name in _FOLDED:
        value = _FOLDED[expr.name](*[evaluate(arg, lookup) for arg in expr.args])
    else:
        raise Unknown
    if expr.type == "int" and not INT_MIN <= value <= INT_MAX:
        raise ArithmeticError("this constant does not fit in 32 bits")
    return value


def component(vector: t.Expr, index: int) -> t.Expr:
    """Return the scalar expression behind one component of a vector built on the spot."""
    if isinstance(vector, t.Op) and vector.name == "splat":
        return vector.args[0]
    if isinstance(vector, t.Op) and vector.name == "vector":
        for arg in vector.args:
            width = t.WIDTH[arg.type]
            if index < width:
                return arg if width == 1 else component(arg, index)
            index -= width
    if isinstance(vector, t.LocalRef) and vector.local.value and not vector.local.assigned:
        return component(vector.local.value, index)
    if isinstance(vector, t.Swizzle):
        return component(vector.base, vector.components[index])
    if isinstance(vector, t.Dims):
        return t.Swizzle("int", vector, (index,), vector.time)
    raise Unknown
