"""``gpuedge farm``: conformance on the devices of many machines, its results, and reports on them.

Arguments and files are checked before a driver is touched or a connection is made.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import gpuedge
from gpuedge.cli import choosing, running
from gpuedge.cli.arguments import check_writable, seconds, whole
from gpuedge.cli.output import Output
from gpuedge.conformance.bench import STATUSES
from gpuedge.conformance.case import Case
from gpuedge.core.errors import InputError, UsageError
from gpuedge.core.text import Table, counted, utc_now
from gpuedge.farm import SCHEMA, devices, engine, jobs, tasks
from gpuedge.farm.coordinator import Coordinator
from gpuedge.farm.store import RunStore

SHOWN = 20
"""Rows of each table of a summary on a terminal; all are in the document."""

STALL_S = 60.0
"""Beside twice the time of a case: what opening a device may take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = {}
    for name, (_, about) in ACTIONS.items():
        made[name] = actions.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}."
        )
    _add_run(made["run"])
    scheduler = made["scheduler"].add_argument
    scheduler("--host", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    scheduler("--port", type=whole(0, 65535), default=8786, help="port to listen at (8786)")
    worker = made["worker"].add_argument
    worker("--scheduler", required=True, metavar="ADDRESS", help="such as tls://lab:8786")
    worker("--serial", type=serial, metavar="NAME", help="name of this machine (its host name)")
    running.add_jobs(made["worker"])
    worker("--label", type=running.label, action="append", default=[], metavar="KEY=VALUE",
           help="such as rack=3; repeatable")  # fmt: skip
    for name in ("run", "worker"):
        made[name].add_argument(
            "--device", action="append", default=[], metavar="D",
            help="only this device of this machine, such as vulkan:0; repeatable",
        )  # fmt: skip
    for name in ("run", "scheduler", "worker"):
        for option, about in TLS.items():
            made[name].add_argument(f"--tls-{option}", metavar="F.pem", help=about)
    made["export"].add_argument("stores", nargs="+", metavar="STORE")
    made["export"].add_argument("-o", "--output", required=True, metavar="F.parquet")
    made["query"].add_argument("stores", nargs="+", metavar="STORE")
    made["query"].add_argument("sql", metavar="SQL", help='such as "select count(*) from rows"')
    report = made["report"].add_argument
    report("stores", nargs="+", metavar="STORE")
    report("-o", "--output", required=True, metavar="F.html", help="the page to write")
    report("--proposals", metavar="FOLDER", help="write entries for the capability database there")
    report(
        "--database",
        metavar="FOLDER",
        help="whose ids are taken: capability_db of a source tree (the packaged one)",
    )
    job = made["job"].add_argument
    job("kind", choices=jobs.KINDS, help="what the job is for")
    job("-o", "--output", required=True, metavar="FOLDER", help="where its files are written")
    job("--device", type=device, default="vulkan", metavar="D", help="the device to test (vulkan)")
    job("--profile", choices=("smoke", "full"), default="smoke", help="how many and how large")
    job("--shards", type=whole(1, 99_999), default=1, metavar="N", help="jobs to split it into (1)")


TLS = {
    "ca": "certificate of the authority that both sides trust",
    "cert": "own certificate",
    "key": "its private key",
}


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--store", required=True, metavar="URL", help="a folder, or what fsspec has a package for")
    add("--resume", action="store_true", help="run what the store lacks")
    add("--scheduler", metavar="ADDRESS",
        help="such as tls://lab:8786; without it the devices of this machine are used")  # fmt: skip
    choosing.add_names(parser)
    running.add_limits(parser)
    parser.set_defaults(shard=(1, 1), profile=None)
    add("--shards", type=whole(1, 99_999), metavar="N",
        help=f"shards for each device; by default of about {tasks.SHARD_CASES} cases")  # fmt: skip
    add("--verify", type=share, default=0.0, metavar="SHARE",
        help="share of shards that a second equal device runs too, 0 to 1 (0)")  # fmt: skip
    add("--seed", type=whole(0, 999_999_999), default=0, metavar="N", help="chooses these (0)")
    add("--label", type=running.label, action="append", default=[], metavar="KEY=VALUE",
        help="ask only workers with this label; repeatable")  # fmt: skip
    add("--wait", type=whole(1, 9999), default=1, metavar="N",
        help="begin when so many devices are there, or after --grace (1)")  # fmt: skip
    add("--stall-timeout", type=seconds(1, 86_400), metavar="S",
        help="seconds without a finished case after which a shard moves to another worker "
        "(60 and twice --case-timeout)")  # fmt: skip
    add("--grace", type=seconds(0.1, 86_400), default=30.0, metavar="S",
        help="seconds that a device may have no worker (30)")  # fmt: skip


def share(text: str) -> float:
    """Return a number from 0 to 1."""
    number = float(text) if re.fullmatch(r"[0-9]{0,3}\.?[0-9]{1,9}", text) else -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def device(text: str) -> str:
    """Return a device string, as it may stand in a script."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,40}(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no device such as vulkan or gles30:1")
    return text


def serial(text: str) -> str:
    """Return what a machine is called."""
    if not (0 < len(text) <= devices.MOST_SERIAL and text.isprintable()):
        why = f"is not a name of 1 to {devices.MOST_SERIAL} characters that print"
        raise argparse.ArgumentTypeError(f"{text[:80]!r} {why}")
    return text


def run(options: argparse.Namespace, output: Output) -> int:
    """Do what the action says."""
    return ACTIONS[options.action][0](options, output)


def _tls(options: argparse.Namespace) -> engine.Certificates | None:
    return engine.certificates(options.tls_ca, options.tls_cert, options.tls_key)


def _run(options: argparse.Namespace, output: Output) -> int:
    from gpuedge.graph import onnx_package  # noqa: F401  cases are judged by it, in other processes

    files = _tls(options)
    if options.scheduler:
        engine.check_address(options.scheduler, files)
        if options.device:
            raise UsageError("With --scheduler the workers say which devices there are.",
                             asked_by="--device", hint="--label")  # fmt: skip
    store = RunStore(options.store)
    old = store.run()
    farm_run, cases = _begun(options, store, old)
    begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    with output.working("starting") as progress, _engine(options, files) as client:
        stall_s = options.stall_timeout or STALL_S + 2 * options.case_timeout
        coordinator = Coordinator(
            client, store, farm_run, cases, options.case_timeout, stall_s, options.grace,
            options.wait, dict(options.label), _teller(output, progress), is_new=old is None,
        )  # fmt: skip
        coordinator.work()
    body = {"schema": SCHEMA, **coordinator.summary()}
    store.put(f"summaries/{begun}-{uuid4().hex[:6]}.json", json.dumps(body))
    output.show(body, _parts(body))
    return _code(body)


def _engine(
    options: argparse.Namespace, files: engine.Certificates | None
) -> AbstractContextManager[engine.Engine]:
    if options.scheduler:
        return engine.connected(options.scheduler, files)
    here = devices.found_here(options.device, dict(options.label), None)
    return engine.embedded(here, options.jobs)


def _teller(output: Output, progress: Callable[[str], None]) -> Callable[[str], None]:
    """Return what shows progress in place, and anything else as a line."""

    def say(text: str) -> None:
        (progress if re.match(r"\d+ of \d+ shards", text) else output.log)(text)

    return say


def _begun(
    options: argparse.Namespace, store: RunStore, old: tasks.FarmRun | None
) -> tuple[tasks.FarmRun, dict[str, Case]]:
    """Return the run of the store, to be begun or begun before, and its cases."""
    if old is not None and not options.resume:
        raise InputError(
            f"{store.url} holds a run already.", asked_by="--store",
            hint="--resume goes on with it; another run needs another store",
        )  # fmt: skip
    if old is not None:
        asked = {*options.only, *options.case}
        if (
            asked not in (set(), set(old.only))
            or options.shards not in (None, old.parts)
            or options.profile not in (None, old.profile)
        ):
            raise UsageError(
                "--resume goes on with the cases of the run that the store holds.",
                asked_by="--resume",
                known=f"its profile: {old.profile}; patterns: {', '.join(old.only) or 'none'}; "
                f"shards: {old.parts}",
                hint="leave --profile, --only, --case and --shards out, or take a new store",
            )
        options.profile, options.only, options.case = old.profile, list(old.only), []
    elif options.resume:
        raise InputError(f"{store.url} holds no run.", asked_by="--resume",
                         hint="run without --resume")  # fmt: skip
    options.profile = options.profile or "smoke"
    cases = {case.id: case for case in choosing.chosen(options)}
    names = tasks.names_digest(list(cases))
    if old is None:
        old = tasks.FarmRun(
            uuid4().hex, gpuedge.__version__, options.profile, (*options.only, *options.case),
            options.shards or tasks.parts_for(len(cases)), len(cases), names, options.seed,
            options.verify, utc_now(),
        )  # fmt: skip
    elif (old.version, old.names) != (gpuedge.__version__, names):
        raise InputError(
            f"{store.url} holds a run of another version.", asked_by="--resume",
            known=f"there gpuedge {old.version} with {old.count} cases, here "
            f"{gpuedge.__version__} with {len(cases)}",
            hint="a new store, or the other version of gpuedge",
        )  # fmt: skip
    return old, cases


def _code(body: dict[str, Any]) -> int:
    counts = body["counts"]
    if counts.get("crashed") or counts.get("timeout"):
        return 4
    bad = sum(counts.get(name, 0) for name in ("failed", "error", "flake", "not_run"))
    return 1 if bad or body["disagreements"] or body["excluded"] else 0


def _parts(body: dict[str, Any]) -> Iterator[str | Table]:
    rows = []
    for one in body["devices"]:
        counts = one["counts"]
        bad = [f"{counts[s]} {s}" for s in STATUSES if s not in running.HARMLESS and counts.get(s)]
        rows.append((
            one["key"], one["name"], f"{counts.get('passed', 0)} of {counts.get('executed', 0)}",
            counts.get("unsupported") or None, ", ".join(bad),
            counts.get("not_run") or None, " ".join(one["workers"]),
        ))  # fmt: skip
    columns = ("device", "name", "passed", "skipped", "bad", "not run", "by")
    title = f"Run {body['run'][:8]}, {running.selection(body)}, {body['cases']} cases"
    yield Table(title, columns, rows)
    out = [(row["serial"], row["worker"], row["why"]) for row in body["excluded"][:SHOWN]]
    yield Table("Workers that were not believed or asked", ("serial", "worker", "why"), out)
    moved = [(row["task"], row["worker"], row["why"]) for row in body["moved"][:SHOWN]]
    yield Table("Shards that moved", ("shard", "from", "why"), moved)
    odd = [(row["key"], row["id"], row["first"], row["second"], row["workers"])
           for row in body["disagreements"][:SHOWN]]  # fmt: skip
    heads = ("device", "case", "first", "then", "workers")
    yield Table("Equal devices that disagree", heads, odd)
    for task, why in list(body["not_run"].items())[:SHOWN]:
        yield f"not run: {task}: {why}"
    yield running.told(body["counts"])
    said = [counted(len(body["devices"]), "device"), f"results in {body['store']}"]
    if count := body["verified"]:
        said.append(f"{counted(count, 'shard')} verified")
    elif body["verify"] and not body["unverified"]:
        said.append("no shard drawn to be verified")
    if count := len(body["unverified"]):
        said.append(f"{counted(count, 'shard')} not verified, for lack of a second equal device")
    yield "; ".join(said)


def _scheduler(options: argparse.Namespace, output: Output) -> int:
    engine.serve_scheduler(
        options.host, options.port, _tls(options), lambda at: _ready(output, {"address": at})
    )
    return 0


def _worker(options: argparse.Namespace, output: Output) -> int:
    files = _tls(options)
    engine.check_address(options.scheduler, files)
    here = devices.found_here(options.device, dict(options.label), options.serial)
    desk = devices.Desk(here, options.jobs)
    keys = [{"device": one.device, "key": one.key} for one in here.devices]
    engine.serve_worker(
        options.scheduler, files, desk,
        lambda at: _ready(output, {"address": at, "serial": here.serial, "devices": keys}),
    )  # fmt: skip
    return 0


def _ready(output: Output, body: dict[str, Any]) -> None:
    """Say that a scheduler or worker is there: on stdout at once, for whatever waits for it."""
    told = [f"{one['device']} as {one['key']}" for one in body.get("devices", ())]
    output.show({"schema": "gpuedge.farm.ready/1", **body}, [" ".join([body["address"], *told])])
    print(end="", flush=True)


def _export(options: argparse.Namespace, output: Output) -> int:
    from gpuedge.farm import table

    _check_target(options, "output")
    count = table.export(options.stores, options.output)
    body = {"schema": "gpuedge.farm.export/1", "rows": count, "file": options.output}
    output.show(body, [f"{counted(count, 'row')} in {options.output}"])
    return 0


def _query(options: argparse.Namespace, output: Output) -> int:
    from gpuedge.farm import table

    columns, rows = table.query(options.stores, options.sql)
    body = {"schema": "gpuedge.farm.query/1", "columns": columns, "rows": rows}
    output.show(body, [Table("Result", columns, [tuple(map(_cell, row)) for row in rows])])
    return 0


def _cell(value: object) -> str | None:
    return None if value is None else str(value)


def _check_target(options: argparse.Namespace, name: str, *, is_folder: bool = False) -> None:
    """Raise an error where what an option names cannot be written, or lies in a store."""
    target, option = getattr(options, name), f"--{name}"
    check_writable(target, option, is_folder=is_folder)
    for url in options.stores if target else ():
        if RunStore(url).holds(target):
            raise UsageError(f"{target} lies in the store {url}.", asked_by=option,
                             hint="a place outside of it")  # fmt: skip


def _report(options: argparse.Namespace, output: Output) -> int:
    from gpuedge.farm import page, proposals, report

    _check_target(options, "output")
    _check_target(options, "proposals", is_folder=True)
    found = report.collect(options.stores)
    proposed = proposals.proposed(found, options.database)
    page.write(found, proposed, options.output)
    if options.proposals:
        proposals.write(proposed, options.database, options.proposals)
    body = {"schema": "gpuedge.farm.report/1", **found.counts(), "file": options.output,
            "proposals": [one.entry["id"] for one in proposed]}  # fmt: skip
    counts = {**found.counts(), "proposals": len(proposed)}.items()
    told = ", ".join(counted(number, name.removesuffix("s")) for name, number in counts)
    output.show(body, [f"{options.output}: {told}"])
    return 0


def _job(options: argparse.Namespace, output: Output) -> int:
    check_writable(options.output, "--output", is_folder=True)
    made = jobs.write(options.kind, options.output, options.device, options.profile, options.shards)
    output.show({"schema": "gpuedge.farm.job/1", "files": made}, made)
    return 0


ACTIONS: dict[str, tuple[Callable[[argparse.Namespace, Output], int], str]] = {
    "run": (_run, "run the cases on every device that workers announce, or on this machine's"),
    "scheduler": (_scheduler, "be the scheduler that workers and runs connect to"),
    "worker": (_worker, "offer the devices of this machine to a scheduler"),
    "report": (_report, "write a page about one run or many"),
    "query": (_query, "ask a question in SQL about the rows of runs"),
    "export": (_export, "write the rows of runs to a Parquet file"),
    "job": (_job, "write the files of a job for phones: adb, LAVA, Firebase, AWS"),
}
