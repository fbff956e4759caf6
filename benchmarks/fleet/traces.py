"""Traces of real devices as a population: what `gpuedge bench --trace` wrote, ready to replay.

    pairs = load(paths)                # a `TracedPair` for each graph of each trace
    clock = Replay(pairs[0], rng)      # one launch of that graph on that device
    clock.run(GPU), clock.run(CPU)     # nanoseconds of the next run

Folders stand for devices: traces in one folder are launches of one device, because nothing in a
trace says whose it is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpuedge.bench import trace
from gpuedge.bench.trace import CPU, GPU, Series, Trace
from gpuedge.decide.speeds import predict, speeds_of, startup_ns

__all__ = ["CPU", "GPU", "Replay", "TracedPair", "load", "pairs_of"]


@dataclass(frozen=True)
class TracedPair:
    """A graph in one launch of one device.

    Attributes
    ----------
    device : str
        The folder of the trace.
    launch : int
        Number of the trace in it.
    device_class, level : str
    graph : str
    predicted_ns, predicted_startup_ns : int
        What the table of classes says of it.
    startup_ns : int
        What opening the device and compiling the graph took.
    windows : tuple of (tuple of int, tuple of int)
        Warm runs of the CPU path and of the device, nanoseconds, window after window.
    cold_ns : tuple of int
        Cold runs of the device, in order.
    """

    device: str
    launch: int
    device_class: str
    level: str
    graph: str
    predicted_ns: int
    predicted_startup_ns: int
    startup_ns: int
    windows: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    cold_ns: tuple[int, ...]

    def median_ns(self, side: str) -> float:
        """Return the median over all warm runs of one alternative."""
        return float(median(ns for window in self.windows for ns in window[side == GPU]))

    @property
    def log_ratios(self) -> list[float]:
        """ln(GPU / CPU) of the medians of each window: what a trial sees."""
        return [math.log(median(gpu) / median(cpu)) for cpu, gpu in self.windows]


def load(paths: Iterable[str | Path]) -> list[TracedPair]:
    """Return the pairs of all traces; a folder stands for the ``.trace`` files in it.

    Raises
    ------
    InputError (GE-203)
        One of them is not a whole trace; none is used then.
    """
    files = [
        file
        for path in map(Path, paths)
        for file in (sorted(path.rglob("*.trace")) if path.is_dir() else [path])
    ]
    launches: dict[str, int] = {}
    found: list[TracedPair] = []
    for file in files:
        device = str(file.parent)
        launches[device] = launches.get(device, -1) + 1
        found += pairs_of(trace.read(file), device, launches[device])
    return found


def pairs_of(read: Trace, device: str = "", launch: int = 0) -> list[TracedPair]:
    """Return the pairs of one trace."""
    row = speeds_of(read.device_class)
    return [
        TracedPair(
            device, launch, read.device_class, read.level, one.graph,
            predict(one.work, row, read.level), startup_ns(one.work, row),
            read.opening_ns + one.compile_gpu_ns,
            tuple((tuple(w.warm(CPU)), tuple(w.warm(GPU))) for w in one.windows),
            _cold(one),
        )
        for one in read.series
    ]  # fmt: skip


def _cold(one: Series) -> tuple[int, ...]:
    cold = trace.COLD[GPU]
    return tuple(ns for window in one.windows for ns in window.warm(cold))


class Replay:
    """One launch of a pair, run after run: windows in random order, their runs in their own.

    Consecutive runs of an alternative come from one window as long as it lasts, so that what a
    moment has in common stays in common (a moving block bootstrap). The first run on the device is
    the first cold one of the trace.
    """

    def __init__(self, pair: TracedPair, rng: random.Random) -> None:
        self._pair, self._rng = pair, rng
        self._left: dict[str, list[int]] = {CPU: [], GPU: []}
        self._cold = list(reversed(pair.cold_ns[:1]))

    def run(self, side: str) -> int:
        """Return the nanoseconds of the next run of `CPU` or `GPU`."""
        if side == GPU and self._cold:
            return self._cold.pop()
        if not self._left[side]:
            cpu, gpu = self._rng.choice(self._pair.windows)
            self._left = {CPU: list(cpu[::-1]), GPU: list(gpu[::-1])}
        return self._left[side].pop()
