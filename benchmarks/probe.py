"""What finding the devices costs: cold for each driver and for all, and answered from the store.

Cold means that gpuedge has no verdict (`refresh=True`). It is measured with the drivers' own shader
caches as they are, and once more with Mesa's switched off, as on the very first start.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from common import report

import gpuedge
from gpuedge import backends
from gpuedge.backends.base import Candidate
from gpuedge.probing.launcher import group
from gpuedge.probing.run import probe_all

COLD = 9
CACHED = 1000
FIRST = 15
DEADLINE_S = 60.0
"""Far from what is needed: what is measured is the work, and not the deadline."""


def children_s() -> float:
    """Return the processor seconds of all children so far, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cold() -> tuple[list[float], list[float]]:
    """Return the wall and the children's processor seconds of cold probes of everything."""
    wall, cpu = [], []
    for _ in range(COLD):
        before, start = children_s(), time.perf_counter()
        gpuedge.probe(refresh=True, deadline_s=DEADLINE_S)
        wall.append(time.perf_counter() - start)
        cpu.append(children_s() - before)
    return wall, cpu


def drivers() -> list[tuple[str, ...]]:
    """Return a row per driver: its levels, verdicts, and processor seconds when probed alone."""
    found: list[Candidate] = []
    for name in backends.PROBED:
        found += backends.load(name).candidates(os.environ)
    rows = []
    for members in group(found):
        levels = [found[i] for i in members]
        samples = []
        for _ in range(5):
            before = children_s()
            verdicts = probe_all(levels, DEADLINE_S)
            samples.append(children_s() - before)
        said = ", ".join(dict.fromkeys(r.status for one in verdicts for r in one))
        name = os.path.basename(levels[0].key)  # noqa: PTH119  (a key need not be a path)
        names = " ".join(c.backend for c in levels)
        rows.append((name, names, said, f"{statistics.median(samples):.2f}"))
    return rows


def cached() -> tuple[float, float, float]:
    """Return p50, p99 and the longest of warm cached probes, in milliseconds."""
    gpuedge.probe()
    samples = []
    for _ in range(CACHED):
        start = time.perf_counter()
        gpuedge.probe()
        samples.append((time.perf_counter() - start) * 1e3)
    samples.sort()
    return samples[CACHED // 2], samples[CACHED * 99 // 100], samples[-1]


def first_ms(code: str) -> float:
    """Return the median milliseconds of a process of its own that runs `code`."""
    samples = []
    for _ in range(FIRST):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def main() -> None:
    """Measure and print."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUEDGE_CACHE_DIR"] = folder
        rows = []
        for name, off in (("drivers' caches warm", None), ("Mesa's cache off", "true")):
            if off:
                os.environ["MESA_SHADER_CACHE_DISABLE"] = off
            wall, cpu = cold()
            row = (statistics.median(wall), min(wall), max(wall), statistics.median(cpu))
            rows.append((name, *(f"{x:.2f}" for x in row)))
        os.environ.pop("MESA_SHADER_CACHE_DISABLE")
        header = ("cold probe() of everything, s", "median", "least", "most", "CPU of children")
        report(f"{COLD} probes each; load average {load:.1f}", header, rows)
        report(
            "processor seconds per driver, alone", ("driver", "levels", "verdict", "s"), drivers()
        )
        p50, p99, most = cached()
        bare = first_ms("pass")
        first = first_ms("import gpuedge; gpuedge.probe()")
        values = (p50, p99, most, first - bare)
        header = (
            "cached probe(), ms",
            "p50",
            "p99",
            "longest",
            "first thing of a process, over bare",
        )
        report(f"{CACHED} calls", header, [("", *(f"{x:.1f}" for x in values))])


if __name__ == "__main__":
    main()
