"""Which folder of the capability database is in use, and the tables in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.database import load
from gpuedge.capdb.files import bad, check_place, contents, document
from gpuedge.capdb.source import TABLES
from gpuedge.core import config
from gpuedge.core.errors import ConfigError, DatabaseError
from gpuedge.safety import databases, paths

MAX_TABLE: Final = 1 << 20
"""Bytes of a table; the largest packaged one has 23,000."""


def folder() -> Path:
    """Return the database's folder: the setting ``db``, an installed update, or the packaged one.

    An update that does not load is passed over. Where none was installed, no file is read.

    Raises
    ------
    DatabaseError (GE-600)
        The setting names no folder, or one that cannot be read.
    """
    first = Path(paths.database_folder())
    if config.get("db").value:
        check_place(first)
    elif databases.is_installed(os.fspath(first)):
        return load().folder
    return first


def find_table(name: str, place: Path | None) -> tuple[Path, int]:
    """Return the path of a table and when it was changed; the packaged one where a folder has none.

    Raises DatabaseError.
    """
    try:
        base = place or folder()
        path = base / name
        if not os.path.lexists(path):
            check_place(base)
            path = paths.data_dir("capability_db") / name
    except ConfigError as error:
        raise DatabaseError(error.what, known=error.known, hint=error.hint) from None
    try:
        return path, path.stat().st_mtime_ns
    except (OSError, ValueError) as error:
        raise bad(path, f"it cannot be read: {error}") from None


def read_table(path: Path) -> dict[str, Any]:
    """Return the JSON object of a table, which must say that it is one. Raises DatabaseError."""
    found = document(path, contents(path, MAX_TABLE))
    if found.get("schema") != TABLES[path.name]:
        raise bad(path, f"its schema is not {TABLES[path.name]!r}")
    return found
