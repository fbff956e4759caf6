"""A graph before and after rewriting as one SVG picture; long chains collapse in large graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from gpuedge.cli.layers import Edge, Layout, lay_out
from gpuedge.core.text import counted, plain
from gpuedge.graph.writer import reads
from gpuedge.plan.planner import label

if TYPE_CHECKING:
    from gpuedge.graph.ir import Graph, Node

WHOLE = 80
"""Boxes up to which each is drawn; of more, chains become one box each."""

MOST = 160
"""Boxes that are drawn; of more, a note says how many are missing."""

LETTER, SMALL = 6.8, 6.0
"""Widths of letters in titles and in the line below."""

HIGH, STEP, HEAD, MARGIN = 36.0, 62.0, 62.0, 20.0
SHOWN, LISTED, LONGEST = 34, 60, 4000
"""Letters of a title, titles that a chain lists, letters of any text."""

STYLES = {
    "value": "fill:#ffffff;stroke:#57606a;stroke-dasharray:none",
    "operator": "fill:#eaeef2;stroke:#57606a",
    "folded": "fill:#fff8c5;stroke:#9a6700;stroke-dasharray:4 3",
    "kernel": "fill:#dafbe1;stroke:#1a7f37",
    "view": "fill:#ffffff;stroke:#1a7f37;stroke-dasharray:4 3",
    "cpu": "fill:#ffe2cc;stroke:#bc4c00",
    "note": "fill:none;stroke:none",
}
"""How each kind of box is drawn: what the model has, and what became of it."""

WORDS = {
    "operator": ("operator", ""), "folded": ("operator", " evaluated while planning"),
    "kernel": ("step", " with kernels"), "view": ("view", " without a kernel"),
    "cpu": ("operator", " on the CPU"),
}  # fmt: skip
"""What each kind of box is called."""


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
    made = {name: at for at, name in enumerate(inputs)}
    for at, (nodes, box) in enumerate(ordered, len(boxes)):
        boxes.append(box)
        made.update((name, at) for node in nodes for name in node.outputs if name)
    edges: dict[Edge, None] = {}
    for at, (nodes, _) in enumerate(ordered, len(inputs)):
        for name in (n for node in nodes for n in reads(node)):
            if made.get(name, at) != at:  # groups may overlap in time: such an edge is turned
                edges[min(at, made[name]), max(at, made[name])] = None
    for at, name in enumerate(outputs, len(boxes)):
        boxes.append(Box(_cut(name), _shape(graph, name), "value", name))
        if name in made:
            edges[made[name], at] = None
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

    `kernels` says what runs for nodes by their labels: variants of a GPU, empty where nothing runs.
    Other nodes run on the CPU.
    """
    by_label = {label(n): n for n in graph.nodes}
    groups: list[Group] = []
    for names, kernel in kernels.items():
        nodes = tuple(by_label[n] for n in names)
        title = _cut(" + ".join(n.op for n in nodes))
        kind = "kernel" if kernel else "view"
        groups.append((nodes, Box(title, _cut(kernel or "view"), kind, "\n".join(names))))
        for name in names:
            by_label.pop(name, None)
    for name, node in by_label.items():
        groups.append(((node,), Box(_cut(node.op), "on the CPU", "cpu", name)))
    return drawing(replace(graph, folded=()), groups)


def bounded(found: Drawing) -> Drawing:
    """Return a drawing of at most `MOST` boxes and a note, chains collapsed if it is large."""
    if len(found.boxes) > WHOLE:
        found = _collapsed(found)
    if len(found.boxes) <= MOST:
        return found
    more = len(found.boxes) - MOST
    note = Box(f"{more} more boxes are not drawn", "--json lists all of them", "note")
    edges = tuple((a, b) for a, b in found.edges if b < MOST)
    return Drawing((*found.boxes[:MOST], note), (*edges, (MOST - 1, MOST)))


def _collapsed(found: Drawing) -> Drawing:
    """Return a drawing in which each chain of boxes of one kind is one."""
    read: dict[int, list[int]] = {}
    feeds: dict[int, list[int]] = {}
    for a, b in found.edges:
        read.setdefault(b, []).append(a)
        feeds.setdefault(a, []).append(b)
    head = list(range(len(found.boxes)))
    chains: dict[int, list[int]] = {}
    for at, box in enumerate(found.boxes):
        sources = read.get(at, [])
        is_link = len(sources) == 1 and len(feeds[sources[0]]) == 1 and box.kind != "value"
        if is_link and found.boxes[sources[0]].kind == box.kind:
            head[at] = head[sources[0]]
        chains.setdefault(head[at], []).append(at)
    # a chain takes the place of its end, so that edges go on from lower to higher numbers
    order = sorted(chains, key=lambda h: chains[h][-1])
    number = {h: at for at, h in enumerate(order)}
    boxes = tuple(_chain([found.boxes[i] for i in chains[h]]) for h in order)
    pairs = ((number[head[a]], number[head[b]]) for a, b in found.edges)
    return Drawing(boxes, tuple(dict.fromkeys((a, b) for a, b in pairs if a != b)))


