"""One model in one launch: the product's chooser, driven request by request.

Nothing of the decision is written here. What a request costs is the long-run mean of the side that
answered it, and what was cold or switched; every cost of finding out is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from gpuedge.decide.belief import UNKNOWN, Belief, bounded
from gpuedge.decide.chooser import RECENT, Chooser
from gpuedge.decide.decision_record import CPU, DeviceCandidate
from gpuedge.decide.options import DEFAULT, Options
from gpuedge.decide.policy import Policy

from .noise import COLD_RUNS, Clock, Field, cold_s
from .population import ALTERNATIVES, Floats, Knobs, Population

NS = 1e9
GAP_S = 0.2
"""Mean time between the end of a request and the next one; exponential."""

AT_ONCE = 6
"""From so many runs on it is quicker to draw them at once."""

SLOWED = 0.1
"""By this part of the CPU's latency requests are longer while a GPU is opened."""

STALLED_S = 4.0
"""After so long an opening that stalls is given up."""

HOUR_S, SHIFT_S = 3600.0, (600.0, 2400.0)
"""When in an hour a GPU that drifts changes."""

CRASH, HANG, WRONG, SEEN = 0.01, 0.003, 0.007, 0.98
"""Shares of drivers that crash when opened, stall, return wrong numbers for the model at hand; and
the probability that one comparison with the CPU shows it. Known answers are not simulated here but
in `faults`: what is tried on requests has passed none."""

COLUMNS = (
    "cost", "priced", "cpu", "oracle", "priced oracle", "cold oracle", "measured", "is_gpu",
    "is_missed", "opening", "opened", "switches", "most", "requests", "wrong",
)  # fmt: skip


