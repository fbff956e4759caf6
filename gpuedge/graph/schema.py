"""What the ONNX package knows about operators and element types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gpuedge.core.errors import ModelError
from gpuedge.core.text import shown
from gpuedge.graph.ir import Node, TensorType
from gpuedge.safety.interrupts import is_of_handler


def find(op: str, domain: str, opset: Mapping[str, int]) -> Any:
    """Return the schema of an operator at the version in `opset`, or None if there is none."""
    from gpuedge.graph.onnx_package import onnx

    if domain not in opset:
        return None
    try:
        return onnx.defs.get_schema(op, opset[domain], domain)
    except onnx.defs.SchemaError:
        return None


def schema_reason(node: Node, opset: Mapping[str, int]) -> str | None:
    """Return None if `node`'s operator exists at its operator set, else one sentence."""
    if node.domain in CONTRIB or find(node.op, node.domain, opset) is not None:
        return None
    if node.domain not in opset:
        return f"{node.op} belongs to the domain '{node.domain}', which the model does not import."
    named = node.domain or "ai.onnx"
    return f"There is no operator {node.op} in operator set {named} {opset[node.domain]}."


def is_int64(node: Node, position: int, opset: Mapping[str, int]) -> bool:
    """Return whether an input can be nothing else than a tensor of int64."""
    known = find(node.op, node.domain, opset)
    if known is None or not known.inputs:
        return False
    formal = known.inputs[min(position, len(known.inputs) - 1)]
    return set(formal.types) == {"tensor(int64)"}


CONTRIB = frozenset({"com.microsoft", "com.microsoft.nchwc", "ai.onnx.contrib"})
"""Domains whose operators only ONNX Runtime can judge: the ONNX package has no schemas for them."""


def dtype_name(element: int, weight: str | None = None) -> str:
    """Return the numpy dtype name of an ONNX element type; ``object`` for strings.

    `weight` names what has it, for the message.

    Raises
    ------
    ModelError (GE-500)
        There is no such element type.
    """
    try:
        return _names()[element]
    except KeyError:
        raise ModelError(
            f"There is no element type {element}.",
            asked_by="the model" if weight is None else f"the weight {shown(weight)}",
            known=f"the onnx package here knows 1 to {max(_names())}",
            hint="the file may be damaged, or a newer onnx package may know the type",
        ) from None


@cache
def _names() -> dict[int, str]:
    from gpuedge.graph.onnx_package import TensorProto, helper

    known = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
    return {n: str(helper.tensor_dtype_to_np_dtype(n).name) for n in known}


def bits(element: int) -> int:
    """Return how many bits an element of a stored tensor takes.

    Raises
    ------
    ModelError (GE-500)
        There is no such element type, or it is text, which has no fixed size.
    """
    from gpuedge.graph.onnx_package import TensorProto, helper

    names = {value: name for name, value in TensorProto.DataType.items()}
    name = names.get(element, "UNDEFINED")
    if name in ("UNDEFINED", "STRING"):
        raise ModelError(f"A weight of the element type {element} has no size.")
    packed = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
    if name in packed:
        return packed[name]
    return int(helper.tensor_dtype_to_np_dtype(element).itemsize) * 8


def inferred(proto: Any) -> Any:
    """Return a model with the types that ONNX's inference finds; None where that fails.

    Without data propagation, which would write out the values of every Range, however long.
    """
    from gpuedge.graph.onnx_package import onnx

    try:
        return onnx.shape_inference.infer_shapes(proto)
    except (
        onnx.shape_inference.InferenceError, RuntimeError, ValueError, MemoryError
    ) as error:  # fmt: skip
        if is_of_handler(error):
            raise
        return None


def is_variadic(node: Node, opset: Mapping[str, int]) -> bool:
    """Tell whether an operator has as many outputs as a node names."""
    from gpuedge.graph.onnx_package import onnx

    known = find(node.op, node.domain, opset)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return known is not None and any(output.option == variadic for output in known.outputs)


def type_proto(kind: TensorType) -> Any:
    """Return the ONNX type of a value."""
    from gpuedge.graph.onnx_package import helper

    return helper.make_tensor_type_proto(element_type(kind.dtype), kind.shape)


def element_type(dtype: str) -> int:
    """Return the ONNX element type of a numpy dtype name."""
    import numpy as np

    from gpuedge.graph.onnx_package import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
