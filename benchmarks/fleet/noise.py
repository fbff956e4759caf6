"""Noise of runs in the field: what a run takes, given when it starts and what ran before it.

A run's time is its long-run mean times a factor. The factor moves in continuous time: load that
both alternatives feel (seconds), heat (tens of seconds, and which alternative is in service decides
how often), other work on the CPU, the screen on the GPU, rare spikes, and scatter of each run.
First runs after a switch are slower by a bounded time, and clocks tick. Strengths are scaled
together so that the coefficient of variation within a pair has the wanted root mean square.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from .population import Floats, Population

CPU, GPU = 0, 1
LOAD_S, HEAT_S, OTHER_S, SCREEN_S = 3.0, 40.0, 4.0, 0.8
"""How long each disturbance lasts, seconds (means; exponential)."""

OTHER_SHARE, SCREEN_SHARE, SPIKE_SHARE = 0.15, 0.25, 0.02
TICKS, TICK_SHARES = (1e-6, 1e-4, 1e-3), (0.85, 0.10, 0.05)
COLD_RUNS, COLD_PART, COLD_CAP_S, COLD_KEEP = 8, 2.0, 0.10, 0.65
"""The first runs on a GPU take longer, by a part of a run and at most so many seconds; each later
one by `COLD_KEEP` of the one before it."""

SWITCH_PART, SWITCH_CAP_S = (0.2, 0.5), (0.004, 0.015)
"""The first run after a switch takes longer: by a part of a run, and at most; CPU, GPU."""


@dataclass(frozen=True, slots=True)
class Field:
    """Strengths of the noise of each pair, as logarithms of factors; arrays over pairs.

    `heat`, `rate` have a second axis: CPU, GPU. `mean` is the mean factor of each alternative in
    steady service, by which runs are divided so that the population's times are long-run means.
    """

    load: Floats
    scatter: Floats
    heat: Floats
    rate: Floats
    other: Floats
    screen: Floats
    spike: Floats
    tick: Floats
    mean: Floats
    cv: float

    def pair(self, index: int) -> Strengths:
        """Return the strengths of one pair as plain numbers, which are quicker to compute with."""
        i = index
        return Strengths(
            float(self.load[i]), float(self.scatter[i]), tuple(self.heat[i].tolist()),
            tuple(self.rate[i].tolist()), float(self.other[i]), float(self.screen[i]),
            float(self.spike[i]), float(self.tick[i]), tuple(self.mean[i].tolist()),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Strengths:
    """One row of a `Field`."""

    load: float
    scatter: float
    heat: tuple[float, ...]
    rate: tuple[float, ...]
    other: float
    screen: float
    spike: float
    tick: float
    mean: tuple[float, ...]


def _base(rng: np.random.Generator, pairs: int, device: np.ndarray) -> dict[str, Floats]:
    """Return strengths before scaling; what is a property of the device is shared by its pairs."""
    count = int(device.max()) + 1

    def of_device(median: float, sd: float, *shape: int) -> Floats:
        values: Floats = median * np.exp(sd * rng.standard_normal((count, *shape)))
        mine: Floats = values[device]
        return mine

    # Both alternatives heat one die: what differs between them is smaller than what they share.
    heat = of_device(0.36, 0.5)[:, None] * of_device(1.0, 0.35, 2)
    rate = of_device(1 / 160, 0.5, 2) * np.array((1.0, 1.2))
    return {
        "load": of_device(0.30, 0.4), "scatter": of_device(0.28, 0.4), "heat": heat, "rate": rate,
        "other": of_device(0.30, 0.4), "screen": of_device(0.35, 0.4),
        "spike": of_device(1.4, 0.25),
    }  # fmt: skip


def _moments(s: dict[str, Floats], scale: float) -> tuple[Floats, Floats]:
    """Return mean and mean square of the factor of both alternatives in steady service."""
    gaussian = scale**2 * (s["load"] ** 2 + s["scatter"] ** 2)
    first, second = np.exp(gaussian / 2)[:, None], np.exp(2 * gaussian)[:, None]
    hot = s["rate"] * HEAT_S / (1 + s["rate"] * HEAT_S)
    own = np.stack([s["other"], s["screen"]], axis=1)
    parts = (
        (hot, s["heat"]),
        (np.array((OTHER_SHARE, SCREEN_SHARE)), own),
        (np.full(1, SPIKE_SHARE), s["spike"][:, None]),
    )
    for share, ln in parts:
        first = first * (1 - share + share * np.exp(scale * ln))
        second = second * (1 - share + share * np.exp(2 * scale * ln))
    return first, second


def draw_field(seed: int, population: Population, cv: float) -> Field:
    """Draw the noise of a population, scaled so that the root mean square of cv is `cv`."""
    rng = np.random.default_rng([seed, 2])
    pairs = len(population)
    base = _base(rng, pairs, population.device)
    low, high = 0.0, 8.0
    for _ in range(60):
        scale = (low + high) / 2
        first, second = _moments(base, scale)
        rms = float(np.sqrt((second / first**2 - 1).mean()))
        low, high = (scale, high) if rms < cv else (low, scale)
    tick = rng.choice(TICKS, p=TICK_SHARES, size=int(population.device.max()) + 1)
    scaled = {name: base[name] * (1.0 if name == "rate" else scale) for name in base}
    return Field(**scaled, tick=tick[population.device], mean=first, cv=rms)


class Clock:
    """Time on one device: runs are served one after another, noise goes on between them.

    Parameters
    ----------
    strengths : Strengths
        The pair's noise.
    base : tuple of float
        Long-run mean seconds of a run of CPU and GPU alternative.
    rng : random.Random
        The source of this stretch of time.
    serving : int
        Which alternative was in service before, which decides whether the device is likely to be
        warm.
    """

    def __init__(
        self,
        strengths: Strengths,
        base: tuple[float, float],
        rng: random.Random,
        serving: int = CPU,
    ) -> None:
        self.s, self.rng, self.now = strengths, rng, 0.0
        self.scaled = tuple(b / m for b, m in zip(base, strengths.mean, strict=True))
        rate = strengths.rate[serving] * HEAT_S
        self.is_hot = rng.random() < rate / (1 + rate)
        self.heat_left = rng.expovariate(1.0)
        self.other = rng.random() < OTHER_SHARE
        self.screen = rng.random() < SCREEN_SHARE
        self.other_until = self._stay(OTHER_S, OTHER_SHARE, self.other)
        self.screen_until = self._stay(SCREEN_S, SCREEN_SHARE, self.screen)
        self.load = rng.gauss(0.0, 1.0)
        self.last, self.gpu_runs = -1, 0
        self.kinds = (
            CPU,
            GPU,
        )  # what the two alternatives are; a duel is between two of the GPU's APIs

    def _stay(self, seconds: float, share: float, is_on: bool) -> float:
        mean = seconds if is_on else seconds * (1 - share) / share
        return self.now + self.rng.expovariate(1 / mean)

    def pass_time(self, seconds: float, alternative: int) -> None:
        """Let time go by in which `alternative` is in service."""
        left = seconds
        while True:  # heat: in units of the expected number of changes
            hazard = 1 / HEAT_S if self.is_hot else self.s.rate[alternative]
            if left * hazard < self.heat_left:
                self.heat_left -= left * hazard
                break
            left -= self.heat_left / hazard
            self.is_hot, self.heat_left = not self.is_hot, self.rng.expovariate(1.0)
        target = self.now + seconds
        if target - self.now > 40 * LOAD_S:  # everything quick has forgotten where it was
            self._restart(target)
            return
        keep = math.exp(-seconds / LOAD_S)
        self.load = keep * self.load + math.sqrt(1 - keep * keep) * self.rng.gauss(0.0, 1.0)
        while self.other_until < target:
            self.now, self.other = self.other_until, not self.other
            self.other_until = self._stay(OTHER_S, OTHER_SHARE, self.other)
        while self.screen_until < target:
            self.now, self.screen = self.screen_until, not self.screen
            self.screen_until = self._stay(SCREEN_S, SCREEN_SHARE, self.screen)
        self.now = target

    def _restart(self, now: float) -> None:
        self.now = now
        self.load = self.rng.gauss(0.0, 1.0)
        self.other = self.rng.random() < OTHER_SHARE
        self.screen = self.rng.random() < SCREEN_SHARE
        self.other_until = self._stay(OTHER_S, OTHER_SHARE, self.other)
        self.screen_until = self._stay(SCREEN_S, SCREEN_SHARE, self.screen)

    def turn_to(self, base: tuple[float, float]) -> None:
        """Measure another GPU, or the same in a new process: its first runs are cold again."""
        self.scaled = tuple(b / m for b, m in zip(base, self.s.mean, strict=True))
        self.last, self.gpu_runs = -1, 0

    def factor(self, alternative: int) -> float:
        """Return the factor of a run of `alternative` that starts now."""
        s, rng = self.s, self.rng
        ln = s.load * self.load + s.scatter * rng.gauss(0.0, 1.0)
        if self.is_hot:
            ln += s.heat[alternative]
        if alternative == CPU:
            if self.other:
                ln += s.other
        elif self.screen:
            ln += s.screen
        if rng.random() < SPIKE_SHARE:
            ln += s.spike
        return math.exp(ln)

    def run(self, alternative: int) -> int:
        """Run once and return the nanoseconds that the device's clock shows for it."""
        seconds, kind = self.scaled[alternative], self.kinds[alternative]
        taken = seconds * self.factor(kind)
        if self.last != alternative:
            taken += min(SWITCH_PART[kind] * seconds, SWITCH_CAP_S[kind])
        if kind == GPU:
            self.gpu_runs += 1
            if self.gpu_runs <= COLD_RUNS:
                cold = min(COLD_PART * seconds, COLD_CAP_S)
                taken += cold * COLD_KEEP ** (self.gpu_runs - 1)
        self.last = alternative
        begin = self.now
        self.pass_time(taken, kind)
        tick = self.s.tick
        shown = math.floor((begin + taken) / tick) - math.floor(begin / tick)
        return round(shown * tick * 1e9)


def long_run(field: Field, percentile: float, seed: int, draws: int = 1500) -> Floats:
    """Return a percentile of each long-run latency, as a part of its mean."""
    rng = np.random.default_rng([seed, 4])
    found = np.empty_like(field.mean)
    hot = field.rate * HEAT_S / (1 + field.rate * HEAT_S)
    for i in range(len(found)):
        load = field.load[i] * rng.standard_normal(draws)
        for alternative, (share, own) in enumerate(
            ((OTHER_SHARE, field.other[i]), (SCREEN_SHARE, field.screen[i]))
        ):
            ln = load + field.scatter[i] * rng.standard_normal(draws)
            ln += field.heat[i, alternative] * (rng.random(draws) < hot[i, alternative])
            ln += own * (rng.random(draws) < share)
            ln += field.spike[i] * (rng.random(draws) < SPIKE_SHARE)
            found[i, alternative] = (
                np.exp(np.percentile(ln, percentile)) / field.mean[i, alternative]
            )
    return found
