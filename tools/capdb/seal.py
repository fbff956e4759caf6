"""Sealing a database folder: writing the digests of its files into ``database.json``."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb import source
from gpuedge.capdb.database import Database
from gpuedge.capdb.files import bad, contents, document
from gpuedge.safety import paths

VALID_DAYS: Final = 365
ENGINE: Final = {"min": "0.1", "below": "2"}
"""The versions of gpuedge that can read this schema, where the folder does not say."""

_DAY = 86400


def seal(
    folder: Path, *, db_version: int | None = None, valid_days: int = VALID_DAYS
) -> dict[str, Any]:
    """Write ``database.json`` anew, with the digests of the files as they are now.

    Times are renewed only where a digest or the version changes; sealing twice changes nothing.

    Parameters
    ----------
    folder : Path
    db_version : int, optional
        The database's new number. By default it keeps its number if no digest changed, and gets
        the next one else.
    valid_days : int
        For how many days it is said to be valid.

    Returns
    -------
    dict
        What was written.

    Raises
    ------
    DatabaseError (GE-600)
        The files cannot be read, or the new state is refused: then the file is as it was.
    """
    path = folder / source.FILE
    before = _before(path)
    files = {name: _digest(folder / name) for name in source.names(folder)}
    number = before.get("db_version", 0) if db_version is None else db_version
    if db_version is None and files != before.get("files"):
        number += 1
    made = {**before, "schema": source.SCHEMA, "db_version": number, "files": files}
    if made == before:
        return made
    now = time.time()
    made["generated_at"] = _time(now)
    made["valid_until"] = _time(now + valid_days * _DAY)
    made.setdefault("engine_range", dict(ENGINE))
    made.setdefault("retired_ids", [])
    order = ("schema", "db_version", "generated_at", "valid_until", "engine_range", "retired_ids")
    text = json.dumps({**{name: made[name] for name in order}, **made}, indent=1)
    _replace(path, (text + "\n").encode())
    return made


def _replace(path: Path, data: bytes) -> None:
    """Write a new envelope, and put the old one back if the folder is refused with it."""
    old = path.read_bytes() if path.is_file() else None
    if not paths.write_atomic(path, data):
        raise bad(path, "it cannot be written")
    try:
        Database(path.parent, *source.read(path.parent)).about()
    except Exception:
        if old is None:
            path.unlink(missing_ok=True)
        else:
            paths.write_atomic(path, old)
        raise


def _before(path: Path) -> dict[str, Any]:
    return document(path, contents(path)) if path.is_file() else {}


def _digest(path: Path) -> str:
    return hashlib.sha256(contents(path)).hexdigest()


def _time(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
