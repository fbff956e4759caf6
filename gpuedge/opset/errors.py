"""Running errors: how far float32 on a GPU may be from exact values, of formulas and of operators.

Every function, sum and rounding adds the error that it is allowed (`gpuedge.opset.functions`,
`gpuedge.opset.bounds`), and carries on those of its operands. In a whole operator, errors of
different origin are added as independent ones: by their squares (Higham and Mary, "A new approach
to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019), because worst cases of
a deep model exceed every value. A result may lie `FACTOR` of them away.

Whole numbers have steps instead: by how many they may differ, at most. A number that is rounded
may end at the other side of a tie if one lies within `FACTOR` of its errors; whole numbers that are
made of exact ones are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from gpuedge.core.dtypes import ACCEPTED as FLOATS
from gpuedge.opset import conv, pool, winograd
from gpuedge.opset.bounds import HALF_MOST, HALF_TINY, HALF_U, TINY, ULP, Array, Num, U
from gpuedge.opset.evaluate import Elements
from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, Position, Where, lift, loads, walk
from gpuedge.opset.functions import FUNCTIONS
from gpuedge.opset.index import ZERO
from gpuedge.opset.ranges import Spans
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
    mapped,
    reachable,
)

FACTOR = 8.0
"""A float may differ by so many times its running error."""

HUGE = 1e37
"""Sums of values beyond this may overflow on the way."""

MOST = 2.0**22
"""Up to here float32 holds whole numbers and halves, in whatever order they are added."""

MOST_MOVING = 3
"""Places that are moved together, each to both sides."""

FAR = 1000.0
"""Beyond this nothing is promised about sine and cosine (``docs/numerics.md``)."""

STEPS = ("steps8", "steps16")
ROUNDING = frozenset(("floor", "ceil", "round", *STEPS, "sign", "above", "equal", "none"))
"""Functions that make whole numbers of any."""

KEEPING = frozenset(("add", "sub", "mul", "neg", "abs", "max", "min", "and", "pick", "keep_nan"))
"""Functions that make whole numbers of whole numbers."""


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
    for expr in walk(body):
        if isinstance(expr, Number):
            values[id(expr)] = Num.of(expr.value)
        elif isinstance(expr, Apply):
            args = [values[id(a)] for a in expr.args]
            values[id(expr)] = FUNCTIONS[expr.function].error(*args)
    result: Num = values[id(body)]
    return result


def exact(array: Array) -> Num:
    """Return values without errors."""
    v = array.astype(np.float64)
    return Num(v, np.zeros_like(v))


def allowed(x: Num, *, is_whole: bool) -> Array:
    """Return by how much values may differ: whole numbers by their steps."""
    return x.e if is_whole else FACTOR * x.e


def tensor_errors(outputs: Iterable[Tensor], known: Mapping[str, Num], bias: float) -> list[Num]:
    """Return tensors with their running errors; integers with their steps.

    Parameters
    ----------
    outputs : iterable of Tensor
    known : mapping of str to Num
        What the tensors are made of, with the errors and steps that it has already.
    bias : float
        Relative errors that all terms of a sum may have in common.
    """
    wanted = [_at_once(tensor) for tensor in outputs]
    done = _Done()
    for tensor in reachable(wanted):
        number = _found(tensor, known, done, bias)
        if tensor.dtype not in FLOATS and tensor.serial not in done.whole:
            done.whole.add(tensor.serial)
            number = Num(number.v, np.floor(FACTOR * number.e))
        done.values[tensor.serial] = Num(
            number.v.reshape(tensor.shape), number.e.reshape(tensor.shape)
        )
    spans = Spans()
    return [
        done.number(t) if t.dtype in FLOATS else _bounded(t, done.steps(t), spans) for t in wanted
    ]


def _at_once(tensor: Tensor) -> Tensor:
    """Return what a sum in two digits is, where there is a tensor of the sum itself."""
    digits = tensor.digits
    if digits is None or not isinstance(digits.rounded.source, (Product, Convolution)):
        return tensor
    rounded = mapped(lambda v: v, digits.rounded, dtype=tensor.dtype)
    rounded.span = tensor.span
    return rounded


def _bounded(tensor: Tensor, x: Num, spans: Spans) -> Num:
    """Return integers; nothing is known where steps reach over half of what there is."""
    if tensor.dtype == "bool":
        return Num(x.v, np.minimum(x.e, 1.0))
    low, high = spans.of(tensor)
    return Num(x.v, np.where((x.e > 0) & (x.e >= (high - low) / 2), np.inf, x.e))


@dataclass
class _Done:
    """Tensors that are known, and the numbers of those whose errors are steps."""

    values: dict[int, Num] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)

    def number(self, tensor: Tensor) -> Num:
        """Return a tensor with running errors."""
        x = self.values[tensor.serial]
        return Num(x.v, _spread(x.e)) if tensor.serial in self.whole else x

    def steps(self, tensor: Tensor) -> Num:
        """Return whole numbers with steps."""
        return self.values[tensor.serial]

    def add(self, tensor: Tensor, x: Num, *, is_whole: bool) -> Num:
        """Note how a tensor's errors are counted."""
        if is_whole:
            self.whole.add(tensor.serial)
        return x


