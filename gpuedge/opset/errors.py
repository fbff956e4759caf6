"""Running errors: how far float32 on a GPU may be from exact values, of formulas and of operators.

Every function, sum and rounding adds the error that it is allowed (`gpuedge.opset.functions`,
`gpuedge.opset.bounds`), and carries on those of its operands. In a whole operator, errors of
different origin are added as independent ones: by their squares (Higham and Mary, "A new approach
to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019), because worst cases of
a deep model exceed every value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gpuedge.core.dtypes import ACCEPTED as FLOATS
from gpuedge.opset import conv, pool
from gpuedge.opset.bounds import HALF_MOST, HALF_TINY, HALF_U, TINY, ULP, Array, Num, U
from gpuedge.opset.evaluate import Elements
from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, Position, Where, lift, loads, walk
from gpuedge.opset.functions import FUNCTIONS
from gpuedge.opset.index import ZERO
from gpuedge.opset.tensor import (
    Constant,
    Convolution,
    Given,
    Map,
    Pooling,
    Product,
    Reduce,
    Tensor,
    given,
    reachable,
)

HUGE = 1e37
"""Sums of values beyond this may overflow on the way."""

FAR = 1000.0
"""Beyond this nothing is promised about sine and cosine (``docs/numerics.md``)."""


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
    places = [LoadExpr(given("", (), "float32"), ZERO) for _ in operands]
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


def exact(array: Array) -> Num:
    """Return values without errors."""
    v = array.astype(np.float64)
    return Num(v, np.zeros_like(v))


def tensor_errors(outputs: Iterable[Tensor], known: Mapping[str, Num], bias: float) -> list[Num]:
    """Return tensors with their running errors.

    Parameters
    ----------
    outputs : iterable of Tensor
    known : mapping of str to Num
        What the tensors are made of, with the errors that it has already.
    bias : float
        Relative errors that all terms of a sum may have in common.
    """
    wanted, done = list(outputs), dict[int, Num]()
    for one in reachable(wanted):
        source = one.source
        if isinstance(source, Given):
            x = known[source.name]  # of infinity nothing follows
            found = Num(x.v, np.where(np.abs(x.v) > HUGE, np.inf, x.e))
        elif isinstance(source, Constant):
            found = known[source.name] if source.name in known else exact(source.array)
        elif isinstance(source, Map):
            found = _elements(one.shape, source.body, done)
        elif isinstance(source, Reduce):
            found = _reduced(one, source, done, bias)
        elif isinstance(source, Product):
            a, b = done[source.a.serial], done[source.b.serial]
            found = _products(np.matmul, a, b, a.v.shape[-1], bias, is_half=source.is_half)
        elif isinstance(source, Convolution):
            found = _convolved(source, done, bias)
        elif isinstance(source, Pooling):
            found = _pooled(source, done[source.x.serial])
        done[one.serial] = Num(found.v.reshape(one.shape), found.e.reshape(one.shape))
    return [done[one.serial] for one in wanted]


def _elements(shape: tuple[int, ...], body: Expr, done: Mapping[int, Num]) -> Num:
    """Return an expression at all positions of a shape; errors of different tensors by squares."""
    inexact = {t.serial for t in (load.tensor for load in loads(body)) if done[t.serial].e.any()}
    v, own = _once(shape, body, done, frozenset())
    if len(inexact) == 1:
        return _once(shape, body, done, inexact)
    squares: Array = np.zeros(())
    for one in inexact:
        squares = squares + np.maximum(_once(shape, body, done, {one}).e - own, 0.0) ** 2
    return Num(v, own + np.sqrt(squares))


def _once(
    shape: tuple[int, ...], body: Expr, done: Mapping[int, Num], inexact: Iterable[int]
) -> Num:
    """Return an expression at all positions, as if only some tensors had errors."""
    at = Elements(shape, {serial: value.v for serial, value in done.items()})
    errors = Elements(shape, {serial: done[serial].e for serial in inexact})
    errors.values = at.values
    found: dict[int, Num] = {}
    for one in walk(body):
        if isinstance(one, Number):
            made = Num.of(one.value)
        elif isinstance(one, LoadExpr):
            v = at.load(one)
            is_known = one.tensor.serial in inexact
            e = errors.load(one) if is_known else np.zeros_like(v)
            made = Num(v, np.where(_is_open(one.parts, found), _reach(done[one.tensor.serial]), e))
        elif isinstance(one, Apply):
            made = _applied(one.function, [found[id(a)] for a in one.args])
        elif isinstance(one, Where):
            yes, no, test = found[id(one.yes)], found[id(one.no)], at.test(one.test)
            either = np.abs(yes.v - no.v) + np.maximum(yes.e, no.e)
            e = np.where(_is_open(one.parts[2:], found), either, np.where(test, yes.e, no.e))
            made = Num(np.where(test, yes.v, no.v), e)
        else:
            made = Num.of(at.compute(one).astype(np.float64))
            if isinstance(one, Position):
                wide = float(one.index.high - one.index.low)
                made = Num(made.v, np.where(_is_open(one.parts, found), wide, 0.0))
        found[id(one)] = made
        at.values[id(one)] = made.v
    v, e = found[id(body)]
    return Num(np.broadcast_to(v, shape), np.broadcast_to(e, shape))


def _is_open(places: Iterable[Expr], found: Mapping[int, Num]) -> Any:
    """Return where a place that is computed from these may be another one."""
    is_open: Any = False
    for one in places:
        is_open = is_open | (found[id(one)].e > 0)
    return is_open


def _reach(x: Num) -> float:
    """Return how far any element of a tensor may be from any other."""
    return float(np.ptp(x.v) + 2 * x.e.max()) if x.v.size else 0.0


def _applied(function: str, args: list[Num]) -> Num:
    """Return a function of numbers with errors; nothing is known where it is not promised."""
    made = FUNCTIONS[function].error(*args)
    x = args[-1] if function == "div" else args[0]
    if function in ("sin", "cos"):
        return Num(made.v, np.where(np.abs(x.v) > FAR, np.inf, made.e))
    if function in ("log", "div", "pow"):  # zero is possible
        return Num(made.v, np.where((np.abs(x.v) <= x.e) & (x.e > 0), np.inf, made.e))
    return made


def _reduced(one: Tensor, source: Reduce, done: Mapping[int, Num], bias: float) -> Num:
    x = _elements((*one.shape, *source.over), source.body, done)
    along = tuple(range(one.rank, one.rank + len(source.over)))
    if source.combine == "prod":
        return _multiplied(x, along)
    if source.combine != "sum":
        best = np.max if source.combine == "max" else np.min
        return Num(np.asarray(best(x.v, axis=along)), np.asarray(x.e.max(axis=along, initial=0.0)))
    v, size = x.v.sum(axis=along), np.abs(x.v).sum(axis=along)
    if one.dtype not in FLOATS:  # of whole numbers, which are exact
        return Num(np.asarray(v), np.asarray(x.e.sum(axis=along)))
    before = np.sqrt((x.e**2).sum(axis=along)) + bias * np.abs(v)
    return Num(np.asarray(v), np.asarray(before + _rounding(math.prod(source.over)) * size))


def _multiplied(x: Num, along: tuple[int, ...]) -> Num:
    """Return a product: relative errors add up, and there is a rounding for each factor."""
    v = np.prod(x.v, axis=along)
    with np.errstate(all="ignore"):
        relative = np.where(x.e > 0, x.e / np.abs(x.v), 0.0) + U
    return Num(np.asarray(v), np.asarray(np.abs(v) * np.expm1(relative.sum(axis=along)) + TINY))


def _rounding(terms: int) -> float:
    """Return what adding up so many terms adds to the error, relative to their sizes."""
    return U * (math.sqrt(terms) + 2)


def _products(
    multiply: Callable[[Array, Array], Array],
    a: Num,
    b: Num,
    terms: int,
    bias: float,
    *,
    is_half: bool = False,
) -> Num:
    """Return sums of products: a matrix product, or a convolution."""
    v, size = multiply(a.v, b.v), multiply(np.abs(a.v), np.abs(b.v))
    e = _rounding(terms) * size
    if is_half:
        e = e + _in_half(multiply, a, b, terms)
    if a.e.any() or b.e.any():
        squares = multiply(a.v**2, b.e**2) + multiply(a.e**2, b.v**2)
        e = e + np.sqrt(np.abs(squares)) + bias * np.abs(v)
    return Num(v, e + TINY)


def _in_half(multiply: Callable[[Array, Array], Array], a: Num, b: Num, terms: int) -> Array:
    """Return what rounding to float16 adds to sums of products, of which four may be added in it.

    Of each product both operands are rounded, it itself, and three sums of up to four: these have
    3 (p1 + ... + p4)^2 <= 12 (p1^2 + ... + p4^2) of squares of a rounding. What is smaller than a
    normal number may be zero, and of what may be larger than all of them nothing is known.
    """
    x, y = np.abs(a.v), np.abs(b.v)
    size = multiply(x, y)
    e = HALF_U * np.sqrt((2 + 1 + 12) * np.abs(multiply(x**2, y**2)))
    lost = multiply(np.where(x < HALF_TINY, x, 0.0), y) + multiply(x, np.where(y < HALF_TINY, y, 0))
    e = e + lost + np.minimum(size, 2 * terms * HALF_TINY)
    large = multiply(1.0 * (x + a.e > HALF_MOST), np.ones_like(y))
    large = large + multiply(np.ones_like(x), 1.0 * (y + b.e > HALF_MOST))
    return np.where((large > 0.5) | (size > HALF_MOST), np.inf, e)


def _convolved(source: Convolution, done: Mapping[int, Num], bias: float) -> Num:
    x, w = done[source.x.serial], done[source.w.serial]
    terms = math.prod(w.v.shape[1:])
    if source.is_transposed:
        terms = math.prod(w.v.shape) // (w.v.shape[1] * source.group)
    made = _products(lambda a, b: conv.compute(source, a, b, None), x, w, terms, bias,
                     is_half=source.is_half)  # fmt: skip
    if source.bias is None:
        return made
    more, column = done[source.bias.serial], (-1,) + (1,) * (made.v.ndim - 2)
    return made + Num(more.v.reshape(column), more.e.reshape(column))


def _pooled(source: Pooling, x: Num) -> Num:
    v, e = pool.compute(source, x.v), np.abs(pool.compute(source, x.e))
    if source.kind == "avg":
        size = pool.compute(source, np.abs(x.v))
        return Num(v, e + (_rounding(math.prod(source.window.kernel)) + 3 * ULP) * size)
    return Num(v, np.minimum(e, x.e.max(initial=0.0)))
