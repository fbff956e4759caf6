"""Reading a database folder from its files: all of it, or an error that names the file.

A folder is one state: ``database.json`` holds the digest of every file that the library reads, so a
file that was changed, cut short, exchanged or added makes the whole folder refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

from gpuedge import __version__
from gpuedge.capdb.entries import Entry, parse
from gpuedge.capdb.files import bad, check_place, contents, document
from gpuedge.core.record import UnfitError
from gpuedge.core.record import read as read_record
from gpuedge.safety.databases import MAX_ENVELOPE

SCHEMA: Final = "gpuedge.database/1"
ENTRIES_SCHEMA: Final = "gpuedge.entries/3"
FILE: Final = "database.json"
ENTRIES: Final = "entries"
TABLES: Final[Mapping[str, str]] = {
    "classes.json": "gpuedge.classes/1",
    "families.json": "gpuedge.families/2",
    "names.json": "gpuedge.names/2",
}
"""Files at the top of a folder that the library reads besides, and their schemas."""

MAX_WHOLE: Final = 64 << 20
MAX_FILES: Final = 1000

NAME: Final = re.compile(r"(?:entries/[a-z0-9]+/)?[a-z][a-z0-9_-]{0,63}\.json")
"""What a file of a database may be called: it leads nowhere else, and only lower case, so that no
two names are one where case does not count."""

_LISTED = re.compile(rf"(?!{FILE}){NAME.pattern}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9:.+Z-]{1,30})?")
_RELEASE = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,4}")


def _release(text: str) -> tuple[int, ...]:
    match = _RELEASE.match(text)
    if match is None:
        raise ValueError(f"{text!r:.40} is not a version such as 0.1")
    return tuple(int(part) for part in match[0].split("."))


@dataclass(frozen=True, slots=True)
class EngineRange:
    """The versions of gpuedge that a database is for: ``min <= version < below``."""

    min: str
    below: str

    def __post_init__(self) -> None:
        low, own, below = map(_release, (self.min, __version__, self.below))
        if not low <= own < below:
            raise ValueError(
                f"it is for gpuedge from {self.min} to below {self.below}, this is {__version__}"
            )


@dataclass(frozen=True, slots=True)
class Envelope:
    """What ``database.json`` says of its folder; `digest` is the SHA-256 of that file."""

    SCHEMA = SCHEMA
    IS_OPEN = True

    engine_range: EngineRange
    db_version: Annotated[int, range(1, 1 << 53)]
    generated_at: Annotated[str, _DATE]
    valid_until: Annotated[str, _DATE]
    files: Annotated[Mapping[Annotated[str, _LISTED], str], range(MAX_FILES + 1)]
    retired_ids: frozenset[str]
    digest: str = ""


UNSEALED: Final = Envelope(EngineRange("0", "999999"), 0, "", "", {}, frozenset())
"""Of a folder that is worked on."""


def names(folder: Path) -> list[str]:
    """Return the files in a folder that the library reads, sorted, besides ``database.json``.

    Raises DatabaseError where there are too many, or a folder cannot be listed.
    """
    check_place(folder)
    files = [name for name in TABLES if os.path.exists(os.path.join(folder, name))]
    top = os.path.join(folder, ENTRIES)
    try:
        for api in os.listdir(top) if os.path.isdir(top) else ():
            inner = os.listdir(os.path.join(top, api))
            files += [f"{ENTRIES}/{api}/{name}" for name in inner if name.endswith(".json")]
    except OSError as error:
        raise bad(folder / ENTRIES, f"it cannot be listed: {error}") from None
    if len(files) > MAX_FILES:
        raise bad(folder / ENTRIES, f"it holds more than {MAX_FILES} files")
    return sorted(files)


def envelope(folder: Path) -> Envelope:
    """Read and check ``database.json``. Raises DatabaseError; without it there is no database."""
    path = folder / FILE
    if not os.path.lexists(path):
        check_place(folder)
        raise bad(folder, f"it is no database: it has no {FILE}")
    data = contents(path, MAX_ENVELOPE)
    record = document(path, data)
    try:
        about = read_record(Envelope, record)
    except UnfitError as error:
        raise bad(path, str(error)) from None
    return replace(about, digest=hashlib.sha256(data).hexdigest())


class RawEntry:
    """An entry as it stands in a file. It is read when it is first asked for."""

    def __init__(self, path: Path, number: int, record: Any, api: str) -> None:
        self._path, self._number, self.record, self.api = path, number, record, api
        known = record.get("id") if isinstance(record, dict) else None
        self.id = known if isinstance(known, str) and known else self.entry.id

    @cached_property
    def entry(self) -> Entry:
        """What it says. Raises DatabaseError, which names the file, for what is no entry."""
        try:
            return parse(self.record, self.api)
        except ValueError as error:
            which = getattr(self, "id", self._number)
            raise bad(self._path, f"entry {which!s:.40}: {error}") from None


def read(folder: Path, *, is_sealed: bool = True) -> tuple[Envelope, list[RawEntry]]:
    """Read a folder whole: envelope, digests, and the records of all entries.

    A folder that is worked on need not be sealed: then its files are read as they are. Raises
    DatabaseError, which names the file and what is wrong with it.
    """
    about = envelope(folder) if is_sealed else UNSEALED
    present = names(folder)
    listed = about.files
    for name in present if is_sealed else ():
        if name not in listed:
            raise bad(folder / name, f"{FILE} does not list it")
    rows: list[RawEntry] = []
    left = MAX_WHOLE
    # What is listed is read even if it was not seen before: somebody may be copying the folder.
    for name in sorted({*present, *listed}):
        data = contents(folder / name)
        left -= len(data)
        if left < 0:
            raise bad(folder, f"its files are larger than {MAX_WHOLE >> 20} MiB together")
        if is_sealed and hashlib.sha256(data).hexdigest() != listed[name]:
            why = f"its digest is not the one in {FILE}; was it edited, and not sealed?"
            raise bad(folder / name, why)
        if name.startswith(f"{ENTRIES}/"):
            rows += section(folder, name, data)
        elif TABLES.get(name) != document(folder / name, data).get("schema"):
            raise bad(folder / name, f"its schema is not {TABLES.get(name)!r}")
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise bad(folder, f"two entries have the id {row.id}")
        if row.id in about.retired_ids:
            raise bad(folder, f"{row.id} was retired; ids are not used again")
        seen.add(row.id)
    return about, rows


def section(folder: Path, name: str, data: bytes) -> list[RawEntry]:
    """Return the entries in the bytes of a file of entries. Raises DatabaseError."""
    path = folder / name
    record = document(path, data)
    _, api, file = name.split("/")
    if record.get("schema") != ENTRIES_SCHEMA:
        raise bad(path, f"its schema is not {ENTRIES_SCHEMA!r}")
    if (record.get("api"), f"{record.get('vendor')}.json") != (api, file):
        raise bad(path, "its api and vendor must be those of its name")
    if not isinstance(record.get("entries"), list):
        raise bad(path, "entries must be a list")
    return [RawEntry(path, i, entry, api) for i, entry in enumerate(record["entries"])]
