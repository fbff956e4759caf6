"""What a plan costs on a device: as its graph, but with the memory traffic of its passes."""

from __future__ import annotations

from math import prod

from gpuedge.graph.cost import Count, count
from gpuedge.graph.ir import Graph
from gpuedge.plan.plan import Pass, Plan


def planned(graph: Graph, plan: Plan) -> Count:
    """Count a graph as its plan computes it.

    Operations and what crosses between host and device are those of the graph. Launches are passes,
    and memory traffic is what passes read and write: fused nodes keep their values in registers,
    while repacking for a kernel's layout moves bytes that no node asked for.
    """
    moved = float(sum(_traffic(launch, plan) for launch in plan.passes))
    return {**count(graph), "bytes_moved": moved, "launches": len(plan.passes)}


def _traffic(launch: Pass, plan: Plan) -> int:
    """Return the bytes a pass reads and writes: each tensor it binds, once."""
    tensors = (plan.tensors[name] for name in {*launch.tensors.values(), *launch.outputs})
    return sum(prod(t.layout.extents) * t.storage.about.units * t.storage.about.unit_bytes
               for t in tensors)  # fmt: skip
