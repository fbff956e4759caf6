"""What a node means: defaults, operator set versions and padding resolved in one place.

`canonical` turns an ONNX node into one of the dataclasses of `gpuedge.graph.params`. It is the only
place that knows how operators changed between operator sets (attributes that became inputs, the
flattening Softmax, automatic padding). It needs the types of the node's inputs and the values of
those inputs that are parameters; everything it returns is plain data.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuedge.core.dtypes import BYTES
from gpuedge.graph import windows
from gpuedge.graph.elementwise import ELEMENTWISE, VARIADIC, elementwise_attrs
from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.nodes import (
    FLOATS,
    axis_of,
    bad_shape,
    constant,
    has_input,
    ints,
    label,
    require_dtypes,
    type_in,
    unsupported,
    version,
)
from gpuedge.graph.params import (
    BatchNormParams,
    Canon,
    ClipParams,
    ConcatParams,
    ConvParams,
    ConvTransposeParams,
    ElementwiseParams,
    GemmParams,
    MatMulParams,
    Pads,
    Pair,
    PoolParams,
    ReshapeParams,
    SoftmaxParams,
    TransposeParams,
)

__all__ = [
    "CLOSED",
    "ELEMENTWISE",
    "FLOATS",
    "KNOWN",
    "MOVING",
    "VARIADIC",
    "BatchNormParams",
    "Canon",
    "ClipParams",
    "ConcatParams",
    "ConvParams",
    "ConvTransposeParams",
    "ElementwiseParams",
    "GemmParams",
    "MatMulParams",
    "Pads",
    "Pair",
    "PoolParams",
    "ReshapeParams",
    "SoftmaxParams",
    "TransposeParams",
    "canonical",
    "elementwise_attrs",
    "is_known",
    "label",
    "operands",
]

_RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")


def _product(extents: tuple[int, ...]) -> int:
    result = 1
    for extent in extents:
        result *= extent
    return result


def _clip(node: Node, graph: Graph) -> ClipParams:
    dtype = type_in(node, graph, 0).dtype
    about = np.iinfo(dtype) if dtype in BYTES else np.finfo(dtype)
    least, most = float(about.min), float(about.max)
    if version(node, graph) < 11:
        lo, hi = node.attrs.get("min", least), node.attrs.get("max", most)
        return ClipParams(float(lo), float(hi))
    bounds = []
    for index, what, default in ((1, "lower bound", least), (2, "upper bound", most)):
        value = constant(node, graph, index, what)
        if value is not None and value.size != 1:
            raise bad_shape(node, graph, f"needs a scalar {what}")
        bounds.append(default if value is None else float(value.reshape(())))
    return ClipParams(bounds[0], bounds[1])


def _elementwise(node: Node, graph: Graph) -> ElementwiseParams | ClipParams:
    arity = ELEMENTWISE[node.op]
    count = len(operands(node))
    if count != (arity or max(count, 1)):
        raise unsupported(node, f"has {count} operands instead of {arity or 'one or more'}")
    for index in range(count):
        type_in(node, graph, index)
    if version(node, graph) < 7 and arity == 2 and node.op != "PRelu" and "axis" in node.attrs:
        raise unsupported(node, "broadcasts along an axis, as operator sets before 7 did")
    if node.op == "Clip":
        return _clip(node, graph)
    return ElementwiseParams(node.op, tuple(elementwise_attrs(node, graph).items()))


def _gemm(node: Node, graph: Graph) -> GemmParams:
    a, b = type_in(node, graph, 0).shape, type_in(node, graph, 1).shape
    if len(a) != 2 or len(b) != 2:
        raise bad_shape(node, graph, "needs two matrices")
    trans_a, trans_b = bool(node.attrs.get("transA", 0)), bool(node.attrs.get("transB", 0))
    m, k = a[::-1] if trans_a else a
    k_b, n = b[::-1] if trans_b else b
    if k != k_b:
        raise bad_shape(node, graph, f"multiplies rows of {k} by columns of {k_b}")
    if has_input(node, 2):
        c = type_in(node, graph, 2).shape
        wide = (1,) * (2 - len(c)) + c
        if len(c) > 2 or wide[0] not in (1, m) or wide[1] not in (1, n):
            raise bad_shape(node, graph, f"cannot broadcast its third input to [{m}, {n}]")
    alpha, beta = float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))
    return GemmParams(alpha, beta, trans_a, trans_b, m, k, n)


def _matmul(node: Node, graph: Graph) -> MatMulParams:
    a, b = type_in(node, graph, 0).shape, type_in(node, graph, 1).shape
    if not a or not b:
        raise bad_shape(node, graph, "cannot multiply a scalar")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    if left[-1] != right[-2]:
        raise bad_shape(node, graph, f"multiplies rows of {left[-1]} by columns of {right[-2]}")
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise bad_shape(node, graph, "has batch dimensions that do not broadcast") from None
    return MatMulParams(tuple(batch), left[-2], left[-1], right[-1])


def _softmax(node: Node, graph: Graph) -> SoftmaxParams:
    shape = type_in(node, graph, 0).shape
    log = node.op == "LogSoftmax"
    flat = version(node, graph) < 13
    given = int(node.attrs.get("axis", 1 if flat else -1))
    # Flattening may start one past the last axis: rows of one element.
    past = flat and given == len(shape)
    axis = given if past else axis_of(node, graph, given, len(shape))
    outer = _product(shape[:axis])
    if flat:
        return SoftmaxParams(axis, outer, _product(shape[axis:]), 1, log)
    length = shape[axis] if shape else 1
    return SoftmaxParams(axis, outer, length, _product(shape[axis + 1 :]), log)


def _concat(node: Node, graph: Graph) -> ConcatParams:
    first = type_in(node, graph, 0).shape
    if "axis" not in node.attrs and version(node, graph) >= 4:
        raise unsupported(node, "lacks the attribute axis")
    axis = axis_of(node, graph, int(node.attrs.get("axis", 1)), len(first))
    for index in range(1, len(node.inputs)):
        shape = type_in(node, graph, index).shape
        if len(shape) != len(first) or any(
            d != e for i, (d, e) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            raise bad_shape(node, graph, f"cannot join its inputs along axis {axis}")
    return ConcatParams(axis)


def _transpose(node: Node, graph: Graph) -> TransposeParams:
    rank = len(type_in(node, graph, 0).shape)
    perm = ints(node, "perm", tuple(reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise bad_shape(node, graph, f"has perm={list(perm)}, no permutation of {rank} dimensions")
    return TransposeParams(perm)


def _batch_norm(node: Node, graph: Graph) -> BatchNormParams:
    shape = type_in(node, graph, 0).shape
    opset = version(node, graph)
    training = node.attrs.get("training_mode", 0)
    if training or any(node.outputs[1:]) or (opset < 7 and not node.attrs.get("is_test", 0)):
        raise unsupported(node, "is in training mode")
    if opset < 9 and not node.attrs.get("spatial", 1):
        raise unsupported(node, "normalises every position by itself (spatial=0)")
    if len(shape) < 2:
        raise unsupported(node, f"has an input of rank {len(shape)}; at least 2 is needed")
    for index in range(1, 5):
        if type_in(node, graph, index).shape != (shape[1],):
            raise bad_shape(node, graph, f"needs parameters of shape [{shape[1]}]")
    return BatchNormParams(float(node.attrs.get("epsilon", 1e-5)))


def _reshape(node: Node, graph: Graph) -> ReshapeParams:
    shape = type_in(node, graph, 0).shape
    if node.op == "Dropout":
        _check_dropout(node, graph)
    if node.op in ("Identity", "Dropout"):
        return ReshapeParams(shape)
    if node.op == "Flatten":
        given = int(node.attrs.get("axis", 1))
        axis = given if given == len(shape) else axis_of(node, graph, given, len(shape))
        return ReshapeParams((_product(shape[:axis]), _product(shape[axis:])))
    if node.op == "Reshape":
        return ReshapeParams(_reshaped(node, graph, shape))
    axes = _axes(node, graph)
    if node.op == "Unsqueeze":
        return ReshapeParams(_unsqueezed(node, graph, shape, axes or ()))
    if axes is None:
        return ReshapeParams(tuple(d for d in shape if d != 1))
    drop = {axis_of(node, graph, a, len(shape)) for a in axes}
    if any(shape[a] != 1 for a in drop):
        raise bad_shape(node, graph, f"drops the axes {sorted(drop)}, which are not all 1")
    return ReshapeParams(tuple(d for i, d in enumerate(shape) if i not in drop))


def _axes(node: Node, graph: Graph) -> tuple[int, ...] | None:
    """Return the axes of Squeeze or Unsqueeze: an attribute before operator set 13."""
    if version(node, graph) < 13:
        return ints(node, "axes", ()) if "axes" in node.attrs else None
    value = constant(node, graph, 1, "axes")
    return None if value is None else tuple(int(a) for a in value.reshape(-1))


def _unsqueezed(
    node: Node, graph: Graph, shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[int, ...]:
    rank = len(shape) + len(axes)
    new = {axis_of(node, graph, a, rank) for a in axes}
    if len(new) != len(axes):
        raise bad_shape(node, graph, f"names an axis twice in {list(axes)}")
    rest = iter(shape)
    return tuple(1 if i in new else next(rest) for i in range(rank))


def _reshaped(node: Node, graph: Graph, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Resolve 0 (copy) and -1 (whatever remains) in the target shape."""
    if version(node, graph) < 5:
        target = list(ints(node, "shape", ()))
    else:
        value = constant(node, graph, 1, "shape")
        if value is None:
            raise unsupported(node, "lacks its shape")
        target = [int(v) for v in value.reshape(-1)]
    if not node.attrs.get("allowzero", 0):
        if any(d == 0 and i >= len(shape) for i, d in enumerate(target)):
            raise bad_shape(node, graph, f"copies a dimension that its input lacks: {target}")
        target = [shape[i] if d == 0 else d for i, d in enumerate(target)]
    if target.count(-1) > 1 or any(d < -1 for d in target):
        raise bad_shape(node, graph, f"cannot be reshaped to {target}")
    size = _product(shape)
    if -1 in target:
        known = _product(tuple(d for d in target if d != -1))
        if known == 0 or size % known:
            raise bad_shape(node, graph, f"cannot be reshaped to {target}")
        target[target.index(-1)] = size // known
    if _product(tuple(target)) != size:
        raise bad_shape(node, graph, f"cannot be reshaped to {target}")
    return tuple(target)


