"""A graph before and after rewriting, as boxes and edges, and as text for Graphviz."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuedge.core.errors import UsageError
from gpuedge.core.text import counted, plain
from gpuedge.graph.writer import reads
from gpuedge.plan.planner import label

if TYPE_CHECKING:
    from gpuedge.graph.ir import Graph, Node

TITLE, TIP = 34, 4000
"""Letters of a title, and of what a pointer over a box shows."""

DRAW_S = 300.0
"""Seconds that Graphviz may take: a graph of 5,000 boxes takes half a minute."""

STYLES = {
    "value": 'style="rounded,filled" fillcolor="#ffffff" color="#57606a"',
    "operator": 'style=filled fillcolor="#eaeef2" color="#57606a"',
    "folded": 'style="filled,dashed" fillcolor="#fff8c5" color="#9a6700"',
    "kernel": 'style=filled fillcolor="#dafbe1" color="#1a7f37"',
    "view": 'style="filled,dashed" fillcolor="#ffffff" color="#1a7f37"',
    "cpu": 'style=filled fillcolor="#ffe2cc" color="#bc4c00"',
}
"""How each kind of box is drawn: what the model has, and what became of it."""

WORDS = {
    "operator": ("operator", ""), "folded": ("operator", " evaluated while planning"),
    "kernel": ("step", " with kernels"), "view": ("view", " without a kernel"),
    "cpu": ("operator", " on the CPU"),
}  # fmt: skip
"""What each kind of box is called."""

Edge = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """One box: a title, a line below it, what kind it is, and what a pointer over it shows."""

    title: str
    detail: str
    kind: str
    tip: str = ""


@dataclass(frozen=True)
class Drawing:
    """Boxes and edges between their numbers, from lower to higher ones."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


Group = tuple[tuple["Node", ...], Box]
"""Nodes that one box stands for."""


def drawing(graph: Graph, groups: Sequence[Group]) -> Drawing:
    """Return groups of nodes between the inputs and outputs of their graph."""
    place = {id(n): at for at, n in enumerate((*graph.folded, *graph.nodes))}
    ordered = sorted(groups, key=lambda g: max(place[id(n)] for n in g[0]))
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    boxes = [Box(_cut(n), _shape(graph, n), "value", n) for n in inputs]
    source = {name: at for at, name in enumerate(inputs)}
    for at, (nodes, box) in enumerate(ordered, len(boxes)):
        boxes.append(box)
        source.update((name, at) for node in nodes for name in node.outputs if name)
    edges: dict[Edge, None] = {}
    for at, (nodes, _) in enumerate(ordered, len(inputs)):
        for name in (n for node in nodes for n in reads(node)):
            if source.get(name, at) != at:  # groups may overlap in time: such an edge is turned
                edges[min(at, source[name]), max(at, source[name])] = None
    for at, name in enumerate(outputs, len(boxes)):
        boxes.append(Box(_cut(name), _shape(graph, name), "value", name))
        if name in source:
            edges[source[name], at] = None
    return Drawing(tuple(boxes), tuple(edges))


def before(graph: Graph) -> Drawing:
    """Return the model's own nodes."""
    groups: list[Group] = []
    for nodes, kind in ((graph.folded, "folded"), (graph.nodes, "operator")):
        for node in nodes:
            shape = _shape(graph, node.outputs[0])
            groups.append(((node,), Box(_cut(node.op), shape, kind, label(node))))
    return drawing(graph, groups)


def after(graph: Graph, kernels: Mapping[tuple[str, ...], str]) -> Drawing:
    """Return what becomes of the nodes.

    `kernels` says what runs for nodes by their labels: variants of a GPU, ``view`` where nothing
    does. Other nodes run on the CPU.
    """
    by_label = {label(n): n for n in graph.nodes}
    groups: list[Group] = []
    for names, kernel in kernels.items():
        nodes = tuple(by_label[n] for n in names)
        title = _cut(" + ".join(n.op for n in nodes))
        kind = "view" if kernel == "view" else "kernel"
        groups.append((nodes, Box(title, _cut(kernel), kind, "\n".join(names))))
        for name in names:
            by_label.pop(name, None)
    for name, node in by_label.items():
        groups.append(((node,), Box(_cut(node.op), "on the CPU", "cpu", name)))
    return drawing(replace(graph, folded=()), groups)


def _cut(text: str) -> str:
    return plain(text, TITLE)


def _shape(graph: Graph, value: str) -> str:
    kind = graph.types.get(value)
    return "" if kind is None else f"{kind.dtype} {'x'.join(map(str, kind.shape)) or 'scalar'}"


def about(drawn: Drawing) -> str:
    """Return how many boxes of each kind there are, in words."""
    count = [(sum(b.kind == kind for b in drawn.boxes), word) for kind, word in WORDS.items()]
    return ", ".join(f"{counted(number, noun)}{rest}" for number, (noun, rest) in count if number)


def dot(drawings: Sequence[tuple[str, Drawing]]) -> str:
    """Return drawings side by side in the language of Graphviz, each under its title.

    See https://graphviz.org/doc/info/lang.html. All names of the model are quoted.
    """
    lines = [
        "digraph model {",
        "  graph [fontname=Helvetica labelloc=t];",
        "  node [shape=box fontname=Helvetica fontsize=10 height=0.3];",
    ]
    for number, (title, drawn) in enumerate(drawings):
        lines.append(f"  subgraph cluster_{number} {{")
        heading = _quoted("\n".join((title, about(drawn))))
        lines.append(f"    label={heading}; color=white;")
        for at, box in enumerate(drawn.boxes):
            text = _quoted("\n".join((box.title, box.detail)).rstrip())
            tip = _quoted(box.tip or box.title)
            lines.append(f"    n{number}_{at} [label={text} tooltip={tip} {STYLES[box.kind]}];")
        lines += [f"    n{number}_{a} -> n{number}_{b};" for a, b in drawn.edges]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    """Return foreign text as a quoted string; control characters are replaced."""
    clean = plain(text, TIP, lines=True).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + clean.replace("\n", "\\n") + '"'


def svg(text: str) -> bytes:
    """Return a text for Graphviz as an SVG document.

    Raises
    ------
    UsageError (GE-200)
        Graphviz is not installed, or failed.
    """
    program = shutil.which("dot")
    if program is None:
        raise UsageError(
            "Graphviz, which draws SVG files, is not installed.",
            asked_by="--output",
            known="there is no program `dot` on the PATH",
            hint="install graphviz, or name a .dot file, which other programs draw, too",
        )
    command = [program, "-Tsvg"]
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=DRAW_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            "Graphviz failed.",
            asked_by="--output",
            known=plain(str(getattr(error, "stderr", None) or error), TIP),
            hint="name a .dot file and look at it",
        ) from None
    return done.stdout
