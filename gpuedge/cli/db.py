"""``gpuedge db``: what the capability database says of a device, and getting a newer one.

A device is a record in a file, a stored identity, or one that an earlier probe of this machine
found; no driver is touched. What makes, checks and publishes databases is ``tools/capdb``, which is
not shipped.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.database import Database, load
from gpuedge.capdb.identities import KEYS, identities, title, unfit
from gpuedge.capdb.judgement import lookup as judge
from gpuedge.capdb.place import folder as in_use
from gpuedge.cli.arguments import seconds
from gpuedge.cli.output import Output, read_json
from gpuedge.core.errors import InputError, UnknownDeviceError, UsageError
from gpuedge.core.identity import Identity
from gpuedge.core.text import Table, counted, nearest, plain, shown
from gpuedge.probing import api
from gpuedge.probing.show import forbidden

NOTHING: Final = "No device of this machine was reached by a probe, so there is nothing to look up."
HOW: Final = (
    "gpuedge probe looks for devices; --device judges a record in a JSON file, or a stored identity"
)
COLUMNS: Final = ("id", "becomes", "decided_by", "effect", "summary")
HEADINGS: Final = {
    "true": "about this device",
    "unknown": "may be about it",
    "false": "not about it",
}
SHOWN: Final = 400
"""Characters of a field that is shown where a decision replays differently."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    added = {}
    for name, (_, summary) in ACTIONS.items():
        about = f"{summary[0].upper()}{summary[1:]}."
        added[name] = actions.add_parser(name, help=summary, description=about)
    added["show"].add_argument("ids", nargs="*", metavar="ID", help="entries to show in full")
    added["why"].add_argument(
        "--device", metavar="D",
        help="a record of a device in a JSON file, the id of a stored identity, or such as "
        "vulkan:0 (default: the devices of this machine)",
    )  # fmt: skip
    added["why"].add_argument("--all", action="store_true", help="show entries about others, too")
    added["replay"].add_argument(
        "file", metavar="DECISION.json", help="made by Decision.to_json() or gpuedge run --json"
    )
    update = added["update"]
    update.add_argument(
        "source", nargs="?", metavar="MIRROR", help="a folder or an http(s) address"
    )
    update.add_argument("--root", metavar="FILE", help="the root of trust, a TUF root.json")
    update.add_argument(
        "--deadline", type=seconds(), default=30.0, metavar="S", help="seconds in all (30)"
    )
    update.add_argument("--rollback", action="store_true", help="undo the last update")


def run(options: argparse.Namespace, output: Output) -> int:
    """Do what the action says; 1 where a check failed or an update was refused."""
    return ACTIONS[options.action][0](options, output)


def about(database: Database) -> dict[str, Any]:
    """Return which database this is, JSON-ready."""
    names = ("version", "digest", "generated_at", "valid_until")
    told = {name: getattr(database, name) for name in names}
    return {**told, "folder": str(database.folder), "entries": len(database)}


def in_words(told: Mapping[str, Any]) -> str:
    """Return the version and size of a database that `about` describes."""
    return f"version {told['version']}, {counted(told['entries'], 'entry')}"


def show(options: argparse.Namespace, output: Output) -> int:
    """List the entries, or show those that are named in full."""
    database = load()
    told = about(database)
    headline = f"Capability database, {in_words(told)}: {database.folder}"
    for name in options.ids:
        if name not in database:
            near = get_close_matches(name, database.ids, n=1)
            raise UsageError(
                f"No entry has the id {name!r}.",
                known=headline,
                hint=f"gpuedge db show {near[0]}" if near else "gpuedge db show lists them",
            )
    entries = [database.entry(name) for name in options.ids] or list(database)
    records = [{"api": entry.api, **entry.source} for entry in entries]
    rows = [
        (e.id, e.api, e.state, e.effect, forbidden(e.action.to_dict()), e.summary) for e in entries
    ]
    columns = ("entry", "api", "state", "effect", "restrictions", "summary")
    listed = [Table(headline, columns, rows)]
    in_full = (json.dumps(record, indent=2) for record in records)
    body = {"schema": "gpuedge.db.show/1", "database": told, "entries": records}
    output.show(body, in_full if options.ids else listed)
    return 0


def check_record(record: Mapping[str, Any]) -> None:
    """Raise InputError for a key that no record has, or a value that no driver reports.

    Keys that only stored identities have may stay.
    """
    stored = {key for identity in identities(in_use()).values() for key in identity}
    for key in record.keys() - stored.union(KEYS):
        near = get_close_matches(key.lower(), [k.lower() for k in KEYS], n=1)
        meant = [k for k in KEYS if k.lower() in near]
        raise InputError(
            f"A record of a device has no key {shown(key)}.",
            asked_by="--device",
            known=", ".join(KEYS),
            hint=f"did you mean {meant[0]!r}?" if meant else "docs/cli.md lists the keys",
        )
    misfit = unfit(record)
    if misfit is not None:
        key, wanted = misfit
        raise InputError(
            f"A record of a device cannot have {plain(json.dumps(record[key]), 60)} as {key}.",
            asked_by="--device",
            known=f"it is {wanted}",
            hint="leave out what is not known, or give null",
        )


