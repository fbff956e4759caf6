"""What importing gpuedge and asking a cached `probe()` cost, over a bare Python process."""

from __future__ import annotations

import statistics
import subprocess
import sys

from common import report

RUNS = 21
SNIPPETS = {
    "bare Python": "pass",
    "import gpuedge": "import gpuedge",
    "stdlib that any app imports": "import json, pathlib, hashlib, typing, dataclasses, logging",
    "... and a cached probe()": (
        "import json, pathlib, hashlib, typing, dataclasses, logging\n"
        "import gpuedge; gpuedge.probe()"
    ),
    "import numpy": "import numpy",
    "... and a cached probe() too": "import numpy, gpuedge; gpuedge.probe()",
}
CALLS = """
import time, gpuedge, {first}
for _ in range(2):
    start = time.perf_counter(); gpuedge.probe(); print(time.perf_counter() - start)
"""


def process_ms(code: str) -> list[float]:
    """Return the wall milliseconds of `RUNS` processes."""
    timed = (
        "import subprocess, sys, time; t = time.perf_counter(); "
        f"subprocess.run([sys.executable, '-c', {code!r}], check=True); "
        "print((time.perf_counter() - t) * 1e3)"
    )
    done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
    return [float(done.stdout)]


def call_ms(first: str) -> tuple[float, float]:
    """Return the medians of the first and the second cached probe() inside one process."""
    pairs = []
    for _ in range(RUNS):
        code = CALLS.format(first=first)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        pairs.append([float(line) * 1e3 for line in done.stdout.split()])
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def main() -> None:
    """Measure and print."""
    subprocess.run([sys.executable, "-c", "import gpuedge; gpuedge.probe()"], check=True)
    samples: dict[str, list[float]] = {name: [] for name in SNIPPETS}
    for _ in range(RUNS):
        for name, code in SNIPPETS.items():
            samples[name] += process_ms(code)
    middle = {name: statistics.median(values) for name, values in samples.items()}
    bare = middle["bare Python"]
    rows = [(n, f"{ms:.1f}", f"{ms - bare:+.1f}", f"{ms / bare:.2f}") for n, ms in middle.items()]
    report(
        f"whole processes, median of {RUNS}, interleaved",
        ("process", "ms", "over bare, ms", "ratio"),
        rows,
    )
    calls = []
    for first in ("sys", "numpy"):
        cold, warm = call_ms(first)
        calls.append((f"after import {first}", f"{cold:.1f}", f"{warm:.1f}"))
    report("cached gpuedge.probe() inside a process, ms", ("", "first call", "later calls"), calls)


if __name__ == "__main__":
    main()