def _check_dropout(node: Node, graph: Graph) -> None:
    opset = version(node, graph)
    if opset < 7:
        training = not node.attrs.get("is_test", 0)
    elif opset < 12:
        training = False
    else:
        mode = constant(node, graph, 2, "training mode")
        training = mode is not None and bool(mode.reshape(-1)[0])
    if training:
        raise unsupported(node, "is in training mode")
    if any(node.outputs[1:]):
        raise unsupported(node, "is asked for its mask")


_READERS: dict[str, Callable[[Node, Graph], Canon]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(_RESHAPING, _reshape),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), windows.pool),
    "Conv": windows.conv,
    "ConvTranspose": windows.conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Concat": _concat,
    "Transpose": _transpose,
    "BatchNormalization": _batch_norm,
}

KNOWN = frozenset(_READERS)
"""Operators of the default domain that have a canonical form."""

CLOSED = {"MaxPool": BYTES, "Max": BYTES, "Min": BYTES, "Clip": BYTES, "Sign": BYTES,
          "Relu": ("int8",)}  # fmt: skip
"""Operators that compute, and whose results on these integers are such integers again."""

MOVING = frozenset((*_RESHAPING, "Concat", "Transpose"))
"""Operators that only move elements, of whatever dtype."""

_SLIDING = frozenset(op for op in KNOWN if op.endswith("Pool") or op.startswith("Conv"))


