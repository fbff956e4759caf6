"""Where the capability database lies, and the error for one that cannot be used."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from gpuedge.core import config, paths
from gpuedge.core.errors import DatabaseError


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
    from gpuedge.core import databases

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


def bad(path: Path, why: str) -> DatabaseError:
    """Return the error for a file of the database."""
    return DatabaseError(
        "The capability database cannot be used.",
        asked_by=config.SETTINGS["db"].variable if config.get("db").value else None,
        known=f"{path}: {why}",
        hint="unset GPUEDGE_DB, or reinstall gpuedge",
    )
