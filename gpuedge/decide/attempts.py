"""What to time next so that a decision gets surer, and deciding again with what came out.

    if (attempt := next_attempt(decision)) is not None:
        ...open and compile on `attempt.device`...
        attempt.trial.started(nanoseconds)
        while (arm := attempt.trial.next(now)) is not None:
            ...run it...
            attempt.trial.add(arm, nanoseconds)
        decision = with_trial(decision, attempt.device, attempt.trial)

One GPU is tried in a launch: the one that is expected to cost least. Measuring two against the CPU
adds the errors of both windows; where two roads to one device are close, a trial of one against the
other (arms ``cpu`` and ``gpu`` stand for the two then) shows more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from gpuedge.decide import audit
from gpuedge.decide.assess import Assessment, begin, begin_duel
from gpuedge.decide.belief import Belief
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.kin import DUEL_NS, is_close
from gpuedge.decide.record import CPU, Evidence
from gpuedge.decide.rules import judge
from gpuedge.decide.trial import BUDGET_NS, Trial
from gpuedge.decide.visits import MAX_VISITS


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trial that is worth its time, and why.

    Attributes
    ----------
    device : str
    trial : Trial
    why : {"unsettled", "unmeasured", "audit", "duel"}
    rival : str
        The device it is timed against where that is not the CPU path.
    """

    device: str
    trial: Trial
    why: str
    rival: str = CPU


def next_attempt(
    decision: Decision, *, skip: Collection[str] = (), budget_ns: int = BUDGET_NS
) -> Attempt | None:
    """Return the trial that this decision asks for; None where it is good as it is.

    Parameters
    ----------
    decision : Decision
    skip : collection of str
        Devices that are not to be tried now, such as those visited a moment ago.
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
        # Only the best comes into question, but the audit draws any that was screened out.
        if why and (place == 0 or why == "audit"):
            candidate = record.candidates[i]
            return Attempt(candidate.device, begin(candidate, cpu, record.policy, budget_ns), why)
    return None


def _why(candidate: Evidence, weighed: Assessment) -> str:
    """Return why a candidate should be tried, empty if it should not."""
    if weighed.belief.visits >= MAX_VISITS or candidate.served:
        return ""
    if not weighed.verdict.is_settled:
        return "unsettled"
    if weighed.belief.visits:
        return ""
    # Settled by prediction alone: a GPU is not taken on that, and some others are audited.
    if weighed.verdict.use_gpu:
        return "unmeasured"
    return "audit" if audit.is_drawn(candidate.audit) else ""


def next_duel(
    decision: Decision, *, skip: Collection[str] = (), budget_ns: int = DUEL_NS
) -> Attempt | None:
    """Return the trial of another road to the chosen device against the chosen one.

    It is worth its time where the chosen road was measured and the other one, which was not, may
    be the better one. Both must be open.
    """
    record = decision.record
    if record.is_by_name or any(c.duel for c in record.candidates):
        return None
    found = judge(record)
    best = found.best
    mine = None if best is None else found.assessments[best]
    if best is None or mine is None or not mine.belief.visits:
        return None
    chosen = record.candidates[best]
    close = [
        (weighed.cost_ppm, i)
        for i, (c, weighed) in enumerate(zip(record.candidates, found.assessments, strict=True))
        if weighed is not None and c.device not in skip and not weighed.belief.visits
        and c.physical and c.physical == chosen.physical and i != best
        and is_close(mine.cost_ppm, weighed.cost_ppm)
    ]  # fmt: skip
    if not close:
        return None
    _, place = min(close)
    other = found.assessments[place]
    if other is None:
        return None
    trial = begin_duel(mine, other, budget_ns)
    return Attempt(record.candidates[place].device, trial, "duel", chosen.device)


def with_duel(decision: Decision, attempt: Attempt, startup_ns: int) -> Decision:
    """Decide again with the runs of a duel, and what opening and compiling there took."""
    runs, rival = attempt.trial.runs, attempt.rival
    return _with(
        decision, attempt.device,
        lambda c: replace(c, rival=rival, duel=runs, startup_ns=startup_ns),
    )  # fmt: skip


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
        if candidate.device == device and weighed is not None and weighed.belief.visits:
            return weighed.belief, weighed.stakes.cpu_ns
    return None


def _with(decision: Decision, device: str, change: Callable[[Evidence], Evidence]) -> Decision:
    candidates = tuple(change(c) if c.device == device else c for c in decision.record.candidates)
    return decide(replace(decision.record, candidates=candidates))
