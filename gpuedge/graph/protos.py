"""Single pieces of ONNX messages as Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


def attribute_value(proto: onnx.AttributeProto) -> Any:
    """Return an attribute as a Python value; what has none that says as much stays a message."""
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
    value = plain.get(proto.type, proto)
    return proto if value == () else value  # an empty list would lose its element type
