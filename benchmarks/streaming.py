"""Formulas of large arrays on the CPU, against the time in which memory can be passed through.

The limit is the faster of ``numpy.copyto`` and ``numpy.add(a, b, out=...)`` on all cores, per byte
read and written, for the bytes of the formula's inputs and its result. For ``relu(a * b + c)`` over
16 M numbers the ratio is to be at most 1.5.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from common import processor, report

import gpuedge

FORMULAS = ("relu(a * b + c)", "a + b", "clip(a * 0.5 + 1, 0, 6)", "sigmoid(a) * b")
SIZES = (1 << 20, 1 << 22, 1 << 24)
RNG = np.random.default_rng(0)
CORES = os.cpu_count() or 1


def limits(pool: ThreadPoolExecutor, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
    """Return what passes two and three arrays through memory, shared by all cores."""
    out, step = np.zeros_like(a), -(-len(a) // CORES)
    cuts = [slice(at, at + step) for at in range(0, len(a), step)]
    return {
        "copy": lambda: list(pool.map(lambda s: np.copyto(out[s], a[s]), cuts)),
        "add": lambda: list(pool.map(lambda s: np.add(a[s], b[s], out=out[s]), cuts)),
    }


def main() -> None:
    """Measure and print."""
    rows: list[tuple[object, ...]] = []
    with ThreadPoolExecutor(CORES) as pool:
        for size in SIZES:
            given = {n: RNG.normal(size=size).astype(np.float32) for n in "abc"}
            candidates, counts = limits(pool, given["a"], given["b"]), dict[str, int]()
            for text in FORMULAS:
                formula = gpuedge.elementwise(text)
                arrays = [given[n] for n in formula.names]
                counts[text] = len(arrays) + 1
                candidates[text] = lambda f=formula, x=arrays: f(*x, device="cpu")
            found = processor(candidates)
            stream = min(found["copy"] / 2, found["add"] / 3)
            for text, streams in counts.items():
                rows.append((text, f"{size:,}", f"{found[text] * 1e3:.2f}",
                             f"{found[text] / (stream * streams):.2f}"))  # fmt: skip
    report(
        "formulas on the CPU, processor milliseconds per call",
        ("formula", "elements", "ms", "times the streaming limit"),
        rows,
    )


if __name__ == "__main__":
    main()
