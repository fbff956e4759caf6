"""From results to the report: tables, and a verdict for each target."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .cases import STAGES, TOLD
from .faults import OURS

Results = dict[str, dict[str, dict[int, dict[str, Any]]]]

QUAD = ("mean", "p95", "harm", "missed")
TARGETS: dict[str, dict[str, tuple[float, ...]]] = {
    "paper .95": {
        "launch 1": (8, 45, 4, 7), "launch 5": (3, 12, 1, 6), "hour": (2.2, 10, 0.7, 1.5),
    },
    "cv .5": {"launch 1": (7.5, 43, 4, 6), "launch 5": (2.4, 6, 0.7, 5), "hour": (1.5, 6, 0.5, 1)},
    "cv 1.5": {
        "launch 1": (8.5, 48, 4, 8), "launch 5": (3.4, 16, 1.5, 7), "hour": (3, 14, 1.6, 1.5),
    },
    "later APIs": {
        "launch 1": (10, 55, 5, 8), "launch 5": (4, 19, 1.3, 7), "hour": (2.8, 13, 1, 1),
    },
    "later, GPUs twice as fast": {
        "launch 1": (19, 100, 6, 6), "launch 5": (6.5, 33, 1.6, 5), "hour": (3.6, 17, 1.2, 1),
    },
}  # fmt: skip
"""Of issue 12, by population and stage, in the order of `QUAD`. Without calibration one point of
the mean more is allowed: three and 1.5 in the last row."""

WRONG_TARGET, DENIED_TARGET = 1.0, 0.1
"""Per 100,000 pairs; per cent of good alternatives."""

SWITCH_TARGET, MOST_TARGET, MEASURED_TARGET = 0.3, 2, 0.5
"""Switches an hour; the most in a minute; per cent of the work."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def values(results: Results, name: str, stage: str, figure: str) -> list[float]:
    """Return a figure of a population at a stage, on every seed."""
    return [float(r[stage][figure]) for r in results["serve"][name].values()]


def mean(results: Results, name: str, stage: str, figure: str) -> float:
    """Return a figure of a population at a stage, over all seeds."""
    return float(np.mean(values(results, name, stage, figure)))


def _digits(x: float) -> str:
    return f"{x:.0f}" if abs(x) >= 20 else f"{x:.1f}" if abs(x) >= 3 else f"{x:.2f}"


def _joined(results: Results, name: str, stage: str, figures: Sequence[str]) -> str:
    return " / ".join(_digits(mean(results, name, stage, f)) for f in figures)


def ordered(results: Results) -> list[str]:
    """Return the populations, each with its bound after it."""
    names = [n for n in results["serve"] if not n.startswith(TOLD)]
    found = [m for n in names for m in (n, TOLD + n)]
    return [n for n in found if n in results["serve"]]


def shown(name: str) -> str:
    """Return how a population is called in a table that has its bound below it."""
    return "... told everything" if name.startswith(TOLD) else name


def regrets(results: Results) -> str:
    """Return time regret with its targets, by population and stage."""
    rows = []
    for name in ordered(results):
        cells = []
        for stage in STAGES:
            found = [mean(results, name, stage, f) for f in QUAD]
            wanted = TARGETS.get(name, {}).get(stage)
            text = " / ".join(
                f"**{_digits(x)}**" if wanted and x > wanted[k] else _digits(x)
                for k, x in enumerate(found)
            )
            cells.append(text + (f" ({'/'.join(f'{w:g}' for w in wanted)})" if wanted else ""))
        rows.append((shown(name), *cells))
    return table(("population", *STAGES), rows)


def details(results: Results, stage: str) -> str:
    """Return what else is to be said of a stage."""
    rows = []
    for name in ordered(results):
        m = [mean(results, name, stage, f) for f in ("given up", "measured", "opened", "gpu")]
        rows.append((
            shown(name), _joined(results, name, stage, ("median", "total")),
            _joined(results, name, stage, ("cold mean", "cold p95", "cold total")),
            _joined(results, name, stage, ("felt mean", "felt p95")),
            _joined(results, name, stage, ("felt cold mean", "felt cold p95")),
            _joined(results, name, stage, ("priced mean", "priced median", "priced p95")),
            _digits(m[0]), f"{m[1]:.2f}", f"{m[2]:.0f}", f"{m[3]:.0f}",
        ))  # fmt: skip
    header = (
        "population", "median / total", "oracle pays cold runs: mean / p95 / total",
        "openings beside requests not counted: mean / p95", "both: mean / p95",
        "priced: mean / median / p95", "given up by choice", "measuring, % of work", "opened %",
        "ends on GPU %",
    )  # fmt: skip
    return table(header, rows)


