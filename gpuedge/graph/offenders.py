"""One error for all nodes of a model that something cannot run."""

from __future__ import annotations

from collections.abc import Mapping

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.text import counted, plain, shown
from gpuedge.graph.ir import Graph, Node

MOST_NAMED = 8
"""Nodes that the sentence names; what is known here lists all."""

LINE = "\n" + 16 * " "
"""What lies between the lines of a part of a message."""


def refusal(
    graph: Graph, whys: Mapping[int, str], where: str, *, asked_by: str | None = None,
    hint: str | None = None,
) -> UnsupportedOpError:  # fmt: skip
    """Return the error that lists every node with its operator set, what it reads, and the reason.

    Parameters
    ----------
    graph : Graph
    whys : mapping of int to str
        A sentence for each node, by its identity.
    where : str
        Such as ``cannot run on gles20:0``.
    asked_by, hint : str, optional
        As in `GpuEdgeError`.
    """
    nodes = [n for n in graph.nodes if id(n) in whys]
    named = [f"{plain(n.op)} {shown(n.name or n.outputs[0])}" for n in nodes]
    more = f" and {counted(len(named) - MOST_NAMED, 'node')} more" if named[MOST_NAMED:] else ""
    return UnsupportedOpError(
        f"{', '.join(named[:MOST_NAMED])}{more} {where}.",
        asked_by=asked_by,
        known=LINE.join(
            f"{name} ({_facts(n, graph)}): {whys[id(n)]}"
            for name, n in zip(named, nodes, strict=True)
        ),
        hint=hint,
    )


def _facts(node: Node, graph: Graph) -> str:
    domain = f"{plain(node.domain)} " if node.domain else ""
    kinds = (graph.types.get(name) for name in node.inputs if name)
    reads = ", ".join("?" if kind is None else str(kind) for kind in kinds)
    return f"opset {domain}{graph.opset.get(node.domain, '?')}, reads {reads or 'nothing'}"
