"""How sure a decision is: prior against measurement, losses, break-even, what would turn it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuedge.core import text
from gpuedge.decide import words
from gpuedge.decide.assess import Assessment
from gpuedge.decide.belief import MICRO
from gpuedge.decide.exact import exp, root
from gpuedge.decide.record import AUTO, Evidence, Record
from gpuedge.decide.rules import judge

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision

_STOPS = {
    "settled": "it was sure enough",
    "enough": "more of the same window would show nothing new",
    "time": "the time was up",
    "runs": "the runs were used up",
}


def machine(record: Record) -> list[str]:
    """Return what the database and the machine were at the time, as far as is known."""
    lines = []
    if record.database:
        lines.append(f"capability database: {record.database}")
    now = record.conditions
    known = [
        None if now.load_milli is None else f"load {now.load_milli / 10:.3g} %",
        None if now.is_on_battery is None else "on battery" if now.is_on_battery else "on mains",
        None if now.battery_percent is None else f"battery at {now.battery_percent} %",
        None if now.thermal is None else f"thermal state {now.thermal}",
    ]
    told = [part for part in known if part is not None]
    return [*lines, *([f"machine: {', '.join(told)}"] if told else [])]


def lines(decision: Decision) -> list[str]:
    """Return some lines for each candidate with a prediction."""
    record = decision.record
    found = judge(record).assessments if record.asked == AUTO else (None,) * len(decision.rows)
    made: list[str] = []
    for row, candidate, weighed in zip(decision.rows, record.candidates, found, strict=True):
        if candidate.entries:
            made.append(f"{row.device}: entries in force: {', '.join(candidate.entries)}")
        if candidate.prediction is None:
            continue
        if weighed is None or row.verdict is None:
            made.append(f"{row.device}: {candidate.prediction.confidence}")
        else:
            made += _about(candidate, weighed, row.confidence)
    return made


def _about(candidate: Evidence, weighed: Assessment, label: str) -> list[str]:
    device = candidate.device
    verdict = weighed.verdict
    first = f"{device}: {label}"
    if not weighed.belief.visits and candidate.prediction is not None:
        first += f"; {candidate.prediction.confidence}"
    elif candidate.served:
        first += f", {text.counted(candidate.served, 'request')}"
    made = [f"{first}; {words.times(weighed.speedup())} as fast as the CPU path, "
            f"{words.interval(weighed)}"]  # fmt: skip
    made += _against_prior(device, candidate, weighed)
    made.append(
        f"{device}: expected loss {words.percent(verdict.loss_gpu_ppm)} if taken, "
        f"{words.percent(verdict.loss_cpu_ppm)} if not; more than a tenth slower than the CPU path "
        f"with a probability of {words.percent(verdict.harm_ppm)}"
    )
    made.append(f"{device}: {_break_even(weighed)}; {_turn(weighed)}")
    return made


def _against_prior(device: str, candidate: Evidence, weighed: Assessment) -> list[str]:
    """Return what was believed before against what this launch measured."""
    if weighed.seen is None:
        return []
    y, v = weighed.seen
    z = (y - weighed.before.theta) / root(weighed.before.var + round(v * MICRO))
    before = "earlier windows said" if weighed.before.visits else "the model predicted"
    kept = sum(run.kept for run in candidate.runs)
    cold = len(candidate.runs) - kept
    seconds = sum(run.ns for run in candidate.runs)
    return [
        f"{device}: {before} {words.times(exp(-weighed.before.theta))}, measured "
        f"{words.times(exp(-y))} (z = {z:+.1f}); {text.counted(kept, 'run')} kept, {cold} dropped "
        f"in {words.duration(seconds)}, until {_STOPS[weighed.stop]}"
    ]


def _break_even(weighed: Assessment) -> str:
    pays = weighed.pays_from()
    if pays is None:
        return "does not pay however many inferences there are"
    return f"pays from {text.counted(pays, 'inference')}"


def _turn(weighed: Assessment) -> str:
    """Say what would turn the choice."""
    turn = weighed.turns_at_ns()
    if turn is None:
        return "start-up alone costs more than the CPU path, so no speed would make it worth taking"
    at = words.duration(turn)
    if weighed.verdict.use_gpu:
        return f"as sure as this, it would be left from {at} per inference"
    return f"as sure as this, it would be taken below {at} per inference"
