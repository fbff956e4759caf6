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
    "not-calibrated", "unsupported-op", "software",
)  # fmt: skip
"""Which rejection is told first: the candidate that came nearest to being used."""

_ABSENT = ("no-loader", "no-candidates", "no-device", "no-compute")
"""Codes of drivers that have nothing to offer here: they were never in the running."""


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
    nearest = min(gpus, key=lambda r: (r.code in _ABSENT, order.get(r.code, len(order))))
    label = f"{nearest.device} ({nearest.name})" if nearest.name else nearest.device
    if nearest.code == "software":
        why = f"{label} is a software rasteriser, which is never faster than the CPU path"
    elif nearest.code == "slower":
        why = f"{label} is {nearest.reason}"
    elif nearest.code == "measured-slower":
        why = f"{label} was measured on this model and left out: {nearest.reason}"
    else:
        why = f"{label} was left out: {nearest.reason}"
    others = sum(r.code not in _ABSENT for r in gpus if r is not nearest)
    if others:
        verb = "was" if others == 1 else "were"
        why += f"; {text.counted(others, 'other candidate')} {verb} rejected too"
    return f"Runs on cpu: {why}."


def _cells(decision: Decision) -> list[tuple[str, ...]]:
    """Return the titles and a row for each candidate, save drivers that offer no device."""
    titles = list(TITLES)
    titles[titles.index("at")] = f"p{decision.percentile}"
    cells = [tuple(titles)]
    for row in decision.rows:
        if row.code == "no-device":
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
    """Return one line that stands for all drivers that offer no device, if there are any."""
    count = sum(row.code == "no-device" for row in decision.rows)
    return [f"{text.counted(count, 'driver')} without a device"] if count else []


def as_text(decision: Decision) -> str:
    """Return the reason, a table as wide as the terminal, and how the numbers came about."""
    lines = [*text.table(_cells(decision)), *_without_device(decision)]
    return "\n".join([decision.reason, "", *lines, "", *_footer(decision)])


def _footer(decision: Decision) -> list[str]:
    policy = decision.policy
    lines = [
        f"policy: at least {policy.min_speedup:g}x as fast at p{policy.percentile}, start-up over "
        f"{text.counted(policy.inferences, 'inference')}, software rasterisers "
        f"{'allowed' if policy.allow_software else 'left aside'}"
    ]
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
