"""Gemm by constant weights as MatMul and Add, which is what quantisers of weights know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx


def split_gemm(proto: onnx.ModelProto) -> None:
    """Write each Gemm by a constant matrix, without factors, as MatMul and Add, in place."""
    from gpuedge.graph.onnx_package import helper, numpy_helper

    graph = proto.graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        how = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        is_plain = how.get("alpha", 1) == 1 and how.get("beta", 1) == 1 and not how.get("transA", 0)
        if node.op_type != "Gemm" or node.domain or node.input[1] not in held or not is_plain:
            nodes.append(node)
            continue
        name, y = node.input[1], node.output[0]
        if how.get("transB", 0):
            turned = np.ascontiguousarray(numpy_helper.to_array(held[name]).T)
            name = f"{y}/weights"
            graph.initializer.append(numpy_helper.from_array(turned, name))
        has_bias = len(node.input) > 2 and bool(node.input[2])
        product = f"{y}/product" if has_bias else y
        nodes.append(helper.make_node("MatMul", [node.input[0], name], [product], name=node.name))
        if has_bias:
            added = [product, node.input[2]]
            nodes.append(helper.make_node("Add", added, [y], name=f"{node.name or y}/bias"))
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) < len(graph.initializer) and not any(
        a.type in (a.GRAPH, a.GRAPHS) for node in graph.node for a in node.attribute
    ):
        del graph.initializer[:]
        graph.initializer.extend(kept)
