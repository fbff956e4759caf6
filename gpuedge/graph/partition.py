"""Cutting a graph into segments, each for one device, that can run one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.writer import reads


@dataclass(frozen=True)
class Segment:
    """Nodes for one device, as a graph of their own.

    Its inputs are values of the whole graph: inputs, or outputs of earlier segments.
    """

    device: str
    graph: Graph


def partition(graph: Graph, choose: Callable[[Node], str]) -> tuple[Segment, ...]:
    """Return segments in an order in which they can run.

    Parameters
    ----------
    graph : Graph
        The whole graph, in topological order.
    choose : callable
        Gives the device string of each node.

    Returns
    -------
    tuple of Segment
        Every node is in exactly one segment, and each segment reads only graph inputs, constants
        and outputs of segments before it. One segment is the whole graph, as it came. A graph
        without nodes has no segments; its outputs are then inputs or constants.

    Notes
    -----
    Each node joins the first segment of its device that comes no earlier than all its producers,
    so independent branches share segments and no cycle between segments can arise. Values whose
    type only ONNX Runtime can tell cannot be handed over between segments; where one would have
    to be, the whole graph goes to the device that computes it.
    """
    groups = _group(graph, choose)
    needed = _needed(graph, groups)
    segments = tuple(Segment(device, _cut(graph, nodes, needed)) for device, nodes in groups)
    if len(segments) == 1:
        return (Segment(segments[0].device, graph),)
    handed = {name for segment in segments for name in segment.graph.inputs}
    for segment in segments:
        if any(name in handed and name not in graph.types for name in segment.graph.outputs):
            return (Segment(segment.device, graph),)
    return segments


def part(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Return some nodes as a graph of their own; its outputs are what is read elsewhere."""
    inside = {id(node) for node in nodes}
    others = [node for node in graph.nodes if id(node) not in inside]
    return _cut(graph, nodes, _needed(graph, [("", list(nodes)), ("", others)]))


def _group(graph: Graph, choose: Callable[[Node], str]) -> list[tuple[str, list[Node]]]:
    groups: list[tuple[str, list[Node]]] = []
    home: dict[str, int] = {}
    for node in graph.nodes:
        device = choose(node)
        earliest = max((home[name] for name in reads(node) if name in home), default=0)
        at = next((i for i in range(earliest, len(groups)) if groups[i][0] == device), len(groups))
        if at == len(groups):
            groups.append((device, []))
        groups[at][1].append(node)
        home.update((name, at) for name in node.outputs if name)
    return groups


def _needed(graph: Graph, groups: Sequence[tuple[str, list[Node]]]) -> set[str]:
    """Return what any group reads of another, and the outputs of the graph."""
    needed = set(graph.outputs)
    for _, nodes in groups:
        inside = {name for node in nodes for name in node.outputs}
        needed.update(name for node in nodes for name in reads(node) if name not in inside)
    return needed


def _cut(graph: Graph, nodes: Sequence[Node], needed: set[str]) -> Graph:
    """Return `nodes` as a graph whose outputs are the `needed` ones of their results."""
    results = dict.fromkeys(name for node in nodes for name in node.outputs if name)
    read = dict.fromkeys(name for node in nodes for name in reads(node))
    used = (*results, *(n for n in read if n not in results))
    return Graph(
        tuple(nodes),
        tuple(n for n in read if n not in results and n not in graph.constants),
        tuple(n for n in results if n in needed),
        {n: graph.types[n] for n in used if n in graph.types},
        {n: graph.constants[n] for n in used if n in graph.constants},
        dict(graph.opset),
    )


def outputs_of(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return a graph's outputs; what no node computes is copied: results are the caller's."""
    outputs: dict[str, Array] = {}
    for name in graph.outputs:
        array = values[name] if name in values else graph.constants[name]
        is_given = name not in values or name in graph.inputs
        outputs[name] = array.copy() if is_given else array
    return outputs
