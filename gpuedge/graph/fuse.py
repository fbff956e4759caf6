"""Join nodes that one kernel can do: a pure function from graph to graph.

The CPU executor never sees this: it gets the model's own nodes, which ONNX Runtime fuses itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite

from gpuedge.graph.canon import operands as tensors_of
from gpuedge.graph.ir import Graph, Node

FUSED = "Fused"
TINY = 2.0**-126
"""Least normal float32; smaller literals may be flushed to zero by a compiler."""
CHAIN_LIMIT = 8
"""Longest chain of elementwise operators in one kernel; longer texts compile slowly on drivers."""

ANCHORS = frozenset({"Conv", "ConvTranspose", "MatMul"})
"""Operators whose kernels have an epilogue."""


@dataclass
class _Group:
    """Nodes that will run as one kernel; the last one's output leaves it."""

    nodes: list[Node] = field(default_factory=list)

    @property
    def has_anchor(self) -> bool:
        return self.nodes[0].op in ANCHORS

    def operands(self, graph: Graph) -> set[str]:
        """Tensors the kernel must bind besides the anchor's own."""
        made = {n.outputs[0] for n in self.nodes}
        # The anchor binds its first input in the layout that its epilogue reads; its weights it
        # binds in an arrangement of their own, so reading them again costs one more binding.
        skip = {self.nodes[0].inputs[0]} if self.has_anchor else set()
        read = {i for n in self.nodes[self.has_anchor :] for i in tensors_of(n)}
        return {r for r in read - made - skip if not is_literal(r, graph)}


def is_literal(value: str, graph: Graph) -> bool:
    """Tell whether a value is a constant scalar, which kernels take as text.

    Zeros and what is not finite stay tensors: drivers fold ``x * 0`` and ``x / 0`` with literals in
    ways that IEEE 754 does not (seen with lavapipe), and there is no text for infinity.
    """
    array = graph.constants.get(value)
    if array is None or array.size != 1:
        return False
    number = float(array.reshape(()))
    return isfinite(number) and abs(number) >= TINY


def fuse(graph: Graph, *, operands: int, extras: int, elementwise: frozenset[str]) -> Graph:
    """Join chains of elementwise nodes, and such chains with the operator that feeds them.

    Parameters
    ----------
    graph : Graph
        After `decompose`.
    operands : int
        Tensors a purely elementwise kernel may read.
    extras : int
        Tensors an anchor's epilogue may read besides the anchor's own.
    elementwise : frozenset of str
        Operators that may be fused.

    Returns
    -------
    Graph
        Every elementwise node is inside a ``Fused`` node, alone if nothing joins it.
    """
    uses: dict[str, int] = {}
    for node in graph.nodes:
        for name in set(tensors_of(node)):
            uses[name] = uses.get(name, 0) + 1
    for name in graph.outputs:
        uses[name] = uses.get(name, 0) + 1
    groups: dict[str, _Group] = {}
    order: list[_Group | Node] = []
    for node in graph.nodes:
        if node.domain or not (node.op in elementwise or _is_anchor(node, graph)):
            order.append(node)
            continue
        group = _Group([node])
        for name in dict.fromkeys(node.inputs):
            donor = groups.get(name)
            if donor is None or uses[name] != 1 or node.op in ANCHORS:
                continue
            joined = _join(donor, group, graph, operands, extras)
            if joined is not None:
                order.remove(donor)
                group = joined
        groups[node.outputs[0]] = group
        order.append(group)
    nodes = tuple(_node(g) if isinstance(g, _Group) else g for g in order)
    return replace(graph, nodes=nodes)


def _is_anchor(node: Node, graph: Graph) -> bool:
    """Tell whether `node` has a kernel with an epilogue; products with vectors do without."""
    if node.op == "MatMul":
        return all(len(graph.shape(i)) >= 2 for i in node.inputs)
    return node.op in ANCHORS


def _join(donor: _Group, group: _Group, graph: Graph, operands: int, extras: int) -> _Group | None:
    """Return `donor` followed by `group` if one kernel can do both."""
    joined = _Group(donor.nodes + group.nodes)
    if donor.has_anchor and group.has_anchor:
        return None
    if group.has_anchor:
        joined = _Group(group.nodes[:1] + donor.nodes + group.nodes[1:])
    out = graph.shape(group.nodes[-1].outputs[0])
    if graph.shape(donor.nodes[-1].outputs[0]) != out or len(joined.nodes) > CHAIN_LIMIT:
        return None
    needed = joined.operands(graph)
    if joined.has_anchor:
        if not all(fits_epilogue(graph.shape(n), out, joined.nodes[0]) for n in needed):
            return None
        return joined if len(needed) <= extras else None
    return joined if len(needed) <= operands else None


def fits_epilogue(shape: tuple[int, ...], out: tuple[int, ...], anchor: Node) -> bool:
    """Tell whether an operand can be read in the anchor's own layout: whole, or one per channel."""
    if shape == out:
        return True
    axis = len(out) - 1 if anchor.op == "MatMul" else 1
    return is_per_channel(shape, out, axis)


def is_per_channel(shape: tuple[int, ...], out: tuple[int, ...], axis: int) -> bool:
    """Tell whether `shape` broadcasts to `out` along every axis but `axis`."""
    if len(shape) > len(out):
        return False
    aligned = (1,) * (len(out) - len(shape)) + shape
    return aligned[axis] == out[axis] and all(d == 1 for i, d in enumerate(aligned) if i != axis)


def _node(group: _Group) -> Node:
    if len(group.nodes) == 1 and group.has_anchor:
        return group.nodes[0]
    made = {n.outputs[0] for n in group.nodes}
    inputs = dict.fromkeys(i for n in group.nodes for i in tensors_of(n) if i not in made)
    name = "+".join(dict.fromkeys(n.name for n in group.nodes if n.name))
    return Node(
        FUSED,
        tuple(inputs),
        group.nodes[-1].outputs,
        name=name,
        domain="gpuedge",
        body=tuple(group.nodes),
    )
