"""Saying a decision in words: a sentence, a table, and how sure it is. Pure, no terminal library.

Figures come from what was weighed: of one candidate they may be predicted, or measured in this
launch, an earlier one or in service, and the table says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from gpuedge.core import text
from gpuedge.core.reasons import SENTENCES
from gpuedge.decide import words
from gpuedge.decide.assess import Assessment
from gpuedge.decide.belief import MICRO
from gpuedge.decide.exact import exp, root
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import AUTO, CPU, Evidence, Record
from gpuedge.decide.rules import RuleOutcome, judge
from gpuedge.decide.words import duration

if TYPE_CHECKING:
    from gpuedge.decide.assess import Assessment
    from gpuedge.decide.decision import CandidateRow, Decision
    from gpuedge.decide.rules import RuleOutcome

PREDICTED = "predicted"
MEASURED = "measured"
EARLIER = "earlier launch"
SERVICE = "in service"


@dataclass(frozen=True, slots=True)
class Figure:
    """The latency that a choice rests on.

    Attributes
    ----------
    at_ns : int
        At the policy's percentile.
    startup_ns : int
        What opening and compiling take once.
    source : {"predicted", "measured", "earlier launch", "in service"}
    """

    at_ns: int
    startup_ns: int
    source: str


@dataclass(frozen=True, slots=True)
class View:
    """A decision's evidence as it is explained.

    Attributes
    ----------
    found : RuleOutcome or None
        What the rules found, None where a device was asked for by name.
    figures : tuple of Figure or None
        By position in the record; None where nothing was predicted.
    """

    found: RuleOutcome | None
    figures: tuple[Figure | None, ...]

    def assessment(self, i: int) -> Assessment | None:
        """Return how a candidate was weighed, None if it was not."""
        return None if self.found is None else self.found.assessments[i]


def view(record: Record) -> View:
    """Return what a decision is explained with."""
    if record.asked != AUTO:
        return View(None, tuple(_before(c) for c in record.candidates))
    found = judge(record)
    pairs = zip(record.candidates, found.assessments, strict=True)
    made = [_weighed(c, w) for c, w in pairs]
    for i, candidate in enumerate(record.candidates):
        if candidate.device == CPU:
            made[i] = _cpu(candidate, found, made)
    return View(found, tuple(made))


def _before(candidate: Evidence) -> Figure | None:
    """Return a candidate's figure as it was before any window of measurements."""
    known = candidate.prediction
    if known is None:
        return None
    source = MEASURED if known.confidence == words.TIMED else PREDICTED
    return Figure(known.at_ns, known.startup_ns, source)


def _weighed(candidate: Evidence, weighed: Assessment | None) -> Figure | None:
    if weighed is None:
        return _before(candidate)
    source = PREDICTED
    if weighed.belief.windows:
        is_new = weighed.seen is not None
        source = SERVICE if candidate.served else MEASURED if is_new else EARLIER
    return Figure(weighed.at_ns, weighed.stakes.startup_ns, source)


def _cpu(cpu: Evidence, found: RuleOutcome, made: list[Figure | None]) -> Figure | None:
    """Return the CPU path's figure: from the window that measured it, if one did."""
    before = _before(cpu)
    if before is None or found.cpu_at_ns is None:
        return before
    for i in (found.best, *range(len(made))):
        weighed = None if i is None else found.assessments[i]
        figure = None if i is None else made[i]
        if weighed is not None and figure is not None and weighed.belief.windows:
            return Figure(found.cpu_at_ns, before.startup_ns, figure.source)
    return before


TITLES = ("device", "verdict", "code", "at", "from", "start-up", "reason")

_CLOSENESS = (
    "kept", "run-failed", "compile-failed", "unsure", "measured-slower", "slower", "more-energy",
    "misses-deadline", "too-much-memory", "deadline", "open-failed", "not-calibrated",
    "unsupported-op", "software", "other-route",
)  # fmt: skip
"""Which rejection is told first: the candidate that came nearest to being used."""

_NOTHING = {
    "no-device": ("driver", "without a device"),
    "no-candidates": ("API", "without a driver"),
}
"""Codes that are counted instead of listed, and how the count is said."""

_ABSENT = ("no-loader", "no-candidates", "no-device", "no-compute", "not-named")
"""Codes of what was never in the running: drivers without a device, and devices not asked for."""


