"""Noise of runs in the field: what a run takes, given when it starts and what ran before it.

A run's time is its long-run mean times a factor. The factor moves in continuous time: load that
both sides feel (seconds), heat (tens of seconds, and the side in service decides how often), other
work on the CPU, the screen on the GPU, rare spikes, and scatter of each run. First runs after a
switch are slower by a bounded time, and clocks tick. Strengths are scaled together so that the
coefficient of variation within a pair has the wanted root mean square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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

CHUNK = 256
"""Random numbers that are drawn at once."""


@dataclass(frozen=True, slots=True)
class Field:
    """Strengths of the noise of each pair, as logarithms of factors; arrays over pairs.

    `heat`, `rate` have a second axis: CPU, GPU. `mean` is the mean factor of each side in steady
    service, by which runs are divided so that the population's times are long-run means.
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
            tuple(self.rate[i].tolist()), (float(self.other[i]), float(self.screen[i])),
            float(self.spike[i]), float(self.tick[i]), tuple(self.mean[i].tolist()),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Strengths:
    """One row of a `Field`; `own` is other work on the CPU and the screen on the GPU."""

    load: float
    scatter: float
    heat: tuple[float, ...]
    rate: tuple[float, ...]
    own: tuple[float, float]
    spike: float
    tick: float
    mean: tuple[float, ...]


def _base(rng: np.random.Generator, device: np.ndarray) -> dict[str, Floats]:
    """Return strengths before scaling; what is a property of the device is shared by its pairs."""
    count = int(device.max()) + 1

    def of_device(median: float, sd: float, *shape: int) -> Floats:
        values: Floats = median * np.exp(sd * rng.standard_normal((count, *shape)))
        mine: Floats = values[device]
        return mine

    # Both sides heat one die: what differs between them is smaller than what they share.
    heat = of_device(0.36, 0.5)[:, None] * of_device(1.0, 0.35, 2)
    rate = of_device(1 / 160, 0.5, 2) * np.array((1.0, 1.2))
    return {
        "load": of_device(0.30, 0.4), "scatter": of_device(0.28, 0.4), "heat": heat, "rate": rate,
        "other": of_device(0.30, 0.4), "screen": of_device(0.35, 0.4),
        "spike": of_device(1.4, 0.25),
    }  # fmt: skip


def _moments(s: dict[str, Floats], scale: float) -> tuple[Floats, Floats]:
    """Return mean and mean square of the factor of both sides in steady service."""
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
    base = _base(rng, population.device)
    low, high = 0.0, 8.0
    for _ in range(60):
        scale = (low + high) / 2
        first, second = _moments(base, scale)
        rms = float(np.sqrt((second / first**2 - 1).mean()))
        low, high = (scale, high) if rms < cv else (low, scale)
    tick = rng.choice(TICKS, p=TICK_SHARES, size=int(population.device.max()) + 1)
    scaled = {name: base[name] * (1.0 if name == "rate" else scale) for name in base}
    return Field(**scaled, tick=tick[population.device], mean=first, cv=rms)


def cold_s(seconds: float) -> float:
    """Return how much longer the first `COLD_RUNS` runs on a GPU take together."""
    return min(COLD_PART * seconds, COLD_CAP_S) * (1 - COLD_KEEP**COLD_RUNS) / (1 - COLD_KEEP)


