"""Tables of predictions and decisions, and the figure of the errors."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from predictions.figure import draw
from predictions.verdicts import (
    CLEAR,
    INFERENCES,
    Judged,
    errors,
    judged,
    quantile,
    rms,
    within,
)

Pairs = Mapping[tuple[str, str], Mapping[str, Any]]
"""What was found, by configuration and CPU path, then by step."""

POLICIES = {"any gain": 1.0, "default": 1.2}
"""Least speed-ups of the policies of `predictions.choices`."""


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def alternatives(pairs: Pairs) -> dict[str, list[float]]:
    """Return ln(predicted / measured) of every device and CPU path, case by case."""
    found: dict[str, list[float]] = {}
    for (name, _), steps in pairs.items():
        if "measure" in steps:
            found.setdefault(name, []).extend(errors(steps["measure"], "gpu"))
    for (_, engine), steps in pairs.items():
        if "measure" in steps:
            found.setdefault(f"cpu, {engine}", []).extend(errors(steps["measure"], "cpu"))
    return found


def ratio_errors(pairs: Pairs) -> list[float]:
    """Return the error of ln(GPU / CPU), which is what a decision rests on."""
    return [
        gpu - cpu
        for steps in pairs.values()
        if "measure" in steps
        for gpu, cpu in zip(
            errors(steps["measure"], "gpu"), errors(steps["measure"], "cpu"), strict=True
        )
    ]


def error_table(pairs: Pairs) -> str:
    """Return the distribution of the errors by device."""
    rows = []
    groups = {**alternatives(pairs), "GPU / CPU, both predicted": ratio_errors(pairs)}
    for name, values in groups.items():
        points = [f"{math.exp(quantile(values, q)):.2f}" for q in (5, 25, 50, 75, 95)]
        shares = [f"{100 * within(values, factor):.0f} %" for factor in (2, 3)]
        rows.append((name, len(values), *points, f"{math.exp(rms(values)):.2f}", *shares))
    header = ("of", "cases", "5 %", "25 %", "median", "75 %", "95 %", "factor, rms",
              "within 2", "within 3")  # fmt: skip
    return table(header, rows)


def decisions(pairs: Pairs) -> list[Judged]:
    """Return every decision, held against the truth."""
    return [
        row
        for (name, engine), steps in pairs.items()
        if "measure" in steps and "decide" in steps
        for row in judged(name, engine, steps["measure"], steps["decide"], POLICIES)
    ]


def decision_table(rows: Sequence[Judged]) -> str:
    """Return how many decisions were right, by device, CPU path and policy."""
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for row in rows:
        groups.setdefault((row.configuration, row.engine, row.policy), []).append(row)
    lines = []
    for key, group in groups.items():
        clear = [r for r in group if r.is_clear]
        best = sum(r.speedup > POLICIES[key[2]] for r in group)
        lines.append((
            *key, len(group), best, sum(r.chose_gpu for r in group), len(clear),
            sum(r.is_right for r in clear), sum(r.is_right for r in group),
        ))  # fmt: skip
    header = ("device", "CPU path", "policy", "cases", "GPU is better", "GPU chosen",
              "clear cases", "right of those", "right of all")  # fmt: skip
    return table(header, lines)


def wrong_lines(rows: Sequence[Judged]) -> list[str]:
    """Return a line for every decision that was wrong where the truth was clear."""
    return [
        f"* {r.configuration}, {r.engine}, {r.model}, {r.policy}: the GPU is truly "
        f"{r.speedup:.2f} times as fast; {'GPU' if r.chose_gpu else 'CPU'} chosen "
        f"({r.confidence or 'not weighed'}), {r.lost:.2f} times as long. {r.reason}"
        for r in rows
        if r.is_clear and not r.is_right
    ]


def latency_table(pairs: Pairs) -> str:
    """Return predicted and measured medians of every model on every device, in milliseconds."""
    columns: dict[str, Mapping[str, Any]] = {}
    for (name, engine), steps in pairs.items():
        if "measure" in steps:
            cases = steps["measure"]["cases"]
            columns.setdefault(f"cpu, {engine}", {m: c["cpu"] for m, c in cases.items()})
            columns.setdefault(name, {m: c["gpu"] for m, c in cases.items()})
    ordered = sorted(columns, key=lambda c: not c.startswith("cpu"))
    models = list(next(iter(columns.values()), {}))
    rows = [(m, *(_shown(columns[c][m]) for c in ordered)) for m in models]
    return table(("model", *ordered), rows)


def _shown(one: Mapping[str, Any]) -> str:
    return f"{one['predicted_ns'] / 1e6:.2g} → {one['p50_ns'] / 1e6:.2g}"


def text(pairs: Pairs) -> str:
    """Return all tables."""
    if not any("measure" in steps for steps in pairs.values()):
        return "nothing measured yet"
    rows = decisions(pairs)
    wrong = wrong_lines(rows)
    clear = sum(r.is_clear for r in rows)
    loads = [load for s in pairs.values() for step in s.values() for load in step["load"]]
    parts = [
        "## Predicted over measured median latency",
        f"Load average while measuring: {min(loads):.1f} to {max(loads):.1f} on "
        f"{os.cpu_count()} cores.",
        error_table(pairs),
        "## Decisions",
        f"Truth: medians, with start-up spread over {INFERENCES} inferences. A case is clear if "
        f"the truth is more than a factor of {CLEAR:g} from the policy's break-even.",
        decision_table(rows),
        f"Right in {clear - len(wrong)} of {clear} clear cases, and in "
        f"{sum(r.is_right for r in rows)} of all {len(rows)}.",
        *wrong,
        "## Every case: predicted → measured, milliseconds",
        latency_table(pairs),
    ]
    return "\n\n".join(parts)


def save(pairs: Pairs, tables: str, root: Path) -> None:
    """Write the tables and the figure for the repository."""
    date = time.strftime("%Y-%m-%d")
    versions = {s["measure"]["version"] for s in pairs.values() if "measure" in s}
    names = sorted({f"{name}: {s['measure']['name']}" for (name, _), s in pairs.items()
                    if "measure" in s})  # fmt: skip
    head = [
        f"# Predictions and decisions against measurements, {date}",
        f"Made by `benchmarks/decision.py --save` with gpuedge {', '.join(sorted(versions))}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores and no GPU.",
        "\n".join(f"* {name}" for name in names),
    ]
    place = root / "benchmarks" / "results" / f"{date}-decision.md"
    place.write_text("\n\n".join([*head, tables]) + "\n", encoding="utf-8")
    figure = root / "docs" / "images" / "decision-error.png"
    figure.parent.mkdir(parents=True, exist_ok=True)
    draw(alternatives(pairs), ratio_errors(pairs), figure)
    print(f"written: {place.name}, {figure.name}")
