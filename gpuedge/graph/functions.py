"""Operators that ONNX itself defines by simpler ones: the bodies that the onnx package carries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpuedge.graph import schema
from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.protos import attribute_value
from gpuedge.graph.writer import node_proto

if TYPE_CHECKING:
    import onnx


def body(node: Node, graph: Graph) -> Graph | None:
    """Return what a node stands for, None if ONNX does not define it by other operators.

    Parameters
    ----------
    node : Node
    graph : Graph
        Gives the operator set and the types of the node's inputs.

    Returns
    -------
    Graph or None
        Its inputs and outputs are those of the operator, by position; types are missing.
    """
    if node.body is not None:
        return node.body
    known = schema.find(node.op, node.domain, graph.opset)
    if known is None or any(n and n not in graph.types for n in node.inputs):
        return None
    proto = _function(known, node, graph)
    if proto is None:
        return None
    given = {**_defaults(known), **node.attrs}
    nodes = tuple(_inner(n, given, node) for n in proto.node)
    opset = {"": graph.opset.get("", 0)}  # of a body of another domain, which imports only that
    opset |= {imported.domain: int(imported.version) for imported in proto.opset_import}
    return Graph(nodes, tuple(proto.input), tuple(proto.output), {}, {}, opset)


def _function(known: Any, node: Node, graph: Graph) -> onnx.FunctionProto | None:
    """Return the newest body that the model's operator set can have; some came later than it."""
    from gpuedge.graph.onnx_package import onnx

    newest = graph.opset.get("", 0)
    function = onnx.FunctionProto()
    if known.has_function:
        version = _newest(known.function_opset_versions, newest)
        function.ParseFromString(known.get_function_with_opset_version(version))
        return function
    if known.has_context_dependent_function:
        version = _newest(known.context_dependent_function_opset_versions, newest)
        types = [schema.type_proto(graph.types[n]) if n else onnx.TypeProto() for n in node.inputs]
        text = known.get_context_dependent_function_with_opset_version(
            version,
            node_proto(node, graph).SerializeToString(),
            [t.SerializeToString() for t in types],
        )
        function.ParseFromString(text)
        return function
    return None


def _newest(versions: Iterable[int], limit: int) -> int:
    """Return the newest version up to a limit; where all are later, the oldest."""
    known = sorted(versions)
    return max((v for v in known if v <= limit), default=known[0])


def _defaults(known: Any) -> dict[str, Any]:
    defaults = {name: a.default_value for name, a in known.attributes.items()}
    return {name: attribute_value(a) for name, a in defaults.items() if a.name}


def branch(node: Node, *, is_true: bool) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Return the nodes of a branch of an If, and the names of what it gives."""
    graph = node.attrs["then_branch" if is_true else "else_branch"].g
    nodes = tuple(_inner(n, {}, node) for n in graph.node)
    return nodes, tuple(value.name for value in graph.output)


def _inner(proto: onnx.NodeProto, given: dict[str, Any], outer: Node) -> Node:
    attrs = {}
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            attrs[attribute.name] = attribute_value(attribute)
        elif attribute.ref_attr_name in given:
            attrs[attribute.name] = given[attribute.ref_attr_name]
    name = outer.name or outer.outputs[0]
    return Node(
        proto.op_type, tuple(proto.input), tuple(proto.output), attrs, name,
        "" if proto.domain == "ai.onnx" else proto.domain,
    )  # fmt: skip
