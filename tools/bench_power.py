"""Simulates histories of benchmarks and writes docs/tables/bench-power.md.

Usage: python tools/bench_power.py [--histories N] [--check]

How often `gpuedge bench history` finds a slow-down that was put into a history, and how often it
finds one where there is none. Rule and code are the product's own. Latencies are log-normal, and
every run has a factor of its own besides, for runs differ by more than their iterations say.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from gpuedge.bench.estimates import spread
from gpuedge.bench.history import RULE, STATISTIC, HistoryPoint, Rule, iterations_needed, judge

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tables" / "bench-power.md"
HISTORIES, RUNS, AFTER, SEED = 1000, 30, 2, 7
LEVEL = math.log(1e6)
"""Of a millisecond, where the clock's rounding is nothing."""

PILOTS = 200
"""Histories by which the number of iterations is chosen, as a user would by one."""


@dataclass(frozen=True)
class Setting:
    """Variation of iterations and of runs (standard deviation / mean), and a slow-down."""

    cv: float
    between: float
    effect: float


SETTINGS = (Setting(0.05, 0.0, 0.05), Setting(0.05, 0.005, 0.05), Setting(0.95, 0.0, 0.25),
            Setting(0.95, 0.02, 0.25))  # fmt: skip


def history(
    setting: Setting, iterations: int, slower: int, rng: np.random.Generator
) -> list[HistoryPoint]:
    """Return a history of which the last `slower` runs are slower."""
    deviation = math.sqrt(math.log1p(setting.cv**2))
    points = []
    for at in range(RUNS):
        level = (
            LEVEL
            + rng.normal(0, setting.between)
            + (math.log1p(setting.effect) if at >= RUNS - slower else 0)
        )
        logs = level + rng.normal(0, deviation, iterations)
        points.append(HistoryPoint(float(np.median(logs)), spread(logs), iterations))
    return points


def chosen(setting: Setting, rule: Rule, rng: np.random.Generator, pilots: int = PILOTS) -> int:
    """Return the iterations that the product asks for: the median over histories of 50 each."""
    found = [iterations_needed(history(setting, 50, 0, rng), rule) for _ in range(pilots)]
    return math.ceil(median(10**9 if n is None else n for n in found))


def shares(
    setting: Setting, iterations: int, rule: Rule, histories: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Return how many histories of 100 find it, find any where there is none, suspect any."""
    found = false = suspect = 0
    for _ in range(histories):
        last = judge(history(setting, iterations, AFTER, rng), rule)[-1]
        found += last.state == "slower" and last.since == RUNS - AFTER
        states = {one.state for one in judge(history(setting, iterations, 0, rng), rule)}
        false += bool(states & {"slower", "faster"})
        suspect += "suspect" in states
    return tuple(100 * n / histories for n in (found, false, suspect))  # type: ignore[return-value]


def rows(histories: int, settings: Sequence[Setting] = SETTINGS) -> Iterator[tuple[object, ...]]:
    """Yield a row for each setting, with the iterations that the product asks for."""
    for setting in settings:
        rng = np.random.default_rng(SEED)
        rule = replace(RULE, effect=setting.effect)
        iterations = chosen(setting, rule, rng)
        yield (setting, iterations, *shares(setting, iterations, rule, histories, rng))


def page(histories: int) -> str:
    """Return the text of the table's page."""
    lines = [
        "# What histories of benchmarks find",
        "",
        "Made by `tools/bench_power.py` with the rule that `gpuedge bench history` uses:",
        f"{STATISTIC}.",
        f"{histories:,} simulated histories of {RUNS} runs for each figure. The slow-down comes",
        f"{AFTER} runs before the end. A false alarm is a change of level anywhere in a history",
        "that has none. Iterations are those that `history` asks for.",
        "",
        "| variation of iterations | of runs | slow-down | iterations a run | found, of 100 "
        "| false alarms in 100 histories | histories with a suspect, of 100 |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, iterations, found, false, suspect in rows(histories):
        assert isinstance(setting, Setting)
        lines.append(
            f"| {setting.cv:g} | {setting.between:g} | {setting.effect:.0%} | {iterations} "
            f"| {found:.1f} | {false:.1f} | {suspect:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=HISTORIES)
    text = page(parser.parse_args().histories)
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
