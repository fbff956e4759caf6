"""Decisions held against the truth, and tables of both. Pure: numbers in, text out."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge import Policy

CLEAR = 1.2
"""Beyond this factor either way of the break-even a decision must be right."""

MARGIN = Policy().min_speedup

Found = Mapping[tuple[str, str], Mapping[str, Any]]
"""What was found, by configuration and CPU path, then by step."""


@dataclass(frozen=True)
class Judged:
    """One decision against the truth.

    Attributes
    ----------
    speedup : float
        True speed-up of the GPU over the requests of that launch, start-up included.
    chose_gpu : bool
        What served at the end of the launch.
    reason : str
    """

    configuration: str
    engine: str
    launch: str
    model: str
    speedup: float
    chose_gpu: bool
    reason: str

    @property
    def is_right(self) -> bool:
        """Whether the better side was chosen, by the default margin."""
        return self.chose_gpu == (self.speedup > MARGIN)

    @property
    def is_clear(self) -> bool:
        """Whether the truth is more than `CLEAR` from the break-even."""
        return abs(math.log(self.speedup / MARGIN)) > math.log(CLEAR)

    @property
    def lost(self) -> float:
        """How much longer the choice takes than the other one would; 1 if that is not longer."""
        return max(1 / self.speedup if self.chose_gpu else self.speedup, 1.0)


def judged(found: Found, launches: Sequence[str]) -> list[Judged]:
    """Hold the decisions of every launch against what was measured."""
    rows = []
    for (name, engine), steps in found.items():
        for launch in (n for n in launches if n in steps and "measure" in steps):
            for model, case in steps["measure"]["cases"].items():
                one = steps[launch]["cases"][model]
                startup = case["gpu"]["startup_ns"] / one["requests"]
                speedup = case["cpu"]["p50_ns"] / (case["gpu"]["p50_ns"] + startup)
                is_gpu = one["device"] != "cpu"
                rows.append(Judged(name, engine, launch, model, speedup, is_gpu, one["reason"]))
    return rows


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def decision_table(rows: Sequence[Judged]) -> str:
    """Return how many decisions were right, by device, CPU path and launch."""
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for row in rows:
        groups.setdefault((row.configuration, row.engine, row.launch), []).append(row)
    lines = [
        (
            *key, len(group), sum(r.speedup > MARGIN for r in group),
            sum(r.chose_gpu for r in group), sum(r.is_clear for r in group),
            sum(r.is_clear and r.is_right for r in group), sum(r.is_right for r in group),
        )
        for key, group in groups.items()
    ]  # fmt: skip
    header = ("device", "CPU path", "launch", "cases", "GPU is better", "GPU serves",
              "clear cases", "right of those", "right of all")  # fmt: skip
    return table(header, lines)


def wrong_lines(rows: Sequence[Judged]) -> list[str]:
    """Return a line for every decision that was wrong where the truth was clear."""
    return [
        f"* {r.configuration}, {r.engine}, {r.launch}, {r.model}: the GPU is truly "
        f"{r.speedup:.2f} times as fast; {'GPU' if r.chose_gpu else 'CPU'} served, "
        f"{r.lost:.2f} times as long. {r.reason}"
        for r in rows
        if r.is_clear and not r.is_right
    ]


def latency_table(found: Found) -> str:
    """Return measured medians of every model on every device, in milliseconds."""
    columns: dict[str, Mapping[str, Any]] = {}
    for (name, engine), steps in found.items():
        if "measure" in steps:
            cases = steps["measure"]["cases"]
            columns.setdefault(f"cpu, {engine}", {m: c["cpu"] for m, c in cases.items()})
            columns.setdefault(name, {m: c["gpu"] for m, c in cases.items()})
    ordered = sorted(columns, key=lambda c: not c.startswith("cpu"))
    models = list(next(iter(columns.values()), {}))
    rows = [(m, *(f"{columns[c][m]['p50_ns'] / 1e6:.2g}" for c in ordered)) for m in models]
    return table(("model", *ordered), rows)


def text(found: Found, launches: Sequence[str]) -> str:
    """Return all tables."""
    rows = judged(found, launches)
    if not rows:
        return "nothing measured yet"
    wrong, clear = wrong_lines(rows), sum(r.is_clear for r in rows)
    loads = [load for s in found.values() for step in s.values() for load in step["load"]]
    return "\n\n".join([
        "## Decisions",
        f"Load average meanwhile: {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores. "
        f"Truth: interleaved medians, with start-up spread over the requests of the launch. A case "
        f"is clear if the truth is over a factor of {CLEAR:g} from the break-even ({MARGIN:g}).",
        decision_table(rows),
        f"Right in {clear - len(wrong)} of {clear} clear cases, and in "
        f"{sum(r.is_right for r in rows)} of all {len(rows)}.",
        *wrong,
        "## Measured, milliseconds",
        latency_table(found),
    ])  # fmt: skip


def save(found: Found, tables: str, root: Path) -> None:
    """Write the tables for the repository."""
    date = time.strftime("%Y-%m-%d")
    versions = {s["measure"]["version"] for s in found.values() if "measure" in s}
    names = sorted({f"* {name}: {s['measure']['name']}" for (name, _), s in found.items()
                    if "measure" in s})  # fmt: skip
    head = [
        f"# Decisions against measurements, {date}",
        f"Made by `benchmarks/decision.py --save` with gpuedge {', '.join(sorted(versions))}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores and no GPU.",
        "\n".join(names),
    ]
    place = root / "benchmarks" / "results" / f"{date}-decision.md"
    place.write_text("\n\n".join([*head, tables]) + "\n", encoding="utf-8")
    print(f"written: {place.name}")