def _spread(steps: Array) -> Array:
    """Return running errors of whole numbers: of a rounding, and of what is more than a step.

    Of rounding either way a tie makes half a step or less; those of two devices have a variance
    of 1/6 (Bennett, "Spectra of quantized signals", 1948).
    """
    more = np.maximum(steps - 1, 0) / FACTOR
    return np.where(steps > 0, np.sqrt(more**2 + 1 / 6), 0.0)


def _found(tensor: Tensor, known: Mapping[str, Num], done: _Done, bias: float) -> Num:
    source = tensor.source
    if isinstance(source, Given):
        x = known[source.name]  # of infinity nothing follows
        number = Num(x.v, np.where(np.abs(x.v) > HUGE, np.inf, x.e))
        is_digit = source.part != "whole"
        is_whole = is_digit or tensor.dtype not in FLOATS
        return done.add(
            tensor, _digit(number, source.part) if is_digit else number, is_whole=is_whole
        )
    if isinstance(source, Constant):
        number = known[source.name] if source.name in known else exact(source.array)
        is_exact = not number.e.any() and bool((number.v == np.rint(number.v)).all())
        return done.add(tensor, number, is_whole=is_exact or tensor.dtype not in FLOATS)
    if isinstance(source, Map):
        number, is_whole = _elements(tensor.shape, source.body, done)
        return done.add(tensor, number, is_whole=is_whole)
    if isinstance(source, Reduce):
        return _reduced(tensor, source, done, bias)
    if isinstance(source, Pooling):
        is_whole = source.x.serial in done.whole and source.kind == "max"
        x = done.steps(source.x) if is_whole else done.number(source.x)
        return done.add(tensor, _pooled(source, x), is_whole=is_whole)
    return _of_products(tensor, source, done, bias)


def _digit(x: Num, part: str) -> Num:
    """Return one of the two digits of integers; steps are those of the digit."""
    high, over = np.floor(x.v / 65536), np.floor(x.e / 65536) + 1
    if part == "high":
        return Num(high, np.where(x.e > 0, over, 0.0))
    return Num(x.v - 65536 * high, np.where(x.e > 0, 65535.0, 0.0))


