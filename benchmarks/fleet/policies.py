"""The policies that are compared, and how a pick is scored.

A pick is the index of a GPU alternative, or CPU_PICK. Those here use no code of the product: they
are what others do. `ours.py` drives the product's own classes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from .noise import CPU, GPU, Clock, Field
from .population import ALTERNATIVES, Floats, Ints, Population

CPU_PICK = -1
HARM, WIN = 1.1, 2.0


def score(population: Population, pick: Ints) -> dict[str, float]:
    """Score picks against the oracle, which knows all long-run means.

    Returns
    -------
    dict
        ``mean``, ``p95``, ``p99``: regret in per cent, start-up included. ``harm``: per cent of all
        pairs on a GPU that is truly more than 10 % dearer than the CPU; ``harm of picks``: per cent
        of GPU picks. ``missed``: per cent of the wins of 2x or more that stayed on the CPU;
        ``missed of pairs``: the same of all pairs. ``gpu``: per cent of pairs on a GPU.
    """
    gpu, cpu = population.gpu_cost, population.cpu_cost
    cost = np.where(pick >= 0, gpu[np.arange(len(pick)), np.maximum(pick, 0)], cpu)
    best = np.minimum(gpu.min(axis=1), cpu)
    regret = 100 * (cost / best - 1)
    is_gpu = pick >= 0
    is_harm = is_gpu & (cost > HARM * cpu)
    is_win = cpu >= WIN * best
    is_missed = is_win & ~is_gpu
    return {
        "mean": float(regret.mean()),
        "p95": float(np.percentile(regret, 95)),
        "p99": float(np.percentile(regret, 99)),
        "harm": 100 * float(is_harm.mean()),
        "harm of picks": 100 * float(is_harm.sum() / max(is_gpu.sum(), 1)),
        "missed": 100 * float(is_missed.sum() / max(is_win.sum(), 1)),
        "missed of pairs": 100 * float(is_missed.mean()),
        "gpu": 100 * float(is_gpu.mean()),
    }


def oracle(population: Population) -> Ints:
    """Return the truly best picks."""
    best = population.gpu_cost.argmin(axis=1)
    return np.where(population.gpu_cost.min(axis=1) < population.cpu_cost, best, CPU_PICK)


def always_cpu(population: Population) -> Ints:
    """Never use a GPU."""
    return np.full(len(population), CPU_PICK)


def always_gpu(population: Population) -> Ints:
    """Use the newest API there is."""
    newest: Ints = population.has.sum(axis=1) - 1
    return newest


def fixed_priority(population: Population) -> Ints:
    """Vulkan, else OpenGL ES 3.1, else the CPU: what "best performance" settings do."""
    newest = always_gpu(population)
    return np.where(newest >= ALTERNATIVES.index("gles31"), newest, CPU_PICK)


def predicted_gpu(population: Population) -> Floats:
    """Return what the cost model says an inference costs on each alternative, start-up spread."""
    p = population
    cost = p.predicted_gpu + p.predicted_startup / p.inferences[:, None]
    return np.where(p.has, cost, np.inf)


def cost_model(population: Population) -> Ints:
    """Believe the cost model."""
    cost = predicted_gpu(population)
    return np.where(cost.min(axis=1) < population.predicted_cpu, cost.argmin(axis=1), CPU_PICK)


def cost_model_shrunk(population: Population, fleet: Floats, factor: float = 2.0) -> Ints:
    """Believe the cost model shrunk to the fleet: `fleet` has a row (mean, sd) per alternative."""
    p = population
    said = np.log(p.predicted_gpu / p.predicted_cpu[:, None])
    weight = 1 / np.log(factor) ** 2
    own = 1 / fleet[:, 1] ** 2
    mean = (weight * said + own * fleet[:, 0]) / (weight + own)
    cost = p.predicted_cpu[:, None] * np.exp(mean) + p.predicted_startup / p.inferences[:, None]
    cost = np.where(p.has, cost, np.inf)
    return np.where(cost.min(axis=1) < p.predicted_cpu, cost.argmin(axis=1), CPU_PICK)


def mean_threshold(
    population: Population,
    field: Field,
    seed: int,
    runs: int,
    *,
    with_startup: bool,
    budget_s: float = float("inf"),
) -> tuple[Ints, Floats]:
    """Compare the means of `runs` on the CPU and as many on the likeliest alternative.

    Returns
    -------
    tuple
        The picks, and the seconds of runs that each took.
    """
    pairs = len(population)
    alternatives = predicted_gpu(population).argmin(axis=1)
    pick, spent = np.full(pairs, CPU_PICK), np.zeros(pairs)
    for i in range(pairs):
        alternative = int(alternatives[i])
        base = (float(population.cpu[i]), float(population.gpu[i, alternative]))
        clock = Clock(field.pair(i), base, random.Random(f"mean/{seed}/{i}"))
        means = []
        for side in (CPU, GPU):
            shown: list[int] = []
            while len(shown) < runs and clock.now < budget_s:
                shown.append(clock.run(side))
            means.append(sum(shown) / len(shown) / 1e9 if shown else float("inf"))
        if with_startup:
            means[GPU] += float(population.startup[i, alternative] / population.inferences[i])
        pick[i] = alternative if means[GPU] < means[CPU] else CPU_PICK
        spent[i] = clock.now
    return pick, spent


def fleet_prior(population: Population) -> Floats:
    """Fit the row (mean, sd) of ln(T_gpu / T_cpu) of each alternative, where it is there."""
    ln = np.log(population.gpu / population.cpu[:, None])
    rows = [ln[population.has[:, a], a] for a in range(ln.shape[1])]
    return np.array([(row.mean(), row.std()) for row in rows])


UNMEASURED: dict[str, Callable[[Population], Ints]] = {
    "always CPU": always_cpu,
    "always GPU": always_gpu,
    "fixed priority": fixed_priority,
    "cost model": cost_model,
}
