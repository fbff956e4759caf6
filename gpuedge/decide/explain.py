"""Saying a decision in words: a sentence first, then a table. Pure text, no terminal library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import CPU, Evidence, Record

if TYPE_CHECKING:
    from gpuedge.decide.decision import CandidateRow, Decision

TITLES = ("device", "verdict", "code", "p50", "at", "range of p50", "start-up", "reason")

_CLOSENESS = (
    "run-failed", "compile-failed", "slower", "deadline", "open-failed", "not-calibrated",
    "unsupported-op", "software",
)  # fmt: skip
"""Which rejection is told first: the candidate that came nearest to being used."""


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
    plural = "" if policy.inferences == 1 else "s"
    return f"{duration(startup)} of start-up spread over {policy.inferences} inference{plural}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.2g}x"


def why_cpu(rows: Sequence[CandidateRow], record: Record) -> str:
    """Return the sentence for a decision that keeps the CPU."""
    gpus = [r for r in rows if r.device != CPU]
    if not gpus:
        return "Runs on cpu: no GPU driver was found."
    order = {code: i for i, code in enumerate(_CLOSENESS)}
    nearest = min(gpus, key=lambda r: order.get(r.code, len(order)))
    label = f"{nearest.device} ({nearest.name})" if nearest.name else nearest.device
    if nearest.code == "software":
        text = f"{label} is a software rasteriser, which is never faster than the CPU path"
    elif nearest.code == "slower":
        text = f"{label} is {nearest.reason}"
    else:
        text = f"{label} was left out: {nearest.reason}"
    if len(gpus) > 1:
        others = len(gpus) - 1
        text += f"; {others} other candidate{'s were' if others > 1 else ' was'} rejected too"
    return f"Runs on cpu: {text}."


def _cells(decision: Decision) -> list[tuple[str, ...]]:
    titles = list(TITLES)
    titles[titles.index("at")] = f"p{decision.percentile}"
    cells = [tuple(titles)]
    for row in decision.rows:
        known = row.prediction
        times = ("-",) * 4
        if known is not None:
            interval = f"{duration(known.low_ns)} - {duration(known.high_ns)}"
            times = (duration(known.p50_ns), duration(known.at_ns), interval,
                     duration(known.startup_ns))  # fmt: skip
        cells.append((row.device, row.status, row.code, *times, row.reason))
    return cells


def as_text(decision: Decision) -> str:
    """Return the reason, an aligned table, and how the numbers came about."""
    cells = _cells(decision)
    widths = [max(len(row[i]) for row in cells) for i in range(len(TITLES) - 1)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    ]
    return "\n".join([decision.reason, "", *lines, *_footer(decision)])


def _footer(decision: Decision) -> list[str]:
    policy = decision.policy
    lines = [
        f"policy: at least {policy.min_speedup:g}x as fast at p{policy.percentile}, start-up over "
        f"{policy.inferences} inferences, software rasterisers "
        f"{'allowed' if policy.allow_software else 'left aside'}"
    ]
    if decision.calibration:
        lines.append(f"calibration: {decision.calibration}")
    for row in decision.rows:
        if row.prediction is not None:
            lines.append(f"{row.device}: {row.prediction.confidence}")
    return ["", *lines]


def as_html(decision: Decision) -> str:
    """Return the same as an HTML fragment for notebooks; everything is escaped."""
    from html import escape

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    head, *body = _cells(decision)
    table = row(head, "th") + "".join(row(cells, "td") for cells in body)
    footer = "<br>".join(escape(line) for line in _footer(decision)[1:])
    return f"<p>{escape(decision.reason)}</p><table>{table}</table><p>{footer}</p>"
