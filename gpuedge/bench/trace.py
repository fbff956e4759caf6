"""Traces on disk: latencies of fixed graphs on a kind of device, without anything that names it.

A trace is JSON lines: a header, a line for each graph, and a last line with the SHA-256 of all
bytes before it. Whoever reads one gets all of it or an InputError that names the line: a trace that
was cut short, edited or written by another version fits a wrong model without looking wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from gpuedge.bench import SCHEMA
from gpuedge.bench.graphs import GRAPHS
from gpuedge.core.errors import InputError
from gpuedge.decide.options import MOST
from gpuedge.executors.base import Work
from gpuedge.safety.paths import read_start, save_named

CPU, GPU = "C", "G"
COLD = {CPU: "c", GPU: "g"}
"""How runs are written: of the CPU path and of the device; in lower case where the run was cold."""

MAX_BYTES = 64 << 20
MAX_RUNS = 1_000_000
WORD = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}")
"""Classes, levels and versions are one short word each: nothing else fits in."""

_WORK = {"flops", "bytes_moved", "bytes_in", "bytes_out", "launches"}
_HEADER = {
    "schema", "gpuedge", "class", "level", "is_software", "cores", "engine", "opening_ns", "graphs",
    "runs",
}  # fmt: skip
_SERIES = {"graph", "work", "compile_ns", "windows"}
_WINDOW = {"sides", "start_ns", "took_ns"}


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

    sides: str
    start_ns: tuple[int, ...]
    took_ns: tuple[int, ...]

    def warm(self, side: str) -> list[int]:
        """Return how long the warm runs of one alternative took, in nanoseconds."""
        return [ns for kind, ns in zip(self.sides, self.took_ns, strict=True) if kind == side]


@dataclass(frozen=True, slots=True)
class Series:
    """All runs of one graph, and what it costs as planned for that device."""

    graph: str
    work: Work
    compile_cpu_ns: int
    compile_gpu_ns: int
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

    version: str
    device_class: str
    level: str
    is_software: bool
    cores: int
    engine: str
    opening_ns: int
    series: tuple[Series, ...]

    @property
    def runs(self) -> int:
        """How many runs there are, cold ones included."""
        return sum(len(w.sides) for one in self.series for w in one.windows)


def dumped(trace: Trace) -> bytes:
    """Return the bytes of a trace."""
    header = {
        "schema": SCHEMA, "gpuedge": trace.version, "class": trace.device_class,
        "level": trace.level, "is_software": trace.is_software, "cores": trace.cores,
        "engine": trace.engine, "opening_ns": trace.opening_ns, "graphs": len(trace.series),
        "runs": trace.runs,
    }  # fmt: skip
    lines = [header, *(_described(one) for one in trace.series)]
    body = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
    return body + _seal(body)


def _seal(body: bytes) -> bytes:
    return json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"


def _described(one: Series) -> dict[str, Any]:
    work = one.work
    return {
        "graph": one.graph,
        "work": {
            "flops": dict(work.flops), "bytes_moved": work.bytes_moved, "bytes_in": work.bytes_in,
            "bytes_out": work.bytes_out, "launches": work.launches,
        },
        "compile_ns": {"cpu": one.compile_cpu_ns, "gpu": one.compile_gpu_ns},
        "windows": [
            {"sides": w.sides, "start_ns": list(w.start_ns), "took_ns": list(w.took_ns)}
            for w in one.windows
        ],
    }  # fmt: skip


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
        There is no such file, or it is not a whole trace of this version; the message names the
        line and what is wrong with it.
    """
    try:
        data = read_start(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from None
    return parsed(data, str(path))


def parsed(data: bytes, name: str) -> Trace:
    """Return the trace that bytes hold, which errors call `name`. Raises what `read` does."""
    return _TraceReader(name).trace(data)


class _TraceReader:
    """Reads one trace; knows the line it is at, for what it says of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = 1

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{self._name}, line {self._line}: {what}. The trace is refused whole.",
            known=f"a trace is JSON lines of the schema {SCHEMA!r}, sealed by its last line",
            hint="write it anew: gpuedge bench --trace FILE",
        )

    def _check(self, is_good: bool, what: str) -> None:
        if not is_good:
            self._refuse(what)

    def trace(self, data: bytes) -> Trace:
        """Return all of it."""
        self._check(len(data) <= MAX_BYTES, f"it has more than {MAX_BYTES >> 20} MiB")
        self._check(bool(data), "there is nothing")
        *lines, rest = data.split(b"\n")
        header = self._object(lines[0] if lines else rest)
        self._check(header.get("schema") == SCHEMA, f"the schema is not {SCHEMA!r}")
        self._keys(header, _HEADER)
        count = self._whole(header, "graphs", len(GRAPHS))
        expected = self._whole(header, "runs", MAX_RUNS)
        self._check(type(header["is_software"]) is bool, "is_software is neither true nor false")
        made = Trace(
            self._word(header, "gpuedge"),
            self._word(header, "class"),
            self._word(header, "level"),
            header["is_software"],
            self._whole(header, "cores", 1 << 16),
            self._word(header, "engine"),
            self._whole(header, "opening_ns", MOST),
            self._all_series(lines[1 : 1 + count], count),
        )
        self._line = 1
        self._check(made.runs == expected, f"it promises {expected} runs, and {made.runs} follow")
        self._alone(made)
        self._line = count + 2
        self._check(len(lines) == count + 2 and not rest, "it does not end where it should")
        is_sealed = lines[-1] + b"\n" == _seal(b"".join(part + b"\n" for part in lines[:-1]))
        self._check(is_sealed, "the SHA-256 is not that of the lines before")
        return made

    def _all_series(self, lines: list[bytes], count: int) -> tuple[Series, ...]:
        found: dict[str, Series] = {}
        for self._line, line in enumerate(lines, start=2):
            one = self._series(self._object(line))
            self._check(one.graph not in found, f"the graph {one.graph} comes twice")
            found[one.graph] = one
        self._line = len(found) + 2
        self._check(len(found) == count, f"{count} graphs were promised, and {len(found)} are here")
        return tuple(found.values())

    def _series(self, row: dict[str, Any]) -> Series:
        self._keys(row, _SERIES)
        self._check(isinstance(row["graph"], str) and row["graph"] in GRAPHS, "an unknown graph")
        compiling = self._inner(row["compile_ns"], {"cpu", "gpu"}, "compile_ns")
        self._check(isinstance(row["windows"], list), "windows is not a list")
        windows = tuple(self._window(one) for one in row["windows"])
        self._check(bool(windows), "there are no windows")
        return Series(
            row["graph"],
            self._work(self._inner(row["work"], _WORK, "work")),
            self._whole(compiling, "cpu", MOST),
            self._whole(compiling, "gpu", MOST),
            windows,
        )

    def _window(self, row: Any) -> TimedWindow:
        row = self._inner(row, _WINDOW, "a window")
        sides, starts, took = row["sides"], row["start_ns"], row["took_ns"]
        self._check(
            isinstance(sides, str) and set(sides) <= {*COLD, *COLD.values()},
            f"sides is not a text of {''.join(COLD)}{''.join(COLD.values())}",
        )
        self._check(isinstance(starts, list) and isinstance(took, list), "times are not lists")
        self._check(len(sides) == len(starts) == len(took), "sides and times differ in number")
        self._check({*COLD} <= set(sides), "a window lacks warm runs of one alternative")
        for key, least, times in (("start_ns", 0, starts), ("took_ns", 1, took)):
            is_good = all(type(ns) is int and least <= ns <= MOST for ns in times)
            self._check(is_good, f"{key} holds what is no time in whole nanoseconds")
        return TimedWindow(sides, tuple(starts), tuple(took))

    def _work(self, row: dict[str, Any]) -> Work:
        flops = row["flops"]
        self._check(
            isinstance(flops, dict) and all(WORD.fullmatch(k) for k in flops), "flops are not named"
        )
        sizes = {key: row[key] for key in ("bytes_moved", "bytes_in", "bytes_out")}
        for key, value in {**flops, **sizes}.items():
            is_good = type(value) in (int, float) and 0 <= value <= MOST  # NaN is neither
            self._check(is_good, f"{key} is no possible number")
        return Work(flops, launches=self._whole(row, "launches", MAX_RUNS, least=0), **sizes)

    def _alone(self, trace: Trace) -> None:
        """Check that no run began before another one ended: one thread on one clock made them."""
        runs: list[tuple[int, int, int]] = []
        for line, one in enumerate(trace.series, start=2):
            self._line, clock = line, 0
            for window in one.windows:
                for start, took in zip(window.start_ns, window.took_ns, strict=True):
                    self._check(start >= clock, "the clock went backwards")
                    clock = start + took
                    runs.append((start, clock, line))
        runs.sort()
        for (_, end, _), (start, _, line) in pairwise(runs):
            self._line = line
            self._check(start >= end, "a run began before another one had ended")

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            body = json.loads(
                line.decode(), object_pairs_hook=self._unique, parse_constant=self._no_number
            )
        except (ValueError, RecursionError) as error:
            self._refuse(f"it is no JSON object ({error})")
        self._check(isinstance(body, dict), "it is no JSON object")
        found: dict[str, Any] = body
        return found

    def _unique(self, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            self._check(key not in found, f"the key {key!r:.40} comes twice")
            found[key] = value
        return found

    def _no_number(self, text: str) -> NoReturn:
        self._refuse(f"{text} is no number")

    def _inner(self, row: Any, keys: set[str], name: str) -> dict[str, Any]:
        self._check(isinstance(row, dict), f"{name} is no object")
        found: dict[str, Any] = row
        self._keys(found, keys)
        return found

    def _keys(self, row: Mapping[str, Any], keys: set[str]) -> None:
        missing, strange = sorted(keys - row.keys()), sorted(row.keys() - keys)
        self._check(not missing, f"{', '.join(missing)} is missing")
        self._check(not strange, f"{', '.join(strange)!r:.60} is not part of a trace")

    def _whole(self, row: Mapping[str, Any], key: str, most: int, *, least: int = 1) -> int:
        value = row[key]
        is_good = type(value) is int and least <= value <= most
        self._check(is_good, f"{key} is not a whole number from {least} to {most}")
        found: int = value
        return found

    def _word(self, row: Mapping[str, Any], key: str) -> str:
        value = row[key]
        self._check(isinstance(value, str) and bool(WORD.fullmatch(value)), f"{key} is no word")
        found: str = value
        return found
