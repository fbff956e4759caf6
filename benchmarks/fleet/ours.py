"""Our policy: the product's own beliefs, trials and random exploration, driven launch after launch.

Nothing of the decision is written here but the loop around it: which GPU alternative to look at,
and whether to measure in this launch.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np

from gpuedge.decide.belief import (
    Belief,
    CostContext,
    Noise,
    Rule,
    Weighing,
    draw,
    is_drawn,
    prior,
    share_surprise,
    weigh,
)
from gpuedge.decide.trial import Trial

from . import comparison
from .noise import CPU, GPU, Clock, Field
from .policies import CPU_PICK
from .population import Floats, Ints, Population

NS = 1e9
MAX_WINDOWS = 10


@dataclass(frozen=True, slots=True)
class Options:
    """How the policy is set; the defaults are the product's."""

    rule: Rule = field(default_factory=Rule)
    noise: Noise = field(default_factory=Noise)
    budget_s: float = 2.0
    claimed: float = 2.0
    launches: int = 5
    gap_s: float | None = None  # None: launches are far apart, their noise independent
    has_exploration: bool = False
    has_correlation: bool = True  # a surprise about one API is news of the others
    has_comparison: bool = True  # APIs that are about as good are timed against each other


@dataclass(frozen=True, slots=True)
class Fleet:
    """A population, its noise, a seed, and the fleet prior (mean, sd) of each alternative."""

    population: Population
    noise: Field
    seed: int
    prior: Floats


@dataclass(slots=True)
class Result:
    """Picks after each launch (axis 0), and what measuring cost until then.

    `surprises` are ln(measured / predicted) of the cases that random exploration drew.
    """

    picks: Ints
    run_s: Floats
    runs: Ints
    open_s: Floats
    surprises: list[float]


