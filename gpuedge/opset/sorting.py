"""Sorting: the order of the elements along an axis, by ranks where it is short, else by merging.

Every step is a tensor of positions that the one before it leads to, so it runs on every level. The
steps of one length share a program: how far apart the elements of a pair lie is read, not written
into the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from gpuedge.opset.elementwise import above, larger, pick
from gpuedge.opset.expr import Expr, Position, apply
from gpuedge.opset.index import Index, Loaded, axes, axis, choose, of
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import FLOATS
from gpuedge.opset.tensor import Reduce, Tensor, at, computed, constant, mapped, spread, view

MOST_RANKED: Final = 512
"""Longest axis along which every element is compared with every other.

Both ways took about as long there on lavapipe and llvmpipe, and at 8,400 elements merging a tenth
to a twentieth, on every level; with few elements it starts more kernels than it saves.
"""

RUN: Final = 64
"""Elements that are ranked among each other before runs of them are merged."""

SEARCHED: Final = 8
"""Runs of a long axis that are searched at once.

Of 4, 8, 16, 32 and 64 the first two were the fastest at 100,000 elements on lavapipe and llvmpipe,
and 8 starts fewer kernels.
"""


def order(x: Tensor, along: int, count: int, *, largest: bool = False) -> Tensor:
    """Return the positions of the first elements along an axis by size; equal ones stay in order.

    Up to `MOST_RANKED` elements are ranked by comparing all pairs. Longer axes are sorted by
    Batcher's bitonic network (*Sorting networks and their applications*, AFIPS 1968), in about
    log2(n)^2 / 2 steps of n comparisons; of them only runs as long as `count` are kept and merged
    (Shanbhag, Pirk, Madden, *Efficient Top-K Query Processing on GPUs*, SIGMOD 2018).

    Parameters
    ----------
    x : Tensor
        Of any rank from 1; NaN is more than any number, as in numpy and PyTorch.
    along : int
    count : int
        How many, from 1 to the extent of the axis.
    largest : bool, optional
        Whether the largest come first.

    Returns
    -------
    Tensor
        int64, as `x` with `count` elements along the axis.
    """
    extent = x.shape[along]
    keys = _Keys(x, along, largest=largest)
    if extent <= MOST_RANKED:
        found = keys.ranked(extent, count)
    else:
        run = max(RUN, 1 << (count - 1).bit_length())
        found = keys.ranked(min(RUN, run), min(RUN, run), runs=_power(extent) // RUN)
        for size in _doubled(2 * RUN, run):
            found = keys.merged(found, size)
        while found.shape[along] > run:
            found = keys.halved(found, run)
    if found.shape[along] > count:
        shape = (*x.shape[:along], count, *x.shape[along + 1 :])
        found = view(found, shape, lambda position: position)
    found.span = 0.0, float(extent - 1)
    return found


def upper_bound(rising: Tensor, along: int, count: int) -> Tensor:
    """Return of every number below `count` how many elements along an axis are not above it.

    The elements never fall along the axis. Up to `MOST_RANKED` are all compared. Of more, the last
    one of each of `SEARCHED` runs is, then those of the runs in the one where the answer lies: a
    kernel for each length of run. A binary search has no loop that keeps its steps apart: ANGLE
    over SwiftShader compiled eight of them for over 100 s at OpenGL ES 3.0, and llvmpipe ten for
    40 s at ES 2.0.

    Returns
    -------
    Tensor
        int64, as `rising` with `count` elements along the axis.
    """
    extent, run = rising.shape[along], 1
    shape = (*rising.shape[:along], count, *rising.shape[along + 1 :])
    here = axes(shape)

    def counted(begin: Index, runs: int) -> Tensor:
        last = begin + axis(len(shape), runs) * run + (run - 1)
        inside = choose([extent - 1 - last], last, Index(extent - 1))
        value = at(rising, (*here[:along], inside, *here[along + 1 :]))
        is_above: Expr = above(value, Position(here[along]))
        if last.high >= extent:
            is_above = larger(is_above, above(Position(last), float(extent - 1)))
        return Tensor(shape, "int64", Reduce("sum", (runs,), float(run) * (1.0 - is_above)))

    while extent > MOST_RANKED and extent // run > SEARCHED:
        run *= SEARCHED
    found = counted(Index(), extent // run)
    while run > 1:
        run //= SEARCHED
        begin = of(Loaded(at(found, here), 0, extent))
        found = mapped(lambda a, b: a + b, found, counted(begin, SEARCHED - 1))
    found.span = 0.0, float(extent)
    return found


def taken(x: Tensor, places: Tensor, along: int) -> Tensor:
    """Return the elements at places along an axis.

    `places` has the rank of `x`; other axes of extent 1 stand for all positions.
    """
    shape = (*x.shape[:along], places.shape[along], *x.shape[along + 1 :])

    def to(position: tuple[Index, ...]) -> list[Index]:
        place = of(Loaded(spread(places, position), 0, x.shape[along] - 1))
        return [*position[:along], place, *position[along + 1 :]]

    return view(x, shape, to)


def _exceeds(a: Expr, b: Expr) -> Expr:
    """1 where one is more than the other, else 0; NaN is more than any number."""
    return (1.0 - apply("none", b)) * pick(apply("none", a), 1.0, above(a, b))


def is_same(a: Expr, b: Expr) -> Expr:
    """1 where both are the same number, or both are NaN, else 0."""
    return larger(equal(a, b), apply("none", a) * apply("none", b))


def _power(extent: int) -> int:
    return 1 << (extent - 1).bit_length()


def _doubled(size: int, most: int) -> Iterator[int]:
    while size <= most:
        yield size
        size *= 2


class _Keys:
    """What is sorted: a tensor along an axis, and after its elements, to a power of two, nothing.

    A step gives positions of elements; those from the extent on stand for nothing, and go last.
    """

    def __init__(self, x: Tensor, along: int, *, largest: bool) -> None:
        self.x, self.along, self.largest = x, along, largest
        self.extent = x.shape[along]

    def _moved(self, position: tuple[Index, ...], to: Index) -> tuple[Index, ...]:
        return (*position[: self.along], to, *position[self.along + 1 :])

    def _is_before(self, position: tuple[Index, ...], one: Expr, other: Expr) -> Expr:
        """1 where one element goes before another, both given by where they are, else 0."""
        a, b = (
            at(self.x, self._moved(position, of(Loaded(place, 0, self.extent - 1))))
            for place in (one, other)
        )
        more, less = (a, b) if self.largest else (b, a)
        if self.x.dtype in FLOATS:
            before = _exceeds(more, less) + is_same(a, b) * above(other, one)
        else:
            before = above(more, less) + equal(a, b) * above(other, one)
        if self.extent == _power(self.extent):
            return before
        # nothing has a larger place than any element, so that its place tells
        last = float(self.extent - 1)
        beyond = pick(above(other, last), 1.0, before)
        return pick(above(one, last), above(other, one), beyond)

    def _made(self, extent: int, body: Expr) -> Tensor:
        result = computed(self._shape(extent), "int64", lambda _: body)
        result.span = 0.0, float(_power(self.extent) - 1)
        return result

    def _shape(self, extent: int) -> tuple[int, ...]:
        return (*self.x.shape[: self.along], extent, *self.x.shape[self.along + 1 :])

    def ranked(self, run: int, count: int, runs: int = 1) -> Tensor:
        """Return the order of runs of elements, by how many of its run go before each."""
        shape = self._shape(run * runs)
        here, step = axes(shape), axis(self.x.rank, run)
        start = here[self.along] - here[self.along] % run
        other = start + step
        before = self._is_before(here, Position(other), Position(here[self.along]))
        rank = Tensor(shape, "int64", Reduce("sum", (run,), before))
        rank.span = 0.0, float(run)
        first = self._shape(count * runs)
        to = axes(first)
        start = to[self.along] // count * run
        hit = equal(at(rank, self._moved(to, start + step)), Position(to[self.along] % count))
        found = Reduce("max", (run,), pick(hit, Position(start + step), 0.0))
        result = Tensor(first, "int64", found)
        result.span = 0.0, float(run * runs - 1)
        return result

    def _paired(self, found: Tensor, size: int, *, is_turned: bool) -> Tensor:
        """Sort pairs of elements in blocks: the first half with the second, or with it turned."""
        shape = found.shape
        scale = constant(np.array([size, 1 / size], np.float32))
        here = axes(shape)
        place = Position(here[self.along])
        length, part = (at(scale, (Index(i),)) for i in (0, 1))
        block = apply("floor", place * part) * length
        inside = place - block
        is_second = 1.0 - above(length * 0.5, inside)
        if is_turned:
            partner = block + (length - 1.0 - inside)
        else:
            partner = place + length * (0.5 - is_second)
        to = of(Loaded(partner, 0, shape[self.along] - 1))
        own, other = at(found, here), at(found, self._moved(here, to))
        first, second = pick(is_second, other, own), pick(is_second, own, other)
        # both elements of a pair ask the same, so that none is lost where a device knows no NaN
        is_sorted = self._is_before(here, first, second)
        return self._made(shape[self.along], pick(is_sorted, own, other))

    def merged(self, found: Tensor, size: int) -> Tensor:
        """Return runs of a size, sorted, of runs half as long."""
        found = self._paired(found, size, is_turned=True)
        return self._cleaned(found, size // 2)

    def _cleaned(self, found: Tensor, size: int) -> Tensor:
        """Sort runs that first rise and then fall."""
        while size > 1:
            found = self._paired(found, size, is_turned=False)
            size //= 2
        return found

    def halved(self, found: Tensor, run: int) -> Tensor:
        """Return of every two sorted runs the first half of both, sorted."""
        extent = found.shape[self.along] // 2
        shape = self._shape(extent)
        here = axes(shape)
        number, inside = here[self.along] // run, here[self.along] % run
        one = at(found, self._moved(here, number * (2 * run) + inside))
        other = at(found, self._moved(here, number * (2 * run) + (2 * run - 1) - inside))
        kept = self._made(extent, pick(self._is_before(here, one, other), one, other))
        return self._cleaned(kept, run)


__all__ = ["MOST_RANKED", "is_same", "order", "taken", "upper_bound"]
