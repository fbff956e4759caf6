"""``gpuedge probe``: which devices are here, which work, and why the others do not."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuedge.cli.arguments import add_probing
from gpuedge.cli.output import Output, blaming, read_json
from gpuedge.core.errors import UnknownDeviceError
from gpuedge.core.text import Table
from gpuedge.probing import api, show
from gpuedge.probing.report import ProbeProgress, ProbeReport, ProbeRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add_probing(parser)
    parser.add_argument(
        "--backend", action="append", metavar="B", help="only this backend; repeatable"
    )
    about = "show a report made elsewhere with --json; nothing is tested"
    parser.add_argument("--input", metavar="REPORT.json", help=about)


@contextmanager
def testing(output: Output) -> Iterator[Callable[[ProbeProgress], None]]:
    """Show on a terminal which drivers are tested, and what came of each; not those in the cache.

    What is yielded is the callback of `gpuedge.probe`.
    """
    begun = set()
    with output.working("testing drivers", lines=True) as tell:

        def progress(step: ProbeProgress) -> None:
            driver = f"{step.name} ({step.backend})"
            if step.stage == "started":
                begun.add(driver)
                tell(f"testing {driver}")
            elif driver in begun:
                found = ", ".join(dict.fromkeys(row.status for row in step.rows))
                tell(f"{driver}: {found}; {step.done} of {step.total} drivers done")

        yield progress


def run(options: argparse.Namespace, output: Output) -> int:
    """Probe (or read a report), print it, and return 3 if there is no usable device."""
    if options.input is not None:
        report = ProbeReport.from_dict(read_json(options.input))
    else:
        blamed = {"backend": (UnknownDeviceError,)} if options.backend else {}
        with testing(output) as progress, blaming(**blamed):
            report = api.probe(
                refresh=options.refresh, deadline_s=options.deadline,
                backends=options.backend or api.everything(), progress=progress,
            )  # fmt: skip
    headline = show.headline(report)
    rows = show.rows_of(report, _details) if options.verbose else show.rows_of(report)
    devices = Table(headline, show.TITLES, rows) if rows else headline
    output.show(report.to_dict(), [devices, *show.footnotes(report)])
    return 0 if report.devices else 3


def _details(row: ProbeRow) -> str:
    facts = {
        "entries": "; ".join(show.entries(row)),
        "restrictions": show.forbidden(row.restrictions),
        "database": row.database,
        "class": row.caps.get("device_class"),
        "storages": " ".join(row.caps.get("storages") or ()),
        "driver": row.key,
        "seconds": None if row.seconds is None else f"{row.seconds:.3f}",
        "cached": "yes" if row.is_cached else "no",
    }
    return "\n".join([row.reason, *(f"{name}: {fact}" for name, fact in facts.items() if fact)])
