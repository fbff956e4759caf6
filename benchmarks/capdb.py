"""What the capability database costs: loading it, and looking a device up in it.

    python benchmarks/capdb.py [--rounds 20]

Reports processor time in milliseconds, the least and the median: a new process that loads the
packaged database and looks one device up; then, over the stored identities in one process, who a
device is, and a repeated lookup.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from gpuedge.capdb import lookup
from gpuedge.capdb.database import forget, load
from gpuedge.capdb.identities import identities
from gpuedge.capdb.identity.subject import subject

FIRST = """
import json, time
from gpuedge.capdb import lookup
start = time.process_time()
lookup({"api": "vulkan", "deviceName": "Adreno (TM) 630", "driverVersion": 2149572608})
print((time.process_time() - start) * 1e3)
"""


def first() -> float:
    """Return the milliseconds of the first lookup of a process, its imports aside."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    return float(done.stdout)


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds of processor time that some work takes."""
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def show(name: str, times: list[float]) -> None:
    """Print one line of figures."""
    print(f"{name:<44}{min(times):>9.3f}{statistics.median(times):>9.3f}")


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = range(parser.parse_args().rounds)
    print(f"{'milliseconds of processor time':<44}{'least':>9}{'median':>9}")
    show("first lookup of a process", [first() for _ in rounds])

    def fresh() -> None:
        forget()
        load()

    show("load", [timed(fresh) for _ in rounds])
    devices = list(identities(load().folder).values())
    show("who a device is", [min(timed(lambda d=d: subject(d)) for _ in rounds) for d in devices])  # type: ignore[misc]
    show("repeated lookup", [min(timed(lambda d=d: lookup(d)) for _ in rounds) for d in devices])  # type: ignore[misc]


if __name__ == "__main__":
    main()