def _elements(shape: tuple[int, ...], body: Expr, done: _Done) -> tuple[Num, bool]:
    """Return an expression at all positions of a shape, and whether its errors are steps.

    Errors of different tensors by squares; steps by their sum.
    """
    read = {load.tensor.serial: load.tensor for load in loads(body)}
    parts = _whole_parts(body, done.whole)
    is_whole = parts[id(body)]
    given = {n: done.steps(t) if is_whole else done.number(t) for n, t in read.items()}
    all_of = _Body(shape, body, given, parts)
    v, own = all_of.around(frozenset())
    if is_whole:
        _, e = all_of.around(given)
        if all(n in done.whole for n in read):
            e = np.where(e > own, e, 0.0)
        return Num(v, np.floor(e)), True
    inexact = {n for n, x in given.items() if x.e.any()}
    if len(inexact) == 1:
        return all_of.around(inexact), False
    squares: Array = np.zeros(())
    for tensor in inexact:
        squares = squares + np.maximum(all_of.around({tensor}).e - own, 0.0) ** 2
    return Num(v, own + np.sqrt(squares)), False


def _whole_parts(body: Expr, tensors: Iterable[int]) -> dict[int, bool]:
    """Return which parts of an expression are whole numbers, by identity."""
    whole: dict[int, bool] = {}
    for expr in walk(body):
        if isinstance(expr, Number):
            is_whole = expr.value.is_integer()
        elif isinstance(expr, LoadExpr):
            is_whole = expr.tensor.serial in tensors
        elif isinstance(expr, Apply):
            args = expr.args[1:] if expr.function == "pick" else expr.args
            is_whole = expr.function in ROUNDING or (
                expr.function in KEEPING and all(whole[id(a)] for a in args)
            )
        elif isinstance(expr, Where):
            is_whole = whole[id(expr.yes)] and whole[id(expr.no)]
        else:
            is_whole = True
        whole[id(expr)] = is_whole
    return whole


