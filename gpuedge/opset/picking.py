"""Results whose length only values tell: what is not zero, and boxes that do not overlap.

A device computes them at their longest, and how long they are; the host leaves out the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, larger, pick, smaller
from gpuedge.opset.expr import Expr, LoadExpr, Position, apply, where
from gpuedge.opset.index import Index, Loaded, axes, axis, choose, flatten, of, unflatten
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import ANY, PICKS, Operator
from gpuedge.opset.reduce import ranked
from gpuedge.opset.scan import running_sum
from gpuedge.opset.sorting import MOST_RANKED, is_same, order, taken, upper_bound
from gpuedge.opset.tensor import (
    Combine,
    Length,
    Reduce,
    Shape,
    Tensor,
    at,
    computed,
    constant,
    mapped,
    reduced,
    reshape,
    transpose,
    view,
)

MOST_ROUNDS = 512
"""Boxes of a class that are picked one after the other; each takes two kernels."""


def compacted(flags: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the places of the ones in a row of flags, in order, and how many there are.

    Place k is the first one before which, itself included, lie more than k ones: a running sum,
    and for each k a binary search in it. Past their number the `most` places are of no meaning.
    """
    count = flags.size
    sums = running_sum(flags, 0)
    sums.span = 0.0, float(count)
    places = upper_bound(sums, 0, most)
    total = computed((1,), "int64", lambda _: at(sums, (Index(count - 1),)))
    total.span = sums.span
    return places, total


def _place(places: Tensor, number: Index, shape: Shape) -> tuple[Index, ...]:
    """Return where in a tensor a place of its elements in C order is."""
    return unflatten(of(Loaded(at(places, (number,)), 0, prod(shape) - 1)), shape)


def _chosen(number: Index, values: list[Expr]) -> Expr:
    """Return the value of a number."""
    chosen = values[0]
    for i, value in enumerate(values[1:], 1):
        chosen = where([number - i], value, chosen)
    return chosen


def _non_zero(call: OperatorCall) -> Tensor:
    x = call.input(0)
    if not x.rank:
        raise call.unsupported("looks for elements of a scalar")
    if not x.size:
        return constant(np.empty((x.rank, 0), np.int64))
    flags = mapped(lambda v: 1.0 - equal(v, 0.0), reshape(x, (x.size,)), dtype="int64")
    places, total = compacted(flags, x.size)

    def body(position: tuple[Index, ...]) -> Expr:
        place = _place(places, position[1], x.shape)
        return _chosen(position[0], [Position(p) for p in place])

    result = computed((x.rank, x.size), "int64", body)
    result.length = Length(1, total)
    return result


def _is_of_scalar(call: OperatorCall) -> bool:
    """Tell of scalars, which have no axes: ONNX Runtime takes them for rows of one element."""
    return not call.input(0).rank


def _compress(call: OperatorCall) -> Tensor:
    """Keep positions along an axis, or of the flattened tensor, where a condition holds."""
    x, chosen = call.input(0), call.input(1)
    if chosen.rank != 1 or chosen.dtype != "bool":
        raise call.bad_shape("needs a row of truth values")
    flat = "axis" not in call.attrs
    rows = reshape(x, (x.size,)) if flat else x
    along = 0 if flat else call.axis(call.integer("axis", 0), x.rank)
    if chosen.array is not None:
        kept = np.flatnonzero(chosen.array[: rows.shape[along]])
        places, length = constant(kept.astype(np.int64)), None
    else:
        count = min(chosen.size, rows.shape[along])
        first = view(chosen, (count,), lambda position: position)
        places, total = compacted(mapped(lambda v: v, first, dtype="int64"), count)
        length = Length(along, total)
    shape = (*rows.shape[:along], places.size, *rows.shape[along + 1 :])

    def to(position: tuple[Index, ...]) -> list[Index]:
        place = of(Loaded(at(places, (position[along],)), 0, rows.shape[along] - 1))
        return [*position[:along], place, *position[along + 1 :]]

    result = view(rows, shape, to)
    result.length = length
    return result


# --- distinct ones -------------------------------------------------------------------------------