def operands(node: Node) -> tuple[str, ...]:
    """Return the inputs that carry tensors; those that only parametrise the node are left out.

    A shape, axes, bounds of Clip and the ratio of Dropout are parameters; weights are operands.
    """
    if node.op in _RESHAPING or ELEMENTWISE.get(node.op) == 1:
        return node.inputs[:1]
    return tuple(name for name in node.inputs if name)


def is_known(node: Node) -> bool:
    """Return whether `node`'s operator may have a canonical form (its attributes may not)."""
    return node.domain == "" and node.op in KNOWN


def canonical(node: Node, graph: Graph) -> Canon:
    """Return what a node means.

    Parameters
    ----------
    node : Node
        Any node but a fused group.
    graph : Graph
        Gives the operator set, the types of the node's inputs and the values of constants.

    Returns
    -------
    Canon
        One of the dataclasses of `gpuedge.graph.params`.

    Raises
    ------
    UnsupportedOpError (GE-501)
        The operator is not known, or these attributes, parameters or dtypes have no canonical form.
    ShapeError (GE-201)
        The shapes do not fit the operator.

    Notes
    -----
    Operators that compute take float32 or float16, the same for all operands, and some of them
    bytes (`CLOSED`); those that only move elements (Reshape and its kin, Concat, Transpose) take
    any dtype.
    """
    if not is_known(node):
        raise unsupported(node, f"(domain '{node.domain or 'ai.onnx'}') has no canonical form")
    if node.op in _SLIDING:
        windows.require_extents(node, graph)
    if node.op not in MOVING:
        require_dtypes(node, graph, operands(node), CLOSED.get(node.op, ()))
    return _READERS[node.op](node, graph)
