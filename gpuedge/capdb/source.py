"""Reading a database folder from its files, with everything checked before anything is used.

A folder is one state: ``database.json`` holds the digest of every file that the library reads, so a
file that was changed, cut short, exchanged or added makes the whole folder refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.entries import Entry, parse
from gpuedge.capdb.fields import APIS
from gpuedge.capdb.place import bad, check_place
from gpuedge.capdb.reading import SHAPES
from gpuedge.safety import paths
from gpuedge.safety.databases import MAX_ENVELOPE

SCHEMA: Final = "gpuedge.database/1"
ENTRIES_SCHEMA: Final = "gpuedge.entries/1"
FILE: Final = "database.json"
ENTRIES: Final = "entries"
READ_BESIDES: Final = ("classes.json", "families.json", "names.json")
"""Files at the top of a folder that the library reads besides."""

MAX_FILE: Final = 16 << 20
MAX_WHOLE: Final = 64 << 20
MAX_FILES: Final = 1000
MAX_ENTRIES: Final = 50_000
"""Bounds of a folder; sizes are looked at before anything is read."""

_NAME = re.compile(r"(?:entries/[a-z0-9]+/)?[a-z][a-z0-9_-]*(?:\.schema)?\.json")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9:.]{5,15}(?:Z|[+-][0-9]{2}:[0-9]{2}))?")
_FIELDS = {
    "schema", "db_version", "generated_at", "valid_until", "engine_range", "retired_ids", "files",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Envelope:
    """What ``database.json`` says of its folder; `digest` is the SHA-256 of that file."""

    db_version: int
    generated_at: str
    valid_until: str
    files: Mapping[str, str]
    retired_ids: frozenset[str]
    digest: str


UNSEALED: Final = Envelope(0, "", "", {}, frozenset(), "")
"""Of a folder that is worked on."""


@dataclass(frozen=True, slots=True)
class Section:
    """The entries of one file."""

    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A folder that was read whole and found good."""

    envelope: Envelope
    sections: tuple[Section, ...]


def names(folder: Path) -> list[str]:
    """Return the files in a folder that the library reads, sorted, besides ``database.json``.

    Raises DatabaseError where there are too many, or a folder is none that can be listed.
    """
    check_place(folder)
    found = [name for name in READ_BESIDES if os.path.exists(os.path.join(folder, name))]
    top = os.path.join(folder, ENTRIES)
    try:
        if os.path.isdir(top):
            for api in os.listdir(top):
                inner = os.listdir(os.path.join(top, api))
                found += [f"{ENTRIES}/{api}/{name}" for name in inner if name.endswith(".json")]
    except NotADirectoryError:
        raise bad(folder / ENTRIES, "it holds files beside its folders") from None
    except OSError as error:
        raise bad(folder / ENTRIES, f"it cannot be listed: {error}") from None
    if len(found) > MAX_FILES:
        raise bad(folder / ENTRIES, f"it holds more than {MAX_FILES} files")
    return sorted(found)


def state(folder: Path) -> list[list[Any]]:
    """Return what changes whenever a file of the folder does: name, time, size and inode of each.

    Raises DatabaseError where a file, or all of them, are too large.
    """
    marks: list[list[Any]] = []
    whole = 0
    top = os.fspath(folder)
    for name in [FILE, *names(folder)]:
        stamp = paths.stamp(os.path.join(top, name))
        if stamp is not None:
            whole += _bounded(folder, name, stamp[1])
            marks.append([name, *stamp])
    if whole > MAX_WHOLE:
        raise bad(folder, f"its files are larger than {MAX_WHOLE >> 20} MiB together")
    return marks


def _bounded(folder: Path, name: str, size: int) -> int:
    if size > MAX_FILE:
        raise bad(folder / name, f"it is larger than {MAX_FILE >> 20} MiB")
    return size


def _bytes(path: Path) -> bytes:
    try:
        _bounded(path.parent, path.name, path.stat().st_size)
        data = paths.read_start(path, MAX_FILE + 1)
    except (OSError, ValueError) as error:
        raise bad(path, f"it cannot be read: {error}") from None
    _bounded(path.parent, path.name, len(data))
    return data


