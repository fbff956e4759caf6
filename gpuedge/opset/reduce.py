"""Reductions along axes, and conversions that change nothing."""

from __future__ import annotations

from math import prod

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Combine, Tensor, mapped, reduced, reshape

AXES_ARE_INPUTS = {"ReduceSum": 13, "ReduceMean": 18, "ReduceMax": 18, "ReduceMin": 18}
"""Operator set from which the axes are an input instead of an attribute."""

COMBINE: dict[str, Combine] = {
    "ReduceSum": "sum", "ReduceMean": "sum", "ReduceMax": "max", "ReduceMin": "min",
}  # fmt: skip


def _along(call: OperatorCall, rank: int) -> tuple[int, ...]:
    """Return the axes, all of them where none are given."""
    if call.version < AXES_ARE_INPUTS[call.op]:
        axes = call.ints("axes", ())
    else:
        axes = call.constant_ints(1, "axes") or ()
    if not axes:
        return () if call.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({call.axis(a, rank) for a in axes}))


def _reduce(call: OperatorCall) -> Tensor:
    x = call.input(0)
    along = _along(call, x.rank)
    keeps = bool(call.integer("keepdims", 1))
    if not along:
        return reshape(x, x.shape)
    count = prod(x.shape[i] for i in along)
    if not count:
        raise call.unsupported("reduces over nothing")
    total = reduced(COMBINE[call.op], x, along, keepdims=keeps)
    return mapped(lambda s: s / float(count), total) if call.op == "ReduceMean" else total


def _cast(call: OperatorCall) -> Tensor:
    """Pass on what has the wanted dtype already."""
    x = call.input(0)
    wanted = call.integer("to", 0) if call.op == "Cast" else None
    same = wanted == ELEMENT_TYPES.get(x.dtype) if wanted else call.input(1).dtype == x.dtype
    if not same:
        raise call.unsupported(f"converts {x.dtype} to another type")
    return reshape(x, x.shape)


ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "float16": 10}
"""Numbers of element types in ONNX (TensorProto.DataType)."""

OPERATORS: tuple[Operator, ...] = (
    *(Operator(name, _reduce, parameters=(1,), remark="with constant axes") for name in COMBINE),
    Operator("Cast", _cast, moves=True, remark="to the type that the value has"),
    Operator("CastLike", _cast, parameters=(1,), moves=True,
             remark="to the type that the value has"),
)  # fmt: skip
