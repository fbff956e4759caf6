"""``gpuedge conformance``: list the named cases, run them on devices, put runs together, compare.

Arguments and files are checked before any driver is touched.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuedge.cli import choosing, running
from gpuedge.cli.arguments import check_apart, check_writable, number, whole
from gpuedge.cli.main import exit_code
from gpuedge.cli.output import Output
from gpuedge.cli.page import page
from gpuedge.conformance import expectations
from gpuedge.conformance.bench import STATUSES
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.comparing import LISTS, NEW_FAILURES, compare
from gpuedge.conformance.formats import FORMATS, tap, why
from gpuedge.conformance.merging import Merged, merge, merged_told
from gpuedge.conformance.results import (
    XPASSED,
    Results,
    ResultSet,
    described,
    outcome,
    read,
    reasons,
    summary,
)
from gpuedge.conformance.templates import load_jinja
from gpuedge.core.errors import GpuEdgeError, InputError, UsageError
from gpuedge.core.text import Table
from gpuedge.safety.paths import save_named

SHOWN_PROBLEMS = 20
"""Cases that did not pass named in the report on a terminal; all are in the files."""

FILES = {
    "junit": "a JUnit report",
    "tap": "a TAP 14 document",
    "lava": "LAVA signals, such as to /dev/stdout,",
    "csv": "a table",
    "html": "a page with pictures",
}
"""Files that a run or a merge writes besides its results, by option."""

RERUN = tuple(status for status in STATUSES if status not in running.HARMLESS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    added = {}
    for name, (_, about) in ACTIONS.items():
        added[name] = actions.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}."
        )
    choosing.add_arguments(added["list"])
    _add_run(added["run"])
    merging, comparing = added["merge"], added["compare"]
    merging.add_argument("files", nargs="+", metavar="FILE.jsonl", help="results of --jsonl")
    merging.add_argument("-o", "--output", metavar="F", help="write all of them to F")
    for each in (added["run"], merging):
        for name, about in FILES.items():
            each.add_argument(f"--{name}", metavar="F", help=f"write {about} to F")
    comparing.add_argument("baseline", metavar="BASELINE.jsonl", help="what was")
    comparing.add_argument("new", metavar="NEW.jsonl", help="what is now")
    comparing.add_argument(
        "--factor", type=number(1.0, 1e9), default=2.0, metavar="X",
        help="tell of worst errors that changed by more than this factor (2)",
    )  # fmt: skip


def _add_run(action: argparse.ArgumentParser) -> None:
    choosing.add_arguments(action)
    running.add_arguments(action)
    add = action.add_argument
    add("--shuffle", type=whole(0, 999_999_999), metavar="SEED", help="run in another order")
    add("--expectations", metavar="F", help="judge by a file of what is known of a driver")
    add("--no-retry", action="store_true", help="run no case again that did not pass")
    add("--jsonl", metavar="F", help="write a JSON line for each case to F")
    add("--resume", metavar="F", help="run only what a file of results lacks")
    add("--rerun", action="append", choices=RERUN, default=[],
        help="with --resume, run cases again that came to this; repeatable")  # fmt: skip


def run(options: argparse.Namespace, output: Output) -> int:
    """Do what the action says; 1 where a case did not pass, or runs do not fit together."""
    return ACTIONS[options.action][0](options, output)


def _list(options: argparse.Namespace, output: Output) -> int:
    names = [case.id for case in choosing.chosen(options)]
    body = {"schema": "gpuedge.conformance.list/1", "profile": options.profile, "cases": names}
    output.show(body, names)
    return 0


def _run(options: argparse.Namespace, output: Output) -> int:
    from gpuedge.graph import onnx_package  # noqa: F401  cases are judged by it, in other processes

    if options.rerun and options.resume is None:
        raise UsageError("Nothing is run again without a file of results.", asked_by="--rerun",
                         hint="--resume FILE")  # fmt: skip
    cases = choosing.chosen(options)
    _check_files(options, "jsonl", [("--resume", options.resume)])
    expected = _expectations(options.expectations)
    old = _resumed(options, output)
    found = running.devices(options.device, "conformance run", output)
    extra: dict[str, Any] = {"shard": "{}/{}".format(*options.shard), "labels": dict(options.label)}
    if options.only or options.case:
        extra["only"] = [*options.only, *options.case]
    if options.shuffle is not None:
        extra["shuffle"] = options.shuffle
    campaign = running.Campaign(
        options.profile, cases, options.jobs, options.case_timeout, not options.no_retry,
        expected, running.redaction(options, found), extra, ResultSet(path=options.jsonl),
    )  # fmt: skip
    for device, identity in found:
        campaign.enter(device, identity)
    if old is not None:
        taken = campaign.resume(old, options.resume, options.rerun)
        total = len(cases) * len(found)
        output.log(f"{taken} of {total} cases are in {options.resume}")
    return _carry_out(options, campaign, output)


def _carry_out(options: argparse.Namespace, campaign: running.Campaign, output: Output) -> int:
    """Run what is missing; whatever happens, what was found is written."""
    found = campaign.found
    try:
        campaign.run(output)
    finally:
        missing = campaign.not_run
        absent = Counter(device for device, _ in missing)
        unwritten = _write(options, found, absent, campaign.notes, output)
        if missing:
            total = len(campaign.cases) * len(found.parts)
            output.log(f"{len(missing)} of {total} cases were not run; --resume runs them")
    error = campaign.error
    if error is not None and len(found.parts) == 1:
        raise error
    body = summary(found, missing, campaign.notes)
    output.show(body, _parts(found, body))
    codes = [exit_code(each) for each in (error, *unwritten) if each is not None]
    codes += [4 if part.is_lost else 0 if part.is_good else 1 for part in found]
    return max(codes)


def _check_files(
    options: argparse.Namespace, results: str, inputs: Sequence[tuple[str, str | None]]
) -> None:
    """Refuse files that cannot be written, and a report in the place of another file.

    The option `results` names the file of results, which may be one of the inputs.
    """
    for name in (results, *FILES):
        check_writable(getattr(options, name), f"--{name}")
    others = (*FILES, "expectations")
    reports = [(f"--{name}", getattr(options, name, None)) for name in others]
    check_apart([(f"--{results}", getattr(options, results)), *inputs, *reports], inputs)
    if options.html:
        load_jinja("--html")


def _expectations(path: str | None) -> expectations.Expectations:
    """Return what is expected. Raises InputError (GE-203) for what is about no case at all."""
    if path is None:
        return expectations.Expectations()
    expected, names = expectations.load(path), [case.id for case in everything("full")]
    for number_, each in enumerate(expected.entries, 1):
        try:
            choosing.matching(each.case, names, "--expectations", "full")
        except UsageError as error:
            raise InputError(
                f"{path}: expect number {number_} is about no case: {each.case}.",
                asked_by="--expectations",
                hint=error.hint,
            ) from None
    return expected


def _resumed(options: argparse.Namespace, output: Output) -> ResultSet | None:
    """Return the results to go on from; the file that this run writes need not be there yet."""
    path = options.resume
    if path is None or (path == options.jsonl and not Path(path).exists()):
        return None
    found = read(path)
    if not found.parts:
        output.log(f"{path} has no header, so that the run starts over")
        return None
    if found.damaged:
        output.log(f"{path}: {described(found.damaged)}")
    return found


def _write(
    options: argparse.Namespace, found: ResultSet, missing: Mapping[str, int],
    notes: Sequence[str], output: Output,
) -> list[GpuEdgeError]:  # fmt: skip
    """Write the files that were asked for; return the errors of those that cannot be written."""

    def save(name: str) -> None:
        if name == "jsonl":
            found.write()
            return
        if name == "html":
            data = page(found, missing, notes)
        else:
            data = tap(found, sum(missing.values())) if name == "tap" else FORMATS[name](found)
        save_named(Path(getattr(options, name)), data, f"--{name}")

    errors: list[GpuEdgeError] = []
    for name in ("jsonl", *(name for name in FILES if getattr(options, name) is not None)):
        try:
            save(name)
        except GpuEdgeError as error:
            output.log(str(error))
            errors.append(error)
    return errors


def _parts(found: ResultSet, body: Mapping[str, Any]) -> Iterator[str | Table]:
    if len(found.parts) == 1:
        yield _operations(body)
    else:
        yield Table("Conformance", DEVICES, [_device(part, body) for part in found])
    problems = [
        ("unexpected pass" if outcome(row) == XPASSED else row["status"],
         f"{row['device']} {row['id']}" if len(found.parts) > 1 else row["id"], why(row))
        for row in body["problems"][:SHOWN_PROBLEMS]
    ]  # fmt: skip
    yield Table("What did not pass", ("status", "case", "reason"), problems)
    for part in found:
        skipped = list(reasons(part.rows.values()).items())
        where = f" on {part.device}" if len(found.parts) > 1 else ""
        for reason, count in skipped[:SHOWN_PROBLEMS]:
            yield f"{count} skipped{where}: {reason}"
        if len(skipped) > SHOWN_PROBLEMS:
            rest = sum(count for _, count in skipped[SHOWN_PROBLEMS:])
            yield f"{rest} skipped{where} for other reasons"
    for note in body["notes"]:
        yield f"note: {note}"
    took = sum(part.header.get("seconds") or 0 for part in found)
    yield running.told(body["counts"], f" in {took:.1f} s")


DEVICES = ("device", "passed", "flakes", "skipped", "quarantined", "worst error, of the bound",
           "time", "name")  # fmt: skip
"""Columns of the table of several devices."""


def _device(part: Results, body: Mapping[str, Any]) -> tuple[object, ...]:
    (one,) = (each for each in body["devices"] if each["device"] == part.device)
    tallies, counts = one["operations"].values(), one["counts"]
    worst = max((t["worst"] for t in tallies if t["worst"] is not None), default=None)
    return (
        part.device, f"{sum(t['passed'] for t in tallies)} of {counts['executed']}",
        counts["flake"] or None, counts["unsupported"] or None, counts["quarantined"] or None,
        None if worst is None else f"{worst:.2f}", f"{part.header.get('seconds') or 0:.1f} s",
        one["identity"].get("name", "?"),
    )  # fmt: skip


def _operations(body: Mapping[str, Any]) -> Table:
    rows = [
        (op, f"{tally['passed']} of {tally['run']}", tally["skipped"] or None,
         tally["quarantined"] or None,
         None if tally["worst"] is None else f"{tally['worst']:.2f}", f"{tally['seconds']:.1f} s")
        for op, tally in body["operations"].items()
    ]  # fmt: skip
    name = f"{body['device']} ({body['identity'].get('name', '?')})"
    title = f"Conformance of {name}, {running.selection(body)}"
    columns = ("operation", "passed", "skipped", "quarantined", "worst error, of the bound", "time")
    return Table(title, columns, rows)


def _merge(options: argparse.Namespace, output: Output) -> int:
    """Put files together; 1 if two contradict each other or something is missing."""
    _check_files(options, "output", [("a file to merge", file) for file in options.files])
    made = merge(_read_all(options.files, output))
    made.results.path = options.output
    unwritten = _write(options, made.results, made.absent, [], output)
    body = merged_told(made)
    output.show(body, _merged_parts(made))
    is_whole = not (made.conflicts or made.missing or made.absent)
    return max([int(not is_whole), *map(exit_code, unwritten)])


def _merged_parts(made: Merged) -> Iterator[str | Table]:
    rows = []
    for part in made.results:
        counts, shards = part.counts(), ", ".join(made.missing.get(part.device, ()))
        rows.append((part.device, counts["passed"], counts["executed"], counts["unsupported"],
                     made.absent.get(part.device), shards or None))  # fmt: skip
    columns = ("device", "passed", "executed", "skipped", "without a row", "missing shards")
    yield Table("Merged", columns, rows)
    told = [
        (each["device"], each["id"], "; ".join(f"{f}: {s}" for f, s in each["said"].items()))
        for each in made.conflicts
    ]  # fmt: skip
    yield Table("Conflicts; the worse is kept", ("device", "case", "status"), told)


def _compare(options: argparse.Namespace, output: Output) -> int:
    """Set two files side by side; 1 if a case fails that did not fail before."""
    (before,) = _read_all([options.baseline], output).values()
    (now,) = _read_all([options.new], output).values()
    body = compare(before, now, options.factor)
    output.show(body, _compared_parts(body))
    return 1 if body[NEW_FAILURES] else 0


TOLD = {
    "new_failures": "New failures", "fixed": "Fixed", "changed": "Another status",
    "errors": "Another worst error", "only_in_baseline": "Only in the baseline",
    "only_in_new": "Only in the new run",
}  # fmt: skip
"""What the lists of a comparison are called."""


def _compared_parts(body: Mapping[str, Any]) -> Iterator[str | Table]:
    for pair in body["devices"]:
        told = [(name, f"{was or '-'} -> {now or '-'}")
                for name, (was, now) in pair["header"].items()]  # fmt: skip
        title = f"{pair['baseline']} and {pair['new']}: {pair['cases']} cases in both"
        yield Table(title, ("what", "baseline -> new"), told) if told else title
    for name in LISTS:
        rows = [
            (each["device"], each["id"], _brief(each["baseline"]), _brief(each["new"]),
             (each["new"] or {}).get("why", ""))
            for each in body[name][:SHOWN_PROBLEMS]
        ]  # fmt: skip
        yield Table(TOLD[name], ("device", "case", "baseline", "new", "reason"), rows)
    yield ", ".join(f"{body['counts'][name]} {TOLD[name].lower()}" for name in LISTS)


def _brief(told: Mapping[str, Any] | None) -> str | None:
    if told is None:
        return None
    worst = f" ({told['worst']:.3g})" if "worst" in told else ""
    return f"{told['outcome'] if told['outcome'] == XPASSED else told['status']}{worst}"


def _read_all(files: Sequence[str], output: Output) -> dict[str, ResultSet]:
    """Return results by file. Raises InputError (GE-203) for a file without a header."""
    made = {}
    for file in files:
        found = made[file] = read(file, "the command line")
        if not found.parts:
            raise InputError(f"{file} has no header, so nobody knows what it is about.",
                             asked_by="the command line")  # fmt: skip
        if found.damaged:
            output.log(f"{file}: {described(found.damaged)}")
    return made


ACTIONS = {
    "list": (_list, "list the cases"),
    "run": (_run, "run the cases on devices"),
    "merge": (_merge, "put results of shards and devices together"),
    "compare": (_compare, "set two runs side by side: what fails now and did not before"),
}
"""What each action does, and its line of help."""