def runs_on(candidate: Evidence) -> str:
    """Return the start of the first sentence."""
    return f"Runs on {candidate.label}"


def selected(
    gpu: Evidence, cpu: Evidence, weighed: Assessment, record: Record, found: RuleOutcome
) -> str:
    """Say why a GPU was chosen: what decided, the figures, and whatever speaks against it."""
    policy = record.policy
    text = words.speedup(weighed, policy, found.cpu_at_ns or weighed.stakes.cpu_ns)
    if found.is_kept:
        text = f"{words.kept(gpu.device, _saved(weighed))}; {text}"
    elif policy.deadline_ns is not None and found.is_by_deadline:
        limit = duration(policy.deadline_ns)
        if weighed.at_ns <= policy.deadline_ns:
            text = f"the CPU path misses the deadline of {limit}, and this device meets it; {text}"
        else:
            text = f"nothing meets the deadline of {limit}, and this device is the fastest; {text}"
    elif is_by_energy(gpu, cpu, policy):
        text = f"it uses less energy, {_energy_of(gpu, cpu)}; {text}"
    if gpu.is_demoted:
        text += "; demoted by the capability database, but nothing else is fast enough"
    return text


def is_by_energy(gpu: Evidence, cpu: Evidence, policy: Policy) -> bool:
    """Say whether energy decides about a GPU: wanted, and metered on both."""
    is_metered = gpu.energy_uj is not None and cpu.energy_uj is not None
    return policy.prefer == "energy" and is_metered


def _energy_of(gpu: Evidence, cpu: Evidence) -> str:
    return words.energy(gpu.energy_uj or 0, cpu.energy_uj or 0)


def beside(gpu: Evidence, cpu: Evidence, record: Record, found: RuleOutcome) -> tuple[str, str]:
    """Return code and reason of the CPU path's row where a GPU was chosen."""
    weighed = None if found.best is None else found.assessments[found.best]
    limit, at = record.policy.deadline_ns, found.cpu_at_ns
    if found.is_kept:
        return "not-best", f"an earlier launch chose {gpu.device}, which is about as good or better"
    if found.is_by_deadline and limit is not None and at is not None:
        return "misses-deadline", words.deadline(at, limit)
    if is_by_energy(gpu, cpu, record.policy):
        return "not-best", f"{gpu.device} uses less energy"
    if weighed is not None and weighed.belief.windows:
        return "not-best", f"{gpu.device} was measured to be faster"
    return "not-best", f"{gpu.device} is predicted to be faster"


def behind(gpu: Evidence, cpu: Evidence, record: Record, found: RuleOutcome) -> str:
    """Return the reason of a GPU's row that is good enough, where `gpu` was chosen."""
    if found.is_kept:
        return f"not clearly better than {gpu.device}, which an earlier launch chose"
    if not found.is_by_deadline and is_by_energy(gpu, cpu, record.policy):
        return f"{gpu.device} uses less energy"
    return f"{gpu.device} is expected to take less time, doubt and start-up included"


def _saved(weighed: Assessment) -> int:
    return abs(weighed.verdict.loss_gpu_ppm - weighed.verdict.loss_cpu_ppm)


def routes(best: int, rows: Sequence[CandidateRow], record: Record) -> str:
    """Say why the chosen device is reached by this route, empty where it is the only one.

    `best` is the position of the chosen candidate.
    """
    chosen = record.candidates[best]
    same = [
        i
        for i, c in enumerate(record.candidates)
        if c.physical and c.physical == chosen.physical and i != best
    ]
    better = [rows[i] for i in same if i < best]
    if better:
        first = better[0]
        return (
            f"; {first.device}, the better API route to this device, was left out: {first.reason}"
        )
    if not same:
        return ""
    names = [rows[i].device for i in same]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
    return f"; the best route to this device, before {listed}"


def why_cpu(rows: Sequence[CandidateRow], record: Record, found: RuleOutcome) -> str:
    """Return the sentence for a decision that keeps the CPU."""
    return f"Runs on cpu: {_why_cpu(rows, record)}{_in_time(rows, record, found)}."


