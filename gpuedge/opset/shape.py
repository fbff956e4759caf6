"""Operators that only move elements: reshaping, transposing, joining. Any dtype will do."""

from __future__ import annotations

from math import prod

import numpy as np

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.operator import KEEPS, RANDOM, Operator
from gpuedge.opset.tensor import Shape, Tensor, constant, joined, reshape, transpose


def _identity(call: OperatorCall) -> Tensor:
    x = call.input(0)
    return reshape(x, x.shape)


def _dropout(call: OperatorCall) -> tuple[Tensor, ...]:
    if call.version < 7:
        training = not call.integer("is_test", 0)
    elif call.version < 12:
        training = False
    else:
        mode = call.constant(2, "training mode")
        training = mode is not None and bool(mode.reshape(-1)[0])
        ratio = call.constant(1, "ratio") if training else None
        training = training and not (ratio is not None and not ratio.any())
    if training:
        raise call.unsupported("is in training mode")
    kept = _identity(call)
    mask = constant(np.ones(kept.shape, "bool" if call.version >= 10 else kept.dtype))
    return (kept, mask)[: len(call.outputs)]


def _flatten(call: OperatorCall) -> Tensor:
    x = call.input(0)
    given = call.integer("axis", 1)
    axis = given if given == x.rank else call.axis(given, x.rank)
    return reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _reshape(call: OperatorCall) -> Tensor:
    """Resolve 0 (copy) and -1 (whatever remains) in the target shape."""
    x = call.input(0)
    if call.version < 5:
        target = list(call.ints("shape", ()))
    else:
        value = call.constant_ints(1, "shape")
        if value is None:
            raise call.unsupported("lacks its shape")
        target = list(value)
    if not call.integer("allowzero", 0):
        if any(d == 0 and i >= x.rank for i, d in enumerate(target)):
            raise call.bad_shape(f"copies a dimension that its input lacks: {target}")
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    if target.count(-1) > 1 or any(d < -1 for d in target):
        raise call.bad_shape(f"cannot be reshaped to {target}")
    if -1 in target:
        known = prod(d for d in target if d != -1)
        if known == 0 or x.size % known:
            raise call.bad_shape(f"cannot be reshaped to {target}")
        target[target.index(-1)] = x.size // known
    if prod(target) != x.size:
        raise call.bad_shape(f"cannot be reshaped to {target}")
    return reshape(x, tuple(target))


def _axes(call: OperatorCall) -> tuple[int, ...] | None:
    """Return the axes of Squeeze or Unsqueeze: an attribute before operator set 13."""
    if call.version < 13:
        return call.ints("axes", ()) if "axes" in call.attrs else None
    return call.constant_ints(1, "axes")


def _squeeze(call: OperatorCall) -> Tensor:
    x, axes = call.input(0), _axes(call)
    if axes is None:
        return reshape(x, tuple(d for d in x.shape if d != 1))
    drop = {call.axis(a, x.rank) for a in axes}
    if any(x.shape[a] != 1 for a in drop):
        raise call.bad_shape(f"drops the axes {sorted(drop)}, which are not all 1")
    return reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in drop))


def _unsqueeze(call: OperatorCall) -> Tensor:
    x, axes = call.input(0), _axes(call) or ()
    rank = x.rank + len(axes)
    new = {call.axis(a, rank) for a in axes}
    if len(new) != len(axes):
        raise call.bad_shape(f"names an axis twice in {list(axes)}")
    rest = iter(x.shape)
    return reshape(x, tuple(1 if i in new else next(rest) for i in range(rank)))


def _transpose(call: OperatorCall) -> Tensor:
    x = call.input(0)
    perm = call.ints("perm", tuple(reversed(range(x.rank))))
    if sorted(perm) != list(range(x.rank)):
        raise call.bad_shape(f"has perm={list(perm)}, no permutation of {x.rank} dimensions")
    return transpose(x, perm)


def _concat(call: OperatorCall) -> Tensor:
    """Join in pairs, so that no position has to be looked for in more than log2(n) steps."""
    first = call.shape(0)
    if "axis" not in call.attrs and call.version >= 4:
        raise call.unsupported("lacks the attribute axis")
    axis = call.axis(call.integer("axis", 1), len(first))
    parts = [call.input(i) for i in range(len(call.inputs))]
    for part in parts[1:]:
        if part.rank != len(first) or _without(part.shape, axis) != _without(first, axis):
            raise call.bad_shape(f"cannot join its inputs along axis {axis}")
    if len({part.dtype for part in parts}) > 1:
        raise call.unsupported(f"mixes the dtypes {', '.join(sorted({p.dtype for p in parts}))}")
    parts = [p for p in parts if p.size] or parts[:1]
    while len(parts) > 1:
        pairs = [joined(parts[i], parts[i + 1], axis) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(pairs) * 2 :]
    whole = (*first[:axis], sum(call.shape(i)[axis] for i in range(len(call.inputs))),
             *first[axis + 1 :])  # fmt: skip
    return reshape(parts[0], whole)


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _shape(call: OperatorCall) -> Tensor:
    """Shapes are known while planning, so they are constants."""
    extents = call.shape(0)
    if call.op == "Size":
        return constant(np.array(prod(extents), np.int64))
    end = call.attrs.get("end")
    part = extents[slice(call.integer("start", 0), None if end is None else int(end))]
    return constant(np.array(part, np.int64))


OPERATORS: tuple[Operator, ...] = (
    Operator("Identity", _identity, moves=True, is_view=True, facts=KEEPS),
    Operator("Dropout", _dropout, parameters=(1, 2), moves=True, is_view=True,
             remark="as in inference: it does nothing", facts=RANDOM),
    Operator("Flatten", _flatten, moves=True, is_view=True, facts=KEEPS),
    Operator("Reshape", _reshape, parameters=(1,), moves=True, is_view=True, facts=KEEPS,
             remark="with a constant shape"),
    Operator("Squeeze", _squeeze, parameters=(1,), moves=True, is_view=True, facts=KEEPS,
             remark="with constant axes"),
    Operator("Unsqueeze", _unsqueeze, parameters=(1,), moves=True, is_view=True, facts=KEEPS,
             remark="with constant axes"),
    Operator("Transpose", _transpose, moves=True, facts=KEEPS),
    Operator("Concat", _concat, moves=True),
    Operator("Shape", _shape, moves=True, remark="known while planning"),
    Operator("Size", _shape, moves=True, remark="known while planning"),
)  # fmt: skip
