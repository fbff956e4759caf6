"""``gpuedge db diff`` and ``db replay``: what a change of the database, or of gpuedge, changes."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

from gpuedge.capdb.database import Database, read_unsealed
from gpuedge.capdb.lint import corpus
from gpuedge.capdb.lint import diff as comparing
from gpuedge.cli.db_check import naming, place
from gpuedge.cli.output import Output, read_json
from gpuedge.core.errors import InputError, NoUsableDeviceError
from gpuedge.core.text import counted, plain


def diff(options: argparse.Namespace, output: Output) -> int:
    """Print every saved identity whose decision differs; with `strict`, 1 if there is one."""
    old, new = map(_database, (options.old, options.new))
    identities = corpus.identities(new.folder)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    changes = comparing.compare(old, new, identities, today)
    entries = comparing.entries_changed(old, new)
    output.document(
        {
            "schema": "gpuedge.db.diff/1",
            "old": str(old.folder),
            "new": str(new.folder),
            "identities": len(identities),
            "entries": entries,
            "changes": [change.to_dict() for change in changes],
        }
    )
    rows = [
        (change.device, change.level, change.name, *cells)
        for change in changes
        for cells in _cells(change)
    ]
    if rows:
        titles = ("identity", "level", "name", "what", "before and after")
        output.table("Decisions that change", titles, rows)
    words = ", ".join(f"{len(names)} {what}" for what, names in entries.items())
    number = len({change.device for change in changes})
    output.text(f"entries: {words}; decisions change for {number} of {len(identities)} identities")
    return 1 if options.strict and changes else 0


def _database(argument: str) -> Database:
    with naming(argument):
        return read_unsealed(place(argument))


def _cells(change: comparing.Change) -> Iterator[tuple[str, str]]:
    for name, before in change.before.items():
        yield name, f"{_short(before)} -> {_short(change.after[name])}"


def _short(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    from gpuedge.cli.db_why import restrictions

    return restrictions(value)


def replay(options: argparse.Namespace, output: Output) -> int:
    """Decide a saved decision again; 1 if that differs, with what differs."""
    from gpuedge.decide.decision import Decision

    saved = _saved(options.file)
    decision = Decision.from_dict(saved)
    try:
        again = decision.replay()
    except NoUsableDeviceError as error:  # nothing about this machine: it is not in the record
        raise InputError(f"{options.file} cannot be decided again: {error.what}") from None
    after = again.to_json()
    try:
        before = _canonical(saved)
        differences = list(_differences(saved, json.loads(after), ""))
    except (ValueError, RecursionError) as error:  # in what no decision has, and nothing reads
        raise InputError(f"{options.file} holds what no saved decision does: {error}.") from None
    is_same = before == after
    output.document(
        {
            "schema": "gpuedge.db.replay/1",
            "file": options.file,
            "is_identical": is_same,
            "made_by": decision.version,
            "device": {"saved": decision.device, "now": again.device},
            "differences": [
                {"field": path, "saved": one, "now": other} for path, one, other in differences
            ],
        }
    )
    if is_same:
        output.text(f"identical, {len(after)} bytes: {again.reason}")
        return 0
    rows = [(path, _json(one), _json(other)) for path, one, other in differences]
    title = f"{counted(len(rows), 'field')} of {options.file} differ"
    output.table(title, ("field", "saved", "now"), rows)
    return 1


def _saved(path: str) -> dict[str, Any]:
    body = read_json(path)
    inner = body.get("decision")
    return inner if isinstance(inner, dict) else body


def _canonical(body: dict[str, Any]) -> str:
    """Return what was saved in the form of `Decision.to_json`, whatever its spaces were."""
    return json.dumps(
        body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


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


MISSING = "(not there)"


def _json(value: Any) -> str:
    return plain(json.dumps(value))