class _Body:
    """An expression at all positions of a shape.

    Parameters
    ----------
    shape : tuple of int
    body : Expr
    given : mapping of int to Num
        What it loads: with steps if it is a whole number itself, else with errors.
    whole : mapping of int to bool
        Which parts are whole numbers, by identity.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        body: Expr,
        given: Mapping[int, Num],
        whole: Mapping[int, bool],
    ) -> None:
        self.shape, self.body, self.given, self.whole = shape, body, given, whole
        self.has_steps = whole[id(body)]
        self.rounded = _rounded(body, whole)

    def around(self, inexact: Collection[int]) -> Num:
        """Return it as if only some tensors had errors.

        What is rounded to a place, as in an image, is looked at from both sides of where it is: on
        either side of a pixel another pair of them is read, and the result hardly differs.
        """
        errors, fixed = dict[int, Array](), dict[int, Num]()
        for part in self.rounded:
            at = self._once(part, inexact, fixed)
            errors[id(part)] = np.nan_to_num(at.e, nan=0.0, posinf=0.0)
            fixed[id(part)] = Num(at.v, np.where(np.isfinite(at.e), 0.0, np.inf))
        v, e = self._once(self.body, inexact, fixed)
        moving = [n for n, off in errors.items() if off.any()]
        signs: Iterable[tuple[int, ...]] = product((-1, 0, 1), repeat=len(moving))
        if len(moving) > MOST_MOVING:  # one after the other
            signs = (tuple(s * (i == k) for k in range(len(moving)))
                     for i in range(len(moving)) for s in (-1, 1))  # fmt: skip
        apart: Array = np.zeros(self.shape)
        for sign in signs if moving else ():
            moved = {n: Num(fixed[n].v + s * FACTOR * errors[n], np.zeros(()))
                     for n, s in zip(moving, sign, strict=True) if s}  # fmt: skip
            apart = np.maximum(apart, np.abs(self._once(self.body, (), moved).v - v))
        return Num(v, e + (apart if self.has_steps else apart / FACTOR))

    def _once(self, body: Expr, inexact: Collection[int], fixed: Mapping[int, Num]) -> Num:
        """Return an expression with some parts fixed."""
        at = Elements(self.shape, {serial: x.v for serial, x in self.given.items()})
        errors = Elements(self.shape, {serial: self.given[serial].e for serial in inexact})
        errors.values = at.values
        numbers: dict[int, Num] = {}
        for expr in walk(body):
            number = fixed.get(id(expr))
            if number is None:
                number = self._part(expr, numbers, at, errors, inexact)
            numbers[id(expr)] = number
            at.values[id(expr)] = number.v
        v, e = numbers[id(body)]
        return Num(np.broadcast_to(v, self.shape), np.broadcast_to(e, self.shape))

    def _part(
        self, expr: Expr, numbers: Mapping[int, Num], at: Elements, errors: Elements,
        inexact: Collection[int],
    ) -> Num:  # fmt: skip
        if isinstance(expr, Number):
            return Num.of(expr.value)
        if isinstance(expr, LoadExpr):
            v, serial = at.load(expr), expr.tensor.serial
            e = errors.load(expr) if serial in inexact else np.zeros_like(v)
            return Num(v, np.where(_is_open(expr.parts, numbers), _reach(self.given[serial]), e))
        if isinstance(expr, Apply):
            return self._applied(expr, [numbers[id(a)] for a in expr.args], at)
        if isinstance(expr, Where):
            yes, no, test = numbers[id(expr.yes)], numbers[id(expr.no)], at.test(expr.test)
            either = np.abs(yes.v - no.v) + np.maximum(yes.e, no.e)
            e = np.where(_is_open(expr.parts[2:], numbers), either, np.where(test, yes.e, no.e))
            return Num(np.where(test, yes.v, no.v), e)
        number = Num.of(at.compute(expr).astype(np.float64))
        if isinstance(expr, Position):
            wide = float(expr.index.high - expr.index.low)
            return Num(number.v, np.where(_is_open(expr.parts, numbers), wide, 0.0))
        return number

    def _applied(self, expr: Apply, args: list[Num], at: Elements) -> Num:
        """Return a function of parts; sums and products of whole numbers and halves are exact.

        In a whole number parts have steps or errors, and what is rounded takes `FACTOR` errors to
        the next tie.
        """
        kinds = [self.whole[id(a)] for a in expr.args]
        is_whole = self.whole[id(expr)]
        if self.has_steps and expr.function in ROUNDING:
            args = [a if k else Num(a.v, FACTOR * a.e) for a, k in zip(args, kinds, strict=True)]
        elif self.has_steps and not is_whole:
            args = [Num(a.v, a.e / FACTOR) if k else a for a, k in zip(args, kinds, strict=True)]
        number = _applied(expr.function, args)
        if expr.function in ("above", "equal"):  # an element and itself are equal
            a, b = expr.args
            if isinstance(a, LoadExpr) and isinstance(b, LoadExpr):
                return Num(number.v, np.where(at.is_same(a, b), 0.0, number.e))
            return number
        if expr.function not in ("add", "sub", "mul"):
            return number
        is_held: Any = is_whole or (
            (number.v == np.rint(2 * number.v) / 2) & (np.abs(number.v) < MOST)
        )
        if self.has_steps and not is_whole:
            is_held |= (number.v.astype(np.float32) == number.v) & (np.abs(number.v) >= TINY)
        return Num(number.v, np.where(is_held & (args[0].e + args[1].e == 0), 0.0, number.e))


def _rounded(body: Expr, whole: Mapping[int, bool]) -> list[Expr]:
    """Return what is rounded to find places to load from, operands first."""
    places = [p for expr in walk(body) if isinstance(expr, LoadExpr) for p in expr.parts]
    places_rounded = {
        id(expr.args[0]): expr.args[0]
        for place in places
        for expr in walk(place)
        if isinstance(expr, Apply) and expr.function in ("floor", "ceil", "round")
        and not whole[id(expr.args[0])]
    }  # fmt: skip
    return list(places_rounded.values())


def _is_open(places: Iterable[Expr], numbers: Mapping[int, Num]) -> Any:
    """Return where a place that is computed from these may be another one."""
    is_open: Any = False
    for place in places:
        is_open = is_open | (numbers[id(place)].e > 0)
    return is_open


def _reach(x: Num) -> float:
    """Return how far any element of a tensor may be from any other."""
    return float(np.ptp(x.v) + 2 * x.e.max()) if x.v.size else 0.0


def _applied(function: str, args: list[Num]) -> Num:
    """Return a function of numbers with errors; nothing is known where it is not promised."""
    number = FUNCTIONS[function].error(*args)
    x = args[-1] if function in ("div", *STEPS) else args[0]
    if function in ("sin", "cos"):
        return Num(number.v, np.where(np.abs(x.v) > FAR, np.inf, number.e))
    if function in ("log", "div", "pow", *STEPS):  # zero is possible
        return Num(number.v, np.where((np.abs(x.v) <= x.e) & (x.e > 0), np.inf, number.e))
    return number


def _reduced(tensor: Tensor, source: Reduce, done: _Done, bias: float) -> Num:
    x, is_whole = _elements((*tensor.shape, *source.over), source.body, done)
    if tensor.dtype not in FLOATS and not is_whole:
        x, is_whole = Num(x.v, np.floor(FACTOR * x.e)), True
    along = tuple(range(tensor.rank, tensor.rank + len(source.over)))
    if is_whole:
        done.whole.add(tensor.serial)
    if source.combine == "prod":
        number = _multiplied(x, along)
        return Num(number.v, np.where(x.e.any(axis=along), number.e, 0.0)) if is_whole else number
    sought = _sought(source) if is_whole else None
    if sought is not None:  # it is one of those that may be
        hit, place = (_elements((*tensor.shape, *source.over), part, done)[0] for part in sought)
        first = np.max if source.combine == "max" else np.min
        extreme = np.asarray(first(x.v, axis=along))
        away = np.abs(place.v - np.expand_dims(extreme, along))
        may_be = np.where((hit.v > 0.5) | (hit.e > 0), away, 0.0)
        return Num(extreme, np.asarray(may_be.max(axis=along, initial=0.0)))
    if source.combine != "sum":
        best = np.max if source.combine == "max" else np.min
        return Num(np.asarray(best(x.v, axis=along)), np.asarray(x.e.max(axis=along, initial=0.0)))
    v, size = x.v.sum(axis=along), np.abs(x.v).sum(axis=along)
    beyond = np.where(size > HUGE, np.inf, 0.0)
    if is_whole:
        squares = (_spread(x.e) ** 2).sum(axis=along)
        return Num(np.asarray(v), _least(x.e.sum(axis=along), squares) + beyond)
    before = beyond + np.sqrt((x.e**2).sum(axis=along)) + bias * np.abs(v)
    return Num(np.asarray(v), np.asarray(before + _rounding(math.prod(source.over)) * size))


def _sought(source: Reduce) -> tuple[Expr, Expr] | None:
    """Return the test and the places, where the first place of an extreme is looked for."""
    body = source.body
    if source.combine not in ("max", "min") or not isinstance(body, Apply):
        return None
    hit = body.args[0] if body.function == "pick" else body
    test = hit.yes if isinstance(hit, Where) else hit
    if not isinstance(test, Apply) or test.function != "equal":
        return None
    is_extreme = not any(isinstance(a, (Number, Position)) for a in test.args)
    return (hit, body.args[1]) if is_extreme and body.function == "pick" else None


def _least(steps: Array, squares: Array) -> Array:
    """Return the steps of a sum: all of its terms', or `FACTOR` errors if that is less."""
    return np.asarray(np.floor(np.minimum(steps, FACTOR * np.sqrt(squares))))


