"""What a graph costs: floating-point operations by kernel class, and bytes. Pure counting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, TypedDict

import numpy as np

from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.graph.expand import expand, operands
from gpuedge.graph.ir import Graph, Node
from gpuedge.opset import OPERATORS
from gpuedge.opset.expr import Apply, walk
from gpuedge.opset.tensor import Convolution, Map, Pooling, Product, Reduce, Tensor, reachable

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


def _tensors(node: Node, graph: Graph) -> Sequence[Tensor] | None:
    """Return what a node computes; None for what only ONNX Runtime understands."""
    try:
        return expand(node, graph)
    except (UnsupportedOpError, ShapeError):
        return None


def flops(tensor: Tensor) -> tuple[KernelClass, float]:
    """Return a tensor's kernel class and how many floating-point operations it takes.

    A multiplication and an addition count one each, and so does any function of one number, or
    formula of a map. A depthwise convolution is of class ``map``: it gathers.
    """
    source, out = tensor.source, float(tensor.size)
    if isinstance(source, Convolution):
        # Every output of a convolution, or input of a transposed one, meets these weights.
        positions = source.window.kernel[0] * source.window.kernel[1]
        taps = positions * source.w.shape[1]
        meets = source.x.size if source.is_transposed else out
        # With one channel to a group nothing that was read is used twice: that is gathering.
        is_deep = taps > positions or source.group == 1
        return "conv" if is_deep else "map", 2.0 * meets * taps + (out if source.bias else 0.0)
    if isinstance(source, Product):
        return "matmul", 2.0 * out * source.a.shape[-1]
    if isinstance(source, Pooling):
        return "map", out * source.window.kernel[0] * source.window.kernel[1]
    if isinstance(source, Reduce):
        return "map", out * prod(source.over)
    computes = isinstance(source, Map) and any(isinstance(e, Apply) for e in walk(source.body))
    return "map", out if computes else 0.0


def count(graph: Graph) -> Count:
    """Count a whole graph.

    Returns
    -------
    Count
        `flops` per kernel class; `bytes_moved`, all operands and results of every node that is
        not a mere view; `bytes_in` and `bytes_out`, the graph's inputs and outputs; `launches`,
        one per node that is not a mere view. Nodes that only ONNX Runtime understands count one
        operation per output element.
    """
    total: dict[str, float] = {}
    moved, launches = 0.0, 0
    for node in graph.nodes:
        tensors = _tensors(node, graph)
        if tensors is None:
            parts: list[tuple[KernelClass, float]] = [("map", _elements(node, graph))]
        else:
            parts = [flops(t) for t in reachable(tensors)]
        for kind, amount in parts:
            if amount:
                total[kind] = total.get(kind, 0.0) + amount
        known = OPERATORS.get(node.op)
        if tensors is None or known is None or not known.is_view:
            launches += 1
            moved += sum(nbytes(graph, v) for v in (*operands(node), *node.outputs) if v)
    return {
        "flops": total,
        "bytes_moved": moved,
        "bytes_in": sum(nbytes(graph, v) for v in graph.inputs),
        "bytes_out": sum(nbytes(graph, v) for v in graph.outputs),
        "launches": launches,
    }


def _elements(node: Node, graph: Graph) -> float:
    return float(sum(graph.types[o].size for o in node.outputs if o in graph.types))
