"""``gpuedge db``: what the capability database says, whether it is sound, and getting a newer one.

What makes and publishes databases is in ``tools/capdb``, which is not shipped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.check import check_folder, check_schemas
from gpuedge.capdb.database import Database, load
from gpuedge.capdb.entries import Entry
from gpuedge.capdb.place import folder as in_use
from gpuedge.cli import db_why
from gpuedge.cli.arguments import seconds
from gpuedge.cli.output import Output, read_json
from gpuedge.core.errors import (
    DatabaseError,
    InputError,
    NoUsableDeviceError,
    UpdateError,
    UsageError,
)
from gpuedge.core.text import counted
from gpuedge.safety import paths

DEVICE: Final = (
    "a record of a device in a JSON file, the id of a stored identity, or such as vulkan:0"
)
MISSING: Final = "(not there)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    added = {}
    for name, (_, summary) in ACTIONS.items():
        about = f"{summary[0].upper()}{summary[1:]}."
        added[name] = actions.add_parser(name, help=summary, description=about)
    added["show"].add_argument("ids", nargs="*", metavar="ID", help="entries to show in full")
    for name in ("lookup", "why"):
        added[name].add_argument(
            "--device", metavar="D", help=f"{DEVICE} (default: the devices of this machine)"
        )
    added["validate"].add_argument(
        "folder", nargs="?", metavar="FOLDER",
        help="a database folder, or the word embedded or in-use (the default)",
    )  # fmt: skip
    added["replay"].add_argument(
        "file", metavar="DECISION.json", help="made by Decision.to_json() or gpuedge run --json"
    )
    _add_update(added["update"])


def _add_update(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", nargs="?", metavar="MIRROR", help="a folder or an http(s) address"
    )
    parser.add_argument("--root", metavar="FILE", help="the root of trust, a TUF root.json")
    parser.add_argument("--deadline", type=seconds(), metavar="S", help="seconds in all (30)")
    parser.add_argument(
        "--rollback", action="store_true", help="go back to the version before the last update"
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Do what the action says; 1 where a check failed or an update was refused."""
    return ACTIONS[options.action][0](options, output)


def show(options: argparse.Namespace, output: Output) -> int:
    """List the entries, or show those that are named in full."""
    database = load()
    entries = [_find(database, name) for name in options.ids] or list(database)
    output.document(
        {
            "schema": "gpuedge.db.show/1",
            "database": db_why.about(database),
            "entries": [{"api": entry.api, **entry.source} for entry in entries],
        }
    )
    if options.ids:
        for entry in entries:
            output.text(json.dumps({"api": entry.api, **entry.source}, indent=2))
        return 0
    rows = [
        (e.id, e.api, e.state, e.effect, db_why.describe(e.source["action"]), e.summary)
        for e in entries
    ]
    titles = ("entry", "api", "state", "effect", "does", "summary")
    output.table(db_why.headline(database), titles, rows)
    return 0


def _find(database: Database, name: str) -> Entry:
    if name in database:
        return database.entry(name)
    near = get_close_matches(name, database.ids, n=1)
    raise UsageError(
        f"No entry has the id {name!r}.",
        known=db_why.headline(database),
        hint=f"gpuedge db show {near[0]}" if near else "gpuedge db show lists them",
    )


def validate(options: argparse.Namespace, output: Output) -> int:
    """Check a folder: digests, what the library reads, and its schemas; 1 if something is wrong."""
    if options.folder == "embedded":
        folder = paths.data_dir("capability_db")
    else:
        folder = in_use() if options.folder in (None, "in-use") else Path(options.folder)
    wrong, entries = "", None
    try:
        database = check_folder(folder)
        entries = len(database)
        check_schemas(folder)
    except UpdateError:  # the packages for it are not installed
        raise
    except DatabaseError as error:
        wrong = (error.known or error.what).replace(f"{folder.absolute()}/", "")
    output.document(
        {
            "schema": "gpuedge.db.validate/2",
            "folder": str(folder),
            "result": "FAIL" if wrong else "PASS",
            "entries": entries,
            "problem": wrong or None,
        }
    )
    output.text(f"{folder}: {wrong or f'good, {db_why.entries_counted(len(database))}'}")
    return 1 if wrong else 0