@dataclass(slots=True)
class Memory:
    """What the application's earlier launches left of one model."""

    requests: list[int] = field(default_factory=list)
    cpu_ns: int | None = None
    beliefs: dict[str, Belief] = field(default_factory=dict)
    startups: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A population with its noise, and how the product is set on it."""

    population: Population
    noise: Field
    seed: int
    knobs: Knobs
    options: Options = DEFAULT
    margin: float = Policy().min_speedup


class Launch:
    """One pair in one launch.

    Parameters
    ----------
    fleet : Fleet
    index : int
        Of the pair.
    number : int
        Of the launch; decides the noise.
    memory : Memory
        Of earlier launches; brought up to date by `serve`.
    residual : float
        ln(measured / predicted) of the device's other models.
    """

    def __init__(
        self, fleet: Fleet, index: int, number: int, memory: Memory, residual: float = 0.0
    ) -> None:
        p = fleet.population
        self.fleet, self.i, self.memory = fleet, index, memory
        self.clock = Clock(fleet.noise.pair(index), (fleet.seed, index, number, 6))
        self.rng = np.random.default_rng((fleet.seed, index, number, 7))
        names = [a for k, a in enumerate(ALTERNATIVES) if p.has[index, k]]
        self.base = {CPU: float(p.cpu[index])}
        self.base |= {a: float(p.gpu[index, k]) for k, a in enumerate(names)}
        self.startup = {a: float(p.startup[index, k]) for k, a in enumerate(names)}
        off = math.exp(fleet.options.shared * residual)
        if fleet.knobs.knows_all:
            memory = self.memory = self._all_known()
        routes = [
            DeviceCandidate(
                a,
                phase="closed",
                predicted_ns=round(float(p.predicted_gpu[index, k]) * off * NS),
                startup_ns=memory.startups.get(a, round(float(p.predicted_startup[index, k]) * NS)),
                belief=memory.beliefs.get(a, UNKNOWN),
            )
            for k, a in enumerate(names)
        ]
        self.past = memory.requests
        if fleet.knobs.knows_requests:
            self.past = [int(p.inferences[index])]
        self.chooser = Chooser(
            routes, Policy(min_speedup=fleet.margin), past_requests=self.past,
            cpu_ns=memory.cpu_ns, options=fleet.options,
        )  # fmt: skip
        self.faults = _faults(fleet, index, names)
        self.opening, self.open_at = "", 0.0
        self.cpu_s = self.gpu_s = self.measured_s = self.opening_s = 0.0
        self.served, self.opened, self.wrong = 0, 0, 0
        self.changes: list[float] = []
        self.shift_at, self.shift, self.before = math.inf, 1.0, (0, dict(self.base))

    def _all_known(self) -> Memory:
        """Return what is true of the pair, as if earlier launches had found it out."""
        cpu = self.base[CPU]
        return Memory(
            [int(self.fleet.population.inferences[self.i])],
            round(cpu * NS),
            {a: bounded(math.log(self.base[a] / cpu), 1e-6, 1) for a in self.startup},
            {
                a: round((s + self.base[a] + cold_s(self.base[a])) * NS)
                for a, s in self.startup.items()
            },
        )

    def drift(self) -> None:
        """Let the GPU become faster or slower for good some time in the hour, perhaps."""
        rng = np.random.default_rng((self.fleet.seed, self.i, 8))
        if rng.random() < self.fleet.knobs.drifting:
            self.shift_at = rng.uniform(*SHIFT_S)
            self.shift = math.exp(rng.normal(0.0, self.fleet.knobs.drift_sd))

    # -- serving ------------------------------------------------------------------------------

    def serve(self, requests: int, until: float = math.inf) -> list[float]:
        """Serve so many requests, or until some time, and return a row of `COLUMNS`."""
        chooser, clock = self.chooser, self.clock
        if device := chooser.at_load():
            self._open(device)
        while self.served < requests and clock.now < until:
            self._manage()
            many = min(chooser.calm, requests - self.served)
            if many > 1 and not self.opening:
                self._serve_calmly(many)
            else:
                clock.pass_time(GAP_S * clock.wait(), chooser.pick != CPU)
                self._serve_one()
        self._remember()
        return self._row()

    def _manage(self) -> None:
        """Open and close what the chooser wants opened and closed."""
        chooser, clock = self.chooser, self.clock
        if clock.now >= self.shift_at:
            self.before, self.shift_at = (self.served, dict(self.base)), math.inf
            self.base = {a: s * (self.shift if a != CPU else 1.0) for a, s in self.base.items()}
        if self.opening:
            if clock.now >= self.open_at:
                self._end_opening()
        elif chooser.calm == 0:
            if device := chooser.wants_open(round(clock.now * NS)):
                self._open(device)
            elif device := chooser.wants_close():
                chooser.closed(device)

    def _serve_calmly(self, many: int) -> None:
        """Serve requests on the pick; only the last ones, which the chooser keeps, have noise."""
        chooser, clock, side = self.chooser, self.clock, self.chooser.pick
        seconds, kind = self.base[side], side != CPU
        unseen = many - RECENT if not kind or clock.runs.get(side, 0) >= COLD_RUNS else 0
        if unseen > 0:
            clock.pass_time(unseen * (seconds + GAP_S), kind)
            chooser.calm -= unseen
        left = many - max(unseen, 0)
        if left >= AT_ONCE and clock.last == side and not (kind and clock.runs[side] < COLD_RUNS):
            for ns in clock.runs_of(side, seconds, left, GAP_S):
                chooser.note(ns)
            left = 0
        for _ in range(left):
            clock.pass_time(GAP_S * clock.wait(), kind)
            chooser.note(clock.run(side, seconds))
            self._charge(side, clock.extra)
        self._charge(side, seconds * many)
        self.served += many
        self.wrong += many * (self.faults.get(side) == "wrong")

    def _serve_one(self) -> None:
        chooser, clock = self.chooser, self.clock
        self.served += 1
        if chooser.calm:
            side, pick = chooser.pick, chooser.pick
            chooser.note(clock.run(side, self.base[side]))
            self._charge(side, self.base[side] + clock.extra)
        else:
            pick = chooser.pick
            turn = chooser.turn(round(clock.now * NS))
            side = turn.side
            ns = clock.run(side, self.base[side])
            taken = self.base[side] + clock.extra
            self._charge(side, taken)
            if turn.kind == "trial":
                self._charge(CPU, self.base[CPU])
                self.measured_s += taken
                if self.faults.get(side) == "wrong" and self.rng.random() < SEEN:
                    chooser.failed(side, round(clock.now * NS))
                    return
            elif turn.kind == "burst":
                self.measured_s += max(taken - self.base[pick], 0.0)
            chooser.served(side, ns, round(clock.now * NS))
        self.wrong += self.faults.get(side) == "wrong"
        if self.opening:
            self._charge(CPU, SLOWED * self.base[CPU])
        if chooser.pick != pick:
            self.changes.append(clock.now)

    def _charge(self, side: str, seconds: float) -> None:
        if side == CPU:
            self.cpu_s += seconds
        else:
            self.gpu_s += seconds

    # -- opening ------------------------------------------------------------------------------

    def _open(self, device: str) -> None:
        self.chooser.opening(device)
        stalls = self.faults.get(device) == "hang"
        self.opening, self.opened = device, self.opened + 1
        taken = STALLED_S if stalls else self.startup[device]
        self.open_at = self.clock.now + taken
        self.gpu_s += taken
        self.opening_s += taken

    def _end_opening(self) -> None:
        """Warm the GPU up beside the CPU that serves, and tell the chooser."""
        device, chooser, clock, o = self.opening, self.chooser, self.clock, self.fleet.options
        self.opening, fault, now = "", self.faults.get(device), round(clock.now * NS)
        if fault == "hang":
            chooser.late(device, now)
            return
        if fault == "crash":
            chooser.failed(device, now)
            return
        clock.runs[device], spent, warm = 0, 0, []
        is_warmed = chooser.warms(device)
        while clock.runs[device] < (o.warm_up if is_warmed else 1) and spent < o.warm_up_ns:
            spent += clock.run(device, self.base[device])
            self.gpu_s += self.base[device] + clock.extra
            self.opening_s += self.base[device] + clock.extra
        for _ in range(o.warm_runs * is_warmed):
            warm.append(clock.run(device, self.base[device]))
            self.gpu_s += self.base[device] + clock.extra
            self.measured_s += self.base[device]
        startup_ns = round(self.startup[device] * NS) + spent  # as the product measures it
        chooser.opened(device, startup_ns, round(clock.now * NS), warm)

    # -- the end ------------------------------------------------------------------------------

    def _remember(self) -> None:
        """Keep what the next launch begins with."""
        m = self.memory
        m.requests.append(self.chooser.answered)
        m.cpu_ns = self.chooser.cpu_ns or m.cpu_ns
        for device, learnt in self.chooser.learnt().items():
            m.beliefs[device], m.startups[device] = learnt.belief, learnt.startup_ns

    def _row(self) -> list[float]:
        w, n = self.fleet.margin, self.served
        first, before = self.before
        parts = [(first, before), (n - first, self.base)]
        cpu = n * self.base[CPU]

        def best(w: float, *, is_warm: bool) -> float:
            found = [cpu]
            for a, startup in self.startup.items():
                paid = startup + (0.0 if is_warm else cold_s(before[a]))
                each = sum(k * min(base[CPU], w * base[a]) for k, base in parts)
                found.append(w * paid + each)
            return min(found)

        best_s = best(1.0, is_warm=True)
        fastest = min(a for a in self.base.values())
        is_win = cpu >= 2 * best_s
        is_gpu = self.chooser.pick != CPU
        most = max((_within(self.changes, t, 60.0) for t in self.changes), default=0)
        return [
            self.cpu_s + self.gpu_s, self.cpu_s + w * self.gpu_s, cpu, best_s,
            best(w, is_warm=True), best(1.0, is_warm=False), self.measured_s, float(is_gpu),
            float(is_win and not is_gpu and fastest < self.base[CPU]), self.opening_s,
            float(self.opened),
            float(len(self.changes)), float(most), float(n), float(self.wrong),
        ]  # fmt: skip


def _within(times: list[float], begin: float, seconds: float) -> int:
    return sum(begin <= t < begin + seconds for t in times)


def _faults(fleet: Fleet, index: int, names: list[str]) -> dict[str, str]:
    """Return what is wrong with drivers of a pair's device."""
    if not fleet.knobs.has_faults:
        return {}
    rng = np.random.default_rng((fleet.seed, int(fleet.population.device[index]), 9))
    found = {}
    for name, x in zip(names, rng.random(len(ALTERNATIVES)), strict=False):
        for kind, limit in (("crash", CRASH), ("hang", CRASH + HANG)):
            if x < limit and name not in found:
                found[name] = kind
        if name not in found and x > 1 - WRONG:
            found[name] = "wrong"
    return found


