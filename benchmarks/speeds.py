"""How far the speeds of classes (shaders/speeds.json) are from what drivers here were measured at.

Usage: python benchmarks/speeds.py [FIGURES.json]

The figures are medians of twenty models on each driver with the work of each as planned there. For
traces of other devices use ``python -m benchmarks.fleet.fit``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median, stdev
from typing import Any

from gpuedge.decide.options import DEFAULT
from gpuedge.decide.speeds import predict, speeds_of
from gpuedge.executors.base import Work

FIGURES = Path(__file__).resolve().parent / "results" / "2026-11-23-speeds.json"


def residuals(figures: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return ln(measured / predicted) of every model, by configuration."""
    found: dict[str, list[float]] = {}
    for name, one in figures["configurations"].items():
        row = speeds_of(one["class"])
        for case in one["cases"].values():
            work = Work(**{k: v for k, v in case.items() if k != "p50_ms"})
            ratio = case["p50_ms"] * 1e6 / predict(work, row, one["level"])
            found.setdefault(name, []).append(math.log(ratio))
    return found


def main(arguments: list[str]) -> None:
    """Print the distribution of the residuals."""
    path = Path(arguments[0]) if arguments else FIGURES
    found = residuals(json.loads(path.read_bytes()))
    everything = [v for values in found.values() for v in values]
    print("| configuration | cases | median | sd | least | most | within 3 | within 9 |")
    print("|---|---|---|---|---|---|---|---|")
    for name, values in {**found, "all": everything}.items():
        shares = (
            f"{sum(abs(v) <= n * math.log(DEFAULT.prior_factor) for v in values) / len(values):.0%}"
            for n in (1, 2)
        )
        print(f"| {name} | {len(values)} | {median(values):.2f} | {stdev(values):.2f} | "
              f"{min(values):.2f} | {max(values):.2f} | {' | '.join(shares)} |")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
