"""What a database folder holds besides what the library reads: facts, notes, fixtures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb import source
from gpuedge.capdb.database import Database
from gpuedge.capdb.entries import Entry
from gpuedge.capdb.files import bad, contents, document

LEFT_OUT: Final = "left_out"
FACTS: Final = "facts.json"
LEFT_OUT_SCHEMA: Final = "gpuedge.left-out/1"
FACTS_SCHEMA: Final = "gpuedge.facts/1"
NOTES: Final = "notes"
NOTES_SCHEMA: Final = "gpuedge.notes/1"
PAIRS: Final = "fixtures/pairs.json"
PAIRS_SCHEMA: Final = "gpuedge.pairs/1"

_FACT = re.compile(r"Q([0-9]{3})(?:-Q([0-9]{3}))?")


def facts(folder: Path) -> tuple[str, ...]:
    """Return the ids of all rows of the fact collection; none where the folder has no list.

    Raises
    ------
    DatabaseError (GE-600)
        The list cannot be read.
    """
    path = folder / FACTS
    if not path.is_file():
        return ()
    body = document(path, contents(path))
    if body.get("schema") != FACTS_SCHEMA or not isinstance(body.get("facts"), list):
        raise bad(path, f"its schema is not {FACTS_SCHEMA!r}")
    found: list[str] = []
    for text in body["facts"]:
        span = _FACT.fullmatch(text) if isinstance(text, str) else None
        if span is None:
            raise bad(path, f"{str(text)[:60]!r} is neither Q001 nor Q001-Q009")
        first = int(span[1])
        found += [f"Q{n:03d}" for n in range(first, int(span[2] or first) + 1)]
    return tuple(found)


def left_out(folder: Path) -> list[tuple[str, str, str]]:
    """Return fact, reason and file of every row that was left out.

    Raises
    ------
    DatabaseError (GE-600)
        A file cannot be read.
    """
    found = []
    for path in sorted((folder / LEFT_OUT).glob("*.json")):
        body = document(path, contents(path))
        rows = body.get("rows")
        if body.get("schema") != LEFT_OUT_SCHEMA or not isinstance(rows, list):
            raise bad(path, f"its schema is not {LEFT_OUT_SCHEMA!r}")
        for row in rows:
            fact, reason = (
                (row.get(k) for k in ("fact", "reason")) if isinstance(row, dict) else ("", "")
            )
            if not isinstance(fact, str) or not isinstance(reason, str) or not reason:
                raise bad(path, "a row must have a fact and a reason")
            found.append((fact, reason, f"{LEFT_OUT}/{path.name}"))
    return found


def notes(folder: Path) -> list[tuple[Mapping[str, Any], str]]:
    """Return the notes about what gpuedge never does, each with its file.

    Raises
    ------
    DatabaseError (GE-600)
        A file cannot be read.
    """
    found = []
    for path in sorted((folder / NOTES).glob("*/*.json")):
        body = document(path, contents(path))
        rows = body.get("notes")
        if body.get("schema") != NOTES_SCHEMA or not isinstance(rows, list):
            raise bad(path, f"its schema is not {NOTES_SCHEMA!r}")
        found += [(row, path.relative_to(folder).as_posix()) for row in rows]
    return found


def pairs(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the fixtures of entries, by id.

    ``match`` is a device or the id of a stored identity, ``near`` the few fields in which the near
    miss differs from it.

    Raises
    ------
    DatabaseError (GE-600)
        The file cannot be read.
    """
    path = folder / PAIRS
    body = document(path, contents(path))
    found = body.get("pairs")
    if body.get("schema") != PAIRS_SCHEMA or not isinstance(found, dict):
        raise bad(path, f"its schema is not {PAIRS_SCHEMA!r}")
    return found


def read_unsealed(path: Path) -> Database:
    """Read a folder that is worked on, whatever its ``database.json`` says.

    Raises DatabaseError for entries that cannot be read.
    """
    folder = Path(path).absolute()
    made = Database(folder, *source.read(folder, is_sealed=False))
    made.about()
    return made


def of_entries(entries: Iterable[Entry]) -> Database:
    """Return a database of some entries, which lies nowhere.

    >>> len(of_entries([]))
    0
    """
    rows = (source.RawEntry(Path(), i, entry.source, entry.api) for i, entry in enumerate(entries))
    return Database(Path(), source.UNSEALED, rows)
