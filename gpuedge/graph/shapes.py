"""Output types of known operators, by numpy's rules. Needs no ONNX package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuedge.graph.canon import canonical, operands
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.graph.nodes import bad_shape, type_in
from gpuedge.graph.params import (
    BatchNormParams,
    ClipParams,
    ConcatParams,
    ConvParams,
    ConvTransposeParams,
    ElementwiseParams,
    GemmParams,
    MatMulParams,
    PoolParams,
    ReshapeParams,
    SoftmaxParams,
    TransposeParams,
)

Shape = tuple[int, ...]


def infer(node: Node, graph: Graph) -> tuple[TensorType, ...]:
    """Return the types of a node's outputs.

    Parameters
    ----------
    node : Node
        A node whose operator is known to `gpuedge.graph.canon`.
    graph : Graph
        Gives the operator set, the types of the node's inputs and the values of constants; the
        types of its outputs need not be there.

    Raises
    ------
    ShapeError (GE-201)
        The shapes do not fit; the message names the node, its operator and its input shapes.
    UnsupportedOpError (GE-501)
        The node has no canonical form.
    """
    params = canonical(node, graph)
    shape = _RULES[type(params)](node, graph, params)
    dtype = type_in(node, graph, 0).dtype
    return (TensorType(dtype, shape),)


def _broadcast(node: Node, graph: Graph, _: ElementwiseParams) -> Shape:
    shapes = [graph.shape(name) for name in operands(node)]
    result = _together(shapes)
    if result is None:
        raise bad_shape(node, graph, "has inputs that do not broadcast")
    if node.op == "PRelu" and result != shapes[0]:
        raise bad_shape(node, graph, "has a slope that does not broadcast to its input")
    return result


def _together(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that all of them broadcast to; numpy's own gives up on large ones."""
    rank = max(map(len, shapes))
    result = []
    for extents in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        others = {extent for extent in extents if extent != 1}
        if len(others) > 1:
            return None
        result.append(others.pop() if others else 1)
    return tuple(result)


def _same(node: Node, graph: Graph, _: Any) -> Shape:
    return type_in(node, graph, 0).shape


def _channels(node: Node, graph: Graph, params: Any) -> int:
    x = type_in(node, graph, 0).shape
    if isinstance(params, ConvParams):
        return type_in(node, graph, 1).shape[0]
    if isinstance(params, ConvTransposeParams):
        return type_in(node, graph, 1).shape[1] * params.group
    return x[1]


def _window(
    node: Node, graph: Graph, params: ConvParams | ConvTransposeParams | PoolParams
) -> Shape:
    batch = type_in(node, graph, 0).shape[0]
    return (batch, _channels(node, graph, params), *params.out[2 - params.rank :])


def _gemm(node: Node, graph: Graph, params: GemmParams) -> Shape:
    return (params.m, params.n)


def _matmul(node: Node, graph: Graph, params: MatMulParams) -> Shape:
    rows = (params.m,) if len(type_in(node, graph, 0).shape) > 1 else ()
    columns = (params.n,) if len(type_in(node, graph, 1).shape) > 1 else ()
    return (*params.batch, *rows, *columns)


def _concat(node: Node, graph: Graph, params: ConcatParams) -> Shape:
    shapes = [type_in(node, graph, i).shape for i in range(len(node.inputs))]
    total = sum(s[params.axis] for s in shapes)
    return (*shapes[0][: params.axis], total, *shapes[0][params.axis + 1 :])


def _transpose(node: Node, graph: Graph, params: TransposeParams) -> Shape:
    shape = type_in(node, graph, 0).shape
    return tuple(shape[i] for i in params.perm)


def _reshape(node: Node, graph: Graph, params: ReshapeParams) -> Shape:
    return params.shape


_RULES: dict[type, Callable[[Node, Graph, Any], Shape]] = {
    ElementwiseParams: _broadcast,
    ClipParams: _same,
    SoftmaxParams: _same,
    BatchNormParams: _same,
    ConvParams: _window,
    ConvTransposeParams: _window,
    PoolParams: _window,
    GemmParams: _gemm,
    MatMulParams: _matmul,
    ConcatParams: _concat,
    TransposeParams: _transpose,
    ReshapeParams: _reshape,
}
