"""The cases that are simulated, by name; each task is one case on one seed and returns figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpuedge.decide.belief import NOISE, Noise, Rule

from . import faults, ours, policies, service
from .noise import draw_field, long_run
from .ours import Fleet, Options
from .population import Floats, Knobs, draw, facts

FITTED_ON = 999
"""The seed of the population that the fleet prior and the constants were fitted on."""

MEAN = Noise()
LATER = Knobs(coverage="later")
IOS = Knobs(coverage="later", gpu_scale=3.5)


@dataclass(frozen=True, slots=True)
class Case:
    """A population and how our policy is set on it.

    `percentile`: which percentile of latency counts, None for the mean. `is_main`: run on every
    seed and for ten launches, as the targets are about it.
    """

    knobs: Knobs = field(default_factory=Knobs)
    options: Options = field(default_factory=Options)
    percentile: int | None = None
    is_main: bool = False
    learns_error: bool = False


def _rule(**changes: int) -> Options:
    return Options(rule=replace(Rule(), **changes))


CASES: dict[str, Case] = {
    "base": Case(is_main=True),
    "speedup 1.2": Case(options=_rule(speedup_milli=1200), is_main=True),
    "speedup 1.1": Case(options=_rule(speedup_milli=1100)),
    "no duels of APIs": Case(options=Options(has_comparison=False), is_main=True),
    "base + audits": Case(options=Options(has_exploration=True)),
    "cv 0.3": Case(Knobs(cv=0.3)),
    "model error 1.2": Case(Knobs(error=1.2)),
    "model error 4": Case(Knobs(error=4.0)),
    "model error 4, claimed 3": Case(Knobs(error=4.0), Options(claimed=3.0)),
    "model error 4, learnt by audits": Case(Knobs(error=4.0), learns_error=True),
    "model says GPU 2x too fast": Case(Knobs(bias=2.0)),
    "start-up error 3": Case(Knobs(startup_error=3.0)),
    "later APIs": Case(LATER),
    "later APIs, no duels": Case(LATER, Options(has_comparison=False)),
    "iOS-like": Case(IOS),
    "iOS-like, no duels": Case(IOS, Options(has_comparison=False)),
    "launches 10 min apart": Case(options=Options(gap_s=600.0)),
    "launches 1 min apart": Case(options=Options(gap_s=60.0)),
    "launches 5 s apart": Case(options=Options(gap_s=5.0)),
    "budget 0.5 s": Case(options=Options(budget_s=0.5)),
    "budget 1 s": Case(options=Options(budget_s=1.0)),
    "budget 5 s": Case(options=Options(budget_s=5.0)),
    "alpha .1": Case(options=_rule(alpha_ppm=100_000)),
    "alpha 1": Case(options=_rule(alpha_ppm=1_000_000)),
    "eps .02": Case(options=_rule(eps_ppm=20_000)),
    "no news between APIs": Case(options=Options(has_correlation=False, has_comparison=False)),
    "p50 counts": Case(options=Options(noise=NOISE(50)), percentile=50),
    "p90 counts": Case(options=Options(noise=NOISE(90)), percentile=90),
    "p90 counts, speedup 1.2": Case(
        options=Options(rule=Rule(speedup_milli=1200), noise=NOISE(90)), percentile=90
    ),
}

MEASURED: dict[str, dict[str, Any]] = {
    "mean of 1+1": {"runs": 1, "with_startup": False},
    "mean of 5+5": {"runs": 5, "with_startup": False},
    "mean of 50+50": {"runs": 50, "with_startup": False},
    "mean of 50+50, start-up": {"runs": 50, "with_startup": True},
    "mean of 40+40, start-up, 2 s": {"runs": 40, "with_startup": True, "budget_s": 2.0},
}

SERVICE_PAIRS = 400


@lru_cache(maxsize=1)
def prior() -> Floats:
    """Return the fleet prior, fitted on a population of its own."""
    return policies.fleet_prior(draw(FITTED_ON, 20_000))


def drawn(seed: int, pairs: int, knobs: Knobs | None = None) -> Fleet:
    """Return a population with its noise."""
    knobs = knobs or Knobs()
    population = draw(seed, pairs, knobs)
    return Fleet(population, draw_field(seed, population, knobs.cv), seed, prior())


def decide(name: str, seed: int, pairs: int) -> dict[str, Any]:
    """Run our policy on one case."""
    case = CASES[name]
    options = replace(case.options, launches=10 if case.is_main else 5)
    fleet = drawn(seed, pairs, case.knobs)
    population = truth = fleet.population
    if case.learns_error:
        options = replace(options, claimed=learnt(fleet, options))
    result = ours.run(fleet, options)
    each = np.diff(result.run_s, axis=0, prepend=0.0)
    if case.percentile is not None:
        part = long_run(fleet.noise, case.percentile, seed)
        truth = replace(
            population, cpu=population.cpu * part[:, 0], gpu=population.gpu * part[:, 1:]
        )
    return {
        "launches": [policies.score(truth, pick) for pick in result.picks],
        "run_s": result.run_s.mean(axis=1).tolist(), "runs": result.runs.mean(axis=1).tolist(),
        "open_s": result.open_s.mean(axis=1).tolist(),
        "opened": 100 * float((result.runs[0] > 0).mean()), "claimed": options.claimed,
        "over": 100 * float((each > 1.02 * options.budget_s).mean()), "most_s": float(each.max()),
    }  # fmt: skip


def learnt(fleet: Fleet, options: Options) -> float:
    """Return the error of the cost model as audits show it: they alone are an unbiased sample.

    The whole population is audited for two days first; what was learnt of single pairs is thrown
    away, so that only the claimed error is better.
    """
    audited = ours.run(fleet, replace(options, has_exploration=True, launches=2))
    values = np.array(audited.surprises)
    spread = 1.4826 * float(np.median(np.abs(values - np.median(values))))
    own = MEAN.window**2 + MEAN.lasting**2
    return math.exp(math.sqrt(max(spread**2 - own, 0.0)))


def compare(name: str, seed: int, pairs: int) -> dict[str, Any]:
    """Run what others do, on the base case."""
    population = draw(seed, pairs)
    if name == "facts":
        return {"facts": facts(population)}
    if name in policies.UNMEASURED:
        return {"score": policies.score(population, policies.UNMEASURED[name](population))}
    if name == "cost model, shrunk to fleet":
        pick = policies.cost_model_shrunk(population, prior())
        return {"score": policies.score(population, pick)}
    noise = draw_field(seed, population, Knobs().cv)
    pick, spent = policies.mean_threshold(population, noise, seed, **MEASURED[name])
    return {"score": policies.score(population, pick), "run_s": float(spent.mean())}


def gates(name: str, seed: int, pairs: int) -> dict[str, Any]:
    """Count what gets past the gates; many more pairs than elsewhere, as it is quick."""
    chosen, world = faults.CASES[name]
    return {"counts": faults.simulate(seed, 50 * pairs, prior(), chosen, world)}


def serve(name: str, seed: int, pairs: int) -> dict[str, Any]:
    """Serve for an hour; `name` is a rule, with " shifting" where GPUs change."""
    fleet, options = drawn(seed, pairs), Options()
    count = max(SERVICE_PAIRS * pairs // 10_000, 2)
    begun = service.starts(fleet, options, count)
    hours = [service.Service(fleet, start, name, options.noise).hour() for start in begun]
    return {"hours": [[h.regret, h.switches, h.is_harmed, h.explored] for h in hours]}


Work = Callable[[str, int, int], dict[str, Any]]
KINDS: dict[str, Work] = {"decide": decide, "compare": compare, "gates": gates, "serve": serve}


def names(kind: str) -> list[str]:
    """Return the names of all tasks of a kind."""
    if kind == "decide":
        return list(CASES)
    if kind == "compare":
        return ["facts", *policies.UNMEASURED, "cost model, shrunk to fleet", *MEASURED]
    if kind == "gates":
        return list(faults.CASES)
    return [rule + end for rule in service.RULES for end in ("", " shifting")]


def seeds(kind: str, name: str, wanted: list[int]) -> list[int]:
    """Return the seeds a task runs on: all for what the targets are about, two for the rest."""
    is_main = kind != "decide" or CASES[name].is_main
    return wanted if is_main else wanted[:2]