def devices(named: str | None) -> list[tuple[str, str, Mapping[str, Any] | Identity]]:
    """Return the device that is named, or those that earlier probes of this machine reached.

    Of each where it is from, what it is called, and its record. Raises InputError for a file that
    holds no record, UnknownDeviceError for a name of nothing.
    """
    is_path = named is not None and (named.endswith(".json") or os.sep in named)
    if named is not None and (is_path or os.path.lexists(named)):
        record: Mapping[str, Any] = read_json(named, "--device", HOW)
        check_record(record)
        return [(named, title(record), record)]
    stored = {} if named is None else identities(in_use())
    if named in stored:
        return [(named, title(stored[named]), stored[named])]
    here: list[tuple[str, str, Mapping[str, Any] | Identity]] = [
        (row.device, row.name, Identity.from_dict(dict(row.identity)))
        for row in api.latest()  # whatever database or settings they were probed under
        if row.identity
    ]
    if named is None:
        return here
    for device in here:
        if named in (device[0], device[0].split(":")[0]):
            return [device]
    near = nearest(named, [*(source for source, *_ in here), *stored])
    raise UnknownDeviceError(
        f"{named!r} is no file, no stored identity and no device of the last probe.",
        asked_by="--device",
        known=f"devices of the last probe: {', '.join(source for source, *_ in here) or 'none'}",
        hint=near or HOW,
    )


def why(options: argparse.Namespace, output: Output) -> int:
    """Print what entries come to; the document of one device has every entry, and is the answer."""
    judged = [
        (source, name, judge(record).to_dict(all=True))
        for source, name, record in devices(options.device)
    ]
    traces = [{"device": source, "name": name, **body} for source, name, body in judged]
    body = {"schema": "gpuedge.db.machine/1", "devices": traces}
    parts = (part for device in judged for part in _judged(*device, is_all=options.all))
    output.show(body if options.device is None else judged[0][2], parts if judged else [NOTHING])
    if not judged:
        output.log(HOW)
    return 0


def _judged(
    source: str, name: str, body: Mapping[str, Any], *, is_all: bool
) -> Iterator[str | Table]:
    """Tell who a device is, and of the entries that are, may be and are not about it."""
    yield Table(f"{name} ({source})", ("what", "is"), _subject(body))
    for result, heading in HEADINGS.items():
        rows = [[f[c] for c in COLUMNS] for f in body["findings"] if f["result"] == result]
        told = f"{counted(len(rows), 'entry')} {heading}"
        if result != "false" or is_all:
            yield Table(told, [name.replace("_", " ") for name in COLUMNS], rows)
        elif rows:
            yield f"{told}; --all shows them"


def _subject(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    who = body["subject"]
    shown = ("vendor", "family", "model", "os", "layers", "is_mesa", "name", "soc", "device")
    rows = [(name, _text(who[name])) for name in shown]
    rows += [
        (f"driver, {scheme}", f"{'.'.join(map(str, version['version']))} ({version['text']})")
        for scheme, version in body["driver_versions"].items()
    ]
    rows += [("build", _text(who["builds"])), ("built", _text(who["built"]))]
    rows += [("note", note) for note in body["notes"]]
    rows += [("restrictions", forbidden(body["restrictions"]) or "none")]
    rows += [("blocked by", body["blocked_by"] or "nothing")]
    return rows + [
        ("asks for a test", f"{d['entry']}: {', '.join(d['tests'])}, {d['runs']} runs")
        for d in body["demands"]
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not known" if value is None else str(value)


def update(options: argparse.Namespace, output: Output) -> int:
    """Get a newer database, or go back; 1 where that was refused."""
    # loads urllib and what checks signatures, which no other action needs
    from gpuedge.capdb.updates import update as updating

    if (options.source is None) != options.rollback:
        raise UsageError(
            "`db update` needs a mirror, or --rollback without one.",
            asked_by="the command line",
            hint="gpuedge db update https://example.org/gpuedge/ --root root.json",
        )
    if options.rollback:
        outcome = updating.rollback()
    else:
        root = None if options.root is None else Path(options.root)
        with output.working(f"asking {options.source}"):
            outcome = updating.update(options.source, root=root, deadline_s=options.deadline)
    body = {"schema": "gpuedge.db.update/1", "sentence": outcome.sentence, **asdict(outcome)}
    output.show(body, [outcome.sentence])
    return 1 if outcome.status == "kept" else 0


def replay(options: argparse.Namespace, output: Output) -> int:
    """Decide a saved decision again; 1 if that differs, with the fields that do."""
    from gpuedge.decide.decision import Decision  # loads numpy, which no other action needs

    body = read_json(options.file)
    inner = body.get("decision")
    saved = inner if isinstance(inner, dict) else body
    decision = Decision.from_dict(saved)
    again = decision.replay()
    before, after = json.dumps(saved, sort_keys=True, separators=(",", ":")), again.to_json()
    now = json.loads(after)
    rows = [
        {"field": name, "saved": saved.get(name), "now": now.get(name)}
        for name in sorted(saved.keys() | now.keys())
        if json.dumps(saved.get(name)) != json.dumps(now.get(name))
    ]
    titles = ("field", "saved", "now")
    cells = [[plain(json.dumps(row[name]), SHOWN) for name in titles] for row in rows]
    differ = Table(f"{counted(len(rows), 'field')} of {options.file} differ", titles, cells)
    output.show(
        {
            "schema": "gpuedge.db.replay/1",
            "file": options.file,
            "is_identical": before == after,
            "made_by": decision.version,
            "device": {"saved": decision.device, "now": again.device},
            "differences": rows,
        },
        [f"identical, {len(after)} bytes: {again.reason}" if before == after else differ],
    )
    return 0 if before == after else 1


ACTIONS: Final[Mapping[str, tuple[Callable[[argparse.Namespace, Output], int], str]]] = {
    "show": (show, "list the entries, or show some of them in full"),
    "why": (why, "the entries about a device, what they come to, and what decided"),
    "update": (update, "get a newer database from a mirror, if it is signed and good"),
    "replay": (replay, "decide a saved decision again, and compare it byte by byte"),
}
"""Actions in the order of the help, and what each does."""
