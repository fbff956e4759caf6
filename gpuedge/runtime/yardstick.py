"""How fast a software rasteriser is on this machine at the moment, measured in another process.

Its speed is that of the processor and of what else that does, so a table cannot know it. A small
graph of each class of kernels is run.
"""

from __future__ import annotations

import logging
import math
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

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
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.probing.report import ProbeRow

SPAN_NS, LEAST_RUNS = 200_000_000, 3
"""How long runs of a kernel are timed, after a first one in which many drivers compile.

Their mean counts: what waits for other processes between them is part of what a model takes.
"""

FACTOR = 8.0
"""Predictions that are scaled by this may be off by so much: a product of 4 rows took 0.6 to 7
times what one of 192 rows says, and load changes between the two (decision 38)."""

log = logging.getLogger("gpuedge")


def _graph(op: str, shape: tuple[int, ...], weight: tuple[int, ...] | None, **attrs: Any) -> Graph:
    builder = GraphBuilder()
    names = [builder.input("x", TensorType("float32", shape))]
    if weight is not None:
        names.append(builder.constant("w", np.full(weight, 0.01, np.float32)))
    builder.output(builder.add(op, names, attrs))
    return builder.build()


def graphs() -> dict[str, tuple[Graph, ...]]:
    """Return graphs for each class of kernels, in which they take most of the time.

    Products of few rows read a weight for every few operations, and take several times as long.
    """
    return {
        "conv": (_graph("Conv", (1, 24, 40, 40), (24, 24, 3, 3), pads=[1] * 4),),
        "matmul": (
            _graph("MatMul", (192, 256), (256, 256)), _graph("MatMul", (4, 1024), (1024, 1024)),
        ),
        "map": (_graph("Sigmoid", (1, 24, 96, 96), None),),
    }  # fmt: skip


def slowness(row: ProbeRow) -> dict[str, float]:
    """Return how many times longer than predicted each class of kernels takes on a device here.

    Of several graphs of a class it is the geometric mean: predictions err as far either way.
    Empty where that cannot be measured. It is not looked at for GPUs, which check leaves alone.
    """
    speed = speeds.speeds_of(speeds.class_of(Identity.from_dict(dict(row.identity))))
    by_kind = {}
    try:
        opened = cast("GpuExecutor", opening.open_row(row, opening.PROCESS))
        with closing(opened) as executor:
            for kind, some in graphs().items():
                ratios = [_ratio(executor, graph, speed, row.backend) for graph in some]
                by_kind[kind] = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    except GpuEdgeError as error:
        log.debug("%s: its speed was not measured: %s", row.device, error)
        return {}
    return by_kind


def _ratio(executor: GpuExecutor, graph: Graph, speed: speeds.Speeds, backend: str) -> float:
    said = speeds.predict(Work(**count(graph)), speed, backend)
    with closing(executor.compile(graph)) as executable:
        return _timed(executable, samples(graph)) / said


def _timed(executable: Any, feeds: Any) -> int:
    executable.run(feeds)
    start, spent, runs = clock.now_ns(), 0, 0
    while spent < SPAN_NS or runs < LEAST_RUNS:
        executable.run(feeds)
        spent, runs = clock.now_ns() - start, runs + 1
    return max(spent // runs, 1)
