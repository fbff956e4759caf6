"""What the benchmarks share: medians of interleaved runs, a table, a JSON file."""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpuedge


def medians(
    candidates: Mapping[str, Callable[[], Any]], *, rounds: int = 9, seconds: float = 0.1
) -> dict[str, float]:
    """Return the median seconds per call of each candidate, run in turn so that drift hits all."""
    counts = {}
    for name, run in candidates.items():
        run()
        start = time.perf_counter()
        run()
        counts[name] = max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                run()
            samples[name].append((time.perf_counter() - start) / counts[name])
    return {name: statistics.median(values) for name, values in samples.items()}


def processor(
    candidates: Mapping[str, Callable[[], Any]], *, rounds: int = 15, calls: int = 1
) -> dict[str, float]:
    """Return the least processor seconds of a call of each candidate, run in turn.

    Of all threads of this process: what others do on a shared machine counts least in these. Each
    of the `rounds` measures so many `calls`; four come before them.
    """
    least = dict.fromkeys(candidates, float("inf"))
    for run in candidates.values():
        for _ in range(4):
            run()
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.process_time()
            for _ in range(calls):
                run()
            least[name] = min(least[name], (time.process_time() - start) / calls)
    return least


def report(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; with ``--json FILE`` also write it as JSON with the date and the machine."""
    table = [tuple(map(str, row)) for row in (header, *rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    print(f"\n{title}")
    for row in table:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    if "--json" in sys.argv:
        path = Path(sys.argv[sys.argv.index("--json") + 1])
        record = {
            "title": title,
            "date": time.strftime("%Y-%m-%d"),
            "gpuedge": gpuedge.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "header": list(header),
            "rows": [list(map(str, row)) for row in rows],
        }
        path.write_text(json.dumps(record, indent=1) + "\n")


def devices() -> list[str]:
    """Return the usable GPU devices of this machine."""
    return [row.device for row in gpuedge.probe().devices]
