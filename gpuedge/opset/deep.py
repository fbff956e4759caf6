"""Windows over any number of spatial dimensions, composed of reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from gpuedge.opset.elementwise import pick
from gpuedge.opset.expr import Expr, LoadExpr, Position, where
from gpuedge.opset.index import Index, axes, axis, choose, flatten
from gpuedge.opset.logic import equal
from gpuedge.opset.tensor import (
    Combine,
    Reduce,
    Tensor,
    constant,
    mapped,
    reshape,
)
from gpuedge.opset.tensor import (
    spread as repeated,
)
from gpuedge.opset.windows import Slide


def column(tensor: Tensor, rank: int) -> Tensor:
    """Return values by channel as a tensor that broadcasts to (N, C, ...)."""
    return reshape(tensor, (tensor.size, *(1,) * (rank - 2)))


def read(x: Tensor, place: Sequence[Index], tests: Sequence[Index], fill: Expr | float) -> Expr:
    """Return an element where no test is negative, else `fill`."""
    safe = choose(tests, flatten(place, x.shape), Index())
    return where(tests, LoadExpr(x, safe), fill)


def _positions(x: Tensor, slide: Slide) -> tuple[list[Index], list[Index], tuple[Index, ...]]:
    """Return spatial places of window elements, tests that they are inside, and the steps."""
    rank = x.rank
    out = axes((*x.shape[:2], *slide.out))[2:]
    steps = tuple(axis(rank + i, k) for i, k in enumerate(slide.kernel))
    places = [
        o * s + k * d - b
        for o, s, k, d, b in zip(out, slide.strides, steps, slide.dilations, slide.before,
                                 strict=True)
    ]  # fmt: skip
    tests = [t for p, n in zip(places, x.shape[2:], strict=True) for t in (p, n - 1 - p)]
    return places, tests, steps


def windowed(
    x: Tensor, slide: Slide, combine: Combine, fill: float,
    before: Callable[[Expr], Expr] = lambda v: v,
) -> Tensor:  # fmt: skip
    """Return the sum, maximum or minimum of ``before(x)`` under every window of (N, C, ...)."""
    places, tests, _ = _positions(x, slide)
    shape = (*x.shape[:2], *slide.out)
    inner = before(read(x, [*axes(shape)[:2], *places], tests, fill))
    return Tensor(shape, x.dtype, Reduce(combine, slide.kernel, inner))


def averaged(x: Tensor, slide: Slide, *, include_pad: bool) -> Tensor:
    """Return means over windows: of the positions inside the input, or inside its pads too."""
    total = windowed(x, slide, "sum", 0.0)
    for i, n in enumerate(x.shape[2:]):
        before, after = slide.before[i], slide.after[i]
        at = np.arange(slide.out[i])[:, None] * slide.strides[i] - before
        at = at + np.arange(slide.kernel[i]) * slide.dilations[i]
        inside = (at < n + after) if include_pad else (at >= 0) & (at < n)
        count = np.maximum(inside.sum(axis=1), 1).astype(np.float32)
        shape = [1] * i + [slide.out[i]] + [1] * (x.rank - 3 - i)
        total = mapped(lambda s, c: s / c, total, constant(count.reshape(shape)))
    return total


def where_greatest(x: Tensor, best: Tensor, slide: Slide, *, by_columns: bool) -> Tensor:
    """Return where in the flattened tensor the first greatest element of every window is."""
    places, tests, _ = _positions(x, slide)
    here = axes(best.shape)
    place = [*here[:2], *places]
    hit = where(tests, equal(read(x, place, tests, 0.0), repeated(best, here)), 0.0)
    inner = list(zip(places, x.shape[2:], strict=True))
    ordered = list(reversed(inner)) if by_columns else inner
    spatial = prod(x.shape[2:])
    number = flatten([p for p, _ in ordered], [n for _, n in ordered])
    outer = flatten(place[:2], x.shape[:2]) * spatial
    body = pick(hit, Position(outer + number), float(x.size))
    result = Tensor(best.shape, "int64", Reduce("min", slide.kernel, body))
    result.span = (0.0, float(x.size))
    return result


def convolved(
    x: Tensor, w: Tensor, slide: Slide, group: int, before: Callable[[Expr], Expr] = lambda v: v
) -> Tensor:
    """Return the convolution of (N, C, ...) with (M, C / group, ...); `before` of each product."""
    filters, depth = w.shape[:2]
    shape = (x.shape[0], filters, *slide.out)
    n, m = axes(shape)[:2]
    places, tests, steps = _positions(x, slide)
    c = axis(x.rank + len(steps), depth)
    source = m // (filters // group) * depth + c
    value = read(x, [n, source, *places], tests, 0.0)
    weight = LoadExpr(w, flatten([m, c, *steps], w.shape))
    return Tensor(shape, x.dtype, Reduce("sum", (*slide.kernel, depth), before(value * weight)))


def spread(x: Tensor, w: Tensor, slide: Slide, group: int) -> Tensor:
    """Return the transposed convolution of (N, C, ...) with (C, M / group, ...)."""
    channels, each = w.shape[:2]
    shape = (x.shape[0], each * group, *slide.out)
    n, m, *out = axes(shape)
    steps = [axis(x.rank + i, k) for i, k in enumerate(slide.kernel)]
    c = axis(x.rank + len(steps), channels // group)
    source = m // each * (channels // group) + c
    places, tests = [], []
    for o, k, s, d, b, size in zip(out, steps, slide.strides, slide.dilations, slide.before,
                                   x.shape[2:], strict=True):  # fmt: skip
        ahead = o + b - k * d
        places.append(ahead // s)
        tests += [ahead, -(ahead % s), (size - 1) * s - ahead]
    value = read(x, [n, source, *places], tests, 0.0)
    weight = LoadExpr(w, flatten([source, m % each, *steps], w.shape))
    over = (*slide.kernel, channels // group)
    return Tensor(shape, x.dtype, Reduce("sum", over, where(tests, value * weight, 0.0)))
