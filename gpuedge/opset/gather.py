"""Reading at positions that are computed, a view with a loaded index, and writing there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, pick, truncated
from gpuedge.opset.expr import Expr, LoadExpr, Position, apply, lift, where
from gpuedge.opset.index import Index, Loaded, axes, axis, choose, flatten, of, unflatten
from gpuedge.opset.limits import by_axis, by_row, lengths
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import ANY, GROWS, INDICES, Operator
from gpuedge.opset.tensor import Reduce, Tensor, at, computed, mapped, reshape, view


def loaded(indices: Tensor, position: tuple[Index, ...], extent: int) -> Index:
    """Return an element of a tensor of indices as a position on an axis; negative ones wrap.

    Indices outside of [-extent, extent) give some position of the axis, never one outside of it.
    """
    value = of(Loaded(at(indices, position), -extent, extent - 1))
    return choose([value], value, value + extent)


def _gather(call: OperatorCall) -> Tensor:
    x, indices = call.input(0), call.input(1)
    if not x.rank:
        raise call.bad_shape("cannot pick from a scalar")
    axis = call.axis(call.integer("axis", 0), x.rank)
    if indices.dtype not in INDICES:
        raise call.unsupported(f"has indices of dtype {indices.dtype}")
    extent = x.shape[axis]
    if indices.size and not extent:
        raise call.bad_shape(f"picks from axis {axis}, which is empty")
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def to(position: tuple[Index, ...]) -> list[Index]:
        middle = position[axis : axis + indices.rank]
        picked = loaded(indices, middle, extent)
        return [*position[:axis], picked, *position[axis + indices.rank :]]

    return view(x, shape, to)


def _gather_elements(call: OperatorCall) -> Tensor:
    x, indices, along = _along(call)
    if indices.rank != x.rank:
        raise call.bad_shape("needs as many axes of indices as of data")

    def to(position: tuple[Index, ...]) -> list[Index]:
        picked = loaded(indices, position, x.shape[along])
        return [*position[:along], picked, *position[along + 1 :]]

    return view(x, indices.shape, to)


def _along(call: OperatorCall) -> tuple[Tensor, Tensor, int]:
    """Return data, indices and the axis that they point along."""
    x, indices = call.input(0), call.input(1)
    if indices.dtype not in INDICES:
        raise call.unsupported(f"has indices of dtype {indices.dtype}")
    return x, indices, call.axis(call.integer("axis", 0), x.rank)


def _gather_nd(call: OperatorCall) -> Tensor:
    x, indices, _ = _along(call)
    batch = call.integer("batch_dims", 0)
    depth = indices.shape[-1] if indices.rank else 0
    if not 0 < depth <= x.rank - batch or x.shape[:batch] != indices.shape[:batch]:
        raise call.bad_shape("has indices that do not fit its data")
    shape = (*indices.shape[:-1], *x.shape[batch + depth :])
    outer = indices.rank - 1

    def to(position: tuple[Index, ...]) -> list[Index]:
        row = position[:outer]
        picked = [loaded(indices, (*row, Index(i)), x.shape[batch + i]) for i in range(depth)]
        return [*position[:batch], *picked, *position[outer:]]

    return view(x, shape, to)


def _reverse_sequence(call: OperatorCall) -> Tensor:
    """Turn the first elements along the axis of time round, as many as each batch has."""
    x, lengths = call.input(0), call.input(1)
    time, batch = call.integer("time_axis", 0), call.integer("batch_axis", 1)
    if x.rank < 2 or {time, batch} != {0, 1} or lengths.shape != (x.shape[batch],):
        raise call.bad_shape("has lengths that do not fit")

    def to(position: tuple[Index, ...]) -> list[Index]:
        length = of(Loaded(at(lengths, (position[batch],)), 0, x.shape[time]))
        own = list(position)
        own[time] = choose([length - 1 - own[time]], length - 1 - own[time], own[time])
        return own

    return view(x, x.shape, to)


def _one_hot(call: OperatorCall) -> Tensor:
    indices, values = call.input(0), call.input(2)
    given = call.constant(1, "depth")
    if given is None or given.size != 1 or values.shape != (2,):
        raise call.bad_shape("needs a depth and two values")
    depth = int(given.reshape(()))
    if depth < 1:
        raise call.bad_shape(f"has a depth of {depth}")
    along = call.axis(call.integer("axis", -1), indices.rank + 1)
    shape = (*indices.shape[:along], depth, *indices.shape[along:])

    def body(position: tuple[Index, ...]) -> Expr:
        raw = at(indices, (*position[:along], *position[along + 1 :]))
        index = pick(above(0.0, raw), raw + float(depth), raw)
        off, on = at(values, (Index(),)), at(values, (Index(1),))
        return pick(equal(truncated(index), Position(position[along])), on, off)

    return computed(shape, values.dtype, body)


# --- scattering ----------------------------------------------------------------------------------


def _combined(
    call: OperatorCall, x: Tensor, updates: Tensor, extent: int,
    hits: Callable[[tuple[Index, ...], Index], tuple[Expr, Sequence[Index]]],
) -> Tensor:  # fmt: skip
    """Return data with updates put in: every element looks through those that may meet it.

    `hits` gives, for a position of the result and a step below `extent`, a number that is 1 where
    the update of that step meets it, and the place of the update.
    """
    how = call.text("reduction", "none")
    if how not in {"none", "add", "mul", "max", "min"}:
        raise call.unsupported(f"has reduction={how!r}, which does not exist")
    if not (extent and x.size):
        return reshape(x, x.shape)
    here, step = axes(x.shape), axis(x.rank, extent)
    hit, place = hits(here, step)
    if how == "none":
        last = Tensor(x.shape, "int64", Reduce("max", (extent,), pick(hit, Position(step), -1.0)))

        def written(position: tuple[Index, ...]) -> Expr:
            update = of(Loaded(at(last, position), -1, extent - 1))
            _, own = hits(position, choose([update], update, Index()))
            new = LoadExpr(updates, choose([update], flatten(own, updates.shape), Index()))
            return where([update], new, at(x, position))

        return computed(x.shape, x.dtype, written)
    new, old = at(updates, place), at(x, here)
    if how in ("max", "min"):
        body = pick(hit, new, old)
        total = Tensor(x.shape, x.dtype, Reduce("max" if how == "max" else "min", (extent,), body))
        return mapped(lambda a, b: apply(how, a, b), x, total)
    if how == "add":
        total = Tensor(x.shape, x.dtype, Reduce("sum", (extent,), pick(hit, new, 0.0)))
        return mapped(lambda a, b: a + b, x, total)
    total = Tensor(x.shape, x.dtype, Reduce("prod", (extent,), pick(hit, new, 1.0)))
    return mapped(lambda a, b: a * b, x, total)


def _scatter_elements(call: OperatorCall) -> Tensor:
    x, indices, along = _along(call)
    updates = call.input(2)
    if indices.shape != updates.shape or indices.rank != x.rank:
        raise call.bad_shape("has indices that do not fit its updates")
    extent = x.shape[along]

    def hits(position: tuple[Index, ...], step: Index) -> tuple[Expr, Sequence[Index]]:
        place = [*position[:along], step, *position[along + 1 :]]
        inside = [n - 1 - p for i, (p, n) in enumerate(zip(place, indices.shape, strict=True))
                  if i != along]  # fmt: skip
        safe = [choose(inside, p, Index()) for p in place]
        target = loaded(indices, tuple(safe), extent)
        met = equal(Position(target), Position(position[along]))
        return where(inside, met, 0.0), safe

    return _combined(call, x, updates, indices.shape[along], hits)


def _scatter_nd(call: OperatorCall) -> Tensor:
    x, indices, _ = _along(call)
    updates = call.input(2)
    depth = indices.shape[-1] if indices.rank else 0
    if depth > x.rank or updates.shape != (*indices.shape[:-1], *x.shape[depth:]):
        raise call.bad_shape("has indices that do not fit its updates")
    rows = indices.shape[:-1]

    def hits(position: tuple[Index, ...], step: Index) -> tuple[Expr, Sequence[Index]]:
        row = unflatten(step, rows)
        met: Expr = lift(1.0)
        for i in range(depth):
            target = loaded(indices, (*row, Index(i)), x.shape[i])
            met = met * equal(Position(target), Position(position[i]))
        return met, [*row, *position[depth:]]

    return _combined(call, x, updates, prod(rows), hits)


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
    Operator("Col2Im", _col2im, parameters=(1, 2), facts=GROWS, remark="with constant sizes"),
    Operator("Gather", _gather, moves=True, limits=by_axis),
    Operator("GatherElements", _gather_elements, moves=True, limits=by_axis),
    Operator("GatherND", _gather_nd, moves=True, limits=by_row),
    Operator("ReverseSequence", _reverse_sequence, moves=True, limits=lengths),
    Operator(
        "OneHot", _one_hot, parameters=(1,), moves=True, facts=GROWS, remark="with a constant depth"
    ),
    Operator("ScatterElements", _scatter_elements, dtypes=ANY, others=(1,), limits=by_axis),
    Operator("Scatter", _scatter_elements, dtypes=ANY, others=(1,), limits=by_axis),
    Operator("ScatterND", _scatter_nd, dtypes=ANY, others=(1,), limits=by_row),
    Operator(
        "MaxUnpool",
        _max_unpool,
        parameters=(2,),
        others=(1,),
        differs=lambda call: call.has(2),
        facts=GROWS,
    ),
)
