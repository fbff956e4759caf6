"""The parts of a graph that a device can run where it cannot run the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuedge.core.errors import GpuEdgeError
from gpuedge.decide.mixing import Mixed
from gpuedge.executors.base import Work
from gpuedge.graph.cost import count
from gpuedge.graph.partition import Segment, partition
from gpuedge.kernels.arrange import arrange
from gpuedge.kernels.costs import planned
from gpuedge.kernels.planner import label, plan, why_not
from gpuedge.runtime.strings import CPU, caps_of, find

if TYPE_CHECKING:
    from gpuedge.core.caps import Caps
    from gpuedge.decide.trial import Arm
    from gpuedge.graph.ir import Graph
    from gpuedge.kernels.plan import Plan
    from gpuedge.probing.report import ProbeReport


class Mixing:
    """Cuts one graph for the devices of a report (`gpuedge.decide.choose.Parts`).

    Parameters
    ----------
    graph : Graph
    report : ProbeReport

    Attributes
    ----------
    nodes : dict
        By device, the identities of the nodes that it would run, where that is not all of them.
    memory : dict
        By device, the bytes of its memory that all parts it can run would take.
    """

    def __init__(self, graph: Graph, report: ProbeReport) -> None:
        self.nodes: dict[str, frozenset[int]] = {}
        self.memory: dict[str, int] = {}
        self._graph = graph
        self._report = report
        self._segments: dict[str, tuple[Segment, ...]] = {}

    def of(self, device: str) -> Mixed | None:
        """Return what each segment costs on either side; None where the graph cannot be cut."""
        caps = caps_of(find(device, self._report))
        graph = self._graph
        where = {
            id(n): device if why_not(n, graph, caps) is None else CPU for n in graph.nodes
        }  # fmt: skip
        cut = partition(graph, lambda node: where[id(node)])
        if len(cut) < 2:
            return None
        self._segments[device] = cut
        parts, nbytes = [], 0
        for segment in cut:
            made = _plan(segment, caps) if segment.device == device else None
            work = None if made is None else Work(**planned(segment.graph, made))
            nbytes += 0 if made is None else memory_of(made, caps)
            parts.append((Work(**count(segment.graph)), work))
        self.memory[device] = nbytes
        return Mixed(tuple(parts))

    def settle(self, device: str, arms: tuple[Arm, ...]) -> None:
        """Take where each segment would run."""
        self.nodes[device] = frozenset(
            id(node)
            for segment, arm in zip(self._segments[device], arms, strict=True)
            if arm == "gpu"
            for node in segment.graph.nodes
        )

    def key(self, device: str) -> str:
        """Return what tells this mixture from others; empty where a device runs everything."""
        kept = self.nodes.get(device)
        if kept is None:
            return ""
        return ", ".join(label(n) for n in self._graph.nodes if id(n) in kept)


def memory_of(made: Plan, caps: Caps) -> int:
    """Return the bytes of device memory that a plan takes: the sum of its buffers."""
    where = arrange(made, caps.offset_alignment, has_suballocation=caps.has_suballocation)
    return sum(home.nbytes for home in where.buffers.values())


def _plan(segment: Segment, caps: Caps) -> Plan | None:
    try:
        return plan(segment.graph, caps)
    except GpuEdgeError:  # more than the device offers, together
        return None
