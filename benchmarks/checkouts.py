"""What calls, probes and starts cost in this checkout and in another one, in one run.

``python benchmarks/checkouts.py OTHER`` takes the folder of another checkout, which may use the
same environment. Each figure is the least processor time of a process or of a call in it; the two
checkouts take turns, so what else the machine does meets both alike. ``--rounds N`` (9).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from common import report

HERE = Path(__file__).resolve().parents[1]

START = "import json, time, resource, sys; sys.path.insert(0, {checkout!r})\n"
MODEL = """
from onnx import TensorProto, helper
import numpy as np
def model(size):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n in "xy"]
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "relu", value[:1], value[1:])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
x, many = np.ones(16, np.float32), model(16)
"""
LEAST = """
def least(call, calls=300, rounds=20):
    for _ in range(50): call()
    found = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls): call()
        found.append((time.process_time() - start) / calls)
    return min(found)
"""
END = """
print(json.dumps(found))
"""
PROCESS = (
    "children = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "found = {{{what!r}: time.process_time() + children.ru_utime + children.ru_stime}}\n"
)
PROGRAMS = {
    "import": "import gpuedge\n" + PROCESS.format(what="import gpuedge, process"),
    "cached probe": "import gpuedge; gpuedge.probe()\n"
    + PROCESS.format(what="cached probe, process"),
    "cold probe": "import gpuedge; gpuedge.probe(refresh=True)\n"
    + PROCESS.format(what="cold probe, process and children"),
    "first request": MODEL
    + "start = time.process_time()\nimport gpuedge\n"
    + "gpuedge.Session(many, device='auto').run({'x': x})\n"
    + "found = {'first request, auto, with the import': time.process_time() - start}\n",
    "first request on vulkan": MODEL
    + "import gpuedge; gpuedge.probe(); start = time.process_time()\n"
    + "gpuedge.Session(many, device='vulkan').run({'x': x})\n"
    + "found = {'first request, vulkan, caches warm': time.process_time() - start}\n",
    "calls": MODEL
    + LEAST
    + "import gpuedge\n"
    + "image = np.ones((1, 4, 8, 8), np.float32); weights = np.ones((4, 4, 3, 3), np.float32)\n"
    + "found = {}\n"
    + "for device in ('cpu', 'vulkan'):\n"
    + "    found[f'conv2d, {device}'] = least(\n"
    + "        lambda: gpuedge.conv2d(image, weights, device=device))\n"
    + "for device in ('cpu', 'auto', 'vulkan'):\n"
    + "    with gpuedge.Session(many, device=device) as session:\n"
    + "        found[f'Session.run of 16 floats, {device}'] = least(\n"
    + "            lambda: session.run({'x': x}))\n",
}  # fmt: skip


def measured(checkout: Path, program: str, cache: Path) -> dict[str, float]:
    """Return the seconds of processor time that a program says, of a process of its own."""
    environment = {**os.environ, "GPUEDGE_CACHE_DIR": str(cache)}
    code = START.format(checkout=str(checkout)) + program + END
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=cache, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def rounds_of(checkouts: list[Path], rounds: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield figures with the number of the checkout that they are of; each begins as often."""
    with TemporaryDirectory() as folder:
        caches = [Path(folder) / str(i) for i in range(len(checkouts))]
        for cache, checkout in zip(caches, checkouts, strict=True):
            cache.mkdir()
            for program in PROGRAMS.values():  # fills the caches
                measured(checkout, program, cache)
        for turn in range(rounds):
            for name, program in PROGRAMS.items():
                for i in (0, 1) if turn % 2 else (1, 0):
                    yield i, measured(checkouts[i], program, caches[i])
                print(f"\r{turn + 1} of {rounds}: {name:30}", end="", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    least: dict[str, list[float]] = {}
    for i, found in rounds_of([chosen.other.resolve(), HERE], chosen.rounds):
        for name, seconds in found.items():
            figures = least.setdefault(name, [float("inf")] * 2)
            figures[i] = min(figures[i], seconds)
    rows = [
        (name, f"{before * 1e3:.4g}", f"{after * 1e3:.4g}", f"{after / before:.2f}")
        for name, (before, after) in least.items()
    ]
    report("Processor milliseconds", ("what", "the other", "this", "ratio"), rows)


if __name__ == "__main__":
    main()
