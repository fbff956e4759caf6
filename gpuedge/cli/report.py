"""``gpuedge report``: one file about this machine, to send with a bug or home from a device.

It holds what the doctor, the probe and the conformance cases found. Nothing is sent anywhere.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gpuedge.cli import doctor, running
from gpuedge.cli.arguments import add_probing, check_writable
from gpuedge.cli.info import FACTS
from gpuedge.cli.machine import Machine
from gpuedge.cli.output import Output
from gpuedge.cli.page import page
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.results import ResultSet, summary
from gpuedge.core.errors import ConfigError, GpuEdgeError, MissingPackageError
from gpuedge.core.text import Table, utc_now
from gpuedge.probing import show
from gpuedge.probing.report import ProbeReport
from gpuedge.safety.packages import needed
from gpuedge.safety.paths import save_named

SCHEMA = "gpuedge.report/1"
RESULTS = "conformance.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("-o", "--output", metavar="FILE.zip", default="gpuedge-report.zip",
        help="where to write it (gpuedge-report.zip)")  # fmt: skip
    add("--profile", choices=("smoke", "full"), default="smoke", help="of the conformance cases")
    add("--skip-conformance", action="store_true", help="run no conformance cases")
    running.add_arguments(parser)
    add_probing(parser)


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the file, whatever the checks and the cases say; 0 once it is written."""
    check_writable(options.output, "--output")
    notes: list[str] = []
    checked, probed = doctor.examine(options, output)
    campaign = None if options.skip_conformance else _campaign(options, notes, output)
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "made": utc_now(),
        "labels": dict(options.label),
        "doctor": checked,
        "probe": probed.to_dict(),
        "info": _facts(notes),
        "conformance": None,
        "notes": notes,
    }
    identities = [("", row.identity) for row in probed.tried if row.identity]
    redact = running.redaction(options, identities)
    try:
        if campaign is not None:
            campaign.run(output)
    finally:  # what was found until Ctrl-C is worth sending, too
        if campaign is not None:
            notes += campaign.notes
            body["conformance"] = summary(campaign.found, campaign.not_run, campaign.notes)
        if redact is not None:
            body = cast("dict[str, Any]", redact(body))
        save_named(Path(options.output), _packed(body, campaign), "--output")
    told = [f"note: {note}" for note in body["notes"]]
    output.show(body, [*_lines(body), *told, f"written to {options.output}"])
    return 0


def _campaign(
    options: argparse.Namespace, notes: list[str], output: Output
) -> running.Campaign | None:
    """Return the cases that are to run; None where none can, unless a device was named."""
    try:
        with needed("onnx", "report"):
            from gpuedge.graph import onnx_package  # noqa: F401  cases are judged by it
        found = running.devices(options.device, "report", output)
    except GpuEdgeError as error:
        if options.device:
            raise
        notes.append(f"no conformance cases were run: {error.what} {error.known or ''}".strip())
        return None
    extra = {"shard": "1/1", "labels": dict(options.label)}
    campaign = running.Campaign(
        options.profile, everything(options.profile), options.jobs, options.case_timeout,
        redact=running.redaction(options, found), extra=extra,
    )  # fmt: skip
    for device, identity in found:
        campaign.enter(device, identity)
    return campaign


def _facts(notes: list[str]) -> dict[str, Any]:
    """Return what ``gpuedge info`` says, but for settings that cannot be read."""
    here, facts = Machine(), {}
    for name in FACTS:
        try:
            facts[name] = getattr(here, name)
        except ConfigError as error:
            notes.append(f"{name}: {error.what}")
    return facts


def _packed(body: Mapping[str, Any], campaign: running.Campaign | None) -> bytes:
    """Return the zip."""
    found = ResultSet() if campaign is None else campaign.found
    missing = Counter(device for device, _ in (campaign.not_run if campaign else ()))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        try:
            tables = [part for part in _tables(body) if isinstance(part, Table)]
            text = page(found, missing, body["notes"], tables, "gpuedge report")
            file.writestr("report.html", text)
        except MissingPackageError as error:
            body["notes"].append(f"there is no report.html: {error.what} {error.hint}")
        file.writestr("report.json", json.dumps(body, indent=2))
        if found.parts:
            file.writestr(RESULTS, b"".join(part.lines() for part in found))
    return packed.getvalue()


def _tables(body: Mapping[str, Any]) -> Sequence[str | Table]:
    report = ProbeReport.from_dict(body["probe"])
    return [*doctor.parts(body["doctor"]), Table("Probe", show.TITLES, show.rows_of(report))]


def _lines(body: Mapping[str, Any]) -> list[str]:
    """Return what is in the report, in a line per part."""
    checks = ", ".join(f"{n} {word}" for word, n in body["doctor"]["counts"].items())
    lines = [f"doctor: {checks}", f"probe: {len(body['probe']['tried'])} drivers and devices"]
    for one in (body["conformance"] or {"devices": ()})["devices"]:
        counts = one["counts"]
        lines.append(
            f"conformance of {one['device']}: {counts['passed']} of {counts['executed']} cases "
            f"passed; {counts['unsupported']} do not apply; {counts['not_run']} were not run"
        )
    return lines
