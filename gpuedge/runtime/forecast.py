"""What a graph comes to on a device that is not open: nodes it refuses, segments, memory, time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from gpuedge.core.identity import Identity
from gpuedge.decide import speeds
from gpuedge.decide.policy import Policy
from gpuedge.executors.base import Work
from gpuedge.graph.cost import count
from gpuedge.graph.partition import Segment, partition
from gpuedge.plan.arrange import Arrangement, arrange_on
from gpuedge.plan.planner import judge, plan
from gpuedge.runtime.segments import precision_of
from gpuedge.runtime.strings import CPU, caps_of

if TYPE_CHECKING:
    from gpuedge.graph.ir import Graph
    from gpuedge.plan.plan import Plan
    from gpuedge.probing.report import ProbeRow

CPU_RATES = (10.0, 10.0, 2_000.0)
"""Operations and bytes per nanosecond of a middling processor, and nanoseconds of each node: how
the CPU's time is spread over the segments of a model. Their sum is measured."""


class Forecast:
    """A graph and a device that probing found.

    Parameters
    ----------
    graph : Graph
    row : ProbeRow
        Of a usable device.
    slowness : mapping of str to float, optional
        What was measured of it (`gpuedge.runtime.yardstick`).

    Raises
    ------
    DriverError (GE-405)
        With the reason ``quirk``: the row's restrictions leave nothing to run on.
    """

    def __init__(
        self, graph: Graph, row: ProbeRow, slowness: Mapping[str, float] | None = None
    ) -> None:
        self.graph = graph
        self.device = row.device
        self.level = row.backend
        self.caps = caps_of(row)
        told = speeds.speeds_of(speeds.class_of(Identity.from_dict(dict(row.identity))))
        self.speed = speeds.scaled(told, slowness or {})

    @cached_property
    def refused(self) -> dict[int, str]:
        """Why nodes cannot run there, by their identity."""
        judged = judge(self.graph, self.caps)
        return judged if isinstance(judged, dict) else {}

    @cached_property
    def cut(self) -> tuple[Segment, ...]:
        """The segments, where the device runs all that it can."""
        return partition(self.graph, lambda n: CPU if id(n) in self.refused else self.device)

    @cached_property
    def works(self) -> tuple[Work, ...]:
        """What each segment costs."""
        return tuple(Work(**count(segment.graph)) for segment in self.cut)

    @cached_property
    def cpu_ns(self) -> list[int]:
        """What each segment takes on a middling processor."""
        return [_on_cpu(work) for work in self.works]

    @cached_property
    def gpu_ns(self) -> list[int | None]:
        """What each segment is predicted to take on the device; None where it cannot run it."""
        return [
            speeds.predict(work, self.speed, self.level) if segment.device != CPU else None
            for segment, work in zip(self.cut, self.works, strict=True)
        ]

    def mixture(self, cpu_ns: int | None) -> tuple[list[int], int]:
        """Return which segments the device is predicted to run faster, and what all take then.

        `cpu_ns` is what the whole graph takes on the CPU, where that was measured.
        """
        return speeds.mixture(self.cpu_ns, self.gpu_ns, cpu_ns)

    def startup_ns(self, taken: list[int]) -> int:
        """Return what opening the device takes, and compiling these segments."""
        opening = speeds.startup_ns(Work(), self.speed)
        each = (speeds.startup_ns(self.works[i], self.speed) for i in taken)
        return opening + sum(ns - opening for ns in each)

    def plan(self, segment: Segment, policy: Policy) -> Plan:
        """Plan a segment as the policy says. Raises GpuEdgeError where the device cannot run it."""
        precision = precision_of(policy, self.caps, self.graph, {})
        return plan(segment.graph, self.caps, (), precision, rewrites=policy.rewrites)

    def arranged(self, made: Plan) -> Arrangement:
        """Return where the tensors of a plan would lie."""
        return arrange_on(made, self.caps)


def kernels_of(seen: Forecast, policy: Policy | None = None) -> dict[tuple[str, ...], str]:
    """Return the kernel variants of each node or fused group on the device, by the nodes' labels.

    Empty where the result is only a view. Raises GpuEdgeError where a segment cannot be planned.
    """
    plans = (seen.plan(s, policy or Policy()) for s in seen.cut if s.device != CPU)
    return {s.nodes: "+".join(s.variants) for made in plans for s in made.steps}


def _on_cpu(work: Work) -> int:
    operations, moved, each = CPU_RATES
    spent = sum(work.flops.values()) / operations + work.bytes_moved / moved
    return round(spent + work.launches * each) + 1
