"""How a probe report is told to people: routes to one device together, what is alike only once.

Plain text and plain data; the command line draws its own tables from the same lines.
"""

from __future__ import annotations

from gpuedge.core import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuedge.probing.report import ProbeReport, ProbeRow

CUT_OFF = (
    "time was over before some drivers had enough of it (a busy machine?); nothing is remembered "
    "of them: run it again, or gpuedge probe --deadline 20"
)
"""What to do where a row is about this attempt, not about the driver."""

UNFINISHED = (
    "time was too short for some tests that entries ask for, or for a second attempt; they are "
    "tried again after ten minutes, or now with more time: gpuedge probe --refresh --deadline 60"
)
"""What to do where a restriction or a failure may not stand."""

TITLES = ("device", "name", "status", "reason")


def lines(report: ProbeReport) -> list[tuple[str, ProbeRow]]:
    """Return what to show, in order: device strings with the row that speaks for them.

    Usable devices come first, each with all routes to it, the best first; then devices that do not
    work, then drivers without a device. Rows of several backends that say the same of the same
    driver are one line.
    """
    order = {row.physical or row.device: i for i, row in reversed([*enumerate(report.devices)])}
    reached = [r for r in report.tried if r.index is not None]
    reached = [r.replace(name=name_of(r)) for r in reached]
    reached.sort(key=lambda r: (order.get(r.physical or r.device, len(order)), r.route or 1 << 16))
    shown = [(r.device, r) for r in reached]
    alike: dict[tuple[str, ...], list[ProbeRow]] = {}
    for row in report.tried:
        if row.index is None:
            name = "" if row.code == "no-candidates" else row.name
            alike.setdefault((name, row.key, row.status, row.brief), []).append(row)
    for (name, *_), rows in alike.items():
        shown.append((", ".join(r.device for r in rows), rows[0].replace(name=name)))
    return shown


def name_of(row: ProbeRow) -> str:
    """Return a device's name, with the API underneath where it is reached through another one."""
    under = row.identity.get("backend")
    return f"{row.name} on {under}" if under else row.name


def entries(row: ProbeRow) -> list[str]:
    """Return what entries of the capability database came to on a device, a line for each.

    Their ids, how each came out, and what they are about; rows may come from files of others.
    """
    found = row.evidence.get("entries")
    told = []
    for entry in found if isinstance(found, list) else ():
        if isinstance(entry, dict):
            names = ("id", "outcome", "summary", "detail")
            parts = [str(entry.get(name) or "") for name in names]
            how = f"{parts[1]}; {parts[3]}" if parts[3] else parts[1]
            told.append(clean(f"{parts[0]} ({how}): {parts[2]}"))
    return told


def forbidden(row: ProbeRow) -> str:
    """Return what restrictions leave out, as words in one line; empty where there are none.

    >>> from gpuedge.probing.report import ProbeRow
    >>> table = {"features": ["fp16"], "limits": {"max_outputs": 1}, "is_demoted": True}
    >>> forbidden(ProbeRow("a", "a", "ok", "ok", "", restrictions=table))
    'fp16, max_outputs <= 1, demoted'
    """
    table = row.restrictions
    kinds = ("levels", "features", "kernels", "storages")
    words = [word for kind in kinds for word in table.get(kind, ())]
    words += [f"{name} <= {most}" for name, most in (table.get("limits") or {}).items()]
    words += ["the whole backend"] if table.get("is_backend_off") else []
    words += ["demoted"] if table.get("is_demoted") else []
    return clean(", ".join(words))


def headline(report: ProbeReport) -> str:
    """Return the sentence above the table."""
    if not report.tried:
        return "No GPU driver was tried: no backend is switched on."
    best, usable = report.best, len(report.devices)
    if best is None:
        return f"No usable GPU: {len(report.tried)} tried, {_why_none(report)}."
    kind = ", a software rasteriser" if best.is_software else ""
    name = clean(best.name, 80)
    there = len({r.physical or r.device for r in report.devices})
    routes = f" ({text.counted(there, 'device')})" if there < usable else ""
    return (
        f"{usable} of {len(report.tried)} usable{routes}; the best is {best.device} ({name}{kind})."
    )


def _why_none(report: ProbeReport) -> str:
    """Return why no device is usable; what is not there at all does not count beside the others."""
    statuses = [r.status for r in report.tried if r.status != "absent"]
    held = statuses.count("blocked")
    if not held:
        return "none gave the right numbers"
    if held == len(statuses):
        return "all blocked" if held == len(report.tried) else f"{held} blocked, the others absent"
    return f"{held} blocked, none of the others gave the right numbers"


def status_of(row: ProbeRow) -> str:
    """Return the status as tables show it: with a star where a usable device has restrictions."""
    return f"{row.status}*" if row.is_usable and row.restrictions.get("entries") else row.status


def footnotes(report: ProbeReport) -> list[str]:
    """Return what is to be said below the table: restrictions, and what time was too short for."""
    said = []
    for device, row in lines(report):
        if status_of(row) != row.status:
            ids = ", ".join(map(str, row.restrictions["entries"]))
            what = forbidden(row)
            said.append(clean(f"* {device}{f' without {what}' if what else ''}: {ids}"))
    if said:
        said.append("  (entries of the capability database; gpuedge db why says why)")
    if any(row.evidence.get("is_cut_off") for row in report.tried):
        said.append(CUT_OFF)
    if any(row.evidence.get("is_unfinished") for row in report.tried):
        said.append(UNFINISHED)
    return said


def as_text(report: ProbeReport) -> str:
    """Return the headline and a table as wide as the terminal."""
    if not report.tried:
        return headline(report)
    cells = [TITLES]
    cells += [(d, clean(r.name, 44), status_of(r), clean(r.brief)) for d, r in lines(report)]
    return "\n".join([headline(report), "", *text.table(cells), *footnotes(report)])


def as_html(report: ProbeReport) -> str:
    """Return the same as an HTML fragment for notebooks; everything is escaped."""
    from html import escape

    head = "".join(f"<th>{t}</th>" for t in TITLES)
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{escape(t)}</td>" for t in (device, r.name, status_of(r), r.brief))
        + "</tr>"
        for device, r in lines(report)
    )
    notes = "".join(f"<p>{escape(note.strip())}</p>" for note in footnotes(report))
    return f"<p>{escape(headline(report))}</p><table><tr>{head}</tr>{rows}</table>{notes}"


def clean(words: str, limit: int = 400) -> str:
    """Make driver text safe for a terminal: one line, no control characters, bounded."""
    line = "".join(c if c.isprintable() else " " for c in words)
    return line if len(line) <= limit else line[: limit - 3] + "..."