def document(path: Path, data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file's bytes. Raises DatabaseError for anything else."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("a field is there twice")
        return made

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number")

    try:
        found = json.loads(data.decode(), object_pairs_hook=once, parse_constant=refuse)
    except RecursionError:
        raise bad(path, "it is nested too deeply") from None
    except ValueError as error:
        raise bad(path, f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise bad(path, "it is no JSON object")
    return found


def envelope(folder: Path) -> Envelope:
    """Read and check ``database.json``.

    Raises
    ------
    DatabaseError (GE-600)
        It is not there, so the folder is no database, or half of one; or it cannot be used.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        raise bad(folder, f"it is no database: it has no {FILE}")
    data = _bytes(path)
    if len(data) > MAX_ENVELOPE:
        raise bad(path, f"it is larger than {MAX_ENVELOPE >> 20} MiB")
    record = document(path, data)
    try:
        _check(record)
    except ValueError as error:
        raise bad(path, str(error)) from None
    return Envelope(
        record["db_version"],
        record["generated_at"],
        record["valid_until"],
        record["files"],
        frozenset(record["retired_ids"]),
        hashlib.sha256(data).hexdigest(),
    )


def _check(record: Mapping[str, Any]) -> None:
    if record.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA!r}")
    if set(record) != _FIELDS:
        odd = ", ".join(sorted(name[:60] for name in set(record) ^ _FIELDS))
        raise ValueError(f"fields are missing or unknown: {odd}")
    _check_engine(record["engine_range"])
    number = record["db_version"]
    if type(number) is not int or not 0 < number < 1 << 53:
        raise ValueError("db_version must be a whole number from 1 on")
    for name in ("generated_at", "valid_until"):
        if not isinstance(record[name], str) or not _TIME.fullmatch(record[name]):
            raise ValueError(f"{name} must be a date or time such as 2026-01-31T12:00:00Z")
    retired = record["retired_ids"]
    if not isinstance(retired, list) or not all(
        isinstance(name, str) and SHAPES["id"].fullmatch(name) for name in retired
    ):
        raise ValueError("retired_ids must list ids of entries")
    _check_files(record["files"])


def _check_files(files: Any) -> None:
    if not isinstance(files, dict) or len(files) > MAX_FILES:
        raise ValueError(f"files must name at most {MAX_FILES} files")
    for name, digest in files.items():
        if not _NAME.fullmatch(name) or name == FILE:
            raise ValueError(f"files: {name[:80]!r} is no name of a file of a database")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(f"files: the digest of {name} is no SHA-256")


def _check_engine(wanted: Any) -> None:
    """Refuse a database that is for other versions of gpuedge."""
    from gpuedge import __version__

    if not isinstance(wanted, dict) or set(wanted) != {"min", "below"}:
        raise ValueError("engine_range must have min and below")
    low, below = (_release(wanted[name]) for name in ("min", "below"))
    if low is None or below is None:
        raise ValueError("engine_range must hold versions such as 0.1")
    own = _release(__version__) or ()
    if not low <= own < below:
        raise ValueError(
            f"it is for gpuedge from {wanted['min']} to below {wanted['below']}, "
            f"this is {__version__}"
        )


def _release(text: Any) -> tuple[int, ...] | None:
    found = re.match(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,4}", text) if isinstance(text, str) else None
    return tuple(int(part) for part in found[0].split(".")) if found else None


def read(folder: Path, *, is_sealed: bool = True) -> Source:
    """Read a folder whole: envelope, digests and every entry.

    A folder that is worked on need not be sealed: then its files are read as they are.

    Raises
    ------
    DatabaseError (GE-600)
        It names the file, and what is wrong with it.
    """
    state(folder)  # sizes first: nothing large is read
    about = envelope(folder) if is_sealed else UNSEALED
    present = names(folder)
    if is_sealed:
        _check_listed(folder, about, present)
    # What is listed is read even if it was not seen before: somebody may be copying the folder.
    contents = {name: _bytes(folder / name) for name in sorted({*present, *about.files})}
    _check_digests(folder, about, contents)
    sections = tuple(
        _section(folder, name, data)
        for name, data in contents.items()
        if name.startswith(f"{ENTRIES}/")
    )
    _check_ids(folder, about, sections)
    return Source(about, sections)


def _check_listed(folder: Path, about: Envelope, present: list[str]) -> None:
    for name in present:
        if name not in about.files:
            raise bad(folder / name, f"{FILE} does not list it")


def _check_digests(folder: Path, about: Envelope, contents: Mapping[str, bytes]) -> None:
    for name, digest in about.files.items():
        if hashlib.sha256(contents[name]).hexdigest() != digest:
            why = f"its digest is not the one in {FILE}; where it was edited, seal the folder"
            raise bad(folder / name, why)


def _section(folder: Path, name: str, data: bytes) -> Section:
    path = folder / name
    record = document(path, data)
    _, api, file = name.split("/")
    if record.get("schema") != ENTRIES_SCHEMA:
        raise bad(path, f"its schema is not {ENTRIES_SCHEMA!r}")
    if set(record) != {"schema", "api", "vendor", "entries"}:
        raise bad(path, "it must have exactly schema, api, vendor and entries")
    if record["api"] != api or api not in {*APIS, "any"} or record["vendor"] != file[:-5]:
        raise bad(path, "its api and vendor must be those of its name")
    if not isinstance(record["entries"], list):
        raise bad(path, "entries must be a list")
    return Section(name, tuple(_entries(path, record["entries"], api)))


def _entries(path: Path, records: list[Any], api: str) -> Iterator[Entry]:
    for i, record in enumerate(records):
        try:
            yield parse(record, api)
        except ValueError as error:
            known = record.get("id") if isinstance(record, dict) else None
            which = f"entry {known}" if isinstance(known, str) else f"entry {i}"
            raise bad(path, f"{which}: {error}") from None
        except RecursionError:
            raise bad(path, f"entry {i} is nested too deeply") from None


def _check_ids(folder: Path, about: Envelope, sections: tuple[Section, ...]) -> None:
    homes: dict[str, str] = {}
    for section in sections:
        for entry in section.entries:
            if entry.id in homes:
                raise bad(folder / section.name, f"{entry.id} is also in {homes[entry.id]}")
            if entry.id in about.retired_ids and entry.state != "retired":
                raise bad(folder / section.name, f"{entry.id} was retired; ids are not used again")
            homes[entry.id] = section.name
    if len(homes) > MAX_ENTRIES:
        raise bad(folder, f"it holds more than {MAX_ENTRIES} entries")