def _multiplied(x: Num, along: tuple[int, ...]) -> Num:
    """Return a product: relative errors add up, and there is a rounding for each factor."""
    v = np.prod(x.v, axis=along)
    with np.errstate(all="ignore"):
        relative = np.where(x.e > 0, x.e / np.abs(x.v), 0.0) + U
    return Num(np.asarray(v), np.asarray(np.abs(v) * np.expm1(relative.sum(axis=along)) + TINY))


def _rounding(terms: int) -> float:
    """Return what adding up so many terms adds to the error, relative to their sizes."""
    return U * (math.sqrt(terms) + 2)


def _of_products(tensor: Tensor, source: Product | Convolution, done: _Done, bias: float) -> Num:
    """Return a matrix product, or a convolution; of whole numbers it is exact but for steps."""
    first, second = (source.a, source.b) if isinstance(source, Product) else (source.x, source.w)
    is_whole = first.serial in done.whole and second.serial in done.whole and not source.is_half
    if isinstance(source, Convolution) and winograd.may_serve(source):
        is_whole = False
    if isinstance(source, Product):
        terms, added = first.shape[-1], None
    else:
        terms, added = math.prod(second.shape[1:]), source.bias
        if source.is_transposed:
            terms = math.prod(second.shape) // (second.shape[1] * source.group)

    def multiply(a: Array, b: Array) -> Array:
        if isinstance(source, Product):
            return np.asarray(np.matmul(a, b))
        return conv.compute(source, a, b, None)

    is_whole = is_whole and (added is None or added.serial in done.whole)
    read = done.steps if is_whole else done.number
    a, b = read(first), read(second)
    if is_whole:
        number = _counted_products(multiply, a, b)
    else:
        number = _products(
            multiply, a, b, terms, bias, is_half=source.is_half, least=_in_tiles(source, a, b)
        )
    if added is not None:
        more, column = read(added), (-1,) + (1,) * (number.v.ndim - 2)
        more = Num(more.v.reshape(column), more.e.reshape(column))
        number = Num(number.v + more.v, number.e + more.e) if is_whole else number + more
    part = "whole" if source.carry is None else source.carry.part
    number = number if part == "whole" else _digit(number, part)
    return done.add(tensor, number, is_whole=is_whole)


