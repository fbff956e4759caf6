"""The capability database of entries about drivers: loading it, and finding entries in it."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path

from gpuedge.capdb.entries import Entry, may_match
from gpuedge.capdb.source import FILE, Envelope, RawEntry, read
from gpuedge.core import config
from gpuedge.core.errors import DatabaseError
from gpuedge.safety import databases, paths

_Stamp = tuple[int, int, int] | None
_loaded: dict[str, tuple[_Stamp, Database]] = {}
"""Databases of this process, with the state of the ``database.json`` they were read with."""

_damaged: dict[str, _Stamp] = {}
"""Installed updates that this process could not load, in the same way."""


class Database:
    """A database whose digests were found good: an iterable of its entries, by API and vendor.

    `version` is 0 of a folder that is worked on, `digest` the SHA-256 of its ``database.json``. An
    entry that cannot be read raises DatabaseError where it is first needed.
    """

    def __init__(self, folder: Path, about: Envelope, rows: Iterable[RawEntry]) -> None:
        self.folder = folder
        self.version = about.db_version
        self.digest = about.digest
        self.generated_at = about.generated_at
        self.valid_until = about.valid_until
        self._rows = {row.id: row for row in rows}
        self.ids: tuple[str, ...] = tuple(self._rows)
        self._about: dict[Hashable, tuple[Entry, ...]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.about())

    def __repr__(self) -> str:
        return f"Database(version={self.version}, entries={len(self)})"

    def entry(self, name: str) -> Entry:
        """Return the entry with an id. Raises KeyError where there is none."""
        return self._rows[name].entry

    def about(self, known: Mapping[str, frozenset[str]] | None = None) -> tuple[Entry, ...]:
        """Return the entries that may be about devices of which some conditions are known.

        `known` has the words of which one must be asked for, by condition; all other entries
        certainly are not about such devices.
        """
        key = tuple((known or {}).items())
        entries = self._about.get(key)
        if entries is None:
            entries = self._about[key] = tuple(
                row.entry
                for row in self._rows.values()
                if not known or may_match(row.record, row.api, known)
            )
        return entries


def load(place: Path | str | None = None) -> Database:
    """Return the database in a folder, or the one in use.

    A process reads a folder once, and again when its ``database.json`` has changed.

    Parameters
    ----------
    place : Path or str, optional
        The folder; where none is given, the one in use: the setting ``db``, the newest installed
        update that loads, or the packaged database.

    Raises
    ------
    DatabaseError (GE-600)
        The folder is refused whole; the message names the file and what is wrong with it.
    """
    if place is None:
        return _in_use()
    name = os.fspath(place)
    if not os.path.isabs(name):
        name = os.path.join(os.getcwd(), name)
    state = paths.stamp(os.path.join(name, FILE))
    known = _loaded.get(name)
    if known is not None and known[0] == state and state is not None:
        return known[1]
    database = Database(Path(name), *read(Path(name)))
    _loaded[name] = (state, database)
    return database


def _in_use() -> Database:
    if config.get("db").value:
        return load(databases.database_folder())
    for folder in databases.installed():
        state = paths.stamp(os.path.join(folder, FILE))
        if state is not None and _damaged.get(folder) == state:
            continue
        try:
            database = load(folder)
            database.about()  # whole, while there is another: it may be that of a newer gpuedge
            return database
        except (DatabaseError, OSError) as error:
            paths.pass_on(error)
            _damaged[folder] = state
    return load(paths.data_folder("capability_db"))


def forget() -> None:
    """Forget what this process has loaded; for measurements and tests."""
    _loaded.clear()
    _damaged.clear()
