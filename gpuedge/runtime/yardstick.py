"""How fast a software rasteriser is on this machine at the moment, measured in another process.

Its speed is that of the processor and of what else that does, so a table cannot know it. A small
graph of each class of kernels is run.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.identity import Identity
from gpuedge.decide import speeds
from gpuedge.executors.base import Work
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.cost import count
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.runtime import clock, opening
from gpuedge.runtime.inputs import samples

if TYPE_CHECKING:
    from gpuedge.probing.report import ProbeRow

SPAN_NS, LEAST_RUNS = 200_000_000, 3
"""How long runs of a kernel are timed, after a first one in which many drivers compile.

Their mean counts: what waits for other processes between them is part of what a model takes.
"""

log = logging.getLogger("gpuedge")


def _graph(op: str, shape: tuple[int, ...], weight: tuple[int, ...] | None, **attrs: Any) -> Graph:
    builder = GraphBuilder()
    names = [builder.input("x", TensorType("float32", shape))]
    if weight is not None:
        names.append(builder.constant("w", np.full(weight, 0.01, np.float32)))
    builder.output(builder.add(op, names, attrs))
    return builder.build()


def graphs() -> dict[str, Graph]:
    """Return a graph for each class of kernels, in which they take most of the time."""
    return {
        "conv": _graph("Conv", (1, 24, 40, 40), (24, 24, 3, 3), pads=[1] * 4),
        "matmul": _graph("MatMul", (192, 256), (256, 256)),
        "map": _graph("Sigmoid", (1, 24, 96, 96), None),
    }


def slowness(row: ProbeRow) -> dict[str, float]:
    """Return how many times longer than predicted each class of kernels takes on a device here.

    Empty where that cannot be measured. It is not looked at for GPUs, which check leaves alone.
    """
    speed = speeds.speeds_of(speeds.class_of(Identity.from_dict(dict(row.identity))))
    found = {}
    try:
        with closing(opening.open_row(row, opening.PROCESS)) as executor:
            for kind, graph in graphs().items():
                said = speeds.predict(Work(**count(graph)), speed, row.backend)
                with closing(executor.compile(graph)) as made:
                    found[kind] = _timed(made, samples(graph)) / said
    except GpuEdgeError as error:
        log.debug("%s: its speed was not measured: %s", row.device, error)
        return {}
    return found


def _timed(made: Any, feeds: Any) -> int:
    made.run(feeds)
    start, spent, runs = clock.now_ns(), 0, 0
    while spent < SPAN_NS or runs < LEAST_RUNS:
        made.run(feeds)
        spent, runs = clock.now_ns() - start, runs + 1
    return max(spent // runs, 1)
