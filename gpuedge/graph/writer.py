"""Graphs back to ONNX: what ONNX Runtime is given, whole models and segments alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.errors import ModelError
from gpuedge.core.text import shown
from gpuedge.graph import guard, schema
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.opset.call import node_label

if TYPE_CHECKING:
    import onnx

MIN_IR = 8
"""Oldest file format written: from 4 on initialisers need not be inputs; 8 is read everywhere."""

SETTLED_OPSET = 20
"""Operator sets up to this one are in every ONNX Runtime that gpuedge accepts."""

PROTOBUF_LIMIT = 2**31 - 1
"""Largest message that protobuf can serialise, bytes."""


def to_onnx(graph: Graph, outputs: Sequence[str] | None = None) -> onnx.ModelProto:
    """Return `graph` as a model.

    Parameters
    ----------
    graph : Graph
        A model or a segment.
    outputs : sequence of str, optional
        Declare only these outputs instead of the graph's.

    Raises
    ------
    ModelError (GE-500)
        A graph input has no known type.
    """
    from gpuedge.graph.onnx_package import helper

    names = graph.outputs if outputs is None else tuple(outputs)
    used = {name for node in graph.nodes for name in reads(node)} | set(names)
    proto = helper.make_graph(
        [node_proto(node, graph) for node in graph.nodes],
        "gpuedge",
        [_value(name, graph, must=True) for name in graph.inputs],
        [_value(name, graph, must=False) for name in names],
        [_tensor(name, array) for name, array in graph.constants.items() if name in used],
    )
    versions = {**graph.opset, "": _oldest_equal(proto, graph.opset.get("", 0))}
    imports = [helper.make_opsetid(domain, number) for domain, number in versions.items() if number]
    lowest = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return helper.make_model(
        proto, opset_imports=imports, ir_version=max(MIN_IR, lowest), producer_name="gpuedge"
    )


def to_bytes(
    graph: Graph, outputs: Sequence[str] | None = None, *, is_guarded: bool = False
) -> bytes:
    """Return `to_onnx` serialised; `is_guarded`: without what ONNX Runtime errs at.

    Raises
    ------
    ModelError (GE-500)
        The model would exceed what protobuf can hold (2 GiB).
    """
    size = sum(array.nbytes for array in graph.constants.values())
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            f"The weights of this part of the model hold {size} bytes, more than one ONNX message "
            "can carry.",
            known=f"the limit of protobuf is {PROTOBUF_LIMIT} bytes",
        )
    proto = to_onnx(graph, outputs)
    if is_guarded:
        guard.guard(proto)
    message: bytes = proto.SerializeToString()
    return message


def _oldest_equal(graph: onnx.GraphProto, opset: int) -> int:
    """Return the oldest operator set in which every operator of `graph` means what it does now.

    ONNX Runtime refuses operator sets younger than itself, although few operators ever change.
    """
    if opset <= SETTLED_OPSET:
        return opset
    oldest = SETTLED_OPSET
    for node in graph.node:
        known = schema.find(node.op_type, node.domain, {node.domain: opset})
        if not node.domain and known is not None:
            oldest = max(oldest, int(known.since_version))
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                oldest = max(oldest, _oldest_equal(inner, opset))
    return min(oldest, opset)


def reads(node: Node) -> Iterable[str]:
    """Yield every outer value a node reads, also from inside its subgraphs."""
    yield from (name for name in node.inputs if name)
    for value in node.attrs.values():
        if hasattr(value, "ByteSize"):
            yield from subgraph_reads(value)


def graphs_of(node: Node) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node holds itself (If, Loop, Scan)."""
    for value in node.attrs.values():
        if hasattr(value, "ByteSize"):
            yield from _graphs(value)


def _graphs(attribute: onnx.AttributeProto) -> Iterable[onnx.GraphProto]:
    yield from attribute.graphs
    if attribute.HasField("g"):
        yield attribute.g


def subgraph_reads(attribute: onnx.AttributeProto) -> Iterable[str]:
    """Yield the names that the subgraphs of an attribute take from outside."""
    for inner in _graphs(attribute):
        own = {value.name for value in (*inner.input, *inner.initializer)}
        own |= {name for node in inner.node for name in node.output}
        for node in inner.node:
            yield from (name for name in node.input if name and name not in own)
            for nested in node.attribute:
                yield from (name for name in subgraph_reads(nested) if name not in own)
        yield from (value.name for value in inner.output if value.name not in own)


def node_proto(node: Node, graph: Graph) -> onnx.NodeProto:
    """Return a node as ONNX has it."""
    from gpuedge.graph.onnx_package import helper

    proto = helper.make_node(
        node.op, list(node.inputs), list(node.outputs), name=node.name or None, domain=node.domain
    )
    known = schema.find(node.op, node.domain, graph.opset)
    for name, value in node.attrs.items():
        try:
            proto.attribute.append(_attribute(name, value, known))
        except (TypeError, ValueError) as error:  # a packed model may hold anything
            raise ModelError(
                f"{node_label(node.op, node.name, node.outputs)} cannot have {shown(str(value))} "
                f"as {shown(name)}.",
                known=str(error),
            ) from None
    return proto


def _attribute(name: str, value: Any, known: Any) -> onnx.AttributeProto:
    """Write an attribute with the type its schema wants (1 is a fine float in Python)."""
    from gpuedge.graph.onnx_package import helper, onnx

    if isinstance(value, onnx.AttributeProto):
        return value
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, _tensor("", value))
    wanted = int(known.attributes[name].type) if known and name in known.attributes else None
    if isinstance(value, (bool, np.generic)):
        value = value.item() if isinstance(value, np.generic) else int(value)
    kinds = onnx.AttributeProto
    if wanted == kinds.FLOAT:
        value = float(value)
    elif wanted == kinds.FLOATS:
        value = [float(v) for v in value]
    return helper.make_attribute(name, value, attr_type=wanted)


def _value(name: str, graph: Graph, *, must: bool) -> onnx.ValueInfoProto:
    from gpuedge.graph.onnx_package import helper, onnx

    kind = graph.types.get(name)
    if kind is not None:
        return helper.make_tensor_value_info(name, schema.element_type(kind.dtype), kind.shape)
    if must:
        raise ModelError(f"The type of the value '{name}' is not known, so it cannot be an input.")
    return onnx.ValueInfoProto(name=name)  # ONNX Runtime infers it


def _tensor(name: str, array: Array) -> onnx.TensorProto:
    from gpuedge.graph.onnx_package import numpy_helper

    return numpy_helper.from_array(np.asarray(array, order="C"), name)