def _in_tiles(source: Product | Convolution, x: Num, w: Num) -> Array:
    """Return what transformed tiles err by, where they may serve; of overflow nothing is known."""
    if not isinstance(source, Convolution) or not winograd.may_serve(source):
        return np.zeros(())
    e = winograd.running_error(x, w, source.window)
    return np.where(e < HUGE * U, e, np.inf)


def _counted_products(multiply: Callable[[Array, Array], Array], a: Num, b: Num) -> Num:
    """Return sums of products of whole numbers with steps."""
    v = multiply(a.v, b.v)
    if not a.e.any() and not b.e.any():
        return Num(v, np.zeros_like(v))
    x, y, c, d = np.abs(a.v), np.abs(b.v), _spread(a.e), _spread(b.e)
    steps = multiply(x, b.e) + multiply(a.e, y) + multiply(a.e, b.e)
    squares = multiply(x**2, d**2) + multiply(c**2, y**2) + multiply(c**2, d**2)
    return Num(v, _least(np.abs(steps), np.abs(squares)))


def _products(
    multiply: Callable[[Array, Array], Array],
    a: Num,
    b: Num,
    terms: int,
    bias: float,
    *,
    is_half: bool = False,
    least: Array,
) -> Num:
    """Return sums of products, a matrix product or a convolution, that err by `least` or more."""
    v, size = multiply(a.v, b.v), multiply(np.abs(a.v), np.abs(b.v))
    e = np.maximum(_rounding(terms) * size, least)
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


def _pooled(source: Pooling, x: Num) -> Num:
    v, e = pool.compute(source, x.v), np.abs(pool.compute(source, x.e))
    if source.kind == "avg":
        size = pool.compute(source, np.abs(x.v))
        return Num(v, e + (_rounding(math.prod(source.window.kernel)) + 3 * ULP) * size)
    return Num(v, np.minimum(e, x.e.max(initial=0.0)))
