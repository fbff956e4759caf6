"""Reading at positions that are computed: a view with a loaded index."""

from __future__ import annotations

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.index import Index, Loaded, choose, of
from gpuedge.opset.operator import INDICES, Operator
from gpuedge.opset.tensor import Tensor, at, view


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
    _check_range(call, indices, extent)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def to(position: tuple[Index, ...]) -> list[Index]:
        middle = position[axis : axis + indices.rank]
        picked = loaded(indices, middle, extent)
        return [*position[:axis], picked, *position[axis + indices.rank :]]

    return view(x, shape, to)


def _check_range(call: OperatorCall, indices: Tensor, extent: int) -> None:
    """Refuse constant indices outside the axis; others are the model's own affair."""
    array = indices.array
    if (
        array is not None
        and array.size
        and not (-extent <= int(array.min()) and int(array.max()) < extent)
    ):
        raise call.bad_shape(f"has indices outside of [{-extent}, {extent})")


OPERATORS: tuple[Operator, ...] = (Operator("Gather", _gather, indices=(1,), moves=True),)
