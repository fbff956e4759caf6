"""What tuning gains: networks as the rows of the device's class have them, and tuned.

Usage: python -m benchmarks.tuning [DEVICE...] [--networks shufflenet resnet50] [--effort full]
       [--class generic] [--json FILE]

The networks are the usual ones of the tests, with random weights. Each is tuned with nothing known,
compiled both ways, and run in turns: processor time where a software rasteriser computes in this
process, else wall time. `--class` has the kernels chosen as for another class of devices, such as
``generic``, which has no rows of its own: what tuning gains on a device that nobody measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import usual_nets  # noqa: E402
from common import devices, medians, processor, report  # noqa: E402

import gpuedge  # noqa: E402
from gpuedge.executors.gpu import GpuExecutor  # noqa: E402
from gpuedge.graph.ir import Graph  # noqa: E402
from gpuedge.plan.tuned import Effort  # noqa: E402
from gpuedge.runtime.inputs import samples  # noqa: E402
from gpuedge.runtime.tuner import Tuner  # noqa: E402

NETWORKS = ("shufflenet", "resnet50", "inception", "unet", "transformer")
COLUMNS = ("device", "class", "network", "tuning s", "choices", "timed", "changed", "usual ms",
           "tuned ms", "times as fast")  # fmt: skip


def network(name: str) -> Graph:
    """Return a usual network with random weights of about the size that trained ones have."""
    graph: Graph = getattr(usual_nets, name)()
    draw = np.random.default_rng(0)
    weights = {
        key: draw.normal(0, 1 / np.sqrt(max(1, array[0].size)), array.shape).astype(np.float32)
        for key, array in graph.constants.items()
        if array.dtype == np.float32 and array.ndim
    }
    return replace(graph, constants={**graph.constants, **weights})


def measured(
    executor: GpuExecutor, name: str, effort: Effort, *, rounds: int
) -> tuple[object, ...]:
    """Tune a network; return its row of the table."""
    graph, cpu = network(name), gpuedge.open("cpu").executor
    start = time.perf_counter()
    tuner = Tuner(executor, cpu, effort, lambda *_: None, is_anew=True)  # type: ignore[arg-type]
    tuner.tune(graph)
    took = time.perf_counter() - start
    found = [tuner.known[key] for key in tuner.keys]
    inputs = samples(graph)
    sides = {
        "usual": executor.compile(graph),
        "tuned": executor.compile(graph, tuned=tuner.known),
    }
    runs = {side: (lambda made=made: made.run(inputs)) for side, made in sides.items()}
    is_here = executor.caps.is_software and executor.isolation == "inline"
    times = processor(runs, rounds=rounds) if is_here else medians(runs, rounds=rounds)
    for made in sides.values():
        made.close()
    usual, tuned = times["usual"], times["tuned"]
    return (
        executor.device, executor.caps.device_class, name, f"{took:.1f}", len(found),
        sum(kernel.effort != "none" for kernel in found), sum(k.is_other for k in found),
        f"{usual * 1e3:.2f}", f"{tuned * 1e3:.2f}", f"{usual / tuned:.2f}",
    )  # fmt: skip


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("devices", nargs="*", help="all that are not the CPU")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS[:2])
    parser.add_argument("--effort", choices=("fast", "full"), default="full")
    parser.add_argument("--class", dest="device_class", help="choose as for this class of devices")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GPUEDGE_CACHE_DIR"] = cache
        for name in options.devices or devices():
            with gpuedge.open(name) as device:
                executor = device.executor
                if not isinstance(executor, GpuExecutor):
                    continue
                if options.device_class:
                    executor.caps = replace(executor.caps, device_class=options.device_class)
                for net in options.networks:
                    rows.append(measured(executor, net, options.effort, rounds=options.rounds))
                    print("  ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    report("milliseconds of a run: as usual, and tuned", COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
