"""Traces with known constants, for tests of their reader and of what is fitted to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpuedge.bench.trace import Series, TimedWindow, Trace
from gpuedge.decide.speeds import predict, speeds_of
from gpuedge.executors.base import Work

GRAPH_NAMES = ("relu-4k", "conv-3x3-16x64x64", "lenet-28", "resnet-32", "unet-64", "mobilenet-96")
CLASS = "mali-valhall"
WORK = Work({"conv": 2e7, "map": 1e5}, 1e6, 65536.0, 4096.0, 4)


def traced(
    rng: np.random.Generator,
    *,
    graphs: Sequence[str] = GRAPH_NAMES,
    windows: int = 8,
    runs: int = 12,
    window: float = 0.21,
    run: float = 0.05,
    lasting: float = 0.10,
    error: float = 0.0,
) -> Trace:
    """Return one launch.

    ln(GPU/CPU) is off by N(0, lasting) in all of it, by N(0, window) in each window, ln(latency) by
    N(0, run) in each run. The prediction is too short by exp(error).
    """
    gpu_ns = math.exp(error) * predict(WORK, speeds_of(CLASS), "vulkan")
    clock = 10
    series = []
    for name in graphs:
        launch = rng.normal(0, lasting)
        made = []
        for _ in range(windows):
            shared = rng.normal(0, window)
            sides = "cC" + "C" * (runs - 1) + "g" + "G" * runs
            starts, took = [], []
            for side in sides:
                ln = rng.normal(0, run) + (launch + shared if side in "gG" else 0.0)
                ns = round(gpu_ns * math.exp(ln) * (1.5 if side in "cg" else 1.0))
                starts.append(clock)
                took.append(ns)
                clock += ns + 100
            made.append(TimedWindow(sides, tuple(starts), tuple(took)))
        series.append(Series(name, WORK, 1_000_000, 50_000_000, tuple(made)))
    return Trace(
        "0.1.0", CLASS, "vulkan", False, 8, "onnxruntime", 80_000_000, tuple(series)
    )  # fmt: skip
