"""What is believed about one GPU against the CPU, and what follows from it.

Everything is about theta = ln(latency on the GPU / latency on the CPU path) of one model. Belief in
it is a normal distribution; a prediction starts it, every window of measurements narrows it, and a
choice weighs what either alternative would lose on average. All of it is pure, and every result is
rounded to a whole number, so that it is the same on every machine (`gpuedge.decide.exact`).

Measuring longer does not help beyond a point: heat and what else runs outlast a window of seconds,
so a window has an error of its own (`Noise.window`) however many runs it holds, and some error
never goes away (`Noise.lasting`). Windows at other times, such as in a later launch, do help.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gpuedge.decide.exact import exp, ln, phi, root

MICRO = 10**6
MIN_FACTOR = 2.0
"""Least error of a prediction ever assumed, as a factor (one standard deviation). A model that
claims less than it should screens itself out of being tested; more windows do not repair that."""

UNVALIDATED = 3.0
"""The factor assumed of predictions that were never compared with measurements."""

MEAN_LIMIT = 20 * MICRO
VAR_LIMIT = 25 * MICRO
"""Bounds of a belief: a factor of e**20 either way, and a standard deviation of 5 nats."""

DRIFT_PER_S = 0.2 * 0.2 / 600
"""How fast theta wanders in service: 0.2 nats in ten minutes. Chosen, not measured."""

FORGETTING = 0.35 * 0.35
"""Most variance that time alone adds."""

SHARE_PPM = 50_000
"""Share of screened-out devices that are tried all the same, in millionths. A cost model that is
too sure of itself screens out the very devices that would prove it wrong."""

CORRELATION = 0.9
"""Correlation of the errors of two predictions for one device and model: two API routes run the
same model on the same chip. Chosen, not measured."""

HARM = 1.1
"""A GPU does harm where it is truly more than this many times as dear as the CPU path."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far measurements may be from the long run, in nats.

    Attributes
    ----------
    window : float
        Standard deviation of what a whole window shares: heat, other programs.
    lasting : float
        Standard deviation of what no number of windows takes away.
    run : float
        Least standard deviation of one run that is believed.
    bias : float
        Added to what a window shows.
    """

    window: float = 0.21
    lasting: float = 0.10
    run: float = 0.35
    bias: float = -0.01

    @property
    def lasting_micro(self) -> int:
        """The variance that stays, in millionths."""
        return round(self.lasting * self.lasting * MICRO)


_MEAN = Noise()
_GROUPS = ((65, Noise(lasting=0.05)), (95, Noise(lasting=0.24, bias=-0.05)),
           (99, Noise(lasting=0.49, bias=-0.03)))  # fmt: skip
"""Up to which percentile, and the noise there. Medians are compared; the farther out the wanted
percentile is, the less they say about it."""


def NOISE(percentile: int | None) -> Noise:  # noqa: N802 - a table by name, read by a call
    """Return the noise of a percentile of latency, None for the mean."""
    if percentile is None:
        return _MEAN
    return next((noise for last, noise in _GROUPS if percentile <= last), _GROUPS[-1][1])


@dataclass(frozen=True, slots=True)
class Belief:
    """A normal distribution over theta, in whole numbers.

    Attributes
    ----------
    mean : int
        In millionths of a nat; below zero where the GPU is faster.
    var : int
        In millionths of a square nat, at least 1.
    windows : int
        Windows of measurements that went into it.
    """

    mean: int
    var: int
    windows: int = 0

    def __post_init__(self) -> None:
        for value, low, high in (
            (self.mean, -MEAN_LIMIT, MEAN_LIMIT), (self.var, 1, VAR_LIMIT), (self.windows, 0, 10**9)
        ):  # fmt: skip
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"not a belief: {self.mean!r}, {self.var!r}, {self.windows!r}")

    @property
    def theta(self) -> float:
        """The mean in nats."""
        return self.mean / MICRO

    @property
    def sd(self) -> float:
        """The standard deviation in nats."""
        return root(self.var)


@dataclass(frozen=True, slots=True)
class CostContext:
    """What a model costs in any case.

    Attributes
    ----------
    cpu_ns : int
        One inference on the CPU path; at least 1.
    startup_ns : int
        What opening and compiling on the GPU cost once.
    inferences : int
        Over how many inferences that is spread.
    """

    cpu_ns: int
    startup_ns: int
    inferences: int

    @property
    def share(self) -> float:
        """Start-up per inference, as a part of the CPU path's latency."""
        return self.startup_ns / (self.inferences * max(self.cpu_ns, 1))


