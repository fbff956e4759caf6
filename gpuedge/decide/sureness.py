"""How sure a decision is: prior against measurement, losses, break-even, what would turn it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuedge.core import text
from gpuedge.decide import words
from gpuedge.decide.assess import Assessment
from gpuedge.decide.belief import MICRO
from gpuedge.decide.exact import exp, root
from gpuedge.decide.figures import View, plain
from gpuedge.decide.record import Evidence, Record

if TYPE_CHECKING:
    from gpuedge.decide.decision import CandidateRow, Decision

_STOPS = {
    "settled": "until the choice was sure enough",
    "enough": "until more runs would have shown nothing new in this launch",
    "time": "until the time was up",
    "runs": "until it had as many runs as any trial may",
}

MOST_LOST = 100 * MICRO
"""Expected loss above which it is said in words, in millionths."""


def machine(record: Record) -> list[str]:
    """Return what the database and the machine were at the time, as far as is known."""
    lines = []
    if record.database:
        lines.append(f"capability database: {words.database(record.database)}")
    told = words.conditions(record.conditions.to_dict())
    return [*lines, *([f"machine: {told}"] if told else [])]


def lines(decision: Decision, seen: View) -> list[str]:
    """Return some lines for each candidate with a prediction."""
    made: list[str] = []
    for i, (row, candidate) in enumerate(
        zip(decision.rows, decision.record.candidates, strict=True)
    ):
        weighed = seen.assessment(i)
        if candidate.entries:
            made.append(f"{row.device}: entries in force: {', '.join(candidate.entries)}")
        if candidate.prediction is None:
            continue
        if weighed is not None and row.verdict is not None:
            made += _about(candidate, weighed, row, decision.percentile)
        elif seen.figures[i] == plain(candidate):
            made.append(f"{row.device}: {candidate.prediction.confidence}")
    return made


def _about(
    candidate: Evidence, weighed: Assessment, row: CandidateRow, percentile: int
) -> list[str]:
    device, verdict = candidate.device, weighed.verdict
    known = words.rests_on(row.confidence, candidate.served)
    first = f"{device}: {known}: {words.pace(weighed.speedup())} ({words.interval(weighed)})"
    if not weighed.belief.visits and candidate.prediction is not None:
        first += f"; {candidate.prediction.confidence}"
    return [
        first,
        *_against_prior(device, candidate, weighed),
        f"{device}: expected loss per inference: {_loss(verdict.loss_gpu_ppm)} the CPU path's time "
        f"if it is taken, {_loss(verdict.loss_cpu_ppm)} it if not; more than a tenth slower than "
        f"the CPU path with a probability of {words.percent(verdict.harm_ppm)}",
        f"{device}: {_turn(weighed, row, percentile)}",
    ]


def _loss(ppm: int) -> str:
    return "over 100 times" if ppm > MOST_LOST else f"{words.percent(ppm)} of"


def _against_prior(device: str, candidate: Evidence, weighed: Assessment) -> list[str]:
    """Return what was believed before against what this launch measured."""
    if weighed.seen is None:
        return []
    y, v = weighed.seen
    off = abs(y - weighed.before.theta) / root(weighed.before.var + round(v * MICRO))
    before = "earlier launches measured" if weighed.before.visits else "calibration predicted"
    kept = sum(run.kept for run in candidate.runs)
    cold = len(candidate.runs) - kept
    seconds = sum(run.ns for run in candidate.runs)
    return [
        f"{device}: timed on this model for {words.duration(seconds)}, "
        f"{_STOPS[weighed.stop]}: {text.counted(kept, 'run')} counted, {cold} dropped as cold; "
        f"{words.pace(exp(-y))} by these runs alone; {before} "
        f"{words.times(exp(-weighed.before.theta))}, {off:.1f} standard deviations away"
    ]


def _turn(weighed: Assessment, row: CandidateRow, percentile: int) -> str:
    """Say from how many inferences a GPU pays, and what would turn the choice."""
    pays, turn = weighed.pays_from(), weighed.turns_at_ns()
    spread = text.counted(weighed.stakes.inferences, "inference")
    if turn is None:
        return (
            f"start-up alone, {words.duration(weighed.stakes.startup_ns)}, outweighs {spread} on "
            f"the CPU path" + ("" if pays is None else f"; {_pays(pays)}")
        )
    at = f"{words.duration(turn)} at p{percentile}"
    is_taken = row.status == "selected"
    if is_taken and weighed.verdict.use_gpu:
        end = f"with as much doubt, the CPU path would be taken if this device needed over {at}"
    elif is_taken:
        end = f"by speed alone it would be taken only below {at}"
    elif weighed.verdict.use_gpu:
        end = f"by speed alone, it is better than the CPU path below {at}"
    else:
        end = f"with as much doubt, it would be taken if it needed less than {at}"
    return end if pays is None else f"{_pays(pays)}; {end}"


def _pays(pays: int) -> str:
    return f"start-up pays from {text.counted(pays, 'inference')} on"
