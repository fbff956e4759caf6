"""Predicting a model of which a GPU runs only parts, the CPU the rest. Pure.

Such a mixture is a candidate like any other: predicted here from its parts, and then tried on the
model itself against the CPU alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuedge.decide.model import MOST_NS, DeviceModel, Prediction
from gpuedge.decide.segments import Piece, place

if TYPE_CHECKING:
    from gpuedge.decide.policy import Policy
    from gpuedge.decide.trial import Arm
    from gpuedge.executors.base import Work


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

    arms: tuple[Arm, ...]
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
    if "gpu" not in layout.arms:
        return None
    chosen = [
        other if arm == "gpu" and other is not None else mine
        for arm, mine, other in zip(layout.arms, on_cpu, on_gpu, strict=True)
    ]
    used = [p for p, arm in zip(on_gpu, layout.arms, strict=True) if arm == "gpu"]
    return Mixture(layout.arms, _sum(chosen, _startup(used, gpu)))


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
