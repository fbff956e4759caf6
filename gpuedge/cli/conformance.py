"""``gpuedge conformance``: list the named cases, or run them on a device and report each.

Arguments and files are checked before any driver is touched.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from os.path import realpath
from pathlib import Path
from typing import Any

from gpuedge.cli.arguments import check_writable, seconds, whole
from gpuedge.cli.devices import named_gpu
from gpuedge.cli.output import Output
from gpuedge.conformance import SCHEMA
from gpuedge.conformance.bench import versions
from gpuedge.conformance.case import Case
from gpuedge.conformance.catalogue import everything, shard_of
from gpuedge.conformance.results import Results, check_same, junit, read, summary
from gpuedge.conformance.runner import Runner
from gpuedge.core.errors import UsageError
from gpuedge.core.text import Table
from gpuedge.safety.paths import is_stream, save_named

SHOWN_PROBLEMS = 20
"""Cases that did not pass named in the report on a terminal; all are in the files."""

MAX_JOBS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, about in (("list", "list the cases"), ("run", "run the cases on a device")):
        action = actions.add_parser(name, help=about, description=f"{about.capitalize()}.")
        profile = action.add_argument("--profile", choices=("smoke", "full"), default="smoke")
        profile.help = "how many and how large"
        action.add_argument(
            "--shard", type=shard, default=(1, 1), metavar="I/N",
            help="only part I of N, from 1; a case's part depends on its name only",
        )  # fmt: skip
        action.add_argument(
            "--only", action="append", default=[], metavar="GLOB",
            help="only cases whose name matches, such as 'conv2d/*'; repeatable",
        )  # fmt: skip
    action.add_argument("--device", metavar="D", help="such as vulkan, gles20:1; never the CPU")
    action.add_argument("--junit", metavar="F", help="write a JUnit report to F")
    action.add_argument("--jsonl", metavar="F", help="write a JSON line for each case to F")
    action.add_argument("--resume", metavar="F", help="run only what a file of results lacks")
    about = f"processes at once, 1 to {MAX_JOBS}; by default one for each core"
    action.add_argument("--jobs", type=whole(1, MAX_JOBS), metavar="N", help=about)
    action.add_argument(
        "--case-timeout", type=seconds(0.1, 86_400), default=60.0, metavar="S",
        help="seconds after which a case is given up, 0.1 to 86400 (60)",
    )  # fmt: skip


def shard(text: str) -> tuple[int, int]:
    """Return the part and the number of parts of ``I/N``."""
    match = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not I/N with I from 1 to N and N up to 99999"
        )
    return int(match[1]), int(match[2])


def run(options: argparse.Namespace, output: Output) -> int:
    """List the cases, or run them."""
    cases = chosen(options)
    if options.action == "list":
        body = {"schema": "gpuedge.conformance.list/1", "profile": options.profile}
        names = [case.id for case in cases]
        output.show({**body, "cases": names}, names)
        return 0
    return _run(options, cases, output)


def chosen(options: argparse.Namespace) -> list[Case]:
    """Return the cases that the options select. Raises UsageError (GE-200) if there are none."""
    part, parts = options.shard
    cases = [
        case
        for case in everything(options.profile)
        if shard_of(case.id, parts) == part
        and (not options.only or any(fnmatchcase(case.id, glob) for glob in options.only))
    ]
    if not cases and options.only:
        raise UsageError(
            f"No case matches {' or '.join(options.only)}.",
            asked_by="--only",
            hint="gpuedge conformance list",
        )
    return cases


def _run(options: argparse.Namespace, cases: list[Case], output: Output) -> int:
    from gpuedge.graph import onnx_package  # noqa: F401  cases are judged by it, in other processes

    for name in ("junit", "jsonl"):
        check_writable(getattr(options, name), f"--{name}")
    for name in ("jsonl", "resume"):
        report, other = options.junit, getattr(options, name)
        if report and other and not is_stream(report) and realpath(report) == realpath(other):
            raise UsageError(
                f"--junit and --{name} name the same file.",
                asked_by=f"--{name}",
                known=realpath(report),
            )
    old, damaged = (None, 0) if options.resume is None else read(options.resume)
    if old is not None and not old.header:
        output.log(f"{options.resume} has no header, so that the run starts over")
        old = None
    elif damaged:
        output.log(f"{options.resume}: {damaged} damaged lines were left out")
    header: dict[str, Any] = {
        **_device(options.device, output),
        "profile": options.profile,
        "shard": "{}/{}".format(*options.shard),
        "versions": versions(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    results = Results(header, path=options.jsonl)
    if old is not None:
        check_same(old, header, options.resume)
        header |= {k: v for k, v in old.header.items() if k == "caps"}
        results.rows = {s.id: old.rows[s.id] for s in cases if s.id in old.rows}
        output.log(f"{len(results.rows)} of {len(cases)} cases are in {options.resume}")
    return _carry_out(options, cases, results, output)


def _carry_out(
    options: argparse.Namespace, cases: list[Case], results: Results, output: Output
) -> int:
    """Run what is missing; whatever happens, what was found is written."""
    left = [case for case in cases if case.id not in results.rows]
    jobs, device = options.jobs or max(1, os.cpu_count() or 1), results.header["device"]
    runner = Runner(device, options.profile, left, jobs, options.case_timeout)
    start = time.monotonic()
    try:
        with output.working("starting") as progress:
            for row in runner.rows():
                results.add(row)
                progress(f"{len(results.rows)} of {len(cases)}: {row['id']}")
                if row["status"] not in ("passed", "skipped"):
                    output.log(f"{row['status']}: {row['id']}: {row.get('reason', '')}")
    finally:
        # what a child has said of the device
        results.header |= {k: v for k, v in (runner.header or {}).items() if k != "versions"}
        results.header["seconds"] = round(time.monotonic() - start, 2)
        results.write()
        if options.junit:
            save_named(Path(options.junit), junit(results), "--junit")
        if not_run := [case.id for case in cases if case.id not in results.rows]:
            output.log(f"{len(not_run)} of {len(cases)} cases were not run; --resume runs them")
    body = summary(results, not_run, runner.notes)
    output.show(body, _parts(body))
    if results.is_lost:
        return 4
    return 0 if results.is_good else 1


def _device(named: str | None, output: Output) -> dict[str, Any]:
    """Return the device string and identity of a usable GPU; the probe's children look for it."""
    row = named_gpu(named, "conformance run", output)
    return {"schema": SCHEMA, "device": row.device, "identity": dict(row.identity)}


def _parts(body: dict[str, Any]) -> Iterator[str | Table]:
    identity = body["identity"]
    rows = [
        (op, f"{tally['passed']} of {tally['run']}", tally["skipped"] or None,
         None if tally["worst"] is None else f"{tally['worst']:.2f}", f"{tally['seconds']:.1f} s")
        for op, tally in body["operations"].items()
    ]  # fmt: skip
    title = f"Conformance of {body['device']} ({identity.get('name', '?')}), {body['profile']}"
    columns = ("operation", "passed", "skipped", "worst error, of the bound", "time")
    yield Table(title, columns, rows)
    problems = [
        (row["status"], row["id"], row.get("reason", ""))
        for row in body["problems"][:SHOWN_PROBLEMS]
    ]
    yield Table("What did not pass", ("status", "case", "reason"), problems)
    for reason, count in body["skipped"].items():
        yield f"{count} skipped: {reason}"
    for note in body["notes"]:
        yield f"note: {note}"
    counts = body["counts"]
    run_count = counts["cases"] - counts["skipped"]
    yield (
        f"{counts['passed']} of {run_count} cases passed in {body['seconds']:.1f} s"
        + (f"; {counts['skipped']} do not apply" if counts["skipped"] else "")
    )