@dataclass(frozen=True, slots=True)
class Rule:
    """When a choice is good enough, in whole numbers.

    Attributes
    ----------
    eps_ppm : int
        Expected loss of a choice below which nothing more is measured, in millionths of the CPU
        path's latency.
    alpha_ppm : int
        Most probability of harm (`HARM`) at which a GPU is still taken, in millionths.
    speedup_milli : int
        How many times as fast a GPU must be to be worth it, start-up included, in thousandths.
    """

    eps_ppm: int = 5_000
    alpha_ppm: int = 300_000
    speedup_milli: int = 1_000


@dataclass(frozen=True, slots=True)
class Weighing:
    """What a belief comes to.

    Attributes
    ----------
    use_gpu : bool
    loss_cpu_ppm, loss_gpu_ppm : int
        What either choice is expected to lose against knowing theta, in millionths of the CPU
        path's latency. The GPU counts as better only where it is as much faster as the rule asks.
    harm_ppm : int
        Probability that the GPU is truly more than a tenth dearer than the CPU path, in millionths.
    is_settled : bool
        Whether the expected loss of this choice is below the rule's threshold.
    """

    use_gpu: bool
    loss_cpu_ppm: int
    loss_gpu_ppm: int
    harm_ppm: int
    is_settled: bool

    @property
    def loss_ppm(self) -> int:
        """Expected loss of the choice that was made."""
        return self.loss_gpu_ppm if self.use_gpu else self.loss_cpu_ppm


def bounded(mean: float, var: float, windows: int) -> Belief:
    """Return the belief nearest to these numbers (in nats and square nats) that can be held."""
    low = min(max(round(mean * MICRO), -MEAN_LIMIT), MEAN_LIMIT)
    return Belief(low, min(max(round(var * MICRO), 1), VAR_LIMIT), windows)


def prior(
    predicted_gpu_ns: int,
    predicted_cpu_ns: int,
    factor: float,
    fleet: tuple[float, float] | None = None,
) -> Belief:
    """Return the belief that two predictions justify.

    Parameters
    ----------
    predicted_gpu_ns, predicted_cpu_ns : int
        Latency of one inference, without start-up.
    factor : float
        Error of their ratio that is claimed (one standard deviation); at least `MIN_FACTOR` is
        assumed, whatever is claimed.
    fleet : pair of float, optional
        Mean and standard deviation of theta over many devices, in nats; shrinks the prediction.
    """
    if predicted_cpu_ns <= 0:
        mean = float(MEAN_LIMIT)  # nothing is faster than no time at all
    elif predicted_gpu_ns <= 0:
        mean = -float(MEAN_LIMIT)
    else:
        mean = ln(predicted_gpu_ns / predicted_cpu_ns)
    spread = ln(max(factor, MIN_FACTOR))
    var = spread * spread
    if fleet is not None:
        other = fleet[1] * fleet[1]
        mean = (mean * other + fleet[0] * var) / (var + other)
        var = var * other / (var + other)
    return bounded(mean, var, 0)


def seen(gpu_ns: Sequence[int], cpu_ns: Sequence[int], noise: Noise) -> tuple[float, float]:
    """Return what a window of runs says of theta, and the variance of that. Both need runs."""
    gpu, gpu_var = _middle(gpu_ns, noise.run)
    cpu, cpu_var = _middle(cpu_ns, noise.run)
    return gpu - cpu + noise.bias, gpu_var + cpu_var + noise.window * noise.window


def updated(belief: Belief, y: float, v: float) -> Belief:
    """Return the belief after one observation `y` of theta with variance `v`."""
    mean, var = belief.mean / MICRO, belief.var / MICRO
    total = var + v
    return bounded((mean * v + y * var) / total, var * v / total, belief.windows + 1)


