"""Devices and models of the simulated fleet.

The marginals that are known come from the HPCA 2019 paper: the ratio of peak GPU to CPU speed and
how many devices offer each API. Everything else is a knob, chosen so that costs look like those of
phones; the README says which. A pair is one model on one device; its true times are long-run means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ALTERNATIVES = ("gles20", "gles30", "gles31", "vulkan")
"""GPU alternatives in ascending order of API; a device that offers one offers all before it."""

COVERAGE = {"hpca": (1.0, 0.83, 0.52, 0.36), "later": (1.0, 0.97, 0.90, 0.85)}
CLASS_MEDIAN = (1.05, 0.85, 0.70, 0.95)
"""GPU efficiency over CPU efficiency by kernel class of the model."""

ARM_MEDIAN = (0.35, 0.55, 0.90, 1.0)
RATIO_MEDIAN, RATIO_SD = 0.99, 0.915
CLASS_SD, ARM_SD = 0.45, 0.22
MODELS = 5
SHARES = (0.7, 0.2, 0.1)
"""How the variance of the cost model's error splits over device, model and API."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What is varied between cases; the defaults are the base case."""

    error: float = 2.0  # true 1-sigma factor of what is predicted of a GPU
    startup_error: float = 1.5
    cv: float = 0.95
    coverage: str = "hpca"
    gpu_scale: float = 1.0
    bias: float = 1.0  # how many times too fast GPUs are predicted to be
    drifting: float = 0.0  # share of pairs whose GPU becomes faster or slower for good
    drift_sd: float = 0.7
    has_faults: bool = False  # some drivers crash, stall, or return wrong numbers
    knows_requests: bool = False  # a bound: how many requests will come is told
    knows_all: bool = False  # a bound: every latency and start-up is told too


@dataclass(frozen=True, slots=True)
class Population:
    """Arrays over pairs; those of GPUs have a second axis in the order of `ALTERNATIVES`.

    Times are seconds. `predicted_*` is what the cost model says before anything is measured.
    """

    device: Ints
    peak_ratio: Floats
    has: Bools
    kind: Ints
    cpu: Floats
    gpu: Floats
    startup: Floats
    inferences: Ints
    predicted_cpu: Floats
    predicted_gpu: Floats
    predicted_startup: Floats

    def __len__(self) -> int:
        return len(self.cpu)

    @property
    def cpu_cost(self) -> Floats:
        """True cost of one inference on the CPU; its start-up is counted as none."""
        return self.cpu

    @property
    def gpu_cost(self) -> Floats:
        """True cost of one inference on each GPU, start-up spread; infinite where not there."""
        cost = self.gpu + self.startup / self.inferences[:, None]
        return np.where(self.has, cost, np.inf)


def _devices(rng: np.random.Generator, count: int, knobs: Knobs) -> dict[str, NDArray[Any]]:
    strength = rng.standard_normal(count)
    newness = 0.5 * strength + np.sqrt(0.75) * rng.standard_normal(count)
    rank = newness.argsort().argsort() / count  # exact shares, whatever the sample
    shares = np.array(COVERAGE[knobs.coverage])
    return {
        "ratio": RATIO_MEDIAN * np.exp(RATIO_SD * strength),
        "has": rank[:, None] >= 1 - shares[None, :],
        "flops": 3.3e9 * np.exp(0.5 * rng.standard_normal(count) + 0.25 * newness),
        "launch": np.exp(rng.uniform(np.log(15e-6), np.log(70e-6), count)),
        "bandwidth": np.exp(rng.uniform(np.log(0.7e9), np.log(6e9), count)),
        "alternative": ARM_SD * rng.standard_normal((count, len(ALTERNATIVES))),
        "open": 0.035 * np.exp(0.6 * rng.standard_normal(count)),
        "compile": 2.6e-3 * np.exp(0.6 * rng.standard_normal(count)),
    }


def _models(rng: np.random.Generator, pairs: int) -> dict[str, NDArray[Any]]:
    return {
        "flops": np.exp(rng.uniform(np.log(5e6), np.log(2e9), pairs)),
        "kind": rng.integers(0, len(CLASS_MEDIAN), pairs),
        "ops": np.exp(rng.uniform(np.log(12), np.log(160), pairs)).round(),
        "io": np.exp(rng.uniform(np.log(4e4), np.log(3e6), pairs)),
        "weights": np.exp(rng.uniform(np.log(4e5), np.log(6e7), pairs)),
        "inferences": np.exp(rng.uniform(0, np.log(10_000), pairs)).round().astype(np.int64),
    }


