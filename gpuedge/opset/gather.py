"""Reading at positions that are computed: views with a loaded index."""

from __future__ import annotations

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, pick, truncated
from gpuedge.opset.expr import Expr, Position
from gpuedge.opset.index import Index, Loaded, choose, of
from gpuedge.opset.limits import by_axis, by_row, lengths
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import GROWS, INDICES, Operator
from gpuedge.opset.tensor import Tensor, at, computed, view


def loaded(indices: Tensor, position: tuple[Index, ...], extent: int) -> Index:
    """Return an element of a tensor of indices as a position on an axis; negative ones wrap.

    Indices outside of [-extent, extent) give some position of the axis, never one outside of it.
    """
    value = of(Loaded(at(indices, position), -extent, extent - 1))
    return choose([value], value, value + extent)


def gathered(call: OperatorCall) -> Tensor:
    """Return what Gather picks."""
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
    x, indices, along = indexed_along(call)
    if indices.rank != x.rank:
        raise call.bad_shape("needs as many axes of indices as of data")

    def to(position: tuple[Index, ...]) -> list[Index]:
        picked = loaded(indices, position, x.shape[along])
        return [*position[:along], picked, *position[along + 1 :]]

    return view(x, indices.shape, to)


def indexed_along(call: OperatorCall) -> tuple[Tensor, Tensor, int]:
    """Return data, indices and the axis that they point along."""
    x, indices = call.input(0), call.input(1)
    if indices.dtype not in INDICES:
        raise call.unsupported(f"has indices of dtype {indices.dtype}")
    return x, indices, call.axis(call.integer("axis", 0), x.rank)


def _gather_nd(call: OperatorCall) -> Tensor:
    x, indices, _ = indexed_along(call)
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


OPERATORS: tuple[Operator, ...] = (
    Operator("Gather", gathered, moves=True, limits=by_axis),
    Operator("GatherElements", _gather_elements, moves=True, limits=by_axis),
    Operator("GatherND", _gather_nd, moves=True, limits=by_row),
    Operator("ReverseSequence", _reverse_sequence, moves=True, limits=lengths),
    Operator(
        "OneHot", _one_hot, parameters=(1,), moves=True, facts=GROWS, remark="with a constant depth"
    ),
)
