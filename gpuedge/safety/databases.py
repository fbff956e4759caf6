"""Which folder the capability database in use is: a named one, an update, or the packaged one.

Looked at by every start of an application, so nothing but two small files is read here, and only
where an update was ever installed. What an update must be is `gpuedge.capdb`'s affair.
"""

from __future__ import annotations

import json
import os

from gpuedge.core import config
from gpuedge.core.record import Record, read_each
from gpuedge.safety import paths
from gpuedge.safety.store import load_sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Annotated

EMBEDDED = "embedded"
"""The word of the setting ``db`` for the packaged database, whatever updates there are."""

CURRENT = "current.json"
CURRENT_SCHEMA = "gpuedge.db.current/1"
MAX_ENVELOPE = 1 << 20


def database_folder() -> str:
    """Return the capability database's folder.

    That is the one of the setting ``db``, else an installed update, else the packaged one, which
    the word ``embedded`` names. Whether an update loads is not tried here
    (`gpuedge.capdb.place.folder` does).
    """
    named: str = config.get("db").value
    if named and named != EMBEDDED:
        return os.path.abspath(os.path.expanduser(named))
    updates = [] if named else installed()
    return updates[0] if updates else paths.data_folder("capability_db")


def updates_folder() -> str:
    """Return the folder of everything that updates keep; it may not exist."""
    return os.path.join(paths.cache_folder(), "capability_db")


def _plain_name(text: str) -> str:
    """Refuse a name that leads elsewhere."""
    if not text.replace("-", "").isalnum():
        raise ValueError(f"{text!r} is not a plain name")
    return text


class Version(Record):
    """An installed version of the database: the name of its folder in `versions`, and its number.

    `digest` is the SHA-256 of its ``database.json``, which holds the digests of all its other
    files, `bundle` that of the bundle it came in.
    """

    IS_OPEN = True

    folder: Annotated[str, _plain_name]
    db_version: int
    digest: Annotated[str, _plain_name]
    bundle: Annotated[str, _plain_name]

    @property
    def place(self) -> str:
        """Where it lies."""
        return os.path.join(updates_folder(), "versions", self.folder)

    @property
    def path(self) -> Path:
        """The same as a path."""
        from pathlib import Path

        return Path(self.place)


def current() -> tuple[Version | None, Version | None]:
    """Return the installed version and the one before it; None for what is not there."""
    body = load_sealed(os.path.join(updates_folder(), CURRENT), CURRENT_SCHEMA)
    if body is None:
        return None, None
    versions = read_each(Version, {"current": body, "previous": body.get("previous")})
    return versions.get("current"), versions.get("previous")


def installed() -> list[str]:
    """Return the folders of installed updates that may be used, best first.

    An update counts if its number is higher than the packaged database's, and if its
    ``database.json`` is the one that was installed.
    """
    known = [update for update in current() if update is not None]
    if not known:
        return []
    least = version(paths.data_folder("capability_db"))
    from hashlib import sha256

    newer = ((update, _envelope(update.place)) for update in known if update.db_version > least)
    return [
        update.place for update, data in newer if data and sha256(data).hexdigest() == update.digest
    ]


def is_installed(folder: str) -> bool:
    """Say whether a folder is one of those that updates have installed."""
    return os.path.dirname(folder) == os.path.join(updates_folder(), "versions")


def version(folder: str | os.PathLike[str]) -> int:
    """Return the number of a folder's database, 0 where it has none."""
    try:
        number = json.loads(_envelope(folder))["db_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return number if type(number) is int else 0


def _envelope(folder: str | os.PathLike[str]) -> bytes:
    """Return a folder's ``database.json``, empty where it cannot be read."""
    return paths.read_regular(os.path.join(folder, "database.json"), MAX_ENVELOPE) or b""
