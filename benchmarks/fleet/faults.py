"""Broken and lying drivers, and which of them get past the gates.

The unit is one API on one device (an alternative). A fault is a property of it; gates see it or
not. All of it is drawn at once with numpy, because what is sought are events of one in 100,000.
That isolation contains every crash and hang of a driver while it is opened and tested is assumed,
not shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .population import MODELS, Bools, Floats, Ints, Knobs, Population, draw

CRASH, HANG, WRONG, UNSTABLE = 0.01, 0.003, 0.01, 0.003
"""Shares of alternatives (`WRONG`: of alternatives and kernel classes). The 1 % that crash when
loaded is of the HPCA paper, the others are knobs."""

CLASSES = 4
SHAPES = 0.7
"""A driver that computes a kernel class wrongly does so for this share of shapes."""

UNSTABLE_RATE = (1e-4, 0.3)
"""A driver that is wrong now and then is so in this share of runs, log-uniform."""

HIT_BAD = 0.4
"""Share of bad alternatives that a database entry knows."""


@dataclass(frozen=True, slots=True)
class Gates:
    """What stands between a driver and the application; the defaults are gpuedge's.

    Attributes
    ----------
    is_isolated : bool
        Drivers are opened in a child first, so that a crash or hang is the child's.
    sensitivity : float
        Probability that the known answers notice a kernel class with deterministic wrong numbers;
        0: no such tests.
    runs, more : int
        Runs of the known answers, and how many times as many where an entry asks for them.
    entry : {"evidence", "veto", "none"}
        What an entry about wrong numbers does. One about crashes or hangs always denies.
    has_retry : bool
        Whether a failed test is repeated once, in a fresh child; a good alternative passes then.
    retry_more : int
        How many times as many runs such a repetition has.
    crosscheck : float
        Share of inferences compared with the CPU; unless 0, those of a trial are besides.
    crosscheck_sees : float
        Probability that such comparisons notice wrong numbers in a model that has them.
    tried : int
        Runs on a GPU whose numbers are compared before it answers a request: one on inputs that
        are made up, and at least two of a trial.
    """

    is_isolated: bool = True
    sensitivity: float = 0.99
    runs: int = 16
    more: int = 4
    entry: str = "evidence"
    has_retry: bool = True
    retry_more: int = 1
    crosscheck: float = 1 / 256
    crosscheck_sees: float = 0.98
    tried: int = 3


@dataclass(frozen=True, slots=True)
class World:
    """How often good drivers look bad.

    Attributes
    ----------
    false_hit : float
        Share of good alternatives that an entry about wrong numbers matches by mistake.
    false_crash_hit : float
        Share of good alternatives that an entry about crashes or hangs matches by mistake.
    transient, lasting : float
        Share of tests of good alternatives that fail once, and that fail whenever repeated.
    false_drift : float
        Share of first comparisons of right results that are taken for drift.
    """

    false_hit: float = 0.01
    false_crash_hit: float = 0.0
    transient: float = 2e-3
    lasting: float = 5e-4
    false_drift: float = 1e-5


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Drawn faults: arrays of devices by alternatives; `wrong` also by kernel class."""

    crash: Bools
    hang: Bools
    wrong: Bools
    rate: Floats  # of wrong runs; 0 where stable
    hit: Bools
    hit_crash: Bools

    @property
    def good(self) -> Bools:
        """Alternatives without any fault."""
        good: Bools = ~(self.crash | self.hang | self.wrong.any(axis=2) | (self.rate > 0))
        return good


def draw_alternatives(
    rng: np.random.Generator, shape: tuple[int, int], world: World
) -> Alternatives:
    """Draw the faults of every alternative."""

    def chance(p: float) -> Bools:
        return rng.random(shape) < p

    crash, hang, odd = chance(CRASH), chance(HANG), chance(UNSTABLE)
    wrong: Bools = rng.random((*shape, CLASSES)) < WRONG
    low, high = np.log(UNSTABLE_RATE)
    rate = np.where(odd, np.exp(rng.uniform(low, high, shape)), 0.0)
    known = chance(HIT_BAD)
    numbers, stops = wrong.any(axis=2) | odd, crash | hang
    good = ~(numbers | stops)
    hit = (numbers & known) | (good & chance(world.false_hit))
    hit_crash = (stops & known) | (good & chance(world.false_crash_hit))
    return Alternatives(crash, hang, wrong, rate, hit, hit_crash)


