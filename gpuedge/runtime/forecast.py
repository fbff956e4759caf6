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
from gpuedge.plan.planner import plan, plan_or_refusals
from gpuedge.plan.storages import EXACT
from gpuedge.runtime.segments import precision_of
from gpuedge.runtime.strings import CPU, caps_of

if TYPE_CHECKING:
    from gpuedge.graph.ir import Graph
    from gpuedge.plan.plan import Plan, Step
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
    policy : Policy, optional
        How segments are planned.
    slowness : mapping of str to float, optional
        What was measured of it (`gpuedge.runtime.yardstick`).

    Raises
    ------
    DriverError (GE-405)
        With the reason ``quirk``: the row's restrictions leave nothing to run on.
    """

    def __init__(
        self,
        graph: Graph,
        row: ProbeRow,
        policy: Policy | None = None,
        slowness: Mapping[str, float] | None = None,
    ) -> None:
        self.graph = graph
        self.policy = policy or Policy()
        self.device = row.device
        self.level = row.backend
        self.caps = caps_of(row)
        told = speeds.speeds_of(speeds.class_of(Identity.from_dict(dict(row.identity))))
        self.speed = speeds.scaled(told, slowness or {})

    @cached_property
    def _judged(self) -> Plan | dict[int, str]:
        return plan_or_refusals(self.graph, self.caps)

    @property
    def refused(self) -> Mapping[int, str]:
        """Why nodes cannot run there, by their identity."""
        return self._judged if isinstance(self._judged, dict) else {}

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

    def segments_ns(self, cpu_ns: int | None) -> list[int]:
        """Return what each segment takes where it runs; for `cpu_ns` see `mixture`."""
        total = sum(self.cpu_ns)
        whole = total if cpu_ns is None else cpu_ns
        pairs = zip(self.gpu_ns, self.cpu_ns, strict=True)
        return [ns * whole // total if there is None else there for there, ns in pairs]

    @cached_property
    def plans(self) -> tuple[Plan | None, ...]:
        """The plan of each segment, None of what the CPU runs.

        Raises GpuEdgeError where the device cannot run one.
        """
        precision = precision_of(self.policy, self.caps, self.graph, {})
        is_plain = self.policy.rewrites and precision == EXACT
        if is_plain and not isinstance(self._judged, dict) and len(self.cut) == 1:
            return (self._judged,)  # one segment is the whole graph
        return tuple(
            None if s.device == CPU
            else plan(s.graph, self.caps, (), precision, rewrites=self.policy.rewrites)
            for s in self.cut
        )  # fmt: skip

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """What the device runs: nodes and fused groups, with their kernels."""
        return tuple(step for plan in self.plans if plan is not None for step in plan.steps)

    @cached_property
    def arrangements(self) -> tuple[Arrangement | None, ...]:
        """Where the tensors of each segment lie, None of what the CPU runs."""
        return tuple(None if plan is None else arrange_on(plan, self.caps) for plan in self.plans)

    @property
    def memory_bytes(self) -> int:
        """Bytes of device memory that all segments take."""
        return sum(sum(arranged.memory.values()) for arranged in self.arrangements if arranged)


def _on_cpu(work: Work) -> int:
    operations, moved, each = CPU_RATES
    spent = sum(work.flops.values()) / operations + work.bytes_moved / moved
    return round(spent + work.launches * each) + 1