class Clock:
    """Time on one device in one launch: runs follow each other, noise goes on between them.

    Attributes
    ----------
    now : float
        Seconds since the launch began.
    extra : float
        Seconds by which the last run was longer than its long-run mean, because it was cold or
        followed a switch.
    """

    def __init__(self, strengths: Strengths, seed: tuple[int, ...]) -> None:
        s = strengths
        rng = self.rng = np.random.default_rng(seed)
        self.s, self.now, self.extra = s, 0.0, 0.0
        self.normal = _stream(rng.standard_normal).__next__
        self.uniform = _stream(rng.random).__next__
        self.wait = _stream(rng.standard_exponential).__next__
        rate = s.rate[CPU] * HEAT_S
        self.is_hot = self.uniform() < rate / (1 + rate)
        self.heat_left = self.wait()
        self.last = "cpu"
        self.runs: dict[str, int] = {}
        self._forget()

    def _forget(self) -> None:
        """Draw everything anew that lasts seconds."""
        self.load = self.normal()
        self.on = [self.uniform() < OTHER_SHARE, self.uniform() < SCREEN_SHARE]
        self.until = [0.0, 0.0]
        for which in (0, 1):
            self.until[which] = self._stay(which)

    def _stay(self, which: int) -> float:
        seconds, share = ((OTHER_S, OTHER_SHARE), (SCREEN_S, SCREEN_SHARE))[which]
        return self.now + self.wait() * (seconds if self.on[which] else seconds * (1 / share - 1))

    def pass_time(self, seconds: float, kind: int) -> None:
        """Let time go by in which a CPU or a GPU (`kind`) is in service."""
        left = seconds
        while True:  # heat: in units of the expected number of changes
            hazard = 1 / HEAT_S if self.is_hot else self.s.rate[kind]
            if left * hazard < self.heat_left:
                self.heat_left -= left * hazard
                break
            left -= self.heat_left / hazard
            self.is_hot, self.heat_left = not self.is_hot, self.wait()
        target = self.now + seconds
        if seconds > 20 * LOAD_S:  # everything quick has forgotten where it was
            self.now = target
            self._forget()
            return
        keep = math.exp(-seconds / LOAD_S)
        self.load = keep * self.load + math.sqrt(1 - keep * keep) * self.normal()
        for which in (0, 1):
            while self.until[which] < target:
                self.now, self.on[which] = self.until[which], not self.on[which]
                self.until[which] = self._stay(which)
        self.now = target

    def run(self, side: str, seconds: float) -> int:
        """Run once on ``cpu`` or a device and return the nanoseconds that the clock shows for it.

        Parameters
        ----------
        side : str
        seconds : float
            The long-run mean of the run.
        """
        s, kind = self.s, CPU if side == "cpu" else GPU
        ln = s.load * self.load + s.scatter * self.normal()
        if self.is_hot:
            ln += s.heat[kind]
        if self.on[kind]:
            ln += s.own[kind]
        if self.uniform() < SPIKE_SHARE:
            ln += s.spike
        extra = 0.0
        if self.last != side:
            self.last = side
            extra = min(SWITCH_PART[kind] * seconds, SWITCH_CAP_S[kind])
        if kind == GPU:
            done = self.runs.get(side, 0)
            self.runs[side] = done + 1
            if done < COLD_RUNS:
                extra += min(COLD_PART * seconds, COLD_CAP_S) * COLD_KEEP**done
        self.extra = extra
        begin = self.now
        self.pass_time(seconds / s.mean[kind] * math.exp(ln) + extra, kind)
        return round((math.floor(self.now / s.tick) - math.floor(begin / s.tick)) * s.tick * 1e9)

    def runs_of(self, side: str, seconds: float, count: int, gap: float) -> list[int]:
        """Return what the clock shows for runs that follow each other, each after a pause.

        The same noise as `run`, drawn at once: time goes by as if each run took its mean.

        Parameters
        ----------
        side : str
            It ran last, and is warm.
        seconds, gap : float
            Long-run mean of a run, and of a pause (exponential).
        count : int
        """
        s, rng, kind = self.s, self.rng, CPU if side == "cpu" else GPU
        between = gap * rng.standard_exponential(count) + seconds
        at = between.cumsum() - seconds
        total = float(at[-1]) + seconds
        decay = np.exp(at * (-1 / LOAD_S))
        steps = np.sqrt(1 - np.exp(between * (-2 / LOAD_S)))
        normal = rng.standard_normal((2, count))
        load = decay * (self.load + (steps * normal[0] / decay).cumsum())
        ln = s.load * load + s.scatter * normal[1]
        uniform = rng.random((2, count))
        ln += s.spike * (uniform[0] < SPIKE_SHARE)
        begin, hot, on = self.now, self.is_hot, self.on[kind]
        flips = self._flips(total, kind)
        ln += s.heat[kind] * _states(hot, flips[0], at)
        ln += s.own[kind] * _states(on, flips[1], at)
        self.load, self.now = float(load[-1]), begin + total
        taken = seconds / s.mean[kind] * np.exp(ln)
        ticks = np.floor(uniform[1] + taken / s.tick)
        return [round(x) for x in (ticks * (s.tick * 1e9)).tolist()]

    def _flips(self, seconds: float, kind: int) -> tuple[list[float], list[float]]:
        """Let some time go by; say when heat and what slows this side came and went."""
        heat: list[float] = []
        left = seconds
        while True:
            hazard = 1 / HEAT_S if self.is_hot else self.s.rate[kind]
            if left * hazard < self.heat_left:
                self.heat_left -= left * hazard
                break
            left -= self.heat_left / hazard
            self.is_hot, self.heat_left = not self.is_hot, self.wait()
            heat.append(seconds - left)
        begin = self.now
        own: tuple[list[float], list[float]] = ([], [])
        for which in (0, 1):
            while self.until[which] < begin + seconds:
                self.now, self.on[which] = self.until[which], not self.on[which]
                own[which].append(self.now - begin)
                self.until[which] = self._stay(which)
        return heat, own[kind]


def _states(is_on: bool, flips: list[float], at: Floats) -> Floats | bool:
    """Return 1 where a state that changes at `flips` is on."""
    if not flips:
        return is_on
    found: Floats = (np.searchsorted(np.array(flips), at) % 2 == (0 if is_on else 1)).astype(float)
    return found


def _stream(draw: Callable[[int], Floats]) -> Iterator[float]:
    while True:
        yield from draw(CHUNK).tolist()
