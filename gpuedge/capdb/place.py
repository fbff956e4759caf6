"""Where the capability database lies, and the error for one that cannot be used."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuedge.core import config
from gpuedge.core.errors import ConfigError, DatabaseError
from gpuedge.safety import paths

MAX_TABLE = 1 << 20
"""Bytes of a table; the largest packaged one has 23,000."""


def folder() -> Path:
    """Return the database's folder: the setting ``db``, an installed update, or the packaged one.

    An update that does not load is passed over, and remembered as such: the one before it is used,
    or the packaged database. Where no update was installed, no file is read.

    Raises
    ------
    DatabaseError (GE-600)
        The setting names no folder, or one that cannot be read.
    """
    first = paths.database_folder()
    if config.get("db").value:
        check_place(Path(first))
        return Path(first)
    from gpuedge.safety import databases

    if not databases.is_installed(first):
        return Path(first)
    for found in databases.installed():
        path = Path(found)
        if _loads(path, paths.stamp(path / "database.json")):
            return path
        databases.refuse(found)
    return paths.data_dir("capability_db")


@lru_cache(maxsize=4)
def _loads(path: Path, changed: object) -> bool:
    """Say whether an update is whole; `changed` makes one that was installed anew be looked at."""
    from gpuedge.capdb.classes import load as load_classes
    from gpuedge.capdb.database import load
    from gpuedge.capdb.identity.families import load_families
    from gpuedge.capdb.identity.names import load_names

    try:
        load(path)
        load_classes(path)
        load_names(path)
        load_families(path)
    except (DatabaseError, OSError):
        return False
    return True


def check_place(folder: Path) -> None:
    """Refuse what is no folder that can be listed. Raises DatabaseError."""
    try:
        with os.scandir(folder):
            return
    except NotADirectoryError:
        why = "it is no folder"
    except FileNotFoundError:
        why = "there is no such folder"
    except (OSError, ValueError) as error:
        why = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    raise bad(folder, why)


def find_table(name: str, place: Path | None) -> tuple[Path, int]:
    """Return the path of a table and when it was changed; the packaged one where a folder has none.

    Raises
    ------
    DatabaseError (GE-600)
        It cannot be read, or is too large.
    """
    try:
        path = (place or folder()) / name
        if not os.path.lexists(path):
            path = paths.data_dir("capability_db") / name
    except ConfigError as error:
        raise DatabaseError(error.what, known=error.known, hint=error.hint) from None
    try:
        state = path.stat()
    except (OSError, ValueError) as error:
        raise bad(path, f"it cannot be read: {error}") from None
    if state.st_size > MAX_TABLE:
        raise bad(path, f"it has {state.st_size} bytes, more than {MAX_TABLE}")
    return path, state.st_mtime_ns


def read_table(path: Path, schema: str) -> dict[str, Any]:
    """Return the JSON object of a table that says it is of this schema. Raises DatabaseError."""
    try:
        document = json.loads(paths.read_start(path, MAX_TABLE))
    except (OSError, ValueError, RecursionError) as error:
        raise bad(path, f"it cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise bad(path, f"its schema is not {schema!r}")
    return document


def bad(path: Path, why: str) -> DatabaseError:
    """Return the error for a file of the database."""
    return DatabaseError(
        "The capability database cannot be used.",
        asked_by=config.SETTINGS["db"].variable if config.get("db").value else None,
        known=f"{path}: {why}",
        hint="unset GPUEDGE_DB, or reinstall gpuedge",
    )
