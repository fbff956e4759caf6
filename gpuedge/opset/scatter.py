"""Writing at positions that are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

import numpy as np

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, pick
from gpuedge.opset.expr import Expr, LoadExpr, Position, apply, lift, where
from gpuedge.opset.gather import indexed_along, loaded
from gpuedge.opset.index import Index, Loaded, axes, axis, choose, flatten, of, unflatten
from gpuedge.opset.limits import by_axis, by_row
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import ANY, GROWS, Operator
from gpuedge.opset.sorting import MOST_RANKED, order, taken, upper_bound
from gpuedge.opset.tensor import (
    Combine,
    Reduce,
    Tensor,
    at,
    computed,
    constant,
    mapped,
    reshape,
    spread,
)

MOST_PLACES: Final = 1 << 24
"""Places that float32 tells apart."""


def _reduction(call: OperatorCall) -> str:
    """Return the function that updates of one place are combined by; none where the last counts."""
    how = call.text("reduction", "none")
    if how != "none" and how not in REDUCTIONS:
        raise call.unsupported(f"has reduction={how!r}, which does not exist")
    return "" if how == "none" else how


def _is_long(updates: int, places: int) -> bool:
    """Tell whether updates are sorted by their places, instead of every place looking for its own.

    A search of n places among m updates takes n m comparisons, sorting about m log2(m)^2 / 2.
    """
    return updates > MOST_RANKED and updates.bit_length() ** 2 < 2 * places <= 2 * MOST_PLACES


def _searched(
    x: Tensor, updates: Tensor, extent: int, how: str,
    hits: Callable[[tuple[Index, ...], Index], tuple[Expr, Sequence[Index]]],
) -> Tensor:  # fmt: skip
    """Return data with updates put in: every element looks through those that may meet it.

    `hits` gives, for a position of the result and a step below `extent`, a number that is 1 where
    the update of that step meets it, and the place of the update.
    """
    here, step = axes(x.shape), axis(x.rank, extent)
    hit, place = hits(here, step)
    if not how:
        last = Tensor(x.shape, "int64", Reduce("max", (extent,), pick(hit, Position(step), -1.0)))

        def written(position: tuple[Index, ...]) -> Expr:
            update = of(Loaded(at(last, position), -1, extent - 1))
            _, own = hits(position, choose([update], update, Index()))
            new = LoadExpr(updates, choose([update], flatten(own, updates.shape), Index()))
            return where([update], new, at(x, position))

        return computed(x.shape, x.dtype, written)
    combine, nothing = REDUCTIONS[how]
    new = at(updates, place)
    body = pick(hit, new, at(x, here) if nothing is None else nothing)
    total = Tensor(x.shape, x.dtype, Reduce(combine, (extent,), body))
    return mapped(lambda a, b: apply(how, a, b), x, total)


REDUCTIONS: Final[dict[str, tuple[Combine, float | None]]] = {
    "add": ("sum", 0.0), "mul": ("prod", 1.0), "max": ("max", None), "min": ("min", None),
}  # fmt: skip
"""How all updates of one place are combined, and what stands for one of another place."""


def _sorted(x: Tensor, targets: Tensor, updates: Tensor, along: int, how: str) -> Tensor:
    """Return data with updates put in, which are sorted by the places that they go to.

    Parameters
    ----------
    x : Tensor
    targets : Tensor
        Of the rank of `x`: for each update along the axis its place on that axis of `x`. Other
        axes are as long as those of `updates`, or 1 where these share their places.
    updates : Tensor
        Other axes may be shorter than those of `x`.
    """
    count, extent = targets.shape[along], x.shape[along]
    by_place = order(targets, along, count)
    rising = taken(targets, by_place, along)
    rising.span = 0.0, float(extent - 1)
    ends = upper_bound(rising, along, extent)
    new = taken(updates, by_place, along)
    if how:
        new = _runs(new, rising, along, how)

    def written(position: tuple[Index, ...]) -> Expr:
        inside = [n - 1 - p for i, (p, n) in enumerate(zip(position, updates.shape, strict=True))
                  if i != along]  # fmt: skip
        safe = [choose(inside, p, Index()) for p in position]
        safe[along] = position[along]
        end = of(Loaded(spread(ends, safe), 0, count))
        own = [*safe[:along], choose([end - 1], end - 1, Index()), *safe[along + 1 :]]
        here = Position(position[along])
        old, update = at(x, position), at(new, own)
        met = equal(spread(rising, own), here)
        value = apply(how, old, update) if how else update
        return where([*inside, end - 1], pick(met, value, old), old)

    return computed(x.shape, x.dtype, written)


def _runs(values: Tensor, rising: Tensor, along: int, how: str) -> Tensor:
    """Combine every element with those before it that go to the same place.

    Neighbours at distances 1, 2, 4, ... (Hillis and Steele, as `gpuedge.opset.scan`), as long as
    both are in one run: between two equal places lie none but the same.
    """
    count = values.shape[along]
    by = 1
    while by < count:
        values = _doubled(values, rising, along, by, how)
        by *= 2
    return values


def _doubled(values: Tensor, rising: Tensor, along: int, by: int, how: str) -> Tensor:
    distance = constant(np.array([by], np.float32))
    count = values.shape[along]

    def body(position: tuple[Index, ...]) -> Expr:
        before = Position(position[along]) - at(distance, (Index(),))
        place = of(Loaded(before, 0, count - 1))
        other = [*position[:along], place, *position[along + 1 :]]
        own = at(values, position)
        is_same = equal(spread(rising, position), spread(rising, other))
        met = is_same * (1.0 - above(0.0, before))
        return pick(met, apply(how, at(values, other), own), own)

    return computed(values.shape, values.dtype, body)


def _scatter_elements(call: OperatorCall) -> Tensor:
    x, indices, along = indexed_along(call)
    updates = call.input(2)
    if indices.shape != updates.shape or indices.rank != x.rank:
        raise call.bad_shape("has indices that do not fit its updates")
    extent, count = x.shape[along], indices.shape[along]
    how = _reduction(call)
    if not (count and x.size):
        return reshape(x, x.shape)
    if _is_long(count, extent):
        targets = computed(indices.shape, "int64", lambda p: Position(loaded(indices, p, extent)))
        return _sorted(x, targets, updates, along, how)

    def hits(position: tuple[Index, ...], step: Index) -> tuple[Expr, Sequence[Index]]:
        place = [*position[:along], step, *position[along + 1 :]]
        inside = [n - 1 - p for i, (p, n) in enumerate(zip(place, indices.shape, strict=True))
                  if i != along]  # fmt: skip
        safe = [choose(inside, p, Index()) for p in place]
        target = loaded(indices, tuple(safe), extent)
        met = equal(Position(target), Position(position[along]))
        return where(inside, met, 0.0), safe

    return _searched(x, updates, count, how, hits)


def _scatter_nd(call: OperatorCall) -> Tensor:
    x, indices, _ = indexed_along(call)
    updates = call.input(2)
    depth = indices.shape[-1] if indices.rank else 0
    if depth > x.rank or updates.shape != (*indices.shape[:-1], *x.shape[depth:]):
        raise call.bad_shape("has indices that do not fit its updates")
    rows, places = indices.shape[:-1], x.shape[:depth]
    how = _reduction(call)
    if not (prod(rows) and x.size):
        return reshape(x, x.shape)
    if _is_long(prod(rows), prod(places)):

        def target(position: tuple[Index, ...]) -> Expr:
            row = unflatten(position[0], rows)
            place = [loaded(indices, (*row, Index(i)), n) for i, n in enumerate(places)]
            return Position(flatten(place, places))

        slices = prod(x.shape[depth:])
        targets = computed((prod(rows), 1), "int64", target)
        flat = _sorted(
            reshape(x, (prod(places), slices)),
            targets,
            reshape(updates, (prod(rows), slices)),
            0,
            how,
        )
        return reshape(flat, x.shape)

    def hits(position: tuple[Index, ...], step: Index) -> tuple[Expr, Sequence[Index]]:
        row = unflatten(step, rows)
        met: Expr = lift(1.0)
        for i in range(depth):
            target = loaded(indices, (*row, Index(i)), x.shape[i])
            met = met * equal(Position(target), Position(position[i]))
        return met, [*row, *position[depth:]]

    return _searched(x, updates, prod(rows), how, hits)


def _max_unpool(call: OperatorCall) -> Tensor:
    """Put every maximum back where its index says that it was.

    Indices are those of the flattened tensor that the attributes lead to; a larger one that is
    asked for has it at its begin, as in ONNX's own case.
    """
    x, indices = call.input(0), call.input(1)
    kernel = call.ints("kernel_shape", ())
    size = len(kernel)
    steps, pads = call.ints("strides", (1,) * size), call.ints("pads", (0,) * (2 * size))
    if x.rank != size + 2 or x.shape != indices.shape or len(steps) != size:
        raise call.bad_shape("has a window that does not fit")
    own = tuple(
        (n - 1) * step + k - pads[i] - pads[i + size]
        for i, (n, step, k) in enumerate(zip(x.shape[2:], steps, kernel, strict=True))
    )
    inner = (*x.shape[:2], *own)
    wanted = call.constant_ints(2, "output shape")
    shape = inner if wanted is None else wanted
    if len(shape) != x.rank or shape[:2] != inner[:2]:
        raise call.bad_shape(f"is to give {list(shape)}")
    count = prod(x.shape[2:])
    flat = reshape(x, (*x.shape[:2], count))
    where_to = reshape(indices, flat.shape)

    def written(position: tuple[Index, ...]) -> Expr:
        step = axis(x.rank, count)
        place = (*position[:2], step)
        number = flatten(position, inner)
        value = pick(equal(at(where_to, place), Position(number)), at(flat, place), 0.0)
        return where([n - 1 - p for p, n in zip(position, inner, strict=True)], value, 0.0)

    return Tensor(shape, x.dtype, Reduce("sum", (count,), written(axes(shape))))


def _col2im(call: OperatorCall) -> Tensor:
    """Add columns of blocks up to the image that they were taken from."""
    x, size, block = call.input(0), *(call.constant_ints(i, "sizes") or () for i in (1, 2))
    rank, taps = len(size), prod(block)
    steps, gaps = call.ints("strides", (1,) * rank), call.ints("dilations", (1,) * rank)
    pads = call.ints("pads", (0,) * (2 * rank))
    if not rank or {len(block), len(steps), len(gaps), len(pads) // 2} != {rank} or min(
        *size, *block, *steps, *gaps) < 1:  # fmt: skip
        raise call.bad_shape(f"puts blocks of {list(block)} into images of {list(size)}")
    counts = tuple(
        (n + pads[i] + pads[i + rank] - gaps[i] * (k - 1) - 1) // steps[i] + 1
        for i, (n, k) in enumerate(zip(size, block, strict=True))
    )
    if x.rank != 3 or x.shape[1] % taps or x.shape[2] != prod(counts) or min(counts) < 1:
        raise call.bad_shape(f"needs {list(counts)} blocks of {list(block)}")
    channels = x.shape[1] // taps
    split = reshape(x, (x.shape[0], channels, *block, *counts))
    shape = (x.shape[0], channels, *size)
    here = axes(shape)
    inner = [axis(len(shape) + i, k) for i, k in enumerate(block)]
    offsets = [p + pads[i] - inner[i] * gaps[i] for i, p in enumerate(here[2:])]
    places = [o // step for o, step in zip(offsets, steps, strict=True)]
    tests = [t for p, n in zip(places, counts, strict=True) for t in (p, n - 1 - p)]
    tests += [-(o % step) for o, step in zip(offsets, steps, strict=True)]
    own = flatten([*here[:2], *inner, *places], split.shape)
    value = where(tests, LoadExpr(split, choose(tests, own, Index())), 0.0)
    return Tensor(shape, x.dtype, Reduce("sum", block, value))


OPERATORS: tuple[Operator, ...] = (
    Operator("ScatterElements", _scatter_elements, dtypes=ANY, others=(1,), limits=by_axis),
    Operator("Scatter", _scatter_elements, dtypes=ANY, others=(1,), limits=by_axis),
    Operator("ScatterND", _scatter_nd, dtypes=ANY, others=(1,), limits=by_row),
    Operator("MaxUnpool", _max_unpool, parameters=(2,), others=(1,),
             differs=lambda call: call.has(2), facts=GROWS),
    Operator("Col2Im", _col2im, parameters=(1, 2), facts=GROWS, remark="with constant sizes"),
)  # fmt: skip