def device(fleet: Fleet, pairs: range, launches: int, *, has_hour: bool) -> list[list[list[float]]]:
    """Return the rows of every launch of a device's models, and of an hour's service if wanted.

    The hour is the first launch of an application that was never seen before, of models that the
    CPU answers within `GAP_S`; others have a row of NaN.
    """
    memories = {i: Memory() for i in pairs}
    rows: list[list[list[float]]] = []
    p = fleet.population
    for number in range(launches):
        rows.append([])
        for i in pairs:
            launch = Launch(fleet, i, number, memories[i], residual(fleet, memories, i))
            rows[-1].append(launch.serve(int(p.inferences[i])))
    if has_hour:
        rows.append([])
        fresh = {i: Memory() for i in pairs}
        for i in pairs:
            if p.cpu[i] >= GAP_S:
                rows[-1].append([math.nan] * len(COLUMNS))
                continue
            launch = Launch(fleet, i, 99, fresh[i], residual(fleet, fresh, i))
            launch.drift()
            rows[-1].append(launch.serve(10**9, HOUR_S))
    return rows


def residual(fleet: Fleet, memories: dict[int, Memory], index: int) -> float:
    """Return the mean of ln(measured / predicted) of the device's other models."""
    p, found = fleet.population, []
    for i, memory in memories.items():
        for name, belief in memory.beliefs.items() if i != index else ():
            said = p.predicted_gpu[i, ALTERNATIVES.index(name)] / p.predicted_cpu[i]
            found.append(belief.theta - math.log(said))
    return float(np.mean(found)) if found else 0.0


def simulate(fleet: Fleet, launches: int, hours: int) -> tuple[Floats, Floats]:
    """Return the rows of all launches (launch, pair, column), and of the hours of some pairs."""
    p = fleet.population
    ends = [*np.flatnonzero(np.diff(p.device)) + 1, len(p)]
    rows: list[list[list[float]]] = [[] for _ in range(launches)]
    hour: list[list[float]] = []
    begin = 0
    for end in ends:
        found = device(fleet, range(begin, int(end)), launches, has_hour=begin < hours)
        for number in range(launches):
            rows[number] += found[number]
        if begin < hours:
            hour += found[-1]
        begin = int(end)
    return np.array(rows), np.array(hour).reshape(-1, len(COLUMNS))
