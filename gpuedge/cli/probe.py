"""``gpuedge probe``: which devices are here, which work, and why the others do not."""

from __future__ import annotations

import argparse

from gpuedge.cli.output import Output, blaming, read_json
from gpuedge.core.errors import GpuEdgeError, UnknownDeviceError
from gpuedge.probing import show as told
from gpuedge.probing.report import ProbeReport, ProbeRow

GOOD, NO_DEVICE = 0, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--refresh", action="store_true", help="test again, ignoring the cache")
    parser.add_argument(
        "--deadline", type=float, metavar="S", default=4.0, help="seconds in all (default 4)"
    )
    parser.add_argument(
        "--backend", action="append", metavar="B", help="only this backend; may be repeated"
    )
    parser.add_argument(
        "--input", metavar="REPORT.json", help="show a report made elsewhere; nothing is tested"
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Probe (or read a report), print it, and return 3 if there is no usable device."""
    if options.input:
        report = ProbeReport.from_dict(read_json(options.input))
    else:
        with output.working("testing drivers"):
            report = _probe(options)
    output.document(report.to_dict())
    show(report, output, verbose=options.verbose)
    return GOOD if report.devices else NO_DEVICE


def _probe(options: argparse.Namespace) -> ProbeReport:
    from gpuedge.probing.api import probe

    given: dict[str, tuple[type[GpuEdgeError], ...]] = {}
    if options.backend:
        given["backend"] = (UnknownDeviceError,)
    with blaming(**given):
        return probe(refresh=options.refresh, deadline_s=options.deadline, backends=options.backend)


def show(report: ProbeReport, output: Output, *, verbose: int = 0) -> None:
    """Print a report as a table: the headline, one row per candidate, more when `verbose`."""
    headline = told.headline(report)
    rows = [
        (device, row.name, told.status_of(row), _details(row) if verbose else row.brief)
        for device, row in told.lines(report)
    ]
    if rows:
        output.table(headline, told.TITLES, rows)
    else:
        output.text(headline)
    for note in told.footnotes(report):
        output.say(note)


def _details(row: ProbeRow) -> str:
    facts = {
        "entries": "; ".join(told.entries(row)),
        "left out": told.forbidden(row),
        "database": row.database,
        "class": row.caps.get("device_class"),
        "storages": " ".join(row.caps.get("storages") or ()),
        "driver": row.key,
        "seconds": None if row.seconds is None else f"{row.seconds:.3f}",
        "cached": "yes" if row.is_cached else "no",
    }
    return "\n".join([row.reason, *(f"{name}: {fact}" for name, fact in facts.items() if fact)])