def forget(belief: Belief, seconds: float) -> Belief:
    """Return the belief after time has passed: less sure, up to a bound."""
    added = min(max(seconds, 0.0) * DRIFT_PER_S, FORGETTING)
    return bounded(belief.mean / MICRO, belief.var / MICRO + added, belief.windows)


def share_surprise(other: Belief, before: Belief, after: Belief) -> Belief:
    """Return the belief about an API route that was not measured, after another one was.

    Parameters
    ----------
    other : Belief
        About the route that was not measured.
    before, after : Belief
        About the measured one, by prediction and now.
    """
    moved = (after.mean - before.mean) / MICRO
    known = max(1 - after.var / before.var, 0.0)  # the part of the variance that measuring took
    var = other.var / MICRO * (1 - CORRELATION * CORRELATION * known)
    return bounded(other.theta + CORRELATION * moved, var, other.windows)


def draw(device: str, model: str, day: int) -> int:
    """Return the number from 0 to 999,999 by which random exploration is decided.

    It is a hash, so the same device and model are drawn on the same day in every process.

    Parameters
    ----------
    device : str
        The device's key, driver included.
    model : str
        Digest of the model.
    day : int
        Days since the epoch: a case that was not drawn today may be another day.
    """
    text = f"gpuedge.audit/1\0{device}\0{model}\0{day}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") * MICRO >> 64


def is_drawn(number: int | None) -> bool:
    """Say whether a number of `draw` asks for a trial; None does not."""
    return number is not None and number < SHARE_PPM


def _middle(runs: Sequence[int], floor: float) -> tuple[float, float]:
    """Return the median of the logarithms of some runs, and its variance.

    1.57 is pi / 2, what a median costs against a mean; 1.349 the distance of the quartiles of the
    standard normal distribution, which one slow run in four does not move.
    """
    ordered = sorted(runs)
    n = len(ordered)
    half = n // 2
    if n % 2:
        middle = ln(max(ordered[half], 1))
    else:
        middle = 0.5 * ln(max(ordered[half - 1], 1) * max(ordered[half], 1))
    spread = floor
    if n > 3:
        spread = max(ln(max(_quarter(ordered, 3), 1) / max(_quarter(ordered, 1), 1)) / 1.349, floor)
    return middle, 1.57 * spread * spread / n


def _quarter(ordered: Sequence[int], quarters: int) -> int:
    """Return four times a quartile, by linear interpolation between order statistics."""
    place = (len(ordered) - 1) * quarters
    low, part = place // 4, place % 4
    high = low + 1 if part else low
    return ordered[low] * (4 - part) + ordered[high] * part


def break_even(stakes: CostContext, rule: Rule) -> float:
    """Return the ratio of latencies below which the GPU is worth it, start-up included."""
    return 1000 / rule.speedup_milli - stakes.share


def weigh(belief: Belief, stakes: CostContext, rule: Rule, noise: Noise) -> Weighing:
    """Return the choice that is expected to lose least, and how much.

    With X = the ratio of latencies, log-normal, and k = the break-even, the CPU loses E(k - X)+ and
    the GPU E(X - k)+. The GPU is taken where it loses less and `harm_ppm` allows it; a tie goes to
    the CPU.
    """
    mean = belief.mean / MICRO
    micro = belief.var + noise.lasting_micro
    var, sd = micro / MICRO, root(micro)
    k = break_even(stakes, rule)
    ratio = exp(min(mean + var / 2, 40.0))
    cpu = 0.0
    if k > 0:
        d = (ln(k) - mean) / sd
        cpu = max(k * phi(d) - ratio * phi(d - sd), 0.0)
    gpu = max(cpu - k + ratio, 0.0)
    limit = HARM - stakes.share
    harm = MICRO if limit <= 0 else round(MICRO * phi((mean - ln(limit)) / sd))
    loss_cpu, loss_gpu = round(cpu * MICRO), round(gpu * MICRO)
    use_gpu = loss_gpu < loss_cpu and harm <= rule.alpha_ppm
    loss = loss_gpu if use_gpu else loss_cpu
    return Weighing(use_gpu, loss_cpu, loss_gpu, harm, loss < rule.eps_ppm)
