"""Timing two APIs of one GPU directly against each other, which the product does not do yet.

Two APIs of one device run the same model on the same chip, and heat and load hit both alike: where
they are close, an A/B comparison is surer than timing each against the CPU.
"""

from __future__ import annotations

from gpuedge.decide.belief import (
    CORRELATION,
    MICRO,
    MIN_FACTOR,
    Belief,
    CostContext,
    Noise,
    Rule,
    bounded,
)
from gpuedge.decide.exact import exp, ln, root
from gpuedge.decide.trial import Trial

NOISE = Noise(window=0.06, lasting=0.05, bias=0.0)
"""Noise of the ratio of two routes to one GPU: what they share cancels."""

MOST_NS = 1_000_000_000
"""Most that a comparison takes, out of what a launch may spend."""

SPREAD_MICRO = round((1 - CORRELATION * CORRELATION) * 2 * ln(MIN_FACTOR) * ln(MIN_FACTOR) * MICRO)
"""Variance of the difference of two predictions for one device, in millionths."""


def is_close(cost_ppm: int, other_ppm: int) -> bool:
    """Say whether the other of two routes may be the better one, by what they are expected to cost.

    Both in the same unit; `other_ppm` is that of the route that was not measured.
    """
    return ln(max(other_ppm, 1) / max(cost_ppm, 1)) <= root(SPREAD_MICRO)


def comparison(
    mine: Belief,
    other: Belief,
    *,
    cpu_ns: int,
    startups_ns: tuple[int, int],
    inferences: int,
    budget_ns: int = MOST_NS,
) -> Trial:
    """Return the trial of one route (``gpu``) against the one that was measured (``cpu``).

    Parameters
    ----------
    mine, other : Belief
        About the measured route and the other one, both against the CPU path.
    cpu_ns : int
        Latency of the CPU path.
    startups_ns : pair of int
        Of the measured route and of the other one.
    inferences : int
        Over how many inferences start-up is spread.
    budget_ns : int
    """
    latency = max(round(cpu_ns * exp(mine.theta)), 1)
    gap = bounded(other.theta - mine.theta, SPREAD_MICRO / MICRO, 0)
    more = max(startups_ns[1] - startups_ns[0], 0)
    return Trial(gap, CostContext(latency, more, inferences), Rule(), NOISE, budget_ns)


def settled(mine: Belief, trial: Trial) -> Belief:
    """Return the belief about the other route against the CPU path, after it met `mine`."""
    gap = trial.belief
    var = (mine.var + gap.var) / MICRO
    return bounded(mine.theta + gap.theta, var, mine.windows if gap.windows else 0)
