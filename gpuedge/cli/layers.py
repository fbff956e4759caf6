"""A small layered layout for drawings of graphs, after Sugiyama, Tagawa and Toda (1981).

Boxes lie in layers by their longest path from a source; orders within layers come from sweeps that
take each box to the mean of its neighbours; so do coordinates. Long edges bend only at layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

SWEEPS = 12
GAP = 18.0
"""Least distance between two boxes of a layer."""

BEND = 6.0
"""Width that an edge takes in the layers it only passes."""

LONGEST = 48
"""Layers an edge may pass and still get a way of its own; longer ones are drawn straight."""

Edge = tuple[int, int]


@dataclass
class Layout:
    """Where boxes lie: centres across, and layers from the top.

    Attributes
    ----------
    x : list of float
    layer : list of int
    ways : dict of Edge to list of (float, int)
        Where an edge crosses the layers between its ends.
    width : float
    depth : int
        How many layers there are.
    """

    x: list[float]
    layer: list[int]
    ways: dict[Edge, list[tuple[float, int]]] = field(default_factory=dict)
    width: float = 0.0
    depth: int = 0


def lay_out(widths: Sequence[float], edges: Sequence[Edge]) -> Layout:
    """Place boxes of these widths; edges go from lower to higher numbers."""
    layer = _layers(len(widths), edges)
    sizes, level, links, bends = list(widths), list(layer), list[Edge](), dict[Edge, list[int]]()
    for a, b in dict.fromkeys(edges):
        passed = range(layer[a] + 1, layer[b])
        bends[a, b] = []
        if len(passed) > LONGEST:
            continue
        ends = [a]
        for at in passed:
            ends.append(len(sizes))
            sizes.append(BEND)
            level.append(at)
        links += zip(ends, [*ends[1:], b], strict=True)
        bends[a, b] = ends[1:]
    rows: list[list[int]] = [[] for _ in range(max(level, default=-1) + 1)]
    for i, at in enumerate(level):
        rows[at].append(i)
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for a, b in links:
        above[b].append(a)
        below[a].append(b)
    _order(rows, above, below)
    x = _across(rows, sizes, above, below)
    left = min((x[i] - w / 2 for i, w in enumerate(sizes)), default=0.0)
    x = [v - left for v in x]
    ways = {edge: [(x[i], level[i]) for i in passed] for edge, passed in bends.items()}
    width = max((x[i] + w / 2 for i, w in enumerate(sizes)), default=0.0)
    return Layout(x[: len(widths)], layer, ways, width, len(rows))


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return the longest path to each box; sources lie just above what reads them first."""
    layer, first = [0] * count, [count] * count
    reached = set[int]()
    for a, b in sorted(edges):
        layer[b] = max(layer[b], layer[a] + 1)
        reached.add(b)
    for a, b in edges:
        first[a] = min(first[a], layer[b])
    return [
        first[i] - 1 if i not in reached and first[i] < count else at
        for i, at in enumerate(layer)
    ]  # fmt: skip


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Sort each layer by where the neighbours of its boxes are, downwards and upwards in turn."""
    place = {i: at for row in rows for at, i in enumerate(row)}
    for sweep in range(SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = {i: fmean(place[n] for n in near[i]) if near[i] else place[i] for i in row}
            row.sort(key=lambda i: wish[i])
            place.update((i, at) for at, i in enumerate(row))


def _across(
    rows: list[list[int]], sizes: list[float], above: list[list[int]], below: list[list[int]]
) -> list[float]:
    """Return coordinates: as near to the neighbours as the order and the widths allow."""
    x = [0.0] * len(sizes)
    for row in rows:
        _spread(row, x, sizes)
    for sweep in range(SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            for i in row:
                if near[i]:
                    x[i] = fmean(x[n] for n in near[i])
            _spread(row, x, sizes)
    return x


def _spread(row: list[int], x: list[float], sizes: list[float]) -> None:
    """Move the boxes of a layer apart: the mean of pushing all to the right and all to the left.

    Both keep the distances, and so does their mean.
    """
    right, left = [x[i] for i in row], [x[i] for i in row]
    apart = [(sizes[a] + sizes[b]) / 2 + GAP for a, b in pairwise(row)]
    for at, least in enumerate(apart):
        right[at + 1] = max(right[at + 1], right[at] + least)
    for at, least in reversed(list(enumerate(apart))):
        left[at] = min(left[at], left[at + 1] - least)
    for at, i in enumerate(row):
        x[i] = (right[at] + left[at]) / 2
