"""Which folder of the capability database is in use, and the tables in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from gpuedge.capdb.database import load
from gpuedge.capdb.files import bad, check_place, contents, document
from gpuedge.capdb.source import TABLES
from gpuedge.core import config
from gpuedge.core.errors import ConfigError, DatabaseError
from gpuedge.safety import databases, paths

T = TypeVar("T")

MAX_TABLE: Final = 1 << 20
"""Bytes of a table; the largest packaged one has 23,000."""


def folder() -> Path:
    """Return the database's folder: the setting ``db``, an installed update, or the packaged one.

    An update that does not load is passed over. Where none was installed, no file is read. Raises
    DatabaseError where the setting names no folder, or one that cannot be read.
    """
    first = Path(databases.database_folder())
    if config.get("db").value:
        check_place(first)
    elif databases.is_installed(os.fspath(first)):
        return load().folder
    return first


def table(name: str, make: Callable[[Mapping[str, Any]], T], place: Path | None = None) -> T:
    """Return what `make` makes of a table: read once, and again when the file has changed.

    It is that of the folder `place` or of the database in use; the packaged one where the folder
    has none. Raises DatabaseError.
    """
    try:
        base = place or folder()
    except ConfigError as error:
        raise DatabaseError(error.what, known=error.known, hint=error.hint) from None
    path = os.path.join(base, name)
    try:
        changed = os.stat(path).st_mtime_ns
    except (OSError, ValueError) as error:
        if os.path.lexists(path):
            raise bad(Path(path), f"it cannot be read: {error}") from None
        check_place(base)
        path = os.path.join(paths.data_folder("capability_db"), name)
        changed = os.stat(path).st_mtime_ns
    return cast(T, _made(path, changed, make))


@lru_cache(maxsize=8)
def _made(name: str, changed: int, make: Callable[[Mapping[str, Any]], object]) -> object:
    path = Path(name)
    table = document(path, contents(path, MAX_TABLE))
    if table.get("schema") != TABLES[path.name]:
        raise bad(path, f"its schema is not {TABLES[path.name]!r}")
    try:
        return make(table)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise bad(path, f"it holds a row that cannot be used: {error!r}") from None
