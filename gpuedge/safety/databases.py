"""Which folder the capability database in use is: a named one, an update, or the packaged one.

Looked at by every start of an application, so nothing but two small files is read here, and only
where an update was ever installed. What an update must be is `gpuedge.capdb`'s affair.
"""

from __future__ import annotations

import json
import os

from gpuedge.core import config
from gpuedge.safety import paths
from gpuedge.safety.store import load_sealed

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


def installed() -> list[str]:
    """Return the folders of installed updates that may be used, best first.

    An update counts if its number is higher than the packaged database's, and if its
    ``database.json`` is the one that was installed.
    """
    top = updates_folder()
    body = load_sealed(os.path.join(top, CURRENT), CURRENT_SCHEMA)
    if body is None:
        return []
    least = version(paths.data_folder("capability_db"))
    from hashlib import sha256

    found = []
    for record in (body, body.get("previous")):
        if not isinstance(record, dict):
            continue
        name = record.get("folder")
        if not isinstance(name, str) or not name.replace("-", "").isalnum():
            continue  # a folder is a plain name: nothing that leads elsewhere
        number, folder = record.get("db_version"), os.path.join(top, "versions", name)
        if type(number) is int and number > least:
            data = _envelope(folder)
            if data and sha256(data).hexdigest() == record.get("digest"):
                found.append(folder)
    return found


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