def _in_time(rows: Sequence[CandidateRow], record: Record, found: RuleOutcome) -> str:
    """Say how the CPU path stands to the deadline where it was chosen."""
    if record.policy.deadline_ns is None or record.is_by_name:
        return ""
    limit = f"the deadline of {duration(record.policy.deadline_ns)}"
    if found.cpu_at_ns is None:
        return f"; whether the CPU path meets {limit} is not known, as nothing was measured"
    at = duration(found.cpu_at_ns)
    if not found.is_by_deadline:
        is_late = any(r.code == "misses-deadline" for r in rows)
        return f"; the CPU path meets {limit}, with {at}" if is_late else ""
    if any(found.assessments):
        return f"; nothing meets {limit}, and the CPU path is the fastest, with {at}"
    return f"; the CPU path misses {limit}, with {at}, but nothing else came into question"


def _why_cpu(rows: Sequence[CandidateRow], record: Record) -> str:
    gpus = [r for r in rows if r.device != CPU]
    if not gpus:
        return "no GPU driver was found"
    bare = sum(r.code == "no-device" for r in gpus)
    if bare == len(gpus) > 1:
        return f"none of {bare} drivers offers a device here"
    order = {code: i for i, code in enumerate(_CLOSENESS)}
    is_aside = not record.policy.allow_software and not record.is_by_name

    def distance(row: CandidateRow) -> tuple[bool, int]:
        # A rasteriser would have been excluded, whatever else is the matter with this route to
        # it.
        code = "software" if row.is_software and is_aside else row.code
        return row.code in _ABSENT, order.get(code, len(order))

    nearest = min(gpus, key=distance)
    label = f"{nearest.device} ({nearest.name})" if nearest.name else nearest.device
    if nearest.code == "software":
        why = f"{label} is {SENTENCES['software']}"
    elif nearest.code in ("slower", "unsure"):
        why = f"{label} is {nearest.reason}"
    elif nearest.code == "measured-slower" and nearest.belief is not None:
        why = f"{label} was {nearest.reason}"
    elif nearest.code == "measured-slower":
        why = f"{label} was measured on this model and left out: {nearest.reason}"
    else:
        why = f"{label} was left out: {nearest.reason}"
    return f"{why}{_others(nearest, gpus, record)}"


def _others(nearest: CandidateRow, gpus: Sequence[CandidateRow], record: Record) -> str:
    """Say how many other candidates were rejected; all routes to one device are one candidate."""
    physical = {c.device: c.physical for c in record.candidates}
    rest = [r for r in gpus if r is not nearest and r.code not in _ABSENT]
    apart = {physical.get(r.device) or i for i, r in enumerate(rest)}
    others = len(apart - {physical.get(nearest.device)})
    if not others:
        return ""
    verb = "was" if others == 1 else "were"
    return f"; {text.counted(others, 'other candidate')} {verb} rejected too"


def _cells(decision: Decision, seen: View) -> list[tuple[str, ...]]:
    """Return the titles and a row for each candidate that has something to offer."""
    titles = list(TITLES)
    titles[titles.index("at")] = f"p{decision.percentile}"
    cells = [tuple(titles)]
    for row, figure in zip(decision.rows, seen.figures, strict=True):
        if row.code in _NOTHING:
            continue
        shown = ("-",) * 3
        if figure is not None:
            shown = duration(figure.at_ns), figure.source, duration(figure.startup_ns)
        cells.append((row.device, row.status, row.code, *shown, row.reason))
    return cells


def _without_device(decision: Decision) -> list[str]:
    """Return one line for all drivers that offer no device and all APIs that have no driver."""
    counts = {
        what: sum(row.code == code for row in decision.rows) for code, what in _NOTHING.items()
    }
    found = [f"{text.counted(count, what[0])} {what[1]}" for what, count in counts.items() if count]
    return [", ".join(found)] if found else []


def as_text(decision: Decision) -> str:
    """Return the reason, a table as wide as the terminal, and how the numbers came about."""
    seen = view(decision.record)
    lines = [*text.table(_cells(decision, seen)), *_without_device(decision)]
    return "\n".join([decision.reason, "", *lines, "", *_footer(decision, seen)])


def _footer(decision: Decision, seen: View) -> list[str]:
    policy, record = decision.policy, decision.record
    # A wish: what a device really keeps is in the rows of the placement, and decided after this.
    wish = f", {policy.storage} storage asked for (exact where a device does not offer it)"
    rule = _rule(policy)
    if record.is_by_name:
        rule = "not applied to the choice, as a device was asked for by name"
    lines = [f"policy: {rule}{'' if policy.storage == 'float32' else wish}"]
    if policy.deadline_ns is not None:
        lines.append(_deadline(policy.deadline_ns, decision, seen))
    if policy.prefer == "energy" and not record.is_by_name:
        lines += _energy(record)
    if decision.calibration:
        lines.append(f"calibration: {decision.calibration}")
    return [*lines, *_machine(record), *_sureness(decision, seen)]


