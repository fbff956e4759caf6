"""Between which bounds the values of a graph lie, measured on the CPU with inputs it may see.

Fixed-point storage (``Policy(storage="fixed16")``) needs to know. Bounds come from
``Policy(calibration=...)``, else from the first inputs; inputs beyond them widen the bounds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuedge.core.errors import GpuEdgeError
from gpuedge.executors.base import Executor
from gpuedge.graph.expand import is_known
from gpuedge.graph.ir import Array, Graph
from gpuedge.opset import facts_of
from gpuedge.opset.operator import FLOATS
from gpuedge.plan.storages import UNBOUNDED, Range, range_of

log = logging.getLogger("gpuedge")


def measure(cases: Iterable[tuple[Graph, Mapping[str, Array]]], cpu: Executor) -> dict[str, Range]:
    """Run graphs on the CPU and return the bounds of every float value, over all runs together.

    They are ``(-inf, inf)`` for values that are not finite. Every value is an output while
    measuring, so that all of them are in memory at once.
    """
    ranges: dict[str, Range] = {}
    for graph, feed in cases:
        values = all_values(graph, feed, cpu)
        floats = {n: range_of(a) for n, a in values.items() if a.dtype.name in FLOATS}
        ranges = union(ranges, floats)
    return ranges


def all_values(graph: Graph, feed: Mapping[str, Array], cpu: Executor) -> dict[str, Array]:
    """Run a graph on the CPU and return its values: inputs, and what nodes compute.

    Left out is what may be no tensor: results within the graph whose types are not known, except
    those whose size only values tell, and what follows from them.
    """
    known, told = {*graph.types, *graph.outputs}, set[str]()
    for node in graph.nodes:
        if is_known(node) and (facts_of(node.op).picks or not told.isdisjoint(node.inputs)):
            told.update(node.outputs)
    known |= told
    names = dict.fromkeys(o for node in graph.nodes for o in node.outputs if o in known)
    executable = cpu.compile(replace(graph, outputs=tuple(names)))
    inputs = {name: feed[name] for name in graph.inputs}
    try:
        return {**inputs, **executable.run(inputs)}
    finally:
        executable.close()


def union(a: Mapping[str, Range], b: Mapping[str, Range]) -> dict[str, Range]:
    """Return bounds that hold for both."""
    both = {n: (min(a[n][0], b[n][0]), max(a[n][1], b[n][1])) for n in a if n in b}
    return {**a, **b, **both}


class Ranges:
    """Bounds of the values of one graph, from calibration, widened when inputs leave them."""

    def __init__(self, graph: Graph, cpu: Executor, known: Mapping[str, Range]) -> None:
        self._graph = graph
        self._cpu = cpu
        self._known = dict(known)
        self.values: dict[str, Range] = dict(known)

    def covers(self, inputs: Mapping[str, Array]) -> bool:
        """Tell whether every float input lies within its bounds.

        Infinity and NaN lie within all bounds: no measuring helps there.
        """
        for name in self._graph.inputs:
            array = inputs[name]
            if array.dtype.name not in FLOATS:
                continue
            if name not in self.values:
                return False
            low, high = range_of(array)
            if (low, high) != UNBOUNDED and not self.values[name][0] <= low <= high <= (
                self.values[name][1]
            ):
                return False
        return True

    def widen(self, inputs: Mapping[str, Array]) -> None:
        """Measure with these inputs too; if the CPU cannot, nothing has bounds any more."""
        try:
            measured = measure([(self._graph, inputs)], self._cpu)
        except GpuEdgeError as error:
            log.warning("tensors are kept exactly: their bounds cannot be measured: %s", error.what)
            self.values = dict.fromkeys(self._graph.inputs, UNBOUNDED)
            return
        self.values = union(self.values, measured)

    def reset(self) -> None:
        """Forget all that did not come from calibration."""
        self.values = dict(self._known)
