"""Models written byte by byte: what no serialiser writes, or would take forever to."""

from __future__ import annotations

from typing import Any

from onnx import AttributeProto, TensorProto, helper
from onnx_models import value


def varint(number: int) -> bytes:
    """Return a protobuf varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, payload: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def wrapped(graph: bytes) -> bytes:
    """Return a model around the fields of a graph."""
    opset = field(8, helper.make_opsetid("", 17).SerializeToString())
    return varint(8) + varint(8) + opset + field(7, field(2, b"g") + graph)


def node_bytes(op: bytes, inputs: list[bytes], outputs: list[bytes], more: bytes = b"") -> bytes:
    """Return a node of a graph."""
    names = b"".join(field(1, n) for n in inputs) + b"".join(field(2, n) for n in outputs)
    return field(1, names + field(4, op) + more)


def port(number: int, name: str, shape: Any = (1,), element: int = TensorProto.FLOAT) -> bytes:
    """Return an input (11) or output (12) of a graph."""
    return field(number, value(name, shape, element).SerializeToString())


def nested(depth: int) -> bytes:
    """Return If inside If, `depth` times, written from the inside out."""
    kind = varint(20 << 3) + varint(AttributeProto.GRAPH)
    least = node_bytes(b"Identity", [b"x"], [b"z"]) + field(2, b"g") + port(12, "z")
    inner = least
    for _ in range(depth):
        branches = (b"then_branch", inner), (b"else_branch", least)
        both = b"".join(
            field(5, field(1, name) + field(6, graph) + kind) for name, graph in branches
        )
        inner = node_bytes(b"If", [b"c"], [b"z"], both) + field(2, b"g") + port(12, "z")
    return wrapped(inner + port(11, "x") + port(11, "c", [], TensorProto.BOOL))


def chain(count: int) -> bytes:
    """Return `count` nodes, one after the other."""
    nodes = (node_bytes(b"Relu", [b"v%d" % i], [b"v%d" % (i + 1)]) for i in range(count))
    return wrapped(b"".join(nodes) + port(11, "v0", [4]) + port(12, f"v{count}", [4]))


def wide(count: int) -> bytes:
    """Return one node and `count` inputs."""
    inputs = b"".join(port(11, f"x{i}") for i in range(count))
    return wrapped(node_bytes(b"Relu", [b"x0"], [b"y"]) + inputs + port(12, "y"))


def deep_type(depth: int) -> bytes:
    """Return an input that is a sequence of sequences of sequences ..."""
    kind = value("x", [1]).type.SerializeToString()
    for _ in range(depth):
        kind = field(4, field(1, kind))
    return wrapped(field(11, field(1, b"x") + field(2, kind)) + port(12, "x"))
