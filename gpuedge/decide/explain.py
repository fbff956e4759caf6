"""Saying a decision in words: a sentence first, then a table. Pure text, no terminal library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuedge.core import text
from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import CPU, Evidence, Record

if TYPE_CHECKING:
    from gpuedge.decide.decision import CandidateRow, Decision

TITLES = ("device", "verdict", "code", "p50", "at", "range of p50", "start-up", "reason")

_CLOSENESS = (
    "run-failed", "compile-failed", "measured-slower", "slower", "deadline", "open-failed",
    "not-calibrated", "unsupported-op", "software", "other-road",
)  # fmt: skip
"""Which rejection is told first: the candidate that came nearest to being used."""

_NOTHING = {
    "no-device": ("driver", "without a device"),
    "no-candidates": ("API", "without a driver"),
}
"""Codes that are counted instead of listed, and how the count is said."""

_ABSENT = ("no-loader", "no-candidates", "no-device", "no-compute", "not-named")
"""Codes of what was never in the running: drivers without a device, and devices not asked for."""


def duration(ns: int) -> str:
    """Return nanoseconds as text with three significant digits: ``850 ns``, ``1.25 ms``, ``2 s``.

    >>> duration(1_250_000), duration(999_999), duration(61_000_000_000)
    ('1.25 ms', '1 ms', '61 s')
    """
    for unit, size in (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)):
        value = float(f"{ns / size:.3g}")
        if value < 1000 or unit == "s":
            break
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def sentence(code: str, detail: str = "") -> str:
    """Return a code's sentence, or the more specific `detail` where there is one."""
    return detail.rstrip(". ") or SENTENCES[code]


def runs_on(candidate: Evidence) -> str:
    """Return the start of the first sentence."""
    return f"Runs on {candidate.label}"


def speedup(gpu: Evidence, cpu: Evidence, policy: Policy) -> str:
    """Say how much faster the chosen GPU is predicted to be. Both must have predictions."""
    if gpu.prediction is None or cpu.prediction is None:
        return SENTENCES["selected"]
    total = gpu.prediction.at_ns * policy.inferences + gpu.prediction.startup_ns
    ratio = cpu.prediction.at_ns * policy.inferences / max(total, 1)
    return (
        f"predicted {_times(ratio)} as fast as the CPU path at p{policy.percentile}, "
        f"{duration(gpu.prediction.at_ns)} against {duration(cpu.prediction.at_ns)}, with "
        f"{_startup(gpu, policy)}"
    )


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


def comparison(gpu: Evidence, cpu: Evidence, policy: Policy) -> str:
    """Say why a GPU with a prediction is not worth it."""
    if gpu.prediction is None or cpu.prediction is None:
        return SENTENCES["slower"]
    return (
        f"predicted {duration(gpu.prediction.at_ns)} at p{policy.percentile} with "
        f"{_startup(gpu, policy)}, against {duration(cpu.prediction.at_ns)} on the CPU path; "
        f"{policy.min_speedup:g}x as fast is asked for"
    )


def _startup(gpu: Evidence, policy: Policy) -> str:
    startup = gpu.prediction.startup_ns if gpu.prediction else 0
    spread = text.counted(policy.inferences, "inference")
    return f"{duration(startup)} of start-up spread over {spread}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.2g}x"


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
    elif nearest.code == "slower":
        why = f"{label} is {nearest.reason}"
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
    rule = (
        f"at least {policy.min_speedup:g}x as fast at p{policy.percentile}, start-up over "
        f"{text.counted(policy.inferences, 'inference')}, software rasterisers "
        f"{'allowed' if policy.allow_software else 'left aside'}"
    )
    if decision.record.is_by_name:
        rule = "chooses nothing where a device is asked for by name"
    lines = [f"policy: {rule}{'' if policy.storage == 'float32' else wish}"]
    if decision.calibration:
        lines.append(f"calibration: {decision.calibration}")
    for row in decision.rows:
        if row.prediction is not None:
            lines.append(f"{row.device}: {row.prediction.confidence}")
    return lines


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
