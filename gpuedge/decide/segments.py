"""Which segments of a model run on the GPU, and what the mixture is predicted to take. Pure.

A model of which a GPU runs only parts is a chain of segments. At each cut between two of them the
values that are still needed lie on one side, and carrying them to the other costs time. The
cheapest assignment is found by dynamic programming over the chain, in whole nanoseconds. It is then
a route like any other: compared on the model itself with the CPU alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from gpuedge.executors.base import Work

Side = Literal["cpu", "gpu"]


class Piece(NamedTuple):
    """A segment, and the cut before it, in nanoseconds.

    `gpu_ns` is None where the GPU cannot run it. `to_gpu_ns` and `to_cpu_ns` are what carrying the
    values alive at the cut takes, by direction; before the first one those are the inputs, which
    lie on the CPU's side.
    """

    cpu_ns: int
    gpu_ns: int | None = None
    to_gpu_ns: int = 0
    to_cpu_ns: int = 0


class Mixture(NamedTuple):
    """Where each segment runs, in order, and what one request takes then."""

    sides: tuple[Side, ...]
    total_ns: int


_Path = tuple[int, int, tuple[Side, ...]]
"""Nanoseconds so far, cuts crossed, and the sides: compared in this order, so that of equally cheap
assignments the one with fewest crossings is taken, then the one that is on the CPU for longest."""


def place(pieces: Sequence[Piece], *, out_ns: int = 0) -> Mixture:
    """Return the cheapest assignment of segments in their order of execution.

    `out_ns` is what carrying the outputs from the GPU to the CPU's side takes. Opening the device
    has no part in it: whether the mixture pays for that is decided as for any other route.
    """
    best: dict[Side, _Path | None] = {"cpu": (0, 0, ()), "gpu": None}
    for piece in pieces:
        best = _step(best, piece)
    on_gpu = best["gpu"]
    ends = [best["cpu"], on_gpu and (on_gpu[0] + out_ns, on_gpu[1] + 1, on_gpu[2])]
    total, _, sides = min(path for path in ends if path is not None)
    return Mixture(sides, total)


def _step(best: dict[Side, _Path | None], piece: Piece) -> dict[Side, _Path | None]:
    """Return the cheapest ways to have run one more segment, by where it ran."""
    costs: dict[Side, int | None] = {"cpu": piece.cpu_ns, "gpu": piece.gpu_ns}
    carry = {"cpu": piece.to_cpu_ns, "gpu": piece.to_gpu_ns}
    made: dict[Side, _Path | None] = {}
    for side, cost in costs.items():
        ways: list[_Path] = []
        for before, path in best.items():
            if path is not None and cost is not None:
                is_crossing = before != side
                spent = path[0] + cost + (carry[side] if is_crossing else 0)
                ways.append((spent, path[1] + is_crossing, (*path[2], side)))
        made[side] = min(ways, default=None)
    return made


def mixture(
    parts: Sequence[tuple[Work, Work | None]],
    gpu: Callable[[Work], int],
    cpu: Callable[[Work], int],
    whole_ns: int | None = None,
) -> Mixture | None:
    """Return the cheapest mixture; None where it is not predicted to beat the CPU alone.

    Parameters
    ----------
    parts : sequence of pairs of Work
        What each segment costs on the CPU and on the GPU, None where that cannot run it. What
        crosses between host and device is part of the latter: neighbours of a segment that the GPU
        can run are ones that it cannot.
    gpu, cpu : callable
        Work to predicted nanoseconds.
    whole_ns : int, optional
        The whole model on the CPU, where it was timed: the parts are scaled to it. Segments are not
        free of cost when cut, but add up to what the whole takes all the same.
    """
    alone = [cpu(mine) for mine, _ in parts]
    total = sum(alone)
    if whole_ns is not None and total:
        alone = [ns * whole_ns // total for ns in alone]
    pieces = [
        Piece(ns, None if other is None else gpu(other))
        for ns, (_, other) in zip(alone, parts, strict=True)
    ]
    found = place(pieces)
    return found if "gpu" in found.sides else None  # of equal ones the CPU alone is taken
