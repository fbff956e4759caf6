"""Where the capability database lies, and the error for one that cannot be used."""

from __future__ import annotations

from pathlib import Path

from gpuedge.core import config, paths
from gpuedge.core.errors import DatabaseError


def folder() -> Path:
    """Return the database's folder: the setting ``db``, else the packaged one."""
    named = config.get("db").value
    return Path(named).expanduser() if named else paths.data_dir("capability_db")


def bad(path: Path, why: str) -> DatabaseError:
    """Return the error for a file of the database."""
    return DatabaseError(
        "The capability database cannot be used.",
        asked_by=config.SETTINGS["db"].variable if config.get("db").value else None,
        known=f"{path}: {why}",
        hint="unset GPUEDGE_DB, or reinstall gpuedge",
    )
