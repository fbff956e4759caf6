"""Tangent, hyperbolic cosine, and the inverses of trigonometric and hyperbolic functions.

The polynomials are those of Moshier's Cephes library for float32 (tanf, asinf, atanf, asinhf,
acoshf, atanhf); each is good to 2e-7 relative where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log as exact_log
from math import pi

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, half_exp, keep_nan, log, magnitude, pick
from gpuedge.opset.expr import Expr, apply, lift
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Tensor, mapped


def _sqrt(x: Expr) -> Expr:
    return apply("sqrt", x)


def _sign(x: Expr) -> Expr:
    return apply("sign", x)


def _polynomial(z: Expr, coefficients: Sequence[float]) -> Expr:
    total = lift(coefficients[0])
    for c in coefficients[1:]:
        total = total * z + c
    return total


def _tan(x: Expr) -> Expr:
    return apply("sin", x) / apply("cos", x)


def _atan(x: Expr) -> Expr:
    """Below tan(pi / 8) as it is; up to tan(3 pi / 8) around pi / 4, beyond by the reciprocal."""
    size = magnitude(x)
    far, middle = above(size, 2.414213562373095), above(size, 0.4142135623730950)
    y = pick(far, -1.0 / size, pick(middle, (size - 1.0) / (size + 1.0), size))
    start = pick(far, pi / 2, pick(middle, pi / 4, 0.0))
    z = y * y
    p = _polynomial(z, (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1))
    return keep_nan(_sign(x) * (start + (p * z * y + y)), x)


def _arc(size: Expr) -> tuple[Expr, Expr]:
    """Return the arcsine of what remains of |x|, and 1 where that is half of the arccosine."""
    far = above(size, 0.5)
    z = pick(far, 0.5 * (1.0 - size), size * size)
    y = pick(far, _sqrt(z), size)
    p = _polynomial(z, (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2,
                        1.6666752422e-1))  # fmt: skip
    return p * z * y + y, far


def _asin(x: Expr) -> Expr:
    part, far = _arc(magnitude(x))
    return _sign(x) * pick(far, pi / 2 - 2.0 * part, part)


def _acos(x: Expr) -> Expr:
    part, far = _arc(magnitude(x))
    below = above(0.0, x)
    outer = pick(below, pi - 2.0 * part, 2.0 * part)
    return pick(far, outer, pi / 2 - _sign(x) * part)


def _cosh(x: Expr) -> Expr:
    half = half_exp(magnitude(x))
    return half + 0.25 / half


def _asinh(x: Expr) -> Expr:
    """By the logarithm beyond 0.5; squares of more than 1e4 add nothing, and might overflow."""
    size = magnitude(x)
    z = size * size
    p = _polynomial(z, (2.0122003309e-2, -4.2699340972e-2, 7.4847586088e-2, -1.6666288134e-1))
    far = pick(above(size, 1e4), log(size) + exact_log(2), log(size + _sqrt(z + 1.0)))
    return _sign(x) * pick(above(size, 0.5), far, p * z * size + size)


def _acosh(x: Expr) -> Expr:
    z = x - 1.0
    p = _polynomial(z, (1.7596881071e-3, -7.5272886713e-3, 2.6454905019e-2, -1.1784741703e-1,
                        1.4142135263))  # fmt: skip
    far = pick(above(x, 1e4), log(x) + exact_log(2), log(x + _sqrt(z * (x + 1.0))))
    return pick(above(z, 0.5), far, p * _sqrt(z))


def _atanh(x: Expr) -> Expr:
    z = x * x
    p = _polynomial(z, (1.81740078349e-1, 8.24370301058e-2, 1.46691431730e-1, 1.99782164500e-1,
                        3.33337300303e-1))  # fmt: skip
    return pick(above(magnitude(x), 0.5), 0.5 * log((1.0 + x) / (1.0 - x)), p * z * x + x)


FORMULAS: dict[str, Callable[[Expr], Expr]] = {
    "Tan": _tan, "Asin": _asin, "Acos": _acos, "Atan": _atan, "Cosh": _cosh, "Asinh": _asinh,
    "Acosh": _acosh, "Atanh": _atanh,
}  # fmt: skip


def _build(formula: Callable[[Expr], Expr], call: OperatorCall) -> Tensor:
    return mapped(formula, call.input(0))


OPERATORS: tuple[Operator, ...] = tuple(
    Operator(name, partial(_build, formula)) for name, formula in FORMULAS.items()
)
