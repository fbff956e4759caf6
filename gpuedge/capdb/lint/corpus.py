"""What a database folder holds besides what the library reads: identities, facts, rows left out.

Tools check entries against them. An installed update carries none of them; the identities of the
packaged database stand in, while facts are a folder's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb import source
from gpuedge.capdb.place import bad
from gpuedge.safety import paths

IDENTITIES: Final = "fixtures/identities.json"
LEFT_OUT: Final = "left_out"
FACTS: Final = "facts.json"
LEFT_OUT_SCHEMA: Final = "gpuedge.left-out/1"
FACTS_SCHEMA: Final = "gpuedge.facts/1"

_FACT = re.compile(r"Q([0-9]{3})(?:-Q([0-9]{3}))?")


def identities(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the saved identities that entries are tested on, by id.

    Raises
    ------
    DatabaseError (GE-600)
        The file cannot be read, or an identity has no id of its own.
    """
    own = folder / IDENTITIES
    path = own if own.exists() else paths.data_dir("capability_db") / IDENTITIES
    found: dict[str, Mapping[str, Any]] = {}
    for record in _listed(path):
        name = record.get("id")
        if not isinstance(name, str) or name in found:
            raise bad(path, f"an identity has no id of its own: {str(name)[:60]!r}")
        found[name] = record
    return found


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
    body = source.document(path, contents(path))
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
        body = source.document(path, contents(path))
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


def contents(path: Path) -> bytes:
    """Return the bytes of a file of the database, which is of bounded size.

    Raises DatabaseError where it cannot be read.
    """
    try:
        data = paths.read_start(path, source.MAX_FILE + 1)
    except (OSError, ValueError) as error:
        raise bad(path, f"it cannot be read: {error}") from None
    if len(data) > source.MAX_FILE:
        raise bad(path, f"it is larger than {source.MAX_FILE >> 20} MiB")
    return data


def _listed(path: Path) -> list[Mapping[str, Any]]:
    import json

    try:
        found = json.loads(contents(path))
    except (ValueError, RecursionError) as error:
        raise bad(path, f"it is no JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(r, dict) for r in found):
        raise bad(path, "it is no list of records")
    return found
