"""Which segments of a model run on the GPU, and what the mixture is predicted to take. Pure.

A model of which a GPU runs only parts is a chain of segments. At each cut between two of them the
values that are still needed lie on one side, and carrying them to the other costs time. The
cheapest assignment is found by dynamic programming over the chain, in whole nanoseconds. It is then
a candidate like any other: tried on the model itself against the CPU alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuedge.decide.model import MOST_NS, DeviceModel, Prediction
from gpuedge.decide.trial import Alternative

if TYPE_CHECKING:
    from gpuedge.decide.policy import Policy
    from gpuedge.decide.trial import Alternative
    from gpuedge.executors.base import Work


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
class SegmentPlacement:
    """Where each segment runs.

    Attributes
    ----------
    alternatives : tuple
        ``cpu`` or ``gpu`` for each segment.
    total_ns : int
        One inference, with what is carried across and the share of start-up.
    cpu_ns : int
        One inference with everything on the CPU.
    crossings : int
        How many cuts are crossed, inputs and outputs included.
    """

    alternatives: tuple[Alternative, ...]
    total_ns: int
    cpu_ns: int
    crossings: int


_Path = tuple[int, int, tuple[Alternative, ...]]
"""Nanoseconds so far, cuts crossed, and the alternatives: compared in this order, so that of
equally cheap assignments the one with fewest crossings is taken, then the one that is on the CPU
for longest."""


def place(
    pieces: Sequence[Piece],
    *,
    out_ns: int = 0,
    startup_ns: int = 0,
    inferences: int = 1,
    speedup_milli: int = 1_000,
) -> SegmentPlacement:
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
    best: dict[Alternative, _Path | None] = {"cpu": (0, 0, ()), "gpu": None}
    for piece in pieces:
        best = _step(best, piece)
    ends = [_with_outputs(path, out_ns, alternative) for alternative, path in best.items()]
    found = min(path for path in ends if path is not None)
    spent, limit = found[0] * inferences + startup_ns, host * inferences  # of all inferences
    is_worth = spent < limit and spent * speedup_milli <= limit * 1000
    if is_worth and "gpu" in found[2]:
        return SegmentPlacement(found[2], -(-spent // inferences), host, found[1])
    none: list[Alternative] = ["cpu"] * len(pieces)
    return SegmentPlacement(tuple(none), host, host, 0)


def _step(best: dict[Alternative, _Path | None], piece: Piece) -> dict[Alternative, _Path | None]:
    """Return the cheapest ways to have run one more segment, by where it ran."""
    costs: dict[Alternative, int | None] = {"cpu": piece.cpu_ns, "gpu": piece.gpu_ns}
    carry = {"cpu": piece.to_cpu_ns, "gpu": piece.to_gpu_ns}
    made: dict[Alternative, _Path | None] = {}
    for alternative, cost in costs.items():
        ways: list[_Path] = []
        for before, path in best.items():
            if path is None or cost is None:
                continue
            is_crossing = before != alternative
            spent = path[0] + cost + (carry[alternative] if is_crossing else 0)
            ways.append((spent, path[1] + is_crossing, (*path[2], alternative)))
        made[alternative] = min(ways, default=None)
    return made


def _with_outputs(path: _Path | None, out_ns: int, alternative: Alternative) -> _Path | None:
    if path is None or alternative == "cpu":
        return path
    return path[0] + out_ns, path[1] + 1, path[2]


@dataclass(frozen=True, slots=True)
class Mixed:
    """The segments of a model, in order.

    Attributes
    ----------
    parts : tuple of pairs of Work
        What each costs on the CPU and on the GPU, None where that cannot run it. What crosses
        between host and device is part of the latter: neighbours of a segment that the GPU can
        run are ones that it cannot.
    """

    parts: tuple[tuple[Work, Work | None], ...]

    @property
    def is_possible(self) -> bool:
        """Whether there is anything that the GPU can run."""
        return any(work is not None for _, work in self.parts)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Where each segment runs, and what the whole is predicted to take."""

    alternatives: tuple[Alternative, ...]
    prediction: Prediction


def mixture(
    mixed: Mixed, gpu: DeviceModel, cpu: DeviceModel, host: Prediction, policy: Policy
) -> Mixture | None:
    """Return the cheapest mixture; None where it is not predicted to beat the CPU alone.

    Parameters
    ----------
    mixed : Mixed
    gpu, cpu : DeviceModel
    host : Prediction
        Of the whole model on the CPU, which may have been timed: the parts are scaled to it.
    policy : Policy
    """
    at = policy.percentile
    whole = [cpu.predict(work, at) for work, _ in mixed.parts]
    # Segments are not free of cost when cut: they add up to what the whole takes all the same.
    ratio = host.p50_ns / max(sum(p.p50_ns for p in whole), 1)
    on_cpu = [_scaled(p, ratio) for p in whole]
    on_gpu = [None if work is None else gpu.predict(work, at) for _, work in mixed.parts]
    pieces = [
        Piece(mine.at_ns, None if other is None else other.at_ns)
        for mine, other in zip(on_cpu, on_gpu, strict=True)
    ]
    layout = place(pieces, startup_ns=_startup(on_gpu, gpu), inferences=policy.inferences)
    if "gpu" not in layout.alternatives:
        return None
    chosen = [
        other if alternative == "gpu" and other is not None else mine
        for alternative, mine, other in zip(layout.alternatives, on_cpu, on_gpu, strict=True)
    ]
    used = [
        p
        for p, alternative in zip(on_gpu, layout.alternatives, strict=True)
        if alternative == "gpu"
    ]
    return Mixture(layout.alternatives, _sum(chosen, _startup(used, gpu)))


def _startup(parts: Sequence[Prediction | None], gpu: DeviceModel) -> int:
    """Return what opening the device once and compiling these parts takes."""
    known = [p.startup_ns for p in parts if p is not None]
    opening = round(gpu.open_s * 1e9)
    return min(opening + sum(max(ns - opening, 0) for ns in known), MOST_NS)


def _scaled(p: Prediction, ratio: float) -> Prediction:
    names = ("p50_ns", "p90_ns", "at_ns", "low_ns", "high_ns")
    changes = {n: min(round(getattr(p, n) * ratio), MOST_NS) for n in names}
    p99 = None if p.p99_ns is None else min(round(p.p99_ns * ratio), MOST_NS)
    return replace(p, p99_ns=p99, **changes)


def _sum(parts: Sequence[Prediction], startup_ns: int) -> Prediction:
    """Return the prediction of parts that run one after another, as unsure as the worst of them."""

    def total(name: str) -> int:
        return min(sum(int(getattr(p, name)) for p in parts), MOST_NS)

    worst = max(parts, key=lambda p: p.sigma_micro)
    p99 = None if any(p.p99_ns is None for p in parts) else total("p99_ns")
    return replace(
        worst, p50_ns=total("p50_ns"), p90_ns=total("p90_ns"), at_ns=total("at_ns"),
        low_ns=total("low_ns"), high_ns=total("high_ns"), startup_ns=startup_ns, p99_ns=p99,
    )  # fmt: skip
