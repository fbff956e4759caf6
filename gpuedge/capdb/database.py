"""The capability database of entries about drivers: loading it, and finding entries in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuedge.capdb import source
from gpuedge.capdb.entries import Entry
from gpuedge.core import config
from gpuedge.core.errors import DatabaseError
from gpuedge.safety import databases, paths

_Stamp = tuple[int, int, int] | None
_loaded: dict[Path, tuple[_Stamp, Database]] = {}
"""Databases of this process, with the state of the ``database.json`` they were read with."""


_damaged: dict[Path, _Stamp] = {}
"""Installed updates that this process could not load, in the same way."""


class Database:
    """A database that was found good: an iterable of its entries, in order of API and vendor.

    `version` is 0 of a folder that is worked on, `digest` the SHA-256 of its ``database.json``.
    """

    def __init__(
        self, folder: Path, about: source.Envelope, entries: tuple[Entry, ...] = ()
    ) -> None:
        self.folder = folder
        self.version = about.db_version
        self.digest = about.digest
        self.generated_at = about.generated_at
        self.valid_until = about.valid_until
        self.retired_ids = about.retired_ids
        self._entries = {entry.id: entry for entry in entries}
        self.ids: tuple[str, ...] = tuple(self._entries)
        self._by_vendor: dict[str, tuple[Entry, ...]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __repr__(self) -> str:
        return f"Database(version={self.version}, entries={len(self)})"

    def entry(self, name: str) -> Entry:
        """Return the entry with an id. Raises KeyError where there is none."""
        return self._entries[name]

    def about(self, vendor: str) -> tuple[Entry, ...]:
        """Return the entries that may be about devices of a maker; all others certainly are not."""
        found = self._by_vendor.get(vendor)
        if found is None:
            pairs = ((entry, entry.vendors) for entry in self)
            found = tuple(e for e, vendors in pairs if vendors is None or vendor in vendors)
            self._by_vendor[vendor] = found
        return found


def load(place: Path | None = None) -> Database:
    """Return the database in a folder, or the one in use.

    A process reads a folder once, and again when its ``database.json`` has changed.

    Parameters
    ----------
    place : Path, optional
        The folder; where none is given, the one in use: the setting ``db``, the newest installed
        update that loads, or the packaged database.

    Raises
    ------
    DatabaseError (GE-600)
        The folder is refused whole; the message names the file and what is wrong with it.
    """
    if place is None:
        return _in_use()
    folder = Path(place).absolute()
    state = paths.stamp(folder / source.FILE)
    known = _loaded.get(folder)
    if known is not None and known[0] == state and state is not None:
        return known[1]
    made = Database(folder, *source.read(folder))
    _loaded[folder] = (state, made)
    return made


def _in_use() -> Database:
    first = databases.database_folder()
    if config.get("db").value or not databases.is_installed(first):
        return load(Path(first))
    for found in databases.installed():
        folder = Path(found)
        state = paths.stamp(folder / source.FILE)
        if state is not None and _damaged.get(folder) == state:
            continue
        try:
            return load(folder)
        except (DatabaseError, OSError):
            _damaged[folder] = state
    return load(paths.data_dir("capability_db"))


def forget() -> None:
    """Forget what this process has loaded; for measurements and tests."""
    _loaded.clear()
    _damaged.clear()


def of_entries(entries: Iterable[Entry]) -> Database:
    """Return a database of some entries, which lies nowhere; for tests and for tools.

    >>> len(of_entries([]))
    0
    """
    return Database(Path(), source.Envelope(), tuple(entries))


def read_unsealed(path: Path) -> Database:
    """Read a folder that is worked on, whatever its ``database.json`` says.

    Raises DatabaseError for entries that cannot be read.
    """
    folder = Path(path).absolute()
    return Database(folder, *source.read(folder, is_sealed=False))