def denied(
    rng: np.random.Generator, alternatives: Alternatives, gates: Gates, world: World
) -> Bools:
    """Return which alternatives the gates refuse before any model runs."""
    shape = alternatives.crash.shape

    def chance(p: Floats | float) -> Bools:
        found: Bools = rng.random(shape) < p
        return found

    no: Bools = np.zeros(shape, bool)
    if gates.entry != "none":
        no = no | alternatives.hit_crash
    if gates.entry == "veto":
        no = no | alternatives.hit
    if gates.is_isolated:
        no = no | alternatives.crash | alternatives.hang
    if gates.sensitivity:
        runs = np.where(
            alternatives.hit & (gates.entry == "evidence"), gates.runs * gates.more, gates.runs
        )
        attempts = 2 if gates.has_retry else 1
        seen = 1 - (1 - alternatives.rate) ** runs
        if gates.has_retry:  # a failure is evidence too: the retry runs more
            seen = seen * (
                1 - (1 - alternatives.rate) ** np.maximum(runs, gates.runs * gates.retry_more)
            )
        noticed = rng.random(alternatives.wrong.shape) < gates.sensitivity  # the same every time
        fails = (alternatives.wrong & noticed).any(axis=2) | chance(seen)
        fails = fails | chance(world.lasting) | chance(world.transient**attempts)
        no = no | fails
    return no


def _pick(population: Population, no: Bools) -> tuple[Ints, Bools]:
    """Return the best alternative not denied of each pair, and which pairs use a GPU."""
    p = population
    cost = np.where(p.has & ~no[p.device], p.gpu_cost, np.inf)
    return cost.argmin(axis=1), cost.min(axis=1) < p.cpu_cost


def simulate(seed: int, pairs: int, gates: Gates, world: World | None = None) -> dict[str, int]:
    """Count what gets past the gates.

    Returns
    -------
    dict
        ``pairs``, ``gpu``: pairs, and those whose GPU is the better side. ``wrong``: pairs that go
        on using wrong numbers that are the same every time, after the trial; ``wrong at gates``:
        before it, and without any comparison with the CPU. ``unstable``, ``unstable 5%``: pairs on
        a GPU that is wrong now and then, and in more than 5 % of runs, after it.
        ``served wrong``: wrong answers served until one is noticed, over all pairs. ``stopped``:
        crashes and hangs in the application. ``good``, ``denied``: good alternatives, and those
        refused.
    """
    world = world or World()
    population = draw(seed, pairs, Knobs())
    rng = np.random.default_rng([seed, 3])
    shape = (int(population.device[-1]) + 1, population.has.shape[1])
    alternatives = draw_alternatives(rng, shape, world)
    no = denied(rng, alternatives, gates, world)
    pick, is_gpu = _pick(population, no)
    at = (population.device, pick)
    is_wrong = (
        is_gpu & alternatives.wrong[at[0], at[1], population.kind] & (rng.random(pairs) < SHAPES)
    )
    rate = np.where(is_gpu & ~is_wrong, alternatives.rate[at], 0.0)
    caught = rng.random(pairs) < gates.crosscheck_sees
    slips = rng.random(pairs) < (1 - rate) ** gates.tried  # right whenever it was tried
    is_first_seen = caught & (gates.crosscheck > 0)
    left = is_wrong & ~is_first_seen
    unstable = (rate > 0) & (slips | ~is_first_seen)
    has = population.has[::MODELS] & alternatives.good
    drift = rng.random(shape) < (world.false_drift if gates.crosscheck else 0.0)
    return {
        "pairs": pairs, "gpu": int(is_gpu.sum()), "wrong at gates": int(is_wrong.sum()),
        "wrong": int(left.sum()), "unstable": int(unstable.sum()),
        "unstable 5%": int((unstable & (rate > 0.05)).sum()),
        "served wrong": _served(rng, population, unstable, rate, gates),
        "stopped": int((is_gpu & (alternatives.crash | alternatives.hang)[at]).sum()),
        "good": int(has.sum()), "denied": int((has & (no | drift)).sum()),
    }  # fmt: skip


def _served(
    rng: np.random.Generator, population: Population, unstable: Bools, rate: Floats, gates: Gates
) -> int:
    """Count wrong answers served by unstable GPUs in one launch, until a comparison notices."""
    n = population.inferences[unstable]
    q = rate[unstable]
    if not gates.crosscheck:
        return int(rng.binomial(n, q).sum())
    step = round(1 / gates.crosscheck)
    turns = rng.geometric(np.maximum(q * gates.crosscheck_sees, 1e-12)).astype(float)
    until = np.minimum(n, turns * step)
    return int(rng.binomial(until.astype(np.int64), q).sum())


CASES: dict[str, tuple[Gates, World]] = {
    "no gates": (Gates(False, 0.0, entry="none", crosscheck=0), World()),
    "isolation only": (Gates(True, 0.0, entry="none", crosscheck=0), World()),
    "tests + entries as veto": (Gates(entry="veto", crosscheck=0), World()),
    "tests + entries as evidence": (Gates(crosscheck=0), World()),
    "gpuedge: and compared with the CPU": (Gates(), World()),
    "gpuedge, tests see .9": (Gates(sensitivity=0.9), World()),
    "gpuedge, comparison sees .9": (Gates(crosscheck_sees=0.9), World()),
    "gpuedge, transient failures 1 %": (Gates(), World(transient=0.01)),
    "gpuedge, crash entries hit .05 % of good": (Gates(), World(false_crash_hit=5e-4)),
}
OURS = "gpuedge: and compared with the CPU"
