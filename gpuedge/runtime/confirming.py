"""Timing a GPU that was chosen by prediction against the CPU, on the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

from gpuedge.decide.interleave import compare
from gpuedge.executors.base import Executable
from gpuedge.graph.ir import Array, Graph, TensorType

CONFIRM_S = 0.25
"""Time for measuring, beyond one run of each."""


def samples(graph: Graph) -> dict[str, Array]:
    """Return inputs of a graph whose timing is that of ordinary data."""
    return {name: _sample(graph.types[name]) for name in graph.inputs}


def _sample(kind: TensorType) -> Array:
    if np.dtype(kind.dtype).kind == "f":
        count = int(np.prod(kind.shape))
        return np.linspace(-1, 1, count).reshape(kind.shape).astype(kind.dtype)
    return np.zeros(kind.shape, kind.dtype)


def slower(
    run: Callable[[], object], cpu: Executable, inputs: Mapping[str, Array], min_speedup: float
) -> str | None:
    """Time `run` against the CPU; return the figures if it is not enough faster, else None.

    A prediction may be wrong by more than it claims; a promise never to be slower than the CPU
    path cannot rest on one.
    """
    found = compare(run, lambda: cpu.run(inputs), CONFIRM_S)
    gpu_ns, cpu_ns = median(found.a_ns), median(found.b_ns)
    if gpu_ns * min_speedup <= cpu_ns:
        return None
    return f"{gpu_ns / 1e3:.0f} us against {cpu_ns / 1e3:.0f} us"
