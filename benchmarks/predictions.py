"""How far `gpuedge.check` is off: predicted against measured times of one inference.

Usage: python -m benchmarks.predictions DEVICE [MODEL ...]

The models are those of the examples and the usual networks of the tests. Each is predicted by a
check of its own, and run right after it, because a software rasteriser is as fast as the machine
of the moment. Networks that are predicted to take more than 5 s are left out.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import usual_nets  # noqa: E402

import gpuedge  # noqa: E402
from gpuedge.graph.reader import OnnxModel  # noqa: E402
from gpuedge.graph.writer import to_bytes  # noqa: E402
from gpuedge.runtime.inputs import samples  # noqa: E402

SIDE = 128
"""Extents that models leave open; their batches are 1."""

LONGEST_MS, SPAN_S = 5_000.0, 3.0


def models() -> Iterator[tuple[str, Any]]:
    """Yield names and models."""
    for path in sorted((ROOT / "examples" / "models").glob("*.onnx")):
        yield path.stem, path
    for name, make in usual_nets.USUAL.items():
        yield name, to_bytes(make())


def compared(device: str, model: Any) -> tuple[float, float, float]:
    """Return milliseconds predicted and measured (median; NaN if left out), and the slowness."""
    read = OnnxModel.load(model)
    shapes = {
        name: [d if isinstance(d, int) else SIDE if at else 1 for at, d in enumerate(dims or ())]
        for name, (_, dims) in read.inputs.items()
    }
    (said,) = gpuedge.check(read, device=device, shapes=shapes).devices
    logs = [math.log(v) for v in said.slowness.values()] or [0.0]
    predicted, slow = said.predicted_ns / 1e6, math.exp(sum(logs) / len(logs))
    if predicted > LONGEST_MS:
        return predicted, math.nan, slow
    feeds, times = samples(read.specialise(shapes)), []
    policy = gpuedge.Policy(crosscheck=0)
    with gpuedge.Session(read, device=device, policy=policy) as session:
        session.warm_up(shapes)
        session.run(feeds)
        ends = time.monotonic() + SPAN_S
        while len(times) < 3 or (time.monotonic() < ends and len(times) < 50):
            start = time.perf_counter()
            session.run(feeds)
            times.append((time.perf_counter() - start) * 1e3)
    return predicted, median(times), slow


def main(arguments: list[str]) -> None:
    """Print a row for each model."""
    device, *wanted = arguments
    print("| model | predicted, ms | measured, ms | measured / predicted | slowness |")
    print("|---|---|---|---|---|")
    for name, model in models():
        if not wanted or name in wanted:
            said, found, slow = compared(device, model)
            print(f"| {name} | {said:.3g} | {found:.3g} | {found / said:.2f} | {slow:.2f} |",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
