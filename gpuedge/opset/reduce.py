"""Reductions along axes: sums, products, extremes, norms, and where the extremes are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, prod

import numpy as np

from gpuedge.core.dtypes import INTEGERS
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import f, magnitude, pick, quotient
from gpuedge.opset.expr import Expr, Position, apply, lift
from gpuedge.opset.index import Index, axes, axis
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import ANY, Operator
from gpuedge.opset.sorting import order, taken
from gpuedge.opset.tensor import (
    Combine,
    Reduce,
    Tensor,
    computed,
    constant,
    mapped,
    mean,
    reduced,
    reshape,
    spread,
)

FIRST_INPUTS = 18
"""Operator set from which the axes are an input instead of an attribute; of ReduceSum earlier."""


def _same(x: Expr) -> Expr:
    return x


def _square(x: Expr) -> Expr:
    return x * x


@dataclass(frozen=True)
class _Kind:
    """A reduction: what is done before and after, what nothing gives, what it takes besides."""

    combine: Combine
    nothing: float
    before: Callable[[Expr], Expr] = _same
    after: Callable[[Expr], Expr] = _same
    dtypes: tuple[str, ...] = INTEGERS


KINDS: dict[str, _Kind] = {
    "ReduceSum": _Kind("sum", 0.0),
    "ReduceMax": _Kind("max", -inf, dtypes=ANY),
    "ReduceMin": _Kind("min", inf, dtypes=ANY),
    "ReduceProd": _Kind("prod", 1.0),
    "ReduceL1": _Kind("sum", 0.0, magnitude),
    "ReduceL2": _Kind("sum", 0.0, _square, f("sqrt"), ()),
    "ReduceSumSquare": _Kind("sum", 0.0, _square),
    "ReduceLogSum": _Kind("sum", -inf, after=f("log"), dtypes=()),
}


def _is_of_no_bool(call: OperatorCall) -> bool:
    """Tell whether a node reduces no bool at all, for which ONNX Runtime has no value."""
    return call.input(0).dtype == "bool" and not call.input(0).size


def _along(call: OperatorCall, rank: int) -> tuple[int, ...]:
    """Return the axes, all of them where none are given."""
    if call.version < (13 if call.op == "ReduceSum" else FIRST_INPUTS):
        given = call.ints("axes", ())
    else:
        given = call.constant_ints(1, "axes") or ()
    if not given:
        return () if call.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({call.axis(a, rank) for a in given}))


def _of_nothing(x: Tensor, along: tuple[int, ...], keeps: bool, value: float) -> Tensor:
    """Return what a reduction of no elements gives; the extreme of integers is their last one."""
    shape = [1 if i in along else n for i, n in enumerate(x.shape) if keeps or i not in along]
    if x.dtype in INTEGERS:
        about = np.iinfo(x.dtype)
        value = min(max(value, about.min), about.max)
    return constant(np.full(shape, value > 0 if x.dtype == "bool" else value, x.dtype))


def _reduce(kind: _Kind, call: OperatorCall) -> Tensor:
    x, keeps = call.input(0), bool(call.integer("keepdims", 1))
    along = _along(call, x.rank)
    if not along:
        return mapped(lambda v: kind.after(kind.before(v)), x)
    if not prod(x.shape[i] for i in along):
        return _of_nothing(x, along, keeps, kind.nothing)
    total = reduced(kind.combine, x, along, keepdims=keeps, before=kind.before)
    return total if kind.after is _same else mapped(kind.after, total)


def _mean(call: OperatorCall) -> Tensor:
    x, keeps = call.input(0), bool(call.integer("keepdims", 1))
    along = _along(call, x.rank)
    count = prod(x.shape[i] for i in along)
    if not count:
        raise call.unsupported("is the mean of nothing")
    if x.dtype in INTEGERS:
        total = reduced("sum", x, along, keepdims=keeps)
        return mapped(lambda s: quotient(s, lift(float(count))), total)
    return mean(x, along, keepdims=keeps) if along else reshape(x, x.shape)


def _log_sum_exp(call: OperatorCall) -> Tensor:
    """The maximum goes first, and comes back at last, so that nothing overflows."""
    x, keeps = call.input(0), bool(call.integer("keepdims", 1))
    along = _along(call, x.rank)
    if not along:
        return reshape(x, x.shape)
    if not prod(x.shape[i] for i in along):
        return _of_nothing(x, along, keeps, -inf)
    peak = reduced("max", x, along)
    total = reduced("sum", mapped(lambda v, m: apply("exp", v - m), x, peak), along)
    whole = mapped(lambda s, m: apply("log", s) + m, total, peak)
    dropped = tuple(n for i, n in enumerate(x.shape) if i not in along)
    return whole if keeps else reshape(whole, dropped)


# --- where the extremes are ----------------------------------------------------------------------


def extreme_at(x: Tensor, along: int, *, largest: bool = True, last: bool = False) -> Tensor:
    """Return the position of the first (or last) extreme along an axis, which stays with extent 1.

    Two passes: the extreme, then the least (or greatest) position where it is.
    """
    extent = x.shape[along]
    peak = reduced("max" if largest else "min", x, (along,))
    shape = peak.shape
    position: list[Index] = list(axes(shape))
    position[along] = axis(len(shape), extent)
    own = spread(x, position)
    here = Position(position[along])
    hit = equal(own, spread(peak, position))
    place = pick(hit, here, -1.0 if last else float(extent))
    combine: Combine = "max" if last else "min"
    extreme = Tensor(shape, "int64", Reduce(combine, (extent,), place))
    extreme.span = (-1.0, float(extent))
    return mapped(lambda p: apply("min", p, extent - 1.0), extreme)


def _arg(call: OperatorCall) -> Tensor:
    x = call.input(0)
    along = call.axis(call.integer("axis", 0), x.rank)
    if not x.rank or not x.shape[along]:
        raise call.unsupported("looks for the extreme of nothing")
    places = extreme_at(x, along, largest=call.op == "ArgMax",
                      last=bool(call.integer("select_last_index", 0)))  # fmt: skip
    if call.integer("keepdims", 1):
        return places
    return reshape(places, (*x.shape[:along], *x.shape[along + 1 :]))


def _hardmax(call: OperatorCall) -> Tensor:
    x = call.input(0)
    if not x.size:
        return reshape(x, x.shape)
    flat = call.version < 13
    along = call.axis(call.integer("axis", 1 if flat else -1), x.rank)
    rows = reshape(x, (*x.shape[:along], prod(x.shape[along:]))) if flat else x
    best = extreme_at(rows, along)
    hits = computed(rows.shape, x.dtype, lambda position: equal(
        Position(position[along]), spread(best, position)))  # fmt: skip
    return reshape(hits, x.shape) if flat else hits


def _top_k(call: OperatorCall) -> tuple[Tensor, ...]:
    x = call.input(0)
    along = call.axis(call.integer("axis", -1), x.rank)
    given = call.constant_ints(1, "count") if call.version >= 10 else (call.integer("k", 0),)
    if not given or not 0 <= given[0] <= x.shape[along]:
        raise call.bad_shape(f"is to give the first {list(given or ())} of {x.shape[along]}")
    return ranked(x, along, given[0], largest=bool(call.integer("largest", 1)))


def ranked(x: Tensor, along: int, count: int, *, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the first elements along an axis by size, and their positions; equal ones stay so."""
    shape = (*x.shape[:along], count, *x.shape[along + 1 :])
    if 0 in shape:
        return (constant(np.empty(shape, x.dtype)), constant(np.empty(shape, np.int64)))
    places = order(x, along, count, largest=largest)
    return taken(x, places, along), places


OPERATORS: tuple[Operator, ...] = (
    *(Operator(name, partial(_reduce, kind), parameters=(1,), dtypes=kind.dtypes,
               remark="with constant axes",
               differs=_is_of_no_bool if kind.dtypes == ANY else None)
      for name, kind in KINDS.items()),
    Operator("ReduceMean", _mean, parameters=(1,), dtypes=INTEGERS, remark="with constant axes"),
    Operator("ReduceLogSumExp", _log_sum_exp, parameters=(1,), remark="with constant axes"),
    Operator("ArgMax", _arg, dtypes=INTEGERS),
    Operator("ArgMin", _arg, dtypes=INTEGERS),
    Operator("Hardmax", _hardmax),
    Operator("TopK", _top_k, parameters=(1,), dtypes=INTEGERS, remark="with a constant count"),
)  # fmt: skip
