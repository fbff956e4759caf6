"""Small ONNX models made by hand, without going through gpuedge."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: Any, element: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def weight(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto] | None = None,
    opset: int = 17,
    **extra: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "test", inputs, outputs, weights or [])
    imports = [helper.make_opsetid("", opset), *extra.pop("imports", [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **extra)


def relu() -> onnx.ModelProto:
    return model(
        [helper.make_node("Relu", ["x"], ["y"])], [value("x", ["N", 3])], [value("y", ["N", 3])]
    )


def simple(op: str, shape: Any, weights: dict[str, Any] | None = None, **attrs: Any) -> Any:
    names = list(weights or {})
    node = helper.make_node(op, ["x", *names], ["y"], **attrs)
    held = [weight(n, v) for n, v in (weights or {}).items()]
    return model([node], [value("x", shape)], [value("y", None)], held)


def by_reference(proto: onnx.ModelProto, feeds: Any) -> dict[str, Any]:
    """Return what ONNX's reference gives, which has no DequantizeLinear from before 19."""
    from onnx.reference import ReferenceEvaluator

    raised = onnx.ModelProto()
    raised.CopyFrom(proto)
    for imported in raised.opset_import:
        if not imported.domain:
            imported.version = max(imported.version, 21)
    names = [one.name for one in proto.graph.output]
    return dict(zip(names, ReferenceEvaluator(raised).run(None, dict(feeds)), strict=True))
