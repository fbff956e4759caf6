"""How much of anything a model may hold: counted in its message, before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import ModelError
from gpuedge.core.text import shown

if TYPE_CHECKING:
    import onnx

MAX_ELEMENTS = 2**36
"""Largest value a graph may compute, elements: 256 GiB of float32. More is an attack or a slip."""

MAX_COUNT = 1 << 17
"""Most nodes, and most inputs, outputs and weights together; the largest known models have a tenth.
Each node costs some 100 microseconds of planning."""

MAX_EXPANDED_BYTES = 1 << 29
"""Largest sum of the calls of a model's own functions, written out; they may double each step."""

MAX_RANK = 32
"""Most dimensions of a value; numpy 1 knows no more."""

FunctionKey = tuple[str, str, str]


class Counted:
    """What a graph or function holds at any depth; protobuf reads no more than 100 levels.

    Attributes
    ----------
    nodes, tensors : list
    values : int
        Inputs, outputs and weights.
    references : list of (NodeProto, AttributeProto)
        Attributes that stand for those of a function.

    Raises
    ------
    ModelError (GE-500)
        It is more than anyone could plan.
    """

    def __init__(self, outer: onnx.GraphProto | onnx.FunctionProto, source: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.references: list[tuple[onnx.NodeProto, onnx.AttributeProto]] = []
        self.values = 0
        self._source = source
        self._add_graph(outer)

    def _add_graph(self, graph: Any) -> None:
        if hasattr(graph, "initializer"):  # a function has no weights, and counts none
            self.values += len(graph.input) + len(graph.output) + len(graph.initializer)
            _at_most(self.values, "inputs, outputs and weights", self._source)
            self.tensors += graph.initializer
            self._add_sparse(graph.sparse_initializer)
        _at_most(len(self.nodes) + len(graph.node), "nodes", self._source)
        for node in graph.node:
            self.nodes.append(node)
            _check_split(node)
            for attribute in node.attribute:
                self._add(node, attribute)

    def _add_sparse(self, tensors: Iterable[onnx.SparseTensorProto]) -> None:
        for sparse in tensors:
            self.tensors += (sparse.values, sparse.indices)

    def _add(self, node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
        if attribute.ref_attr_name:
            self.references.append((node, attribute))
        if attribute.HasField("t"):
            self.tensors.append(attribute.t)
        self.tensors += attribute.tensors
        if attribute.HasField("sparse_tensor"):
            self._add_sparse([attribute.sparse_tensor])
        self._add_sparse(attribute.sparse_tensors)
        if attribute.HasField("g"):
            self._add_graph(attribute.g)
        for graph in attribute.graphs:
            self._add_graph(graph)


def counted(proto: onnx.ModelProto, source: str) -> tuple[Counted, list[Counted]]:
    """Return what a model and its functions hold. Raises as `Counted`, for all together."""
    held, bodies = Counted(proto.graph, source), list[Counted]()
    nodes, values = len(held.nodes), held.values
    for function in proto.functions:
        body = Counted(function, source)
        nodes, values = nodes + len(body.nodes), values + body.values
        _at_most(values, "inputs, outputs and weights", source)
        _at_most(nodes, "nodes", source)
        bodies.append(body)
    return held, bodies


def _at_most(count: int, what: str, source: str) -> None:
    if count > MAX_COUNT:
        raise ModelError(
            f"The model ({source}) has more {what} than gpuedge reads.",
            known=f"at least {count}; the most is {MAX_COUNT}",
        )


def _check_split(node: onnx.NodeProto) -> None:
    """ONNX's inference makes a list of as many outputs as a Split says that it has."""
    if node.op_type != "Split":
        return
    for attribute in node.attribute:
        if attribute.name == "num_outputs" and attribute.i != len(node.output):
            name = shown(node.name or next(iter(node.output), ""))
            raise ModelError(
                f"Split node {name} has {len(node.output)} outputs and num_outputs={attribute.i}."
            )


def check_expansion(
    proto: onnx.ModelProto, held: Counted, bodies: Sequence[Counted], source: str
) -> None:
    """Refuse functions that would grow beyond bounds when their calls are written out.

    A few functions that call each other twice would make 2^40 nodes.

    Raises
    ------
    ModelError (GE-500)
        There would be too many nodes or bytes, or a function calls itself.
    """
    known = {_key(f.domain, f.name, f.overload): (f.ByteSize(), body.nodes)
             for f, body in zip(proto.functions, bodies, strict=True)}  # fmt: skip
    sizes: dict[FunctionKey, tuple[int, int]] = {}
    for start in known:
        _measure(start, known, sizes, source)
    nodes = size = 0
    for node in held.nodes:
        more, larger = sizes.get(_key(node.domain, node.op_type, node.overload), (1, 0))
        nodes, size = nodes + more, size + larger
    _at_most(nodes, "nodes (its functions written out)", source)
    if size > MAX_EXPANDED_BYTES:
        raise ModelError(
            f"The functions of the model ({source}), written out, are larger than gpuedge reads.",
            known=f"{size} bytes; the most is {MAX_EXPANDED_BYTES}",
        )


def _measure(
    start: FunctionKey,
    bodies: Mapping[FunctionKey, tuple[int, list[onnx.NodeProto]]],
    sizes: dict[FunctionKey, tuple[int, int]],
    source: str,
) -> None:
    """Fill in `sizes` (nodes and bytes) for a function and what it calls, without recursion."""
    waiting: list[tuple[FunctionKey, bool]] = [(start, False)]
    open_ones: set[FunctionKey] = set()
    while waiting:
        key, is_known = waiting.pop()
        if key in sizes:
            continue
        nbytes, nodes = bodies[key]
        called = [k for n in nodes if (k := _key(n.domain, n.op_type, n.overload)) in bodies]
        if is_known:
            open_ones.discard(key)
            inner = [sizes[k] for k in called]
            sizes[key] = (
                len(nodes) - len(called) + sum(count for count, _ in inner),
                nbytes + sum(size for _, size in inner),
            )
            continue
        open_ones.add(key)
        if open_ones.intersection(called):
            raise ModelError(f"In the model ({source}) the function {shown(key[1])} calls itself.")
        waiting.append((key, True))
        waiting += [(k, False) for k in dict.fromkeys(called) if k not in sizes]


def _key(domain: str, name: str, overload: str) -> FunctionKey:
    return ("" if domain == "ai.onnx" else domain, name, overload)