def _rule(policy: Policy) -> str:
    """Return the policy: what always matters, and what is not at its default."""
    rule = (
        f"at least {policy.min_speedup:g}x as fast at p{policy.percentile}, start-up over "
        f"{text.counted(policy.inferences, 'inference')}, software rasterisers "
        f"{'allowed' if policy.allow_software else 'excluded'}"
    )
    if policy.deadline_ns is not None:
        rule += f", every inference within {duration(policy.deadline_ns)}"
    if policy.max_memory_bytes is not None:
        rule += f", at most {words.size(policy.max_memory_bytes)} of device memory"
    usual = Policy()
    if policy.caution != usual.caution:
        allowed = words.percent(policy.caution_ppm)
        rule += f", at most {allowed} probability of being over a tenth slower (caution)"
    if policy.calibration_s != usual.calibration_s:
        rule += f", {policy.calibration_s:g} s for calibration and trial"
    if policy.monitor != usual.monitor:
        rule += ", not watched in service"
    return rule


def _deadline(limit_ns: int, decision: Decision, seen: View) -> str:
    """Say which candidates meet the deadline, by the figures of the table."""
    policy = decision.policy
    start = f"deadline: {duration(limit_ns)} at p{policy.percentile}"
    if decision.record.is_by_name:
        return f"{start}, not checked, as a device was asked for by name"
    met: list[str] = []
    missed: list[str] = []
    for row, figure in zip(decision.rows, seen.figures, strict=True):
        if figure is not None:
            known = f"{row.device} ({figure.source} {duration(figure.at_ns)})"
            (met if figure.at_ns <= limit_ns else missed).append(known)
    if not met and not missed:
        return f"{start}, not checked: nothing was measured, as no GPU came into question"
    parts = [f"met by {', '.join(met)}" if met else "met by nothing"]
    if missed:
        parts.append(f"missed by {', '.join(missed)}")
    return f"{start}, {'; '.join(parts)}"


def _energy(record: Record) -> list[str]:
    """Say what energy decided, or that it could not."""
    metered = [c.device for c in record.candidates if c.energy_uj is not None]
    if CPU in metered and len(metered) > 1:
        return [f"energy: decides, as metered on {', '.join(metered)}"]
    return ["energy: wanted, but not metered on both the CPU and a GPU, so latency decides"]


def as_html(decision: Decision) -> str:
    """Return the same as an HTML fragment for notebooks; everything is escaped."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    seen = view(decision.record)
    head, *body = _cells(decision, seen)
    table = row(head, "th") + "".join(row(cells, "td") for cells in body)
    lines = [*_without_device(decision), *_footer(decision, seen)]
    footer = "<br>".join(escape(line) for line in lines)
    return f"<p>{escape(decision.reason)}</p><table>{table}</table><p>{footer}</p>"


_STOPS = {
    "settled": "until the choice was sure enough",
    "enough": "until more runs would have shown nothing new in this launch",
    "time": "until the time was up",
    "runs": "until it had as many runs as any trial may",
}

MOST_LOST = 100 * MICRO
"""Expected loss above which it is said in words, in millionths."""


def _machine(record: Record) -> list[str]:
    """Return what the database and the machine were at the time, as far as is known."""
    lines = []
    if record.database:
        lines.append(f"capability database: {words.database(record.database)}")
    known = words.conditions(record.conditions.to_dict())
    return [*lines, *([f"machine: {known}"] if known else [])]


def _sureness(decision: Decision, seen: View) -> list[str]:
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
        elif seen.figures[i] == _before(candidate):
            made.append(f"{row.device}: {candidate.prediction.confidence}")
    return made


def _about(
    candidate: Evidence, weighed: Assessment, row: CandidateRow, percentile: int
) -> list[str]:
    device, verdict = candidate.device, weighed.verdict
    known = words.rests_on(row.confidence, candidate.served)
    first = f"{device}: {known}: {words.pace(weighed.speedup())} ({words.interval(weighed)})"
    if not weighed.belief.windows and candidate.prediction is not None:
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
    before = "earlier launches measured" if weighed.before.windows else "calibration predicted"
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
