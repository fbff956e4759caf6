"""How far the speeds of classes (shaders/speeds.json) are from what drivers here were measured at.

Usage: python benchmarks/speeds.py [FIGURES.json] [--measure]

The figures are medians of twenty models on each driver with the work of each as planned there;
``--measure`` takes them from the drivers of this machine (decision.py, 3 minutes) and first
writes them to the file. For traces of other devices use ``python -m benchmarks.fleet.fit``.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median, stdev
from typing import Any

from gpuedge.decide.options import DEFAULT
from gpuedge.decide.speeds import predict, speeds_of
from gpuedge.executors.base import Work

FIGURES = Path(__file__).resolve().parent / "results" / "2026-11-26-speeds.json"


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


def measured() -> dict[str, Any]:
    """Return the figures of every driver of this machine, measured now."""
    import decision  # noqa: PLC0415  (finds the drivers of the tests; tests import this file)

    configurations: dict[str, Any] = {}
    for name in decision.CONFIGURATIONS:
        print(name, flush=True)
        if not decision.child(name, decision.ONNXRUNTIME, "measure"):
            sys.exit(f"{name} could not be measured")
        body = decision.found(name, decision.ONNXRUNTIME, "measure") or sys.exit("nothing is kept")
        configurations[name] = {
            "class": body["class"], "level": body["level"], "driver": body["name"],
            "load": body["load"],
            "cases": {
                model: {**case["gpu"]["work"], "p50_ms": round(case["gpu"]["p50_ns"] / 1e6, 3)}
                for model, case in body["cases"].items()
            },
        }  # fmt: skip
    about = f"Median latencies, {time.strftime('%Y-%m-%d')}, and the work of each model as planned"
    return {"schema": "gpuedge.speeds-figures/1", "about": about, "configurations": configurations}


def main(arguments: list[str]) -> None:
    """Print the distribution of the residuals."""
    paths = [Path(argument) for argument in arguments if not argument.startswith("--")]
    path = paths[0] if paths else FIGURES
    if "--measure" in arguments:
        path.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
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
