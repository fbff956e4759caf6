"""Saying a decision in words: a sentence first, then a table. Pure text, no terminal library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuedge.core import text
from gpuedge.decide import sureness, words
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import CPU, Evidence, Record
from gpuedge.decide.words import duration

if TYPE_CHECKING:
    from gpuedge.decide.assess import Assessment
    from gpuedge.decide.decision import CandidateRow, Decision

TITLES = ("device", "verdict", "code", "p50", "at", "range of p50", "start-up", "reason")

_CLOSENESS = (
    "kept", "run-failed", "compile-failed", "unsure", "measured-slower", "slower", "more-energy",
    "misses-deadline", "too-much-memory", "deadline", "open-failed", "not-calibrated",
    "unsupported-op", "software", "other-road",
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
    gpu: Evidence, cpu: Evidence, weighed: Assessment, record: Record, *, is_kept: bool
) -> str:
    """Say why a GPU was chosen: what decided, the figures, and whatever speaks against it."""
    policy = record.policy
    text = words.speedup(weighed, policy, cpu_at(cpu, weighed))
    if is_kept:
        text = f"{words.kept(gpu.device, _saved(weighed))}; {text}"
    elif policy.prefer == "energy" and gpu.energy_uj is not None and cpu.energy_uj is not None:
        text = f"it uses less energy, {words.energy(gpu.energy_uj, cpu.energy_uj)}; {text}"
    elif policy.deadline_ns is not None and not weighed.verdict.use_gpu:
        text = f"the CPU path misses the deadline of {duration(policy.deadline_ns)}; {text}"
    if gpu.is_demoted:
        text += "; demoted by the capability database, but nothing else is fast enough"
    return text


def cpu_at(cpu: Evidence, weighed: Assessment) -> int:
    """Return the CPU path's latency at the percentile: measured if it was, else predicted."""
    if weighed.belief.visits or cpu.prediction is None:
        return weighed.stakes.cpu_ns
    return cpu.prediction.at_ns


def _saved(weighed: Assessment) -> int:
    return abs(weighed.verdict.loss_gpu_ppm - weighed.verdict.loss_cpu_ppm)


def roads(best: int, rows: Sequence[CandidateRow], record: Record) -> str:
    """Say why the chosen device is reached by this road, empty where it is the only one.

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
        return f"; {first.device}, the better road to this device, was left out: {first.reason}"
    if not same:
        return ""
    names = [rows[i].device for i in same]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
    return f"; the best road to this device, before {listed}"


def why_cpu(rows: Sequence[CandidateRow], record: Record) -> str:
    """Return the sentence for a decision that keeps the CPU."""
    gpus = [r for r in rows if r.device != CPU]
    if not gpus:
        return "Runs on cpu: no GPU driver was found."
    bare = sum(r.code == "no-device" for r in gpus)
    if bare == len(gpus) > 1:
        return f"Runs on cpu: none of {bare} drivers offers a device here."
    order = {code: i for i, code in enumerate(_CLOSENESS)}
    is_aside = not record.policy.allow_software and not record.is_by_name

    def distance(row: CandidateRow) -> tuple[bool, int]:
        # A rasteriser would have been left aside, whatever else is the matter with this road to it.
        code = "software" if row.is_software and is_aside else row.code
        return row.code in _ABSENT, order.get(code, len(order))

    nearest = min(gpus, key=distance)
    label = f"{nearest.device} ({nearest.name})" if nearest.name else nearest.device
    if nearest.code == "software":
        why = f"{label} is a software rasteriser, which is never faster than the CPU path"
    elif nearest.code in ("slower", "unsure"):
        why = f"{label} is {nearest.reason}"
    elif nearest.code == "measured-slower" and nearest.belief is not None:
        why = f"{label} was {nearest.reason}"
    elif nearest.code == "measured-slower":
        why = f"{label} was measured on this model and left out: {nearest.reason}"
    else:
        why = f"{label} was left out: {nearest.reason}"
    return f"Runs on cpu: {why}{_others(nearest, gpus, record)}."


def _others(nearest: CandidateRow, gpus: Sequence[CandidateRow], record: Record) -> str:
    """Say how many other candidates were rejected; all roads to one device are one candidate."""
    physical = {c.device: c.physical for c in record.candidates}
    rest = [r for r in gpus if r is not nearest and r.code not in _ABSENT]
    apart = {physical.get(r.device) or i for i, r in enumerate(rest)}
    others = len(apart - {physical.get(nearest.device)})
    if not others:
        return ""
    verb = "was" if others == 1 else "were"
    return f"; {text.counted(others, 'other candidate')} {verb} rejected too"


def _cells(decision: Decision) -> list[tuple[str, ...]]:
    """Return the titles and a row for each candidate that has something to offer."""
    titles = list(TITLES)
    titles[titles.index("at")] = f"p{decision.percentile}"
    cells = [tuple(titles)]
    for row in decision.rows:
        if row.code in _NOTHING:
            continue
        known = row.prediction
        times = ("-",) * 4
        if known is not None:
            interval = f"{duration(known.low_ns)} - {duration(known.high_ns)}"
            times = (duration(known.p50_ns), duration(known.at_ns), interval,
                     duration(known.startup_ns))  # fmt: skip
        cells.append((row.device, row.status, row.code, *times, row.reason))
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
    lines = [*text.table(_cells(decision)), *_without_device(decision)]
    return "\n".join([decision.reason, "", *lines, "", *_footer(decision)])


def _footer(decision: Decision) -> list[str]:
    policy = decision.policy
    # A wish: what a device really keeps is in the rows of the placement, and decided after this.
    wish = f", {policy.storage} storage asked for (exact where a device does not offer it)"
    rule = _rule(policy)
    if decision.record.is_by_name:
        rule = "chooses nothing where a device is asked for by name"
    lines = [f"policy: {rule}{'' if policy.storage == 'float32' else wish}"]
    if policy.prefer == "energy" and not decision.record.is_by_name:
        lines += _energy(decision.record)
    if decision.calibration:
        lines.append(f"calibration: {decision.calibration}")
    return [*lines, *sureness.machine(decision.record), *sureness.lines(decision)]


def _rule(policy: Policy) -> str:
    rule = (
        f"at least {policy.min_speedup:g}x as fast at p{policy.percentile}, start-up over "
        f"{text.counted(policy.inferences, 'inference')}, software rasterisers "
        f"{'allowed' if policy.allow_software else 'left aside'}"
    )
    if policy.deadline_ns is not None:
        rule += f", every inference within {duration(policy.deadline_ns)}"
    if policy.max_memory_bytes is not None:
        rule += f", at most {words.size(policy.max_memory_bytes)} of device memory"
    return rule


def _energy(record: Record) -> list[str]:
    """Say what energy decided, or that it could not."""
    metered = [c.device for c in record.candidates if c.energy_uj is not None]
    if CPU in metered and len(metered) > 1:
        return [f"energy: decides, as metered on {', '.join(metered)}"]
    return ["energy: wanted, but not metered on both the CPU and a GPU, so latency decides"]


def as_html(decision: Decision) -> str:
    """Return the same as an HTML fragment for notebooks; everything is escaped."""
    from html import escape

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    head, *body = _cells(decision)
    table = row(head, "th") + "".join(row(cells, "td") for cells in body)
    lines = [*_without_device(decision), *_footer(decision)]
    footer = "<br>".join(escape(line) for line in lines)
    return f"<p>{escape(decision.reason)}</p><table>{table}</table><p>{footer}</p>"
