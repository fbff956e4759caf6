"""How much of anything a model may hold: counted in its message, before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

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


def check_counts(proto: onnx.ModelProto, source: str) -> None:
    """Refuse models of more nodes or values than anyone could plan.

    Raises
    ------
    ModelError (GE-500)
        Says what there is too much of.
    """
    held = nodes = 0
    for inner in chain(graphs_of(proto.graph), _in_functions(proto)):
        held += len(inner.input) + len(inner.output) + len(inner.initializer)
        nodes += len(inner.node)
        _at_most(held, "inputs, outputs and weights", source)
        _at_most(nodes, "nodes", source)
        for node in inner.node:
            _check_split(node)
    for function in proto.functions:
        nodes += len(function.node)
        _at_most(nodes, "nodes", source)
        for node in function.node:
            _check_split(node)


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


def _in_functions(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    for function in proto.functions:
        for node in function.node:
            yield from graphs_in(node)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all inside its nodes. Protobuf reads no more than 100 levels."""
    yield graph
    for node in graph.node:
        yield from graphs_in(node)


def graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield every graph inside a node, at any depth."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from graphs_of(attribute.g)
        for inner in attribute.graphs:
            yield from graphs_of(inner)


def check_expansion(proto: onnx.ModelProto, source: str) -> None:
    """Refuse functions that would grow beyond bounds when their calls are written out.

    A few functions that call each other twice would make 2^40 nodes.

    Raises
    ------
    ModelError (GE-500)
        There would be too many nodes or bytes, or a function calls itself.
    """
    bodies = {_key(f.domain, f.name, f.overload): f for f in proto.functions}
    sizes: dict[FunctionKey, tuple[int, int]] = {}
    for start in bodies:
        _measure(start, bodies, sizes, source)
    nodes = size = 0
    for node in _nodes(proto.graph.node):
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
    bodies: dict[FunctionKey, onnx.FunctionProto],
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
        nodes = list(_nodes(bodies[key].node))
        called = [k for n in nodes if (k := _key(n.domain, n.op_type, n.overload)) in bodies]
        if is_known:
            open_ones.discard(key)
            inner = [sizes[k] for k in called]
            sizes[key] = (
                len(nodes) - len(called) + sum(count for count, _ in inner),
                bodies[key].ByteSize() + sum(size for _, size in inner),
            )
            continue
        open_ones.add(key)
        if open_ones.intersection(called):
            raise ModelError(f"In the model ({source}) the function {shown(key[1])} calls itself.")
        waiting.append((key, True))
        waiting += [(k, False) for k in dict.fromkeys(called) if k not in sizes]


def _key(domain: str, name: str, overload: str) -> FunctionKey:
    return ("" if domain == "ai.onnx" else domain, name, overload)


def _nodes(nodes: object) -> Iterator[onnx.NodeProto]:
    for node in nodes:  # type: ignore[attr-defined]
        yield node
        for graph in graphs_in(node):
            yield from graph.node
