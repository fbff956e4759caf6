"""Inputs to time a graph with, timing it, and what tells it from other graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.runtime import clock

SMALL = 64
"""Elements up to which constants may be sizes, axes and the like, on which latency depends."""

TIMED = 7
"""Warm runs of the CPU path that are enough to replace its prediction."""


def timed(run: Callable[[], object], seconds: float) -> list[int]:
    """Run once, then until so much time has passed; return the warm runs in nanoseconds.

    What the first run takes does not count: it compiles. Where it takes all of the time, it is the
    only one.
    """
    now, runs = clock.now_ns, list[int]()
    start = now()
    run()
    if now() - start >= round(seconds * 1e9):
        return runs
    until = now() + round(seconds * 1e9)
    while len(runs) < TIMED and (not runs or now() + runs[-1] < until):
        start = now()
        run()
        runs.append(now() - start)
    return runs


def samples(graph: Graph) -> dict[str, Array]:
    """Return inputs of a graph whose timing is that of ordinary data."""
    return {name: _sample(graph.types[name]) for name in graph.inputs}


def _sample(kind: TensorType) -> Array:
    if np.dtype(kind.dtype).kind == "f":
        count = int(np.prod(kind.shape))
        return np.linspace(-1, 1, count).reshape(kind.shape).astype(kind.dtype)
    return np.zeros(kind.shape, kind.dtype)


def digest_of(graph: Graph, *more: str) -> str:
    """Return a digest of what the latency of a graph depends on.

    Weights count by type and shape only: reading all of a large model takes longer than it runs.
    """
    import hashlib

    made = hashlib.sha256()

    def add(*parts: object) -> None:
        made.update(repr(parts).encode("utf-8", "surrogatepass"))

    for node in graph.nodes:
        for step in node.body or (node,):
            attrs = sorted((k, _brief(v)) for k, v in step.attrs.items())
            add(step.domain, step.op, step.inputs, step.outputs, attrs)
    add(graph.inputs, graph.outputs, sorted(graph.opset.items()), more)
    for name, kind in sorted(graph.types.items()):
        add(name, kind.dtype, kind.shape)
    for name, array in sorted(graph.constants.items()):
        add(name, _brief(array))
    return made.hexdigest()


def _brief(value: object) -> object:
    """Return what tells a constant or attribute from others without reading much of it."""
    if not isinstance(value, np.ndarray):
        return value
    return value.dtype.str, value.shape, value.tobytes() if value.size <= SMALL else b""
