"""An hour of service: the product's monitor against a static choice and two simpler rules.

Pairs are those whose GPU was opened in the first launch and whose CPU takes under 200 ms. Both
alternatives stay open, so what start-up cost no longer counts: service begins on the alternative
that is believed to be faster without it. Costs are long-run means of the alternative that each
request used, those of exploration too, against an oracle that knows at any time which alternative
is faster.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuedge.decide.belief import Belief, CostContext, Noise, weigh
from gpuedge.decide.monitor import BURST, Monitor

from .noise import CPU, GPU, Clock
from .ours import Fleet, Options, Pair
from .policies import CPU_PICK

NS = 1e9
HOUR_S, GAP_S, SLOWEST_S = 3600.0, 0.2, 0.2
SHIFTED, SHIFT_SD, SHIFT_FROM_S, SHIFT_TO_S = 0.3, 0.7, 600.0, 2400.0
"""Share of pairs whose GPU becomes faster or slower for good, by how much (ln), and when."""

RULES = ("static", "greedy", "monitor")


@dataclass(frozen=True, slots=True)
class Start:
    """A pair as it enters service."""

    index: int
    alternative: int
    belief: Belief
    is_gpu: bool


@dataclass(frozen=True, slots=True)
class Hour:
    """What came of it: regret in per cent, switches, and whether it ends on a dear alternative."""

    regret: float
    switches: int
    is_harmed: bool
    explored: float


def starts(fleet: Fleet, options: Options, count: int) -> Iterator[Start]:
    """Yield pairs that were opened in their first launch."""
    found = 0
    for i in range(len(fleet.population)):
        if found == count:
            return
        if fleet.population.cpu[i] >= SLOWEST_S:
            continue
        pair = Pair(fleet, i, options)
        pick = pair.launch(0)
        if pair.measured:
            found += 1
            alternative = next(iter(pair.measured)) if pick == CPU_PICK else pick
            belief = pair.belief[alternative]
            sunk = CostContext(pair.cpu_ns, 0, pair.inferences)
            use_gpu = weigh(belief, sunk, options.rule, options.noise).use_gpu
            yield Start(i, alternative, belief, use_gpu)


class Service:
    """One pair for one hour.

    Parameters
    ----------
    rule : {"static", "greedy", "monitor"}
        With " shifting" behind it where GPUs change. ``greedy``: moving averages and 2 % single
        random tries, always on what looks faster.
    """

    def __init__(self, fleet: Fleet, start: Start, rule: str, noise: Noise) -> None:
        population, i = fleet.population, start.index
        rule, _, shifting = rule.partition(" ")
        self.rng = random.Random(f"service/{fleet.seed}/{i}/{shifting}")
        self.base = [float(population.cpu[i]), float(population.gpu[i, start.alternative])]
        self.rule = rule
        serving = GPU if start.is_gpu else CPU
        self.clock = Clock(fleet.noise.pair(i), (self.base[0], self.base[1]), self.rng, serving)
        shifts = bool(shifting) and self.rng.random() < SHIFTED
        self.shift_at = self.rng.uniform(SHIFT_FROM_S, SHIFT_TO_S) if shifts else math.inf
        self.shift = math.exp(self.rng.gauss(0.0, SHIFT_SD))
        self.alternative, self.switches = serving, 0
        self.cost = self.best = 0.0
        self.monitor = Monitor(
            start.belief, "gpu" if start.is_gpu else "cpu",
            cpu_ns=max(round(self.base[CPU] * NS), 1), noise=noise, now=0,
        )  # fmt: skip
        self.average = [self.base[0], self.base[0] * math.exp(start.belief.theta)]

    def serve(self, alternative: int) -> int:
        """Serve one request on an alternative."""
        if self.clock.now >= self.shift_at:
            self.shift_at = math.inf
            self.base[GPU] *= self.shift
            self.clock.scaled = (self.clock.scaled[0], self.clock.scaled[1] * self.shift)
        self.cost += self.base[alternative]
        self.best += min(self.base)
        return self.clock.run(alternative)

    def hour(self) -> Hour:
        """Serve for an hour."""
        step = {"static": self._static, "greedy": self._greedy, "monitor": self._monitored}
        one = step[self.rule]
        while self.clock.now < HOUR_S:
            self.clock.pass_time(self.rng.expovariate(1 / GAP_S), self.alternative)
            one()
        explored = self.monitor.explored_ns / max(self.monitor.served_ns, 1)
        return Hour(
            100 * (self.cost / self.best - 1), self.switches,
            self.base[self.alternative] > 1.1 * min(self.base), 100 * explored,
        )  # fmt: skip

    def _static(self) -> None:
        self.serve(self.alternative)

    def _greedy(self) -> None:
        tried = 1 - self.alternative if self.rng.random() < 0.02 else self.alternative
        self.average[tried] += 0.1 * (self.serve(tried) / NS - self.average[tried])
        faster = CPU if self.average[CPU] <= self.average[GPU] else GPU
        self.switches += faster != self.alternative
        self.alternative = faster

    def _monitored(self) -> None:
        m, now = self.monitor, round(self.clock.now * NS)
        if m.wants_burst(now):
            other = 1 - self.alternative
            burst = [self.serve(other)]
            for _ in range(BURST - 1):
                self.clock.pass_time(self.rng.expovariate(1 / GAP_S), other)
                burst.append(self.serve(other))
            now = round(self.clock.now * NS)
            m.burst(burst if other == GPU else (), burst if other == CPU else (), now)
        else:
            m.served(m.alternative, self.serve(self.alternative), now)
        alternative = GPU if m.choose(round(self.clock.now * NS)) == "gpu" else CPU
        self.switches += alternative != self.alternative
        self.alternative = alternative


def summary(hours: list[Hour]) -> dict[str, float]:
    """Return the figures of many hours."""
    regret = np.array([h.regret for h in hours])
    switches = np.array([h.switches for h in hours])
    return {
        "mean": float(regret.mean()),
        **{f"p{q}": float(np.percentile(regret, q)) for q in (95, 99)},
        "switches": float(switches.mean()), "switches p99": float(np.percentile(switches, 99)),
        "harmed": 100 * float(np.mean([h.is_harmed for h in hours])),
        "explored": float(np.mean([h.explored for h in hours])), "pairs": float(len(hours)),
    }  # fmt: skip
