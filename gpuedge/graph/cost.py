"""What a graph costs: floating-point operations by kernel class, and bytes. Pure counting."""

from __future__ import annotations

from typing import Literal, TypedDict

import numpy as np

from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.graph.canon import canonical, is_known, operands
from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.params import (
    BatchNormParams,
    Canon,
    ConcatParams,
    ConvParams,
    ConvTransposeParams,
    GemmParams,
    MatMulParams,
    PoolParams,
    ReshapeParams,
    SoftmaxParams,
    TransposeParams,
)

KernelClass = Literal["conv", "matmul", "map"]


class Count(TypedDict):
    """The keywords of `gpuedge.executors.base.Work`."""

    flops: dict[str, float]
    bytes_moved: float
    bytes_in: float
    bytes_out: float
    launches: int


def nbytes(graph: Graph, value: str) -> float:
    """Return the size of a value in bytes; 0.0 where its type is unknown or has no fixed size."""
    kind = graph.types.get(value)
    if kind is None or kind.dtype == "object":
        return 0.0
    return float(kind.size * np.dtype(kind.dtype).itemsize)


def flops(node: Node, graph: Graph) -> tuple[KernelClass, float]:
    """Return a node's kernel class and how many floating-point operations it does.

    A multiplication and an addition count one each, and so does any function of one number
    (exp, tanh, ...). A depthwise convolution is of class ``map``: it gathers. A fused group has the
    class of its convolution or product, if it has one. Nodes that only ONNX Runtime understands
    count one operation per output element.
    """
    if node.body:
        parts = [flops(step, graph) for step in node.body]
        anchors = [kind for kind, _ in parts if kind != "map"]
        return (anchors[0] if anchors else "map", sum(amount for _, amount in parts))
    out = float(sum(graph.types[o].size for o in node.outputs if o in graph.types))
    if not is_known(node):
        return "map", out
    try:
        return _known(node, graph, canonical(node, graph), out)
    except (UnsupportedOpError, ShapeError):
        return "map", out


def _known(node: Node, graph: Graph, params: Canon, out: float) -> tuple[KernelClass, float]:
    extra = out if len(operands(node)) > 2 else 0.0  # a bias, or the third input of Gemm
    if isinstance(params, (ConvParams, ConvTransposeParams)):
        # Every output of a convolution, or input of a transposed one, meets these weights.
        taps = params.kernel[0] * params.kernel[1] * graph.shape(node.inputs[1])[1]
        meets = out if isinstance(params, ConvParams) else graph.types[node.inputs[0]].size
        # With one channel to a group nothing that was read is used twice: that is gathering.
        is_deep = taps > params.kernel[0] * params.kernel[1] or params.group == 1
        return "conv" if is_deep else "map", 2.0 * meets * taps + extra
    if isinstance(params, (GemmParams, MatMulParams)):
        return "matmul", 2.0 * out * params.k + extra
    return "map", out * _per_element(node, params)


def _per_element(node: Node, params: Canon) -> int:
    """Return the operations per output element of a node that is no convolution or product."""
    if isinstance(params, PoolParams):
        return params.kernel[0] * params.kernel[1]
    if isinstance(params, SoftmaxParams):
        return 4  # maximum, exp, sum, divide
    if isinstance(params, BatchNormParams):
        return 2  # as a scale and a shift
    if isinstance(params, (ReshapeParams, ConcatParams, TransposeParams)):
        return 0
    return max(len(operands(node)) - 1, 1)


def _is_free(node: Node) -> bool:
    """Return whether a node is only another view of its input."""
    return is_known(node) and node.op in (
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout",
    )  # fmt: skip


def count(graph: Graph) -> Count:
    """Count a whole graph.

    Returns
    -------
    Count
        `flops` per kernel class; `bytes_moved`, all operands and results of every node that is
        not a mere view; `bytes_in` and `bytes_out`, the graph's inputs and outputs; `launches`,
        one per node that is not a mere view.
    """
    total: dict[str, float] = {}
    moved, launches = 0.0, 0
    for node in graph.nodes:
        for step in node.body or (node,):
            kind, amount = flops(step, graph)
            if amount:
                total[kind] = total.get(kind, 0.0) + amount
        if not _is_free(node):
            launches += 1
            moved += sum(nbytes(graph, v) for v in (*operands(node), *node.outputs) if v)
    return {
        "flops": total,
        "bytes_moved": moved,
        "bytes_in": sum(nbytes(graph, v) for v in graph.inputs),
        "bytes_out": sum(nbytes(graph, v) for v in graph.outputs),
        "launches": launches,
    }
