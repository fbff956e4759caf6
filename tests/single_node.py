"""Graphs of one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuedge.graph.build import OPSET, GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType


def single(
    op: str,
    inputs: Mapping[str, TensorType],
    attrs: Mapping[str, Any] | None = None,
    constants: Mapping[str, Array] | None = None,
    *,
    order: Sequence[str] | None = None,
    output: str = "y",
    opset: int = OPSET,
) -> Graph:
    """Return a graph of one node.

    Parameters
    ----------
    op : str
        A known operator.
    inputs : Mapping
        Graph inputs by name.
    attrs : Mapping, optional
        Attributes of the node, as in ONNX.
    constants : Mapping, optional
        Constant inputs by name (a shape, axes, bounds, weights).
    order : sequence of str, optional
        The node's inputs in order, with "" for absent ones; by default the graph inputs followed
        by the constants.
    output : str
        Name of the only output.
    opset : int
        Operator set version.

    Raises
    ------
    ShapeError (GE-201), UnsupportedOpError (GE-501)
        As from `gpuedge.graph.expand.infer`.
    """
    builder = GraphBuilder(opset)
    for name, kind in inputs.items():
        builder.input(name, kind)
    for name, value in (constants or {}).items():
        builder.constant(name, value)
    names = list(order) if order is not None else [*inputs, *(constants or {})]
    builder.output(builder.add(op, names, attrs, output=output))
    return builder.build()
