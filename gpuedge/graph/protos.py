"""Single pieces of ONNX messages as Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import ModelError
from gpuedge.core.text import shown
from gpuedge.graph.ir import Node

if TYPE_CHECKING:
    import onnx

    from gpuedge.graph.ir import Array


def tensor_value(tensor: onnx.TensorProto) -> Array:
    """Return a tensor as a read-only array. Raises ModelError (GE-500) where it cannot be read."""
    from gpuedge.graph.onnx_package import numpy_helper

    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ModelError(f"The weight {shown(tensor.name)} cannot be read: {error}.") from None
    array.flags.writeable = False
    return array


def attribute_value(proto: onnx.AttributeProto) -> Any:
    """Return an attribute as a Python value; what has none that says as much stays a message.

    A tensor of numbers becomes a read-only array.
    """
    kinds = type(proto)
    if proto.type == kinds.STRING:
        try:
            return proto.s.decode()
        except UnicodeDecodeError:
            return proto
    plain: dict[int, Any] = {
        kinds.INT: int(proto.i),
        kinds.FLOAT: float(proto.f),
        kinds.INTS: tuple(proto.ints),
        kinds.FLOATS: tuple(proto.floats),
    }
    if proto.type == kinds.TENSOR and not proto.t.external_data:
        array = tensor_value(proto.t)
        return array if array.dtype.kind in "fiub" else proto
    value = plain.get(proto.type, proto)
    return proto if value == () else value  # an empty list would lose its element type


def node_of(proto: onnx.NodeProto) -> Node:
    """Return a node as graphs have it."""
    return Node(
        proto.op_type,
        tuple(proto.input),
        tuple(proto.output),
        {a.name: attribute_value(a) for a in proto.attribute},
        proto.name,
        "" if proto.domain == "ai.onnx" else proto.domain,
    )
