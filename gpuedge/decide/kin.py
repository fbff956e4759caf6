"""What is learned of one road to a GPU says something of its other roads. Pure.

Two APIs of one device run the same model on the same chip: most of what a prediction gets wrong is
wrong for both, and heat and load hit both alike. So a surprise about one moves the belief about the
other, and where they are close they are timed directly against each other, which is surer than
timing each against the CPU.
"""

from __future__ import annotations

from gpuedge.decide.belief import MICRO, MIN_FACTOR, Belief, Noise, Rule, Stakes, bounded
from gpuedge.decide.exact import exp, ln, root
from gpuedge.decide.trial import Arm, Trial, replayed

KIN = 0.9
"""Correlation of the errors of two predictions for one device and model. Chosen, not measured."""

DUEL = Noise(window=0.06, lasting=0.05, bias=0.0)
"""Noise of the ratio of two roads to one GPU: what they share cancels."""

DUEL_NS = 1_000_000_000
"""Most that a duel takes, out of what a launch may spend."""

SPREAD_MICRO = round((1 - KIN * KIN) * 2 * ln(MIN_FACTOR) * ln(MIN_FACTOR) * MICRO)
"""Variance of the difference of two predictions for one device, in millionths."""


def tell(other: Belief, before: Belief, after: Belief) -> Belief:
    """Return the belief about a road that was not measured, after another one was.

    Parameters
    ----------
    other : Belief
        About the road that was not measured.
    before, after : Belief
        About the measured one, by prediction and now.
    """
    moved = (after.mean - before.mean) / MICRO
    known = max(1 - after.var / before.var, 0.0)  # the part of the variance that measuring took
    var = other.var / MICRO * (1 - KIN * KIN * known)
    return bounded(other.theta + KIN * moved, var, other.visits)


def is_close(cost_ppm: int, other_ppm: int) -> bool:
    """Say whether the other of two roads may be the better one, by what they are expected to cost.

    Both in the same unit; `other_ppm` is that of the road that was not measured.
    """
    return ln(max(other_ppm, 1) / max(cost_ppm, 1)) <= root(SPREAD_MICRO)


def duel(
    mine: Belief,
    other: Belief,
    *,
    cpu_ns: int,
    startups_ns: tuple[int, int],
    inferences: int,
    budget_ns: int = DUEL_NS,
) -> Trial:
    """Return the trial of one road (``gpu``) against the one that was measured (``cpu``).

    Parameters
    ----------
    mine, other : Belief
        About the measured road and the other one, both against the CPU path.
    cpu_ns : int
        Latency of the CPU path.
    startups_ns : pair of int
        Of the measured road and of the other one.
    inferences : int
        Over how many inferences start-up is spread.
    budget_ns : int
    """
    latency = max(round(cpu_ns * exp(mine.theta)), 1)
    gap = bounded(other.theta - mine.theta, SPREAD_MICRO / MICRO, 0)
    more = max(startups_ns[1] - startups_ns[0], 0)
    return Trial(gap, Stakes(latency, more, inferences), Rule(), DUEL, budget_ns)


def settled(mine: Belief, trial: Trial) -> Belief:
    """Return the belief about the other road against the CPU path, after a duel with `mine`."""
    gap = trial.belief
    var = (mine.var + gap.var) / MICRO
    return bounded(mine.theta + gap.theta, var, mine.visits if gap.visits else 0)


def repeated(trial: Trial, runs: tuple[tuple[Arm, int], ...]) -> Trial:
    """Return a duel judged anew from its runs. Raises ValueError where no duel makes them."""
    return replayed(runs, trial.before, trial.stakes, trial.rule, trial.noise)
