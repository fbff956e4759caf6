"""Which segments of a model run on the GPU, where carrying values across is paid for. Pure.

A model is a chain of segments. At each cut between two of them the values that are still needed
lie on one side, and carrying them to the other costs time. The cheapest assignment is found by
dynamic programming over the chain, in whole nanoseconds; a model that is not clearly better off
with a GPU stays on the CPU as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuedge.decide.trial import Arm


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment, and the cut before it.

    Attributes
    ----------
    cpu_ns : int
        What it takes on the CPU path.
    gpu_ns : int or None
        What it takes on the GPU; None where it cannot run there.
    to_gpu_ns, to_cpu_ns : int
        What carrying the values alive at the cut before it takes, by direction. Before the first
        one that is the inputs, which lie on the CPU's side.
    """

    cpu_ns: int
    gpu_ns: int | None = None
    to_gpu_ns: int = 0
    to_cpu_ns: int = 0

    def __post_init__(self) -> None:
        for name in ("cpu_ns", "gpu_ns", "to_gpu_ns", "to_cpu_ns"):
            value = getattr(self, name)
            if not (value is None and name == "gpu_ns") and (type(value) is not int or value < 0):
                raise ValueError(f"Piece.{name} must be a whole number of nanoseconds: {value!r}")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each segment runs.

    Attributes
    ----------
    arms : tuple
        ``cpu`` or ``gpu`` for each segment.
    total_ns : int
        One inference, with what is carried across and the share of start-up.
    cpu_ns : int
        One inference with everything on the CPU.
    crossings : int
        How many cuts are crossed, inputs and outputs included.
    """

    arms: tuple[Arm, ...]
    total_ns: int
    cpu_ns: int
    crossings: int


_Path = tuple[int, int, tuple[Arm, ...]]
"""Nanoseconds so far, cuts crossed, and the arms: compared in this order, so that of equally cheap
assignments the one with fewest crossings is taken, then the one that is on the CPU for longest."""


def place(
    pieces: Sequence[Piece],
    *,
    out_ns: int = 0,
    startup_ns: int = 0,
    inferences: int = 1,
    speedup_milli: int = 1_000,
) -> Layout:
    """Return the cheapest assignment, or all of it on the CPU where that is not beaten enough.

    Parameters
    ----------
    pieces : sequence of Piece
        In order of execution.
    out_ns : int
        What carrying the outputs from the GPU to the CPU's side takes.
    startup_ns, inferences : int
        What the GPU costs once, and over how many inferences (at least 1) that is spread.
    speedup_milli : int
        How many times as fast as the CPU alone the whole must be, in thousandths; it must be
        strictly faster in any case.
    """
    host = sum(piece.cpu_ns for piece in pieces)
    best: dict[Arm, _Path | None] = {"cpu": (0, 0, ()), "gpu": None}
    for piece in pieces:
        best = _step(best, piece)
    ends = [_with_outputs(path, out_ns, arm) for arm, path in best.items()]
    found = min(path for path in ends if path is not None)
    spent, limit = found[0] * inferences + startup_ns, host * inferences  # of all inferences
    is_worth = spent < limit and spent * speedup_milli <= limit * 1000
    if is_worth and "gpu" in found[2]:
        return Layout(found[2], -(-spent // inferences), host, found[1])
    none: list[Arm] = ["cpu"] * len(pieces)
    return Layout(tuple(none), host, host, 0)


def _step(best: dict[Arm, _Path | None], piece: Piece) -> dict[Arm, _Path | None]:
    """Return the cheapest ways to have run one more segment, by where it ran."""
    costs: dict[Arm, int | None] = {"cpu": piece.cpu_ns, "gpu": piece.gpu_ns}
    carry = {"cpu": piece.to_cpu_ns, "gpu": piece.to_gpu_ns}
    made: dict[Arm, _Path | None] = {}
    for arm, cost in costs.items():
        ways: list[_Path] = []
        for before, path in best.items():
            if path is None or cost is None:
                continue
            is_crossing = before != arm
            spent = path[0] + cost + (carry[arm] if is_crossing else 0)
            ways.append((spent, path[1] + is_crossing, (*path[2], arm)))
        made[arm] = min(ways, default=None)
    return made


def _with_outputs(path: _Path | None, out_ns: int, arm: Arm) -> _Path | None:
    if path is None or arm == "cpu":
        return path
    return path[0] + out_ns, path[1] + 1, path[2]
