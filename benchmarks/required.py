"""What tests that entries of the capability database require cost the launch that runs them.

    MESA_SHADER_CACHE_DISABLE=true python benchmarks/required.py [LEVEL ...]

Per level of the drivers here, processor and wall seconds of the known answers, which every new
driver pays for, and of the required tests after them. Most is compiling: without Mesa's own cache
it is what a first launch pays. Where they pass, later launches pay nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

from gpuedge import backends
from gpuedge.backends.base import DeviceInfo
from gpuedge.capdb.entries import Demand
from gpuedge.core.errors import GpuEdgeError
from gpuedge.probing.child import Announcing
from gpuedge.probing.trials import Trials, known_answers, required_tests

TESTS = (("standard",), ("standard", "kernels"))
RUNS, LONG_S = 64, 600.0


def devices(level: str) -> Iterator[DeviceInfo]:
    """Yield the first device of each driver of a level."""
    backend = backends.load(level)
    for candidate in backend.candidates(os.environ):
        try:
            yield from backend.enumerate(candidate)[:1]
        except GpuEdgeError:
            continue  # a driver without a device


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the processor and wall seconds of some work."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def measured(info: DeviceInfo, tests: tuple[str, ...]) -> tuple[float, ...]:
    """Return the seconds of known answers and of required tests on a fresh device."""
    device = backends.load(info.candidate.backend).open(info)
    trials = Trials(Announcing(device, lambda step: None), lambda step: None)
    demand, ends = Demand("any-0000", tests, RUNS), time.monotonic() + LONG_S
    try:
        known = timed(lambda: known_answers(trials, 2, {}))
        return *known, *timed(lambda: required_tests(trials, [demand], ends, {}))
    finally:
        trials.close()
        device.close()


def main() -> None:
    """Measure, and print the figures."""
    heads = ("known, CPU s", "wall s", "required, CPU s", "wall s")
    print(f"{'':46}" + "".join(f"{head:>17}" for head in heads))
    for level in sys.argv[1:] or backends.PROBED:
        for info in devices(level):
            for tests in TESTS:
                name = f"{level}, {info.identity.name[:16]}, {' and '.join(tests)}"
                print(f"{name:46}" + "".join(f"{s:17.2f}" for s in measured(info, tests)))


if __name__ == "__main__":
    main()
