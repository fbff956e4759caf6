"""Traces on disk: latencies of fixed graphs on a kind of device, without anything that names it.

A trace is a sealed file (`gpuedge.safety.store`). Whoever reads one gets all of it or an
InputError: a trace that was cut short, edited or written by another version fits a wrong model
without looking wrong.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeAlias

from gpuedge.bench import SCHEMA
from gpuedge.bench.graphs import GRAPHS
from gpuedge.core.errors import InputError
from gpuedge.core.record import UnfitError, plain
from gpuedge.core.record import read as read_record
from gpuedge.decide.options import MOST
from gpuedge.executors.base import Work
from gpuedge.safety.paths import read_start, save_named
from gpuedge.safety.store import sealed_bytes, unsealed, unsealed_bytes

CPU, GPU = "C", "G"
COLD = {CPU: "c", GPU: "g"}
"""How runs are written: of the CPU path and of the device; in lower case where the run was cold."""

MAX_BYTES = 64 << 20
MAX_RUNS = 1_000_000
WORD = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}")

Word: TypeAlias = Annotated[str, WORD]
"""Classes, levels and versions are one short word each: nothing else fits in."""

Start: TypeAlias = Annotated[int, range(MOST + 1)]
Took: TypeAlias = Annotated[int, range(1, MOST + 1)]
"""Whole nanoseconds."""


@dataclass(frozen=True, slots=True)
class TimedWindow:
    """Runs of one graph that were made without a pause.

    Attributes
    ----------
    sides : str
        A letter for each run, see `COLD`.
    start_ns, took_ns : tuple of int
        When each began, on a clock that begins with the trace, and how long it took.
    """

    sides: Annotated[str, re.compile(f"[{''.join([*COLD, *COLD.values()])}]*")]
    start_ns: tuple[Start, ...]
    took_ns: tuple[Took, ...]

    def warm(self, side: str) -> list[int]:
        """Return how long the warm runs of one alternative took, in nanoseconds."""
        return [ns for kind, ns in zip(self.sides, self.took_ns, strict=True) if kind == side]


def _possible(work: Work) -> Work:
    """Return work that a plan can have. Raises UnfitError."""
    numbers = (*work.flops.values(), work.bytes_moved, work.bytes_in, work.bytes_out)
    if not all(0 <= number <= MOST for number in (*numbers, work.launches)):
        raise UnfitError("its numbers are not possible")
    if not all(map(WORD.fullmatch, work.flops)):
        raise UnfitError("flops are not named by words")
    return work


@dataclass(frozen=True, slots=True)
class Series:
    """All runs of one graph, and what it costs as planned for that device."""

    graph: Annotated[str, GRAPHS]
    work: Annotated[Work, _possible]
    compile_cpu_ns: Took
    compile_gpu_ns: Took
    windows: tuple[TimedWindow, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What one launch of the benchmark saw.

    Attributes
    ----------
    version : str
        Of gpuedge.
    device_class : str
        From `gpuedge.decide.speeds.class_of`: the most that is said of who the device is.
    level : str
    is_software : bool
    cores : int
        Of the CPU.
    engine : str
        What the CPU path is made of.
    opening_ns : int
        What opening the device took.
    series : tuple of Series
    """

    version: Word
    device_class: Word
    level: Word
    is_software: bool
    cores: Annotated[int, range(1, 1 << 16)]
    engine: Word
    opening_ns: Took
    series: tuple[Series, ...]

    @property
    def runs(self) -> int:
        """How many runs there are, cold ones included."""
        return sum(len(w.sides) for series in self.series for w in series.windows)


def dumped(trace: Trace) -> bytes:
    """Return the bytes of a trace."""
    return sealed_bytes(SCHEMA, json.dumps(plain(trace), allow_nan=False).encode() + b"\n")


def write(trace: Trace, path: str) -> None:
    """Write a trace in one step: there is the whole file, or what was there before.

    Raises
    ------
    InputError (GE-203)
        It cannot be written, or what was measured is no possible trace.
    """
    data = dumped(trace)
    parsed(data, "what was measured")
    save_named(Path(path), data, "--trace")


def read(path: str | Path) -> Trace:
    """Read a trace, all of it or nothing.

    Raises
    ------
    InputError (GE-203)
        There is no such file, or it is not a whole trace of this version; the message says what is
        wrong with it.
    """
    try:
        data = read_start(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from None
    return parsed(data, str(path))


def parsed(data: bytes, name: str) -> Trace:
    """Return the trace that bytes hold, which errors call `name`. Raises what `read` does."""
    try:
        if len(data) > MAX_BYTES:
            raise UnfitError(f"it has more than {MAX_BYTES >> 20} MiB")
        body = unsealed(unsealed_bytes(data, SCHEMA))
        if body is None:
            raise UnfitError("it was cut short or edited, or is of another version")
        trace = read_record(Trace, body)
        _check_runs(trace)
    except UnfitError as error:
        raise InputError(
            f"{name}: {error}. The trace is refused whole.",
            known=f"a trace is a sealed file of the schema {SCHEMA!r}",
            hint="write it anew: gpuedge bench --trace FILE",
        ) from None
    return trace


def _check_runs(trace: Trace) -> None:
    """Raise UnfitError unless one thread can have made these runs, on one clock."""
    if len({series.graph for series in trace.series}) < len(trace.series):
        raise UnfitError("a graph comes twice")
    runs: list[tuple[int, int]] = []
    for series in trace.series:
        if not series.windows:
            raise UnfitError(f"there are no windows of {series.graph}")
        clock = 0
        for window in series.windows:
            if not len(window.sides) == len(window.start_ns) == len(window.took_ns):
                raise UnfitError(f"sides and times of {series.graph} differ in number")
            if not {*COLD} <= set(window.sides):
                raise UnfitError(f"a window of {series.graph} lacks warm runs of one alternative")
            for start, took in zip(window.start_ns, window.took_ns, strict=True):
                if start < clock:
                    raise UnfitError(f"the clock went backwards in {series.graph}")
                clock = start + took
                runs.append((start, clock))
    if len(runs) > MAX_RUNS:
        raise UnfitError(f"it has more than {MAX_RUNS} runs")
    runs.sort()
    if any(start < end for (_, end), (start, _) in pairwise(runs)):
        raise UnfitError("a run began before another one had ended")