def update(options: argparse.Namespace, output: Output) -> int:
    """Get a newer database, or go back; 1 where that was refused."""
    # loads urllib and what checks signatures, which no other action needs
    from gpuedge.capdb.updates import update as updating

    is_named = options.source is not None and bool(options.source.strip())
    if options.rollback == is_named or (options.rollback and options.source is not None):
        raise UsageError(
            "`db update` needs a mirror, or --rollback without one.",
            asked_by="the command line",
            hint="gpuedge db update https://example.org/gpuedge/ --root root.json",
        )
    if options.rollback:
        outcome = updating.rollback()
    else:
        source = options.source if "://" in options.source else Path(options.source)
        with output.working(f"asking {options.source}"):
            outcome = updating.update(
                source,
                root=None if options.root is None else Path(options.root),
                deadline_s=options.deadline or updating.DEADLINE_S,
            )
    body = {"schema": "gpuedge.db.update/1", "sentence": outcome.sentence, **asdict(outcome)}
    output.document(body)
    output.text(outcome.sentence)
    return 1 if outcome.status == "kept" else 0


def replay(options: argparse.Namespace, output: Output) -> int:
    """Decide a saved decision again; 1 if that differs, with what differs."""
    from gpuedge.decide.decision import Decision  # loads numpy, which no other action needs

    body = read_json(options.file)
    inner = body.get("decision")
    saved = inner if isinstance(inner, dict) else body
    decision = Decision.from_dict(saved)
    try:
        again = decision.replay()
    except NoUsableDeviceError as error:  # nothing about this machine: it is not in the record
        raise InputError(f"{options.file} cannot be decided again: {error.what}") from None
    after = again.to_json()
    try:
        before = json.dumps(saved, sort_keys=True, separators=(",", ":"), allow_nan=False)
        differences = list(_differences(saved, json.loads(after), ""))
    except (ValueError, RecursionError) as error:  # in what no decision has, and nothing reads
        raise InputError(f"{options.file} holds what no saved decision does: {error}.") from None
    rows = [{"field": path, "saved": one, "now": other} for path, one, other in differences]
    output.document(
        {
            "schema": "gpuedge.db.replay/1",
            "file": options.file,
            "is_identical": before == after,
            "made_by": decision.version,
            "device": {"saved": decision.device, "now": again.device},
            "differences": rows,
        }
    )
    if before == after:
        output.text(f"identical, {len(after)} bytes: {again.reason}")
        return 0
    cells = [(row["field"], json.dumps(row["saved"]), json.dumps(row["now"])) for row in rows]
    title = f"{counted(len(rows), 'field')} of {options.file} differ"
    output.table(title, ("field", "saved", "now"), cells)
    return 1


def _differences(one: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            inner = f"{path}.{name}" if path else str(name)
            yield from _differences(one.get(name, MISSING), other.get(name, MISSING), inner)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _differences(a, b, f"{path}[{i}]")
    elif one != other or type(one) is not type(other):
        yield path, one, other


ACTIONS: Final[Mapping[str, tuple[Callable[[argparse.Namespace, Output], int], str]]] = {
    "show": (show, "list the entries, or show some of them in full"),
    "lookup": (db_why.lookup, "what a device may not do, in brief"),
    "why": (db_why.why, "the trace of every entry for a device"),
    "validate": (validate, "check that a database folder is whole and keeps to its schemas"),
    "update": (update, "get a newer database from a mirror, if it is signed and good"),
    "replay": (replay, "decide a saved decision again, and compare it byte by byte"),
}
"""Actions in the order of the help, and what each does."""