MOST_COMPARED = 4096
"""Elements or slices that are compared with each other to find the distinct ones."""


class _Slices:
    """Slices along the first axis of (n, size), compared like words: by where they differ first."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        count, size = rows.shape
        self._differ: Tensor | None = None
        if size > 1:
            i, j = axes((count, count))
            step = axis(2, size)
            same = is_same(at(rows, (i, step)), at(rows, (j, step)))
            place = pick(same, float(size), Position(step))
            self._differ = Tensor((count, count), "int64", Reduce("min", (size,), place))
            self._differ.span = 0.0, float(size)

    def _ends(self, i: Index, j: Index) -> tuple[Expr, Expr]:
        place = Index()
        if self._differ is not None:
            place = of(Loaded(at(self._differ, (i, j)), 0, self.rows.shape[1] - 1))
        return at(self.rows, (i, place)), at(self.rows, (j, place))

    def same(self, i: Index, j: Index) -> Expr:
        """1 where two of them are the same, else 0."""
        return is_same(*self._ends(i, j))

    def before(self, i: Index, j: Index) -> Expr:
        """1 where the first is less than the second, else 0; NaN is more than any number."""
        a, b = self._ends(i, j)
        return larger(above(b, a), apply("none", b) * (1.0 - apply("none", a)))


def _counted(
    count: int, most: float, combine: Combine, body: Callable[[Index, Index], Expr]
) -> Tensor:
    """Return for each of `count` what `body` makes of it and all others, combined."""
    total = Tensor(
        (count,), "int64", Reduce(combine, (count,), body(axis(0, count), axis(1, count)))
    )
    total.span = 0.0, most
    return total


def _unique(call: OperatorCall) -> tuple[Tensor, ...]:
    """Find what occurs first, and the place of every slice among these.

    All are compared with all: exact, and the same on every level.
    """
    x = call.input(0)
    flat = "axis" not in call.attrs
    along = 0 if flat else call.axis(call.integer("axis", 0), x.rank)
    turned = reshape(x, (x.size,)) if flat else x
    first_axis = [along, *(i for i in range(turned.rank) if i != along)]
    count = turned.shape[along]
    if not x.size:
        raise call.unsupported("looks for distinct elements of nothing")
    if x.size == count > MOST_RANKED and x.digits is None:
        return _unique_of_sorted(turned, along, call)
    if count > MOST_COMPARED:
        raise call.unsupported(f"compares {count} with each other; the most is {MOST_COMPARED}")
    slices = _Slices(reshape(transpose(turned, first_axis), (count, x.size // count)))
    most = float(count)

    def of_row(tensor: Tensor, i: Index) -> Expr:
        return at(tensor, (i,))

    first = _counted(count, most, "min", lambda i, j: pick(slices.same(i, j), Position(j), most))
    is_first = mapped(
        equal, first, computed((count,), "int64", lambda p: Position(p[0])),
        dtype="int64",
    )  # fmt: skip
    if call.integer("sorted", 1):
        place = _counted(count, most, "sum",
                         lambda i, j: of_row(is_first, j) * slices.before(j, i))  # fmt: skip
    else:
        place = _counted(count, most, "sum", lambda i, j: of_row(is_first, j) * above(
            of_row(first, i), Position(j)))  # fmt: skip
    found = _counted(count, most - 1, "max", lambda i, j: pick(
        of_row(is_first, j) * equal(of_row(place, j), Position(i)), Position(j), 0.0))  # fmt: skip
    each = _counted(count, most, "sum", slices.same)

    def at_found(p: tuple[Index, ...], axis: int) -> Index:
        return of(Loaded(at(found, (p[axis],)), 0, count - 1))

    distinct = view(turned, turned.shape,
                    lambda p: [*p[:along], at_found(p, along), *p[along + 1 :]])  # fmt: skip
    times = view(each, (count,), lambda p: [at_found(p, 0)])
    times.span = 0.0, most
    total = reduced("sum", is_first, (0,))
    total.span = 0.0, most
    distinct.length = Length(along, total)
    for one in (found, times):
        one.length = Length(0, total)
    return (distinct, found, place, times)[: len(call.outputs)]


def _unique_of_sorted(x: Tensor, along: int, call: OperatorCall) -> tuple[Tensor, ...]:
    """Find the same in a long row, where equal elements are neighbours once it is sorted."""
    count = x.size
    row = reshape(x, (count,))
    by_size = order(row, 0, count)
    rising = taken(row, by_size, 0)
    is_new = computed((count,), "int64", lambda p: where([p[0] - 1], 1.0 - is_same(
        at(rising, p), at(rising, (choose([p[0] - 1], p[0] - 1, Index()),))), 1.0))  # fmt: skip
    groups = running_sum(is_new, 0)
    groups.span = 1.0, float(count)
    bounds = upper_bound(groups, 0, count + 1)
    starts = view(bounds, (count,), lambda p: p)
    total = computed((1,), "int64", lambda _: at(groups, (Index(count - 1),)))
    total.span = groups.span
    # bounds from the number of groups on are the count, so the last group ends there as well
    ends = taken(bounds, groups, 0)
    chosen, number = starts, mapped(lambda g: g - 1.0, groups)
    if not call.integer("sorted", 1):
        first = mapped(lambda f, o: pick(f, o, float(count)), is_new, by_size)
        chosen = order(first, 0, count)
        number = taken(taken(order(chosen, 0, count), starts, 0), number, 0)
    distinct, found = reshape(taken(rising, chosen, 0), x.shape), taken(by_size, chosen, 0)
    times = mapped(lambda end, start: end - start, taken(ends, chosen, 0), chosen)
    place = taken(number, order(by_size, 0, count), 0)
    found.span = place.span = 0.0, float(count - 1)
    times.span = 0.0, float(count)
    distinct.length = Length(along, total)
    for one in (found, times):
        one.length = Length(0, total)
    return (distinct, found, place, times)[: len(call.outputs)]


# --- boxes ---------------------------------------------------------------------------------------


def _corners(boxes: Tensor, order: Tensor, *, is_centred: bool) -> Tensor:
    """Return the least and greatest y and x of every box, in the order of each class."""
    batches, classes, spots = order.shape

    def body(position: tuple[Index, ...]) -> Expr:
        batch, class_, number, end = position
        spot = of(Loaded(at(order, (batch, class_, number)), 0, spots - 1))
        part = [at(boxes, (batch, spot, Index(i))) for i in range(4)]
        if is_centred:
            x, y, half_width, half_height = part[0], part[1], part[2] * 0.5, part[3] * 0.5
            ends = [y - half_height, x - half_width, y + half_height, x + half_width]
        else:
            low = [smaller(part[i], part[i + 2]) for i in (0, 1)]
            ends = [*low, *(larger(part[i], part[i + 2]) for i in (0, 1))]
        return _chosen(end, ends)

    return computed((batches, classes, spots, 4), "float32", body)


def _overlaps(a: Sequence[Expr], b: Sequence[Expr], least: Expr) -> Expr:
    """1 where two boxes share more than a part of what they cover together, else 0.

    Multiplied, not divided: that is exact where ties are. Boxes of negative sides share nothing.
    """
    height, width = (larger(smaller(a[i + 2], b[i + 2]) - larger(a[i], b[i]), 0.0) for i in (0, 1))
    both = height * width
    areas = [(p[2] - p[0]) * (p[3] - p[1]) for p in (a, b)]
    return above(both, 0.0) * above(both, least * (areas[0] + areas[1] - both))


def _next(gone: Tensor, last: Tensor | None) -> Tensor:
    """Return the first box of every class after the last one that is not gone; else their number.

    Both have the shape (batches, classes, 1).
    """
    batches, classes, spots = gone.shape
    batch, class_, _ = axes((batches, classes, 1))
    step = axis(3, spots)
    left = 1.0 - at(gone, (batch, class_, step))
    if last is not None:
        left = left * above(Position(step), at(last, (batch, class_, Index())))
    first = pick(left, Position(step), float(spots))
    place = Tensor((batches, classes, 1), "int64", Reduce("min", (spots,), first))
    place.span = 0.0, float(spots)
    return place


def _without_overlaps(gone: Tensor, corners: Tensor, last: Tensor, least: Tensor) -> Tensor:
    """Return which boxes are gone once those are that overlap with the last one picked."""

    def body(position: tuple[Index, ...]) -> Expr:
        batch, class_, number = position
        at_last = at(last, (batch, class_, Index()))
        picked = (batch, class_, of(Loaded(at_last, 0, gone.shape[2] - 1)))
        a, b = ([at(corners, (*p, Index(i))) for i in range(4)] for p in (position, picked))
        met = _overlaps(a, b, at(least, (Index(),)))
        return met * above(Position(number), at_last)

    # by itself, for devices that bind few tensors at once
    return mapped(larger, gone, computed(gone.shape, "bool", body))


def _suppress(call: OperatorCall) -> Tensor:
    """Pick the best box of every class again and again, and drop those that overlap with it.

    Boxes are sorted by score first, so that the next one is the first that is left.
    """
    boxes, scores = call.input(0), call.input(1)
    fits = boxes.rank == scores.rank == 3 and boxes.shape[2] == 4
    if not fits or boxes.shape[:2] != (scores.shape[0], scores.shape[2]):
        raise call.bad_shape("needs boxes (N, boxes, 4) and scores (N, classes, boxes)")
    spots = scores.shape[2]
    given = call.constant_ints(2, "number of boxes") or (0,)
    rounds = min(given[0], spots)
    if rounds < 1 or not scores.size:
        return constant(np.empty((0, 3), np.int64))
    if rounds > MOST_ROUNDS:
        raise call.unsupported(
            f"picks up to {rounds} boxes of a class; the most is {MOST_ROUNDS} (take the best ones "
            "before it by TopK, or limit its number of boxes)"
        )
    least = reshape(call.input(3), (1,)) if call.has(3) else constant(np.zeros(1, np.float32))
    best, order = ranked(scores, 2, spots)
    corners = _corners(boxes, order, is_centred=bool(call.integer("center_point_box", 0)))
    if call.has(4):
        floor = reshape(call.input(4), (1,))
        gone = mapped(lambda s, f: 1.0 - above(s, f), best, floor, dtype="bool")
    else:
        gone = constant(np.zeros(scores.shape, np.bool_))
    last = _next(gone, None)
    for _ in range(rounds - 1):
        gone = _without_overlaps(gone, corners, last, least)
        last = _next(gone, last)
    return _listed(gone, last, order, rounds)


def _listed(gone: Tensor, last: Tensor, order: Tensor, rounds: int) -> Tensor:
    """Return batch, class and number of every box that is left up to the last one of its class."""
    shape = batches, classes, _ = gone.shape

    def is_left(position: tuple[Index, ...]) -> Expr:
        batch, class_, number = position
        after = above(Position(number), at(last, (batch, class_, Index())))
        return (1.0 - at(gone, position)) * (1.0 - after)

    left = computed(shape, "int64", is_left)
    most = batches * classes * rounds
    places, total = compacted(reshape(left, (left.size,)), most)

    def body(position: tuple[Index, ...]) -> Expr:
        place = _place(places, position[0], shape)
        number = LoadExpr(order, flatten(place, shape))
        return _chosen(position[1], [Position(place[0]), Position(place[1]), number])

    rows = computed((most, 3), "int64", body)
    rows.span = 0.0, float(max(shape))
    rows.length = Length(0, total)
    return rows


OPERATORS: tuple[Operator, ...] = (
    Operator("Compress", _compress, moves=True, facts=PICKS,
             remark="read place by place only, unless the condition is constant"),
    Operator("Unique", _unique, dtypes=ANY, facts=replace(PICKS, keeps=True),
             remark=f"read place by place only; up to {MOST_COMPARED} slices"),
    Operator("NonZero", _non_zero, dtypes=ANY, remark="read place by place only",
             differs=_is_of_scalar, facts=PICKS),
    Operator("NonMaxSuppression", _suppress, parameters=(2,),
             remark=f"read place by place only; up to {MOST_ROUNDS} boxes of a class"),
)  # fmt: skip
