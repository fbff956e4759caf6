"""In a child: what each model truly takes on one device and on the CPU path."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import gpuedge
from gpuedge.decide.speeds import class_of
from gpuedge.executors.base import Executable, Executor
from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.reader import OnnxModel
from gpuedge.plan.costs import planned
from gpuedge.runtime.devices import POOL
from truth.models import MODELS, sample

WINDOW_S, WARM_S, BLOCK_S = 0.4, 0.03, 0.01
"""Seconds a model is timed on both alternatives, those before that do not count, and of one
block."""

LEAST, MOST = 3, 40
"""Blocks of each alternative."""

SLOW_S = 3.0
"""After that many seconds two blocks are enough."""

PROBE_S = 60.0
"""A busy machine may need more than the usual deadline."""

Say = Callable[[str], None]


def measured(say: Say) -> dict[str, Any]:
    """Return what every model takes on the one device of this process's environment."""
    row = gpuedge.probe(deadline_s=PROBE_S).devices[0]
    begin = time.perf_counter_ns()
    executors: dict[str, Executor] = {"gpu": POOL.executor(row.device), "cpu": POOL.cpu()}
    open_ns = time.perf_counter_ns() - begin
    say(f"{row.device} ({row.name}) against {POOL.cpu().kernel}")
    cases: dict[str, Any] = {}
    for name, make in MODELS.items():
        cases[name] = _case(make(), executors, open_ns)
        shown = (f"{side} {one['p50_ns'] / 1e6:8.3f} ms" for side, one in cases[name].items())
        say(f"{name:24s} {', '.join(shown)}")
    device = executors["gpu"]
    assert isinstance(device, GpuExecutor)
    return {
        "device": row.device, "name": row.name, "cpu": POOL.cpu().kernel,
        "version": gpuedge.__version__, "class": class_of(device.impl.info.identity),
        "level": device.caps.level, "cases": cases,
    }  # fmt: skip


def graph_of(data: bytes) -> Graph:
    """Return the graph of a model whose input shapes are fixed."""
    model = OnnxModel.load(data)
    shapes = {name: shape for name, (_, shape) in model.inputs.items()}
    return model.specialise(shapes)  # type: ignore[arg-type]


def _case(data: bytes, executors: Mapping[str, Executor], open_ns: int) -> dict[str, Any]:
    """Return the measured times of one model, in nanoseconds, by alternative."""
    graph = graph_of(data)
    inputs = {name: sample(graph.types[name].shape) for name in graph.inputs}
    alternatives: dict[str, Executable] = {}
    case: dict[str, Any] = {}
    for alternative, executor in executors.items():
        begin = time.perf_counter_ns()
        alternatives[alternative] = executor.compile(graph)
        alternatives[alternative].run(inputs)
        started = time.perf_counter_ns() - begin
        case[alternative] = {"startup_ns": started + open_ns * (alternative == "gpu")}
    for alternative, runs in interleaved(alternatives, inputs).items():
        case[alternative] |= {"p50_ns": round(median(runs)), "runs": len(runs)}
    device = alternatives["gpu"]
    assert isinstance(device, GpuExecutable)
    case["gpu"] |= {"work": planned(device.graph, device.plan)}
    for executable in alternatives.values():
        executable.close()
    return case


def interleaved(
    alternatives: Mapping[str, Executable], inputs: Mapping[str, Array]
) -> dict[str, list[int]]:
    """Time alternatives in short blocks, there and back, so that drift hits all of them alike.

    The first run of a block is dropped, because it is cold; of slow models, one run is a block.
    """
    runs: dict[str, list[int]] = {alternative: [] for alternative in alternatives}
    counts = {alternative: _warm(one, inputs) for alternative, one in alternatives.items()}
    begin = time.perf_counter()
    for block in range(MOST):
        spent = time.perf_counter() - begin
        if (block >= LEAST and spent > WINDOW_S) or (block >= 2 and spent > SLOW_S):
            break
        for alternative in tuple(alternatives) if block % 2 == 0 else reversed(tuple(alternatives)):
            if counts[alternative] > 1:
                alternatives[alternative].run(inputs)
            for _ in range(counts[alternative]):
                start = time.perf_counter_ns()
                alternatives[alternative].run(inputs)
                runs[alternative].append(time.perf_counter_ns() - start)
    return runs


def _warm(one: Executable, inputs: Mapping[str, Array]) -> int:
    """Run one alternative until it is warm; return how many runs make a block."""
    begin, took = time.perf_counter(), list[float]()
    while not took or time.perf_counter() - begin < WARM_S:
        start = time.perf_counter()
        one.run(inputs)
        took.append(time.perf_counter() - start)
    return min(max(1, int(BLOCK_S / median(took))), 50)
