"""The capability database of entries about drivers: loading, checking, and finding entries in it.

Reading a folder's files and checking every digest and entry takes longer than the start of an
application should; so the result is kept compiled (`gpuedge.capdb.compiled`) and read from there as
long as no file of the folder changes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuedge.capdb import compiled, source
from gpuedge.capdb.entries import Entry, parse
from gpuedge.capdb.index import Index
from gpuedge.capdb.place import bad
from gpuedge.capdb.place import folder as place_in_use

if TYPE_CHECKING:
    from gpuedge.capdb.identity.subject import Subject

__all__ = ["Database", "check_folder", "forget", "load", "of_entries", "read_unsealed"]

_KEPT: Final = 4
_loaded: dict[Path, tuple[list[list[Any]], Database]] = {}
"""Databases of this process, with the state of the files they were read from."""


class Database:
    """A database that was found good.

    Attributes
    ----------
    version : int
        Its number; 0 of a folder that is worked on.
    digest : str
        SHA-256 of its ``database.json``.
    folder : Path
        Where its files lie.
    generated_at, valid_until : str
        ISO times; empty where nothing says.
    ids : tuple of str
        Of all entries, in order of API, vendor and place in the file.
    """

    def __init__(self, folder: Path, made: source.Source | compiled.Compiled, name: str) -> None:
        self.folder = folder
        self._name = name
        self._compiled = made if isinstance(made, compiled.Compiled) else None
        if isinstance(made, compiled.Compiled):
            about = compiled.envelope(made)
            self.ids: tuple[str, ...] = tuple(made.header["ids"])
            self._index = Index(made.header["index"])
            self._entries: list[Entry | None] = [None] * len(self.ids)
        else:
            about = made.envelope
            entries = [entry for section in made.sections for entry in section.entries]
            self.ids = tuple(entry.id for entry in entries)
            self._index = Index.of(entries)
            self._entries = list(entries)
        self.version = about.db_version
        self.digest = about.digest
        self.generated_at = about.generated_at
        self.valid_until = about.valid_until
        self.retired_ids = about.retired_ids
        self._places = {name: i for i, name in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[Entry]:
        return (self._entry(i) for i in range(len(self.ids)))

    def __repr__(self) -> str:
        return f"Database(version={self.version}, entries={len(self)})"

    @property
    def opened(self) -> int:
        """Sections that were read from the compiled file so far."""
        return 0 if self._compiled is None else self._compiled.opened

    @property
    def read(self) -> int:
        """Entries that are in memory as such; the others are text still."""
        return sum(entry is not None for entry in self._entries)

    def entry(self, name: str) -> Entry:
        """Return the entry with an id. Raises KeyError where there is none."""
        return self._entry(self._places[name])

    def candidates(self, subject: Subject) -> list[Entry]:
        """Return the entries that may be about a device; all others certainly are not."""
        return [self._entry(i) for i in self._index.candidates(subject)]

    def is_stale(self, today: str) -> bool:
        """Say whether the database says of itself that it should have been replaced by now."""
        return bool(self.valid_until) and self.valid_until[:10] < today

    def _entry(self, position: int) -> Entry:
        found = self._entries[position]
        if found is None:
            found = self._entries[position] = self._parsed(position)
        return found

    def _parsed(self, position: int) -> Entry:
        line = None if self._compiled is None else self._compiled.line(position)
        if line is None:
            return self._again(position)
        api, record = json.loads(line)
        return parse(record, api)

    def _again(self, position: int) -> Entry:
        """Read the source anew, because the compiled file is damaged."""
        compiled.discard(self._name)
        fresh = source.read(self.folder)
        entries = {e.id: e for section in fresh.sections for e in section.entries}
        if fresh.envelope.digest != self.digest or set(entries) != set(self.ids):
            raise bad(self.folder, "it was replaced while it was in use")
        self._entries = [entries[name] for name in self.ids]
        self._compiled = None
        return entries[self.ids[position]]


def load(place: Path | None = None) -> Database:
    """Return the database in a folder, or the one in use.

    Parameters
    ----------
    place : Path, optional
        The folder; `gpuedge.capdb.place.folder` where none is given.

    Raises
    ------
    DatabaseError (GE-600)
        The folder is refused whole; the message names the file and what is wrong with it.
    """
    folder = (place_in_use() if place is None else Path(place)).absolute()
    state = source.state(folder)
    known = _loaded.get(folder)
    if known is not None and known[0] == state:
        return known[1]
    made = _load(folder, state)
    while len(_loaded) >= _KEPT:
        _loaded.pop(next(iter(_loaded)), None)
    _loaded[folder] = (state, made)
    return made


def forget() -> None:
    """Forget what this process has loaded; for measurements and tests."""
    _loaded.clear()


def _load(folder: Path, state: list[list[Any]]) -> Database:
    name = compiled.key(folder, state)
    found = compiled.find(name)
    if found is not None:
        try:
            return Database(folder, found, name)
        except (KeyError, TypeError, ValueError):  # sealed, yet not of our making
            compiled.discard(name)
    made = source.read(folder)
    if source.state(folder) == state:
        compiled.keep(name, compiled.pack(made, name))
    return Database(folder, made, name)


def of_entries(entries: Iterable[Entry]) -> Database:
    """Return a database of some entries, which lies nowhere; for tests and for tools.

    >>> len(of_entries([]))
    0
    """
    section = source.Section("", tuple(entries))
    return Database(Path(), source.Source(source.UNSEALED, (section,)), "")


def read_unsealed(path: Path) -> Database:
    """Read a folder that is worked on, whatever its ``database.json`` says.

    Raises DatabaseError for entries that break the schema.
    """
    folder = Path(path).absolute()
    return Database(folder, source.read(folder, is_sealed=False), "")


def check_folder(path: Path, *, is_sealed: bool = True) -> Database:
    """Read everything in a folder from its own files, and return the database if all is good.

    Tuning classes, names and families are checked besides the entries, and so is that there is a
    ``database.json``. Nothing cached is believed, and nothing is cached.

    Parameters
    ----------
    path : Path
        The folder.
    is_sealed : bool
        Where it is false, the digests of the files are left unchecked, and ``database.json`` may
        be missing: what is good then can be sealed.

    Raises
    ------
    DatabaseError (GE-600)
        The first thing that is wrong, with its file.
    """
    from gpuedge.capdb import classes
    from gpuedge.capdb.identity import families, names

    folder = Path(path).absolute()
    made = source.read(folder, is_sealed=is_sealed)
    if not is_sealed and os.path.lexists(folder / source.FILE):
        source.envelope(folder)
    classes.load(folder)
    names.load_names(folder)
    families.load_families(folder)
    return Database(folder, made, "")
