"""What a candidate is worth against the CPU path: its belief, its trial and what follows.

One place turns evidence into numbers, for choosing, for explaining and for planning the next trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuedge.decide.belief import (
    HARM,
    MICRO,
    NOISE,
    Belief,
    CostContext,
    Noise,
    Rule,
    Weighing,
    break_even,
    prior,
    share_surprise,
    weigh,
)
from gpuedge.decide.exact import exp, ln, quantile, root
from gpuedge.decide.model import Prediction
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence
from gpuedge.decide.trial import BUDGET_NS, Trial, replayed

Assessments = tuple["Assessment | None", ...]
"""Those of all candidates of a record, by position."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """A GPU weighed against the CPU path.

    Attributes
    ----------
    predicted : Belief
        By prediction alone.
    before : Belief
        That, or what earlier launches left.
    belief : Belief
        With the runs of this launch.
    stakes : CostContext
    rule : Rule
    noise : Noise
    verdict : Weighing
    seen : pair of float or None
        What the runs of this launch say of theta by themselves, and the variance of that.
    stop : str
        Why the trial ended; empty where there was none.
    """

    predicted: Belief
    before: Belief
    belief: Belief
    stakes: CostContext
    rule: Rule
    noise: Noise
    verdict: Weighing
    seen: tuple[float, float] | None = None
    stop: str = ""

    @property
    def sd(self) -> float:
        """Standard deviation of theta in the long run, in nats."""
        return root(self.belief.var + self.noise.lasting_micro)

    @property
    def expected(self) -> float:
        """Expected latency on the GPU, as a multiple of that on the CPU path."""
        return exp(min(self.belief.theta + self.sd * self.sd / 2, 40.0))

    @property
    def cost_ppm(self) -> int:
        """Expected cost of an inference with start-up, in millionths of the CPU path's latency."""
        return round((self.expected + self.stakes.share) * MICRO)

    @property
    def at_ns(self) -> int:
        """Typical latency on the GPU at the policy's percentile."""
        return round(self.stakes.cpu_ns * exp(self.belief.theta))

    def speedup(self, deviations: float = 0.0) -> float:
        """Return how many times as fast as the CPU path, so many standard deviations off."""
        return exp(-self.belief.theta + deviations * self.sd)

    def pays_from(self) -> int | None:
        """Return from how many inferences the GPU is worth its start-up; None if never."""
        gain = 1000 / self.rule.speedup_milli - self.expected
        if gain <= 0:
            return None
        # Past that number the harm of start-up is gone as well, or caution rules it out for good.
        return max(int(self.stakes.startup_ns / (gain * self.stakes.cpu_ns)) + 1, 1)

    def turns_at_ns(self) -> int | None:
        """Return the latency on the GPU at which the choice turns; None if there is none.

        With the same uncertainty: below it the GPU is taken, from it on the CPU is.
        """
        k, limit = break_even(self.stakes, self.rule), HARM - self.stakes.share
        if k <= 0 or limit <= 0:
            return None
        sd = self.sd
        caution = min(max(self.rule.alpha_ppm / MICRO, 1e-6), 1 - 1e-6)
        theta = min(ln(k) - sd * sd / 2, ln(limit) + sd * quantile(caution))
        return round(self.stakes.cpu_ns * exp(theta))


def assess(candidate: Evidence, cpu: Evidence, policy: Policy) -> Assessment | None:
    """Weigh a GPU against the CPU path; None where one of them has no prediction."""
    if candidate.prediction is None or cpu.prediction is None:
        return None
    trial = begin(candidate, cpu, policy)
    if candidate.runs:
        pairs = ((run.alternative, run.ns) for run in candidate.runs)
        trial = replayed(pairs, trial.before, trial.stakes, trial.rule, trial.noise,
                         tail_milli=trial.tail_milli)  # fmt: skip
    predicted = _predicted(candidate.prediction, cpu.prediction)
    return Assessment(
        predicted, trial.before, trial.belief, trial.stakes, trial.rule, trial.noise, trial.verdict,
        trial.seen, trial.stop,
    )  # fmt: skip


def begin(
    candidate: Evidence, cpu: Evidence, policy: Policy, budget_ns: int = BUDGET_NS
) -> Trial:  # fmt: skip
    """Return the trial of a GPU, not yet begun. Both need predictions.

    Raises
    ------
    ValueError
        One of them has none.
    """
    gpu, host = candidate.prediction, cpu.prediction
    if gpu is None or host is None:
        raise ValueError(f"{candidate.device} cannot be tried without predictions")
    belief = candidate.belief or _predicted(gpu, host)
    rule = Rule(alpha_ppm=policy.caution_ppm, speedup_milli=policy.speedup_milli)
    base = host.at_ns if candidate.base_ns is None else candidate.base_ns
    startup = gpu.startup_ns if candidate.startup_ns is None else candidate.startup_ns
    stakes = CostContext(max(base, 1), startup, policy.inferences)
    tail = host.at_ns * 1000 // host.p50_ns if host.p50_ns > 0 else 1000
    return Trial(belief, stakes, rule, NOISE(policy.percentile), budget_ns, tail_milli=tail)


def with_correlated(
    found: Sequence[Assessment | None], candidates: Sequence[Evidence]
) -> Assessments:
    """Return assessments in which routes to one device have learned from each other.

    A route that was never measured shares in what the measured one surprised with.
    """
    made = list(found)
    for i, (candidate, weighed) in enumerate(zip(candidates, found, strict=True)):
        if weighed is None or weighed.belief.windows or not candidate.physical:
            continue
        for rival, known in zip(candidates, found, strict=True):
            is_correlated = rival.physical == candidate.physical and rival is not candidate
            if not is_correlated or known is None or not known.belief.windows:
                continue
            belief = share_surprise(weighed.belief, known.predicted, known.belief)
            made[i] = _weighed_by(weighed, belief, known)
            break
    return tuple(made)


def _weighed_by(weighed: Assessment, belief: Belief, known: Assessment) -> Assessment:
    """Return an assessment with another belief, and the CPU path as `known` measured it."""
    stakes = replace(weighed.stakes, cpu_ns=known.stakes.cpu_ns)
    verdict = weigh(belief, stakes, weighed.rule, weighed.noise)
    return replace(weighed, belief=belief, stakes=stakes, verdict=verdict)


def _predicted(gpu: Prediction | None, host: Prediction | None) -> Belief:
    if gpu is None or host is None:
        raise ValueError("nothing is believed without predictions")
    factor = exp(max(gpu.sigma_micro, host.sigma_micro) / MICRO)
    return prior(gpu.at_ns, host.at_ns, factor)
