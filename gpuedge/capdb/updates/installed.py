"""What updates have left in the cache folder: versions of the database, and which is in use.

    capability_db/current.json     the installed version and the one before it
    capability_db/updates.json     what updating remembers: root of trust, versions held back
    capability_db/versions/*/      database folders, each called after its version and digest
    capability_db/tuf/*/           metadata of a repository, one folder per root of trust

`current.json` is replaced in one step, and only when what it names lies on disk whole: that
replacement is the update. Both files are sealed; one that is damaged is as good as none, and then
the packaged database is used.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from gpuedge.core.record import plain
from gpuedge.safety import store
from gpuedge.safety.databases import CURRENT, CURRENT_SCHEMA, Version, current, updates_folder

MEMORY_FILE = "updates.json"
MEMORY_SCHEMA = "gpuedge.db.updates/1"

LEFT_S = 3600.0
"""What lies in `versions` for this long and is not in use was left by an update that was killed,
or is two updates old. Younger folders may belong to one under way, or be read by a process."""


class RefusedError(Exception):
    """What was offered is not taken: a key of `update.SENTENCES`, and what was seen."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def cache() -> Path:
    """Return the folder of everything that updates keep."""
    return Path(updates_folder())


def versions_folder() -> Path:
    """Return the folder of the installed versions."""
    return cache() / "versions"


def make_current(version: Version | None, previous: Version | None = None) -> None:
    """Put a version into use, in one step, or the packaged database. Raises RefusedError."""
    if version is None:
        (cache() / CURRENT).unlink(missing_ok=True)
        return
    body = {**plain(version), "schema": CURRENT_SCHEMA, "previous": plain(previous)}
    _save(CURRENT, CURRENT_SCHEMA, body)


def memory() -> dict[str, Any]:
    """Return what updating remembers: ``trust`` and ``held_back``."""
    body = store.load_sealed(cache() / MEMORY_FILE, MEMORY_SCHEMA) or {}
    trust, held = body.get("trust"), body.get("held_back")
    is_name = isinstance(trust, str) and trust.isalnum()
    texts = [text for text in held if isinstance(text, str)] if isinstance(held, list) else []
    return {"trust": trust if is_name else None, "held_back": texts}


def remember(**news: Any) -> None:
    """Add to what updating remembers. Raises RefusedError."""
    _save(MEMORY_FILE, MEMORY_SCHEMA, {**memory(), **news})


def _save(name: str, schema: str, body: dict[str, Any]) -> None:
    if not store.save_sealed(cache() / name, schema, body):
        raise RefusedError("not-writable", str(cache()))


def sweep() -> None:
    """Remove versions that are not in use any more and what killed updates left. Never raises."""
    kept = {version.folder for version in current() if version is not None}
    try:
        for path in (*versions_folder().glob("*"), *cache().glob("tuf/*/tmp*")):
            if path.name in kept or abs(time.time() - path.lstat().st_mtime) <= LEFT_S:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
    except OSError:
        return