def draw(seed: int, pairs: int, knobs: Knobs | None = None) -> Population:
    """Draw `pairs` pairs: `MODELS` models on each device, the last device perhaps with fewer.

    Parameters
    ----------
    seed : int
        Decides everything but the noise of runs.
    pairs : int
        How many pairs to draw.
    knobs : Knobs, optional
        The case; the base case by default.
    """
    knobs = knobs or Knobs()
    rng = np.random.default_rng([seed, 1])
    count = -(-pairs // MODELS)
    device = np.repeat(np.arange(count), MODELS)[:pairs]
    made = _devices(rng, count, knobs)
    m = _models(rng, pairs)
    d = {name: values[device] for name, values in made.items()}
    alternative_efficiency = np.array(ARM_MEDIAN) * np.exp(d["alternative"])
    class_efficiency = np.array(CLASS_MEDIAN)[m["kind"]] * np.exp(
        CLASS_SD * rng.standard_normal(pairs)
    )
    cpu = m["flops"] / d["flops"]
    speed = knobs.gpu_scale * (d["ratio"] * class_efficiency)[:, None] * alternative_efficiency
    passes = np.array((1.6, 1.2, 1.0, 1.0))  # the older the API, the more passes a model takes
    gpu = cpu[:, None] / speed + (m["ops"] * d["launch"])[:, None] * passes
    gpu = gpu + (m["io"] / d["bandwidth"])[:, None]
    tail = np.exp(0.5 * np.abs(rng.standard_normal(pairs)) ** 1.2)
    compile_s = (m["ops"] * d["compile"] * tail)[:, None] * np.array((1.0, 1.0, 1.1, 1.2))
    startup = d["open"][:, None] + compile_s + (m["weights"] / d["bandwidth"])[:, None]
    return Population(
        device, d["ratio"], d["has"], m["kind"], cpu, gpu, startup, m["inferences"],
        *_predicted(rng, knobs, device, (cpu, gpu, startup)),
    )  # fmt: skip


def _predicted(
    rng: np.random.Generator, knobs: Knobs, device: Ints, true: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return what the cost model says: the ratio is off by device, by model and by API."""
    cpu, gpu, startup = true
    sigma = np.log(knobs.error)
    pairs, alternatives = gpu.shape
    of_device = rng.standard_normal(int(device[-1]) + 1)[device][:, None]
    of_model = rng.standard_normal((pairs, 1))
    of_alternative = rng.standard_normal((pairs, alternatives))
    parts = np.sqrt(np.array(SHARES))
    error = sigma * (parts[0] * of_device + parts[1] * of_model + parts[2] * of_alternative)
    predicted_cpu = cpu * np.exp(0.2 * rng.standard_normal(pairs))
    ratio = gpu / cpu[:, None] * np.exp(error) / knobs.bias
    wrong = np.log(knobs.startup_error) * rng.standard_normal((pairs, alternatives))
    return predicted_cpu, ratio * predicted_cpu[:, None], startup * np.exp(wrong)


def facts(population: Population) -> dict[str, float]:
    """Return the figures by which a population is checked against its sources."""
    p = population
    best = np.where(p.has, p.gpu, np.inf).min(axis=1)
    steady = p.cpu / best
    whole = p.cpu_cost / p.gpu_cost.min(axis=1)
    found = {f"ratio >= {x:g}": float((p.peak_ratio >= x).mean()) for x in (1, 2, 3)}
    found |= {alternative: float(p.has[:, i].mean()) for i, alternative in enumerate(ALTERNATIVES)}
    for name, gain in (("steady", steady), ("with start-up", whole)):
        found |= {f"{name} faster": float((gain > 1).mean())}
        found |= {f"{name} >= 2x": float((gain >= 2).mean())}
    for name, values in (("cpu s", p.cpu), ("start-up s", p.startup[:, 0])):
        for q in (5, 50, 95, 99.9):
            found[f"{name} p{q:g}"] = float(np.percentile(values, q))
    return found