class Pair:
    """One model on one device: what is believed of each alternative, over launches."""

    def __init__(self, fleet: Fleet, index: int, options: Options) -> None:
        self.p, self.o, self.i, self.seed = fleet.population, options, index, fleet.seed
        self.strengths = fleet.noise.pair(index)
        p = fleet.population
        self.cpu_ns = max(round(p.predicted_cpu[index] * NS), 1)
        self.inferences = int(p.inferences[index])
        self.alternatives = [a for a in range(p.has.shape[1]) if p.has[index, a]]
        self.startup = {a: round(p.predicted_startup[index, a] * NS) for a in self.alternatives}
        self.belief: dict[int, Belief] = {
            a: prior(
                round(p.predicted_gpu[index, a] * NS), self.cpu_ns, options.claimed,
                (float(fleet.prior[a, 0]), float(fleet.prior[a, 1])),
            )
            for a in self.alternatives
        }  # fmt: skip
        self.measured: set[int] = set()
        self.clock: Clock | None = None
        self.pick = CPU_PICK
        self.spent_s, self.opened_s, self.count = 0.0, 0.0, 0
        self.surprises: list[float] = []

    def stakes(self, alternative: int) -> CostContext:
        """Return the stakes of an alternative as they are known now."""
        return CostContext(self.cpu_ns, self.startup[alternative], self.inferences)

    def weigh(self, alternative: int) -> Weighing:
        """Return the product's verdict on an alternative."""
        return weigh(self.belief[alternative], self.stakes(alternative), self.o.rule, self.o.noise)

    def best_alternative(self) -> int:
        """Return the alternative that is expected to cost least, start-up included."""
        return min(self.alternatives, key=self.cost)

    def cost(self, alternative: int) -> float:
        """Return an alternative's expected cost, start-up included; the CPU path costs 1."""
        return float(np.exp(self.belief[alternative].theta)) + self.stakes(alternative).share

    def launch(self, number: int) -> int:
        """Start the application once; return where the model runs after that."""
        alternative = self.best_alternative()
        verdict = self.weigh(alternative)
        left = self.o.budget_s + self.spent_s
        if self.belief[alternative].windows < MAX_WINDOWS:
            # No GPU is taken on prediction alone.
            if not verdict.is_settled or (verdict.use_gpu and not self.belief[alternative].windows):
                verdict = self._measure(alternative, number)
            elif (
                self.o.has_exploration
                and not verdict.use_gpu
                and self._is_drawn(alternative, number)
            ):
                said = self.belief[alternative]
                verdict = self._measure(alternative, number)
                self._note(alternative, said)
        if verdict.use_gpu and self.o.has_comparison:
            alternative = self._compare(alternative, number, round((left - self.spent_s) * NS))
        self.pick = alternative if verdict.use_gpu else CPU_PICK
        return self.pick

    def _note(self, alternative: int, before: Belief) -> None:
        """Keep how far off the cost model's own prediction was, if anything could be timed."""
        if self.belief[alternative].windows > before.windows:
            said = self.p.predicted_gpu[self.i, alternative] / self.p.predicted_cpu[self.i]
            self.surprises.append(shown(before, self.belief[alternative]) - math.log(said))

    def _is_drawn(self, alternative: int, number: int) -> bool:
        return is_drawn(
            draw(f"{self.seed}/{self.p.device[self.i]}/{alternative}", str(self.i), number)
        )

    def _compare(self, alternative: int, number: int, budget_ns: int) -> int:
        """Time the best other API against this one, if it may be better; return the faster."""
        others = [a for a in self.alternatives if a not in self.measured]
        if not others or budget_ns <= 0:
            return alternative
        other = min(others, key=self.cost)
        costs = [round(1e6 * self.cost(a)) for a in (alternative, other)]
        if not comparison.is_close(costs[0], costs[1]):
            return alternative
        mine = self.belief[alternative]
        self._open(other)
        trial = comparison.comparison(
            mine,
            self.belief[other],
            cpu_ns=self.cpu_ns,
            startups_ns=(self.startup[alternative], self.startup[other]),
            inferences=self.inferences,
            budget_ns=min(budget_ns, comparison.MOST_NS),
        )
        base = (float(self.p.gpu[self.i, alternative]), float(self.p.gpu[self.i, other]))
        clock = self._clock(base, f"duel/{number}")
        clock.kinds = (GPU, GPU)
        verdict, _ = self._runs(clock, trial)
        clock.kinds = (CPU, GPU)
        if trial.belief.windows == 0:
            return alternative
        self.belief[other] = comparison.settled(mine, trial)
        self.measured.add(other)
        return other if verdict.use_gpu else alternative

    def _open(self, alternative: int) -> None:
        """Open an alternative and compile on it, which shows what that costs."""
        self.startup[alternative] = round(float(self.p.startup[self.i, alternative]) * NS)
        self.opened_s += self.startup[alternative] / NS

    def _measure(self, alternative: int, number: int) -> Weighing:
        before = self.belief[alternative]
        base = (float(self.p.cpu[self.i]), float(self.p.gpu[self.i, alternative]))
        clock = self._clock(base, f"trial/{number}")
        self._open(alternative)
        budget = round(self.o.budget_s * NS)
        trial = Trial(before, self.stakes(alternative), self.o.rule, self.o.noise, budget)
        verdict, self.belief[alternative] = self._runs(clock, trial)
        self.cpu_ns = trial.stakes.cpu_ns
        self.measured.add(alternative)
        self._tell(alternative, before)
        return verdict

    def _runs(self, clock: Clock, trial: Trial) -> tuple[Weighing, Belief]:
        begin = clock.now
        while (side := trial.next(round((clock.now - begin) * NS))) is not None:
            trial.add(side, clock.run(CPU if side == "cpu" else GPU))
        self.spent_s += clock.now - begin
        self.count += len(trial.runs)
        return trial.verdict, trial.belief

    def _tell(self, alternative: int, before: Belief) -> None:
        """Let APIs that were not measured share in the surprise about one that was."""
        if self.o.has_correlation:
            for other in set(self.alternatives) - self.measured:
                self.belief[other] = share_surprise(
                    self.belief[other], before, self.belief[alternative]
                )

    def _clock(self, base: tuple[float, float], what: str) -> Clock:
        rng = random.Random(f"{what}/{self.seed}/{self.i}")
        if self.o.gap_s is None or self.clock is None:
            self.clock = Clock(self.strengths, base, rng)
            return self.clock
        self.clock.turn_to(base)
        self.clock.pass_time(self.o.gap_s, CPU if self.pick == CPU_PICK else GPU)
        return self.clock


def shown(before: Belief, after: Belief) -> float:
    """Return what a window showed, from the beliefs before and after it."""
    gained = max(1e6 / after.var - 1e6 / before.var, 1e-9)
    return (after.theta * 1e6 / after.var - before.theta * 1e6 / before.var) / gained


def run(fleet: Fleet, options: Options) -> Result:
    """Run every pair of a population through its launches."""
    shape = (options.launches, len(fleet.population))
    result = Result(
        np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape), []
    )
    for i in range(len(fleet.population)):
        pair = Pair(fleet, i, options)
        for v in range(options.launches):
            result.picks[v, i] = pair.launch(v)
            result.run_s[v, i], result.open_s[v, i] = pair.spent_s, pair.opened_s
            result.runs[v, i] = pair.count
        result.surprises += pair.surprises
    return result