def _chain(boxes: Sequence[Box]) -> Box:
    if len(boxes) == 1:
        return boxes[0]
    titles = [b.title for b in boxes]
    listed = titles if len(titles) <= LISTED else [*titles[:LISTED], "..."]
    few = _cut(", ".join(dict.fromkeys(titles)))
    return Box(f"{len(boxes)} in a row", few, boxes[0].kind, "\n".join(listed))


def _cut(text: str) -> str:
    return plain(text, SHOWN)


def _shape(graph: Graph, value: str) -> str:
    kind = graph.types.get(value)
    return "" if kind is None else f"{kind.dtype} {'x'.join(map(str, kind.shape)) or 'scalar'}"


def svg(panels: Sequence[tuple[str, Drawing]]) -> str:
    """Return drawings side by side as an SVG document, each under its title."""
    parts: list[str] = []
    left, deepest = MARGIN, 0
    for title, whole in panels:
        found = bounded(whole)
        laid = lay_out([_wide(b) for b in found.boxes], found.edges)
        parts.append(f'<text class="h" x="{left:.0f}" y="26">{_safe(title)}</text>')
        line = about(whole)
        if len(found.boxes) < len(whole.boxes):
            line += "; what follows one another is one box"
        parts.append(f'<text class="s" x="{left:.0f}" y="44">{_safe(line)}</text>')
        parts += _panel(found, laid, left)
        left += max(laid.width, 1.3 * LETTER * len(title), SMALL * len(line)) + 3 * MARGIN
        deepest = max(deepest, laid.depth)
    width, height = left - 2 * MARGIN, HEAD + deepest * STEP
    styles = "".join(f".{kind}{{{style}}}" for kind, style in STYLES.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><style>text{{font-family:sans-serif;'
        f"fill:#1f2328}}.t{{font-size:12px;text-anchor:middle}}.d{{font-size:10px;fill:#57606a;"
        f"text-anchor:middle}}.h{{font-size:16px;font-weight:bold}}.s{{font-size:11px}}"
        f".e{{fill:none;stroke:#8c959f}}{styles}</style>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def about(found: Drawing) -> str:
    """Return how many boxes of each kind there are, in words."""
    count = [(sum(b.kind == kind for b in found.boxes), word) for kind, word in WORDS.items()]
    return ", ".join(f"{counted(number, noun)}{rest}" for number, (noun, rest) in count if number)


def _wide(box: Box) -> float:
    return max(54.0, 16 + LETTER * len(box.title), 16 + SMALL * len(box.detail))


def _panel(found: Drawing, laid: Layout, left: float) -> list[str]:
    """Return edges, and boxes over them."""
    tops = [HEAD + STEP * at for at in range(laid.depth)]
    parts = []
    for a, b in found.edges:
        bends = [(left + x, tops[at] + HIGH / 2) for x, at in laid.ways.get((a, b), [])]
        start = (left + laid.x[a], tops[laid.layer[a]] + HIGH)
        end = (left + laid.x[b], tops[laid.layer[b]])
        parts.append(f'<path class="e" d="{_curve([start, *bends, end])}"/>')
    for at, box in enumerate(found.boxes):
        x, y, wide = left + laid.x[at], tops[laid.layer[at]], _wide(box)
        round_ = 18 if box.kind == "value" else 4
        parts.append(
            f"<g><title>{_safe(box.tip or box.title)}</title>"
            f'<rect class={quoteattr(box.kind)} x="{x - wide / 2:.1f}" y="{y:.1f}" '
            f'width="{wide:.1f}" height="{HIGH:.0f}" rx="{round_}"/>'
            f'<text class="t" x="{x:.1f}" y="{y + (15 if box.detail else 22):.1f}">'
            f"{_safe(box.title)}</text>"
            f'<text class="d" x="{x:.1f}" y="{y + 28:.1f}">{_safe(box.detail)}</text></g>'
        )
    return parts


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Return a path that leaves and meets every layer upright."""
    (x, y), *rest = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for right, low in rest:
        middle = (y + low) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {right:.1f} {middle:.1f} {right:.1f} {low:.1f}")
        x, y = right, low
    return "".join(parts)


def _safe(text: str) -> str:
    """Return foreign text as XML has it; XML knows no control characters."""
    return escape(plain(text, LONGEST, lines=True))
