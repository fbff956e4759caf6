"""``gpuedge db show``: the entries of the database in use."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from gpuedge.capdb.database import Database, load
from gpuedge.capdb.entries import Entry
from gpuedge.cli.output import Output
from gpuedge.core.errors import UsageError


def show(options: argparse.Namespace, output: Output) -> int:
    """List the entries, or show those that are named in full."""
    database = load()
    entries = [_find(database, name) for name in options.ids] or list(database)
    output.document(
        {
            "schema": "gpuedge.db.show/1",
            "database": about(database),
            "entries": [{"api": entry.api, **entry.source} for entry in entries],
        }
    )
    if options.ids:
        for entry in entries:
            _in_full(entry, output)
        return 0
    rows = [
        (e.id, e.api, e.state, e.effect, describe(e.source["action"]), e.summary) for e in entries
    ]
    titles = ("entry", "api", "state", "effect", "does", "summary")
    output.table(headline(database), titles, rows)
    return 0


def about(database: Database) -> dict[str, Any]:
    """Return which database this is, JSON-ready."""
    return {
        "version": database.version,
        "digest": database.digest,
        "folder": str(database.folder),
        "generated_at": database.generated_at,
        "valid_until": database.valid_until,
        "entries": len(database),
    }


def headline(database: Database) -> str:
    """Return which database this is, in a line."""
    number = f"version {database.version}" if database.version else "unsealed"
    entries = entries_counted(len(database))
    return f"Capability database, {number}, {entries}: {database.folder}"


def entries_counted(number: int) -> str:
    """Return a number of entries in words."""
    return f"{number} {'entry' if number == 1 else 'entries'}"


def describe(action: Mapping[str, Any]) -> str:
    """Return what an action does, in few words.

    >>> describe({"disable_features": ["fp16"], "limits": {"max_outputs": 1}})
    'no fp16; max_outputs <= 1'
    """
    found = ["not used at all"] if action.get("disable_backend") else []
    for name in ("levels", "features", "kernels", "storages"):
        listed = action.get(f"disable_{name}")
        if listed:
            found.append(f"no {', '.join(listed)}")
    found += [f"{name} <= {most}" for name, most in (action.get("limits") or {}).items()]
    if action.get("demote"):
        found.append("others first")
    return "; ".join(found) or "explains only"


def _find(database: Database, name: str) -> Entry:
    if name in database:
        return database.entry(name)
    from difflib import get_close_matches

    near = get_close_matches(name, database.ids, n=1)
    raise UsageError(
        f"No entry has the id {name!r}.",
        known=headline(database),
        hint=f"gpuedge db show {near[0]}" if near else "gpuedge db show lists them",
    )


def _in_full(entry: Entry, output: Output) -> None:
    record = entry.source
    rows = [
        ("api", entry.api),
        ("state", f"{entry.state}, revision {entry.rev}"),
        ("effect", f"{entry.effect} ({entry.assurance})"),
        ("summary", entry.summary),
        *((f"match[{i}]", _line(m)) for i, m in enumerate(record["match"])),
        *((f"except[{i}]", _line(m)) for i, m in enumerate(record.get("except", ()))),
        ("on unknown", entry.on_unknown),
        ("does", describe(record["action"])),
        *([("note", entry.action.note)] if entry.action.note else []),
        *([("probe", _line(record["probe"]))] if entry.probe else []),
        *((f"evidence[{i}]", _line(e)) for i, e in enumerate(entry.evidence)),
        ("review", _line(record["review"])),
        ("tests", _line(record["tests"])),
        *([("supersedes", ", ".join(entry.supersedes))] if entry.supersedes else []),
    ]
    output.table(entry.id, ("what", "is"), rows)


def _line(record: Mapping[str, Any]) -> str:
    """Return a record on one line: ``vendor: qualcomm; model: from 600, below 700``."""
    return "; ".join(f"{name}: {_value(value)}" for name, value in record.items())


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(v, (str, int)) for v in value):
        return ", ".join(map(str, value))
    return json.dumps(value)