def service(results: Results) -> str:
    """Return switches, wrong numbers and their targets, of the hour."""
    rows = []
    for name in ordered(results):
        found = results["serve"][name]
        most = max(r[stage]["most"] for r in found.values() for stage in STAGES)
        wrong = sum(r[stage]["wrong"] for r in found.values() for stage in STAGES)
        rows.append((
            shown(name), f"{mean(results, name, 'hour', 'switches'):.2f}",
            f"{mean(results, name, 'hour', 'changes of mind'):.2f}", f"{most:.0f}",
            f"{mean(results, name, 'hour', 'measured'):.2f}", f"{wrong:.0f}",
            f"{sum(values(results, name, 'hour', 'pairs')):.0f}",
        ))  # fmt: skip
    header = (
        f"population (targets: {SWITCH_TARGET}, {MOST_TARGET}, {MEASURED_TARGET})",
        "switches an hour", "... after the first", "most in a minute, any stage",
        "measuring, % of work", "wrong answers served", "pairs that served an hour",
    )  # fmt: skip
    return table(header, rows)


def gates(results: Results) -> str:
    """Return the table of gates: all seeds added up."""
    rows = []
    for name, found in results["gates"].items():
        first = next(iter(found.values()))
        sums = {k: sum(r[k] for r in found.values()) for k in first if k != "cpu_s"}
        per = 1e5 / sums["pairs"]
        rows.append((
            f"**{name}**" if name == OURS else name, f"{per * sums['wrong at gates']:.2f}",
            f"{per * sums['wrong']:.2f}", f"{per * sums['unstable']:.1f}",
            f"{per * sums['unstable 5%']:.2f}", f"{per * sums['stopped']:.0f}",
            f"{100 * sums['denied'] / sums['good']:.3f}",
        ))  # fmt: skip
    header = (
        "gates", "wrong numbers, every time: past the tests", "... in use after the trial",
        "wrong now and then", "... in over 5 % of runs", "crash or hang in the application",
        f"good denied, % (target {DENIED_TARGET})",
    )  # fmt: skip
    return table(header, rows)


INTRODUCTION = """# The fleet, simulated, {date}

Made by `python -m benchmarks.fleet.run --seeds {flags} --pairs {pairs} --save`. **Simulation**: it
shows what the algorithm does in this model of the field, not what real devices do. The model and
its knobs: `benchmarks/fleet/README.md`.

{pairs} (device, model) pairs on each of {seeds} seeds; {hours:.0f} of them a seed also serve for an
hour. The product's own chooser with its own constants and default policy; it is not told how many
requests will come. Everything is paid: every opening in full, warm-up, cold runs, switches, runs of
a trial (which the CPU answers as well), bursts, and 10 % on requests while a GPU is opened. The
oracle knows everything, takes the best side from the first request and pays the start-up of a GPU
that it takes, but none of its cold runs; where it pays those too is said beside. Per cent.

*Told everything* is the bound: the same chooser is told how many requests will come and every
latency and start-up, and pays by the same accounts. What it costs above the oracle is the price of
serving from the first request while a GPU is opened, not of deciding.
"""


def report(results: Results, seeds: Sequence[int], pairs: int, hours: float) -> str:
    """Return the whole report, in Markdown."""
    text = INTRODUCTION.format(
        date=time.strftime("%Y-%m-%d"), pairs=pairs, seeds=len(seeds), hours=hours,
        flags=" ".join(map(str, seeds)),
    )  # fmt: skip
    if "serve" in results:
        text += "\n## Time regret: mean / p95 / harm / missed (target)\n\n" + regrets(results)
        text += "\nBold: above the target.\n"
        for stage in STAGES:
            text += f"\n## {stage.capitalize()}\n\n" + details(results, stage)
        text += "\n## Switches and wrong numbers\n\n" + service(results)
    if "gates" in results:
        text += "\n## Gates, per 100,000 pairs\n\n" + gates(results)
    return text
