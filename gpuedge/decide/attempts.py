"""What to time next so that a decision gets surer, and deciding again with what came out.

    if (attempt := next_attempt(decision)) is not None:
        ...open and compile on `attempt.device`...
        attempt.trial.started(nanoseconds)
        while (alternative := attempt.trial.next(now)) is not None:
            ...run it...
            attempt.trial.add(alternative, nanoseconds)
        decision = with_trial(decision, attempt.device, attempt.trial)

One GPU is tried in a launch: the one that is expected to cost least. Measuring two against the CPU
adds the errors of both windows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from gpuedge.decide.assess import Assessment, begin
from gpuedge.decide.belief import Belief, is_drawn
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.record import CPU, Evidence
from gpuedge.decide.rules import judge
from gpuedge.decide.store import MAX_WINDOWS
from gpuedge.decide.trial import BUDGET_NS, Trial


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trial that is worth its time, and why.

    Attributes
    ----------
    device : str
    trial : Trial
    why : {"unsettled", "unmeasured", "exploration"}
    """

    device: str
    trial: Trial
    why: str


def next_attempt(
    decision: Decision, *, skip: Collection[str] = (), budget_ns: int = BUDGET_NS
) -> Attempt | None:
    """Return the trial that this decision asks for; None where it is good as it is.

    Parameters
    ----------
    decision : Decision
    skip : collection of str
        Devices that are not to be tried now, such as those tried a moment ago.
    budget_ns : int
        Time that the trial may take.
    """
    record = decision.record
    if record.is_by_name or any(c.runs for c in record.candidates):
        return None
    found = judge(record)
    cpu = next((c for c in record.candidates if c.device == CPU), Evidence(CPU))
    ranked = sorted(
        (candidate.is_demoted, weighed.cost_ppm, i, _why(candidate, weighed))
        for i, (candidate, weighed) in enumerate(
            zip(record.candidates, found.assessments, strict=True)
        )
        if weighed is not None and candidate.device not in skip
    )
    for place, (_, _, i, why) in enumerate(ranked):
        # Only the best comes into question, but the random exploration draws any that was screened
        # out.
        if why and (place == 0 or why == "exploration"):
            candidate = record.candidates[i]
            return Attempt(candidate.device, begin(candidate, cpu, record.policy, budget_ns), why)
    return None


def _why(candidate: Evidence, weighed: Assessment) -> str:
    """Return why a candidate should be tried, empty if it should not."""
    if weighed.belief.windows >= MAX_WINDOWS or candidate.served:
        return ""
    if not weighed.verdict.is_settled:
        return "unsettled"
    if weighed.belief.windows:
        return ""
    # Settled by prediction alone: a GPU is not taken on that, and some others are tried at random.
    if weighed.verdict.use_gpu:
        return "unmeasured"
    return "exploration" if is_drawn(candidate.draw) else ""


def with_trial(decision: Decision, device: str, trial: Trial) -> Decision:
    """Decide again with the runs of a trial, and with the start-up it was told."""
    startup = trial.stakes.startup_ns
    return _with(decision, device, lambda c: replace(c, runs=trial.runs, startup_ns=startup))


def in_service(
    decision: Decision, device: str, belief: Belief, cpu_ns: int, served: int
) -> Decision:  # fmt: skip
    """Decide again with what watching a device in service came to believe.

    Parameters
    ----------
    decision : Decision
    device : str
    belief : Belief
        Of `gpuedge.decide.monitor.Monitor`.
    cpu_ns : int
        The CPU path's latency as it was served, at the policy's percentile.
    served : int
        Requests behind it, at least 1.
    """
    return _with(
        decision,
        device,
        lambda c: replace(c, belief=belief, base_ns=cpu_ns, runs=(), served=served),
    )


def outcome(decision: Decision, device: str) -> tuple[Belief, int] | None:
    """Return what to keep for the next launch: belief and the CPU path's latency."""
    found = judge(decision.record).assessments
    for candidate, weighed in zip(decision.record.candidates, found, strict=True):
        if candidate.device == device and weighed is not None and weighed.belief.windows:
            return weighed.belief, weighed.stakes.cpu_ns
    return None


def _with(decision: Decision, device: str, change: Callable[[Evidence], Evidence]) -> Decision:
    candidates = tuple(change(c) if c.device == device else c for c in decision.record.candidates)
    return decide(replace(decision.record, candidates=candidates))
