"""Our policy: the product's own beliefs, trials and audits, driven launch after launch.

Nothing of the decision is written here but the loop around it: which GPU arm to look at, and
whether to measure in this launch.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np

from gpuedge.decide import kin
from gpuedge.decide.audit import coin, is_drawn
from gpuedge.decide.belief import Belief, Noise, Rule, Stakes, Verdict, prior, weigh
from gpuedge.decide.trial import Trial

from .noise import CPU, GPU, Clock, Field
from .policies import CPU_PICK
from .population import Floats, Ints, Population

NS = 1e9
MAX_VISITS = 10


@dataclass(frozen=True, slots=True)
class Options:
    """How the policy is set; the defaults are the product's."""

    rule: Rule = field(default_factory=Rule)
    noise: Noise = field(default_factory=Noise)
    budget_s: float = 2.0
    claimed: float = 2.0
    launches: int = 5
    gap_s: float | None = None  # None: launches are far apart, their noise independent
    has_audit: bool = False
    has_kin: bool = True  # a surprise about one API is news of the others
    has_duel: bool = True  # APIs that are about as good are timed against each other


@dataclass(frozen=True, slots=True)
class Fleet:
    """A population, its noise, the seed of its runs, and the fleet prior (mean, sd) of each arm."""

    population: Population
    noise: Field
    seed: int
    prior: Floats


@dataclass(slots=True)
class Result:
    """Picks after each launch (axis 0), and what measuring cost until then.

    `surprises` are ln(measured / predicted) of the cases that audits drew.
    """

    picks: Ints
    run_s: Floats
    runs: Ints
    open_s: Floats
    surprises: list[float]


class Pair:
    """One model on one device: what is believed of each arm, over launches."""

    def __init__(self, fleet: Fleet, index: int, options: Options) -> None:
        self.p, self.o, self.i, self.seed = fleet.population, options, index, fleet.seed
        self.strengths = fleet.noise.pair(index)
        p = fleet.population
        self.cpu_ns = max(round(p.predicted_cpu[index] * NS), 1)
        self.inferences = int(p.inferences[index])
        self.arms = [a for a in range(p.has.shape[1]) if p.has[index, a]]
        self.startup = {a: round(p.predicted_startup[index, a] * NS) for a in self.arms}
        self.belief: dict[int, Belief] = {
            a: prior(
                round(p.predicted_gpu[index, a] * NS), self.cpu_ns, options.claimed,
                (float(fleet.prior[a, 0]), float(fleet.prior[a, 1])),
            )
            for a in self.arms
        }  # fmt: skip
        self.measured: set[int] = set()
        self.clock: Clock | None = None
        self.pick = CPU_PICK
        self.spent_s, self.opened_s, self.count = 0.0, 0.0, 0
        self.surprises: list[float] = []

    def stakes(self, arm: int) -> Stakes:
        """Return the stakes of an arm as they are known now."""
        return Stakes(self.cpu_ns, self.startup[arm], self.inferences)

    def weigh(self, arm: int) -> Verdict:
        """Return the product's verdict on an arm."""
        return weigh(self.belief[arm], self.stakes(arm), self.o.rule, self.o.noise)

    def best_arm(self) -> int:
        """Return the arm that is expected to cost least, start-up included."""
        return min(self.arms, key=self.cost)

    def cost(self, arm: int) -> float:
        """Return what an arm is expected to cost, start-up included; the CPU path costs 1."""
        return float(np.exp(self.belief[arm].theta)) + self.stakes(arm).share

    def launch(self, number: int) -> int:
        """Start the application once; return where the model runs after that."""
        arm = self.best_arm()
        verdict = self.weigh(arm)
        left = self.o.budget_s + self.spent_s
        if self.belief[arm].visits < MAX_VISITS:
            # No GPU is taken on prediction alone.
            if not verdict.is_settled or (verdict.use_gpu and not self.belief[arm].visits):
                verdict = self._visit(arm, number)
            elif self.o.has_audit and not verdict.use_gpu and self._is_drawn(arm, number):
                said = self.belief[arm]
                verdict = self._visit(arm, number)
                self._note(arm, said)
        if verdict.use_gpu and self.o.has_duel:
            arm = self._duel(arm, number, round((left - self.spent_s) * NS))
        self.pick = arm if verdict.use_gpu else CPU_PICK
        return self.pick

    def _note(self, arm: int, before: Belief) -> None:
        """Keep how far off the cost model's own prediction was, if anything could be timed."""
        if self.belief[arm].visits > before.visits:
            said = self.p.predicted_gpu[self.i, arm] / self.p.predicted_cpu[self.i]
            self.surprises.append(shown(before, self.belief[arm]) - math.log(said))

    def _is_drawn(self, arm: int, number: int) -> bool:
        return is_drawn(coin(f"{self.seed}/{self.p.device[self.i]}/{arm}", str(self.i), number))

    def _duel(self, arm: int, number: int, budget_ns: int) -> int:
        """Time the best other API against this one, if it may be better; return the faster."""
        others = [a for a in self.arms if a not in self.measured]
        if not others or budget_ns <= 0:
            return arm
        other = min(others, key=self.cost)
        costs = [round(1e6 * self.cost(a)) for a in (arm, other)]
        if not kin.is_close(costs[0], costs[1]):
            return arm
        mine = self.belief[arm]
        self._open(other)
        trial = kin.duel(
            mine,
            self.belief[other],
            cpu_ns=self.cpu_ns,
            startups_ns=(self.startup[arm], self.startup[other]),
            inferences=self.inferences,
            budget_ns=min(budget_ns, kin.DUEL_NS),
        )
        base = (float(self.p.gpu[self.i, arm]), float(self.p.gpu[self.i, other]))
        clock = self._clock(base, f"duel/{number}")
        clock.kinds = (GPU, GPU)
        verdict, _ = self._runs(clock, trial)
        clock.kinds = (CPU, GPU)
        if trial.belief.visits == 0:
            return arm
        self.belief[other] = kin.settled(mine, trial)
        self.measured.add(other)
        return other if verdict.use_gpu else arm

    def _open(self, arm: int) -> None:
        """Open an arm and compile on it, which shows what that costs."""
        self.startup[arm] = round(float(self.p.startup[self.i, arm]) * NS)
        self.opened_s += self.startup[arm] / NS

    def _visit(self, arm: int, number: int) -> Verdict:
        before = self.belief[arm]
        base = (float(self.p.cpu[self.i]), float(self.p.gpu[self.i, arm]))
        clock = self._clock(base, f"trial/{number}")
        self._open(arm)
        budget = round(self.o.budget_s * NS)
        trial = Trial(before, self.stakes(arm), self.o.rule, self.o.noise, budget)
        verdict, self.belief[arm] = self._runs(clock, trial)
        self.cpu_ns = trial.stakes.cpu_ns
        self.measured.add(arm)
        self._tell(arm, before)
        return verdict

    def _runs(self, clock: Clock, trial: Trial) -> tuple[Verdict, Belief]:
        begin = clock.now
        while (side := trial.next(round((clock.now - begin) * NS))) is not None:
            trial.add(side, clock.run(CPU if side == "cpu" else GPU))
        self.spent_s += clock.now - begin
        self.count += len(trial.runs)
        return trial.verdict, trial.belief

    def _tell(self, arm: int, before: Belief) -> None:
        """Let APIs that were not measured share in the surprise about one that was."""
        if self.o.has_kin:
            for other in set(self.arms) - self.measured:
                self.belief[other] = kin.tell(self.belief[other], before, self.belief[arm])

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
