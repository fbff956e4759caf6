"""The populations that are simulated, by name, and the figures of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpuedge.decide.options import DEFAULT, Options

from .launch import COLUMNS, Fleet, simulate
from .noise import draw_field
from .population import Floats, Knobs, draw

LATER = Knobs(coverage="later")
TWICE = Knobs(coverage="later", gpu_scale=2.0)

CASES: dict[str, Knobs] = {
    "paper .95": Knobs(),
    "cv .5": Knobs(cv=0.5),
    "cv 1.5": Knobs(cv=1.5),
    "later APIs": LATER,
    "later, GPUs twice as fast": TWICE,
    "paper, predicted by class": Knobs(error=3.0),
    "later twice, by class": replace(TWICE, error=3.0),
    "drifting GPUs": Knobs(drifting=0.3),
    "broken and lying drivers": Knobs(has_faults=True, bias=2.0, startup_error=3.0),
    "N told: paper .95": Knobs(knows_requests=True),
}
TOLD = "told everything: "
CASES |= {TOLD + name: replace(CASES[name], knows_all=True) for name in list(CASES)[:5]}
"""Broken and lying: drivers crash, stall and return wrong numbers; GPUs are predicted to be twice
as fast as they are, and what opening takes is off by a factor of 3. Told everything: the bound of
what serving in this way can reach. The same chooser is told how many requests will come and every
latency and start-up; it still opens a GPU beside requests that the CPU answers, and compares its
numbers first."""

STAGES = {"launch 1": 0, "launch 5": 4, "hour": -1}
HARM, WIN = 1.1, 2.0
HOURS = 0.1
"""Share of the pairs that also serve for an hour."""


def fleet(name: str, seed: int, pairs: int, options: Options = DEFAULT) -> Fleet:
    """Return a population with its noise."""
    knobs = CASES[name]
    population = draw(seed, pairs, knobs)
    return Fleet(population, draw_field(seed, population, knobs.cv), seed, knobs, options)


def run(name: str, seed: int, pairs: int, options: Options = DEFAULT) -> dict[str, Any]:
    """Simulate one population on one seed and return the figures of every stage."""
    rows, hours = simulate(fleet(name, seed, pairs, options), 5, max(round(HOURS * pairs), 1))
    return {
        stage: figures(hours if number < 0 else rows[number]) for stage, number in STAGES.items()
    }


def figures(rows: Floats) -> dict[str, float]:
    """Return the figures of one stage, in per cent where they are shares or regrets.

    Returns
    -------
    dict
        ``mean``, ``median``, ``p95``, ``total`` (weighted by work): time regret against an oracle
        that knows everything and pays the start-up of what it takes, but no cold runs; the same
        with "cold " before, where it pays those too, and with "priced ", where both sides price a
        GPU's time with the margin, and "felt ", where openings in the background count for nothing
        but the 10 % by which they slow requests; ``given up``: the difference of the means.
        ``harm``: pairs that cost over a tenth more than the CPU alone. ``missed``: wins of 2x or
        more (of those) that end on the CPU. ``measured``: cost of measuring as a share of the work.
    """
    c = {name: rows[~np.isnan(rows[:, 0]), k] for k, name in enumerate(COLUMNS)}
    found: dict[str, float] = {}
    c["felt"] = c["cost"] - c["opening"]
    sides = (
        ("", "cost", "oracle"),
        ("cold ", "cost", "cold oracle"),
        ("priced ", "priced", "priced oracle"),
        ("felt ", "felt", "oracle"),
        ("felt cold ", "felt", "cold oracle"),
    )
    for prefix, cost, oracle in sides:
        regret = 100 * (c[cost] / c[oracle] - 1)
        found[prefix + "mean"] = float(regret.mean())
        found[prefix + "median"] = float(np.median(regret))
        found[prefix + "p95"] = float(np.percentile(regret, 95))
        found[prefix + "total"] = 100 * float(c[cost].sum() / c[oracle].sum() - 1)
    is_win = c["cpu"] >= WIN * c["oracle"]
    return found | {
        "given up": found["mean"] - found["priced mean"],
        "harm": 100 * float((c["cost"] > HARM * c["cpu"]).mean()),
        "missed": 100 * float(c["is_missed"].sum() / max(is_win.sum(), 1)),
        "measured": 100 * float(c["measured"].sum() / c["cost"].sum()),
        "mean measured": 100 * float((c["measured"] / c["oracle"]).mean()),
        "mean opening": 100 * float((c["opening"] / c["oracle"]).mean()),
        "gpu": 100 * float(c["is_gpu"].mean()),
        "opened": 100 * float((c["opened"] > 0).mean()),
        "switches": float(c["switches"].mean()),
        "changes of mind": float(np.maximum(c["switches"] - 1, 0).mean()),
        "most": float(c["most"].max(initial=0)),
        "wrong": float(c["wrong"].sum()),
        "pairs": float(len(c["cost"])),
    }
