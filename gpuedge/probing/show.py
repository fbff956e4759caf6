"""How a probe report is told to people: routes to one device together, what is alike only once.

Plain text and plain data; the command line draws its own tables from the same lines.
"""

from __future__ import annotations

from gpuedge.backends import is_aside
from gpuedge.core.text import Table, counted, plain
from gpuedge.core.times import ADVISED_S
from gpuedge.probing.report import in_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpuedge.probing.report import ProbeReport, ProbeRow

UNFINISHED = (
    "time was too short for some drivers, or for tests that entries ask for (a busy machine?); the "
    f"next start tries them again; with more time: gpuedge probe --refresh --deadline {ADVISED_S}"
)
"""What to do where a row tells only of this attempt."""

TITLES = ("device", "name", "status", "reason")


def lines(report: ProbeReport) -> list[tuple[str, ProbeRow]]:
    """Return what to show, in order: device strings with the row that speaks for them.

    Usable devices come first, each with all routes to it, the best first; then devices that do not
    work, then drivers without a device. Rows of several backends that say the same of the same
    driver are one line.
    """
    order = {row.physical or row.device: i for i, row in reversed([*enumerate(report.devices)])}
    reached = [r for r in report.tried if r.index is not None]
    reached.sort(key=lambda r: (order.get(r.physical or r.device, len(order)), r.route or 1 << 16))
    shown = [(r.device, r.replace(name=_name(r))) for r in reached]
    alike: dict[tuple[str, ...], list[ProbeRow]] = {}
    for row in report.tried:
        if row.index is None:
            name = "" if row.code == "no-candidates" else row.name
            alike.setdefault((name, row.key, row.status, row.brief), []).append(row)
    for (name, *_), rows in alike.items():
        shown.append((", ".join(r.device for r in rows), rows[0].replace(name=name)))
    return shown


def _name(row: ProbeRow) -> str:
    """Return a device's name, with the API underneath where it is reached through another one."""
    under = row.identity.get("backend")
    return f"{row.name} on {under}" if under else row.name


def entries(row: ProbeRow) -> list[str]:
    """Return what entries of the capability database came to on a device, a line for each.

    Their ids, how each came out, and what they are about; rows may come from files of others.
    """
    findings = row.evidence.get("entries")
    told = []
    for entry in findings if isinstance(findings, list) else ():
        if isinstance(entry, dict):
            names = ("id", "outcome", "summary", "detail")
            name, outcome, summary, detail = (str(entry.get(name) or "") for name in names)
            how = f"{outcome}; {detail}" if detail else outcome
            told.append(plain(f"{name} ({how}): {summary}", 400))
    return told


def forbidden(restrictions: Mapping[str, Any]) -> str:
    """Return what restrictions come to, as words in one line; empty where there are none.

    >>> forbidden({"features": ["fp16"], "limits": {"max_outputs": 1}, "is_demoted": True})
    'no fp16, max_outputs at most 1, demoted'
    """
    kinds = ("levels", "features", "kernels", "storages")
    words = [f"no {word}" for kind in kinds for word in restrictions.get(kind) or ()]
    words += [f"{name} at most {most}" for name, most in (restrictions.get("limits") or {}).items()]
    words += ["backend off"] if restrictions.get("is_backend_off") else []
    words += ["demoted"] if restrictions.get("is_demoted") is True else []
    return plain(", ".join(words), 400)


def headline(report: ProbeReport) -> str:
    """Return the sentence above the table."""
    if not report.tried:
        return "No GPU driver was tried: no backend is switched on."
    best, usable = report.best, len(report.devices)
    told = [row for _, row in lines(report)]  # what the table below has a row for
    if best is None:
        blocked = sum(row.status == "blocked" for row in told)
        why = f"{blocked} blocked" if blocked else "none can be used"
        return f"No usable GPU: {len(told)} tried, {why}."
    kind = ", a software rasteriser" if best.is_software else ""
    aside = ""
    if is_aside(best.backend, in_use()):
        aside = f"; auto looks at it where GPUEDGE_BACKENDS names {best.backend}"
    there = len({r.physical or r.device for r in report.devices})
    routes = f" (routes to {counted(there, 'device')})" if there < usable else ""
    name = plain(best.name)
    sentence = f"{usable} of {len(told)} usable{routes}; the best is {best.device} ({name}{kind})"
    return f"{sentence}{aside}."


def status_of(row: ProbeRow) -> str:
    """Return the status as tables show it: with a star where a usable device has restrictions."""
    return f"{row.status}*" if row.is_usable and row.restrictions.get("entries") else row.status


def footnotes(report: ProbeReport) -> list[str]:
    """Return what is to be said below the table: restrictions, and what time was too short for."""
    said = []
    for device, row in lines(report):
        if status_of(row) != row.status:
            ids, what = ", ".join(row.restrictions["entries"]), forbidden(row.restrictions)
            said.append(plain(f"* {device}{f': {what}' if what else ''} ({ids})", 400))
    if said:
        said.append("  (entries of the capability database; gpuedge db why says why)")
    if any(row.is_unfinished for row in report.tried):
        said.append(UNFINISHED)
    return said


def rows_of(
    report: ProbeReport, reason: Callable[[ProbeRow], str] = lambda row: plain(row.brief, 400)
) -> list[tuple[str, ...]]:
    """Return the rows of the table; `reason` tells why a device or driver has its status."""
    return [(d, plain(row.name), status_of(row), reason(row)) for d, row in lines(report)]


def as_text(report: ProbeReport) -> str:
    """Return the headline and a table as wide as the terminal."""
    if not report.tried:
        return headline(report)
    devices = Table(f"{headline(report)}\n", TITLES, rows_of(report))
    return "\n".join([str(devices), *footnotes(report)])
