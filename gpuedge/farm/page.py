"""A report as one page of HTML that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuedge.conformance.templates import rendered
from gpuedge.core.text import counted, encoded
from gpuedge.farm.proposals import Proposal
from gpuedge.farm.report import DeviceResult, FarmReport, as_json
from gpuedge.safety.paths import save_named

if TYPE_CHECKING:
    from collections import Counter

SHOWN_CASES = 8
"""Cases that stand with a device, a regression or a proposal; the rest is counted."""


TEMPLATES = Path(__file__).with_name("templates")


def write(report: FarmReport, proposed: Sequence[Proposal], path: str) -> None:
    """Write the page. Raises InputError (GE-203) where it cannot be written."""
    latest = report.latest()
    tables = [one.by_operator() for one in latest]
    operators = sorted({op for table in tables for op in table})
    matrix = [(op, [_cell(table.get(op)) for table in tables]) for op in operators]
    text = rendered(
        TEMPLATES / "report.html.j2", "gpuedge farm report",
        report=report, counts=report.counts(), latest=latest, matrix=matrix,
        proposed=proposed, shown=SHOWN_CASES, percent=_percent, counted=counted,
        figures=as_json(report),
    )  # fmt: skip
    save_named(Path(path), encoded(text), "--output")


def _cell(counts: Counter[str] | None) -> tuple[str, str]:
    """Return the class and the text of an operator on a device: what did not pass comes first."""
    if not counts:
        return "none", "\u2013"
    done = counts["passed"] + counts["bad"]
    if counts["bad"]:
        return "bad", f"{counts['bad']} of {done} not passed"
    if not done:
        return "unsupported", "unsupported"
    return "good", f"{done}" + (f" (+{counts['unsupported']})" if counts["unsupported"] else "")


def _percent(result: DeviceResult) -> str:
    return f"{100 * result.coverage:.1f} %"
