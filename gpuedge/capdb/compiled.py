"""The compiled form of a database: one file in the cache folder, read in a few milliseconds.

    <SHA-256 of the next line> LF
    {"schema", "key", "envelope", "ids", "index", "sections": [[start, length, digest, count]]} LF
    the entries, one JSON text per line, section after section

`key` is the state of the source's files, so a file that changed makes another one be compiled. A
section is checked when the first of its entries is asked for, and an entry is read when a device
may match it. Nothing here is executable; whatever is damaged is rebuilt from the source.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.index import record
from gpuedge.capdb.source import Envelope, Source
from gpuedge.safety import paths

SCHEMA: Final = "gpuedge.db.compiled/1"
FOLDER: Final = "compiled"
MAX_BYTES: Final = 192 << 20
KEPT: Final = 4
"""Compiled files that are kept: a packaged database, an update, and those a developer works on."""

_HEX = 64


def folder() -> Path:
    """Return the folder of compiled files."""
    return paths.cache_dir() / "capability_db" / FOLDER


def key(place: Path, state: list[list[Any]]) -> str:
    """Return what a compiled file is found by: where the source is, its state, and our version."""
    from gpuedge import __version__

    text = json.dumps([SCHEMA, __version__, str(place), state])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Compiled:
    """A compiled database in memory; sections are checked as they are opened.

    Attributes
    ----------
    header : dict
        As in the file.
    opened : int
        Sections that were opened.
    """

    def __init__(self, header: dict[str, Any], body: memoryview) -> None:
        self.header = header
        self.opened = 0
        self._body = body
        self._lines: dict[int, list[bytes]] = {}
        self._starts: list[int] = []
        count = 0
        for *_, number in header["sections"]:
            self._starts.append(count)
            count += number

    def line(self, position: int) -> bytes | None:
        """Return the JSON text of the entry at a position, or None if its section is damaged."""
        from bisect import bisect_right

        number = bisect_right(self._starts, position) - 1
        lines = self._lines.get(number) or self._open(number)
        return None if lines is None else lines[position - self._starts[number]]

    def _open(self, number: int) -> list[bytes] | None:
        start, length, digest, count = self.header["sections"][number]
        data = bytes(self._body[start : start + length])
        if hashlib.sha256(data).hexdigest() != digest:
            return None
        self.opened += 1
        lines = data.splitlines()
        if len(lines) != count:
            return None
        self._lines[number] = lines
        return lines


def pack(source: Source, name: str) -> bytes:
    """Return the bytes of the compiled file of a source; `name` is its `key`."""
    sections: list[list[Any]] = []
    body = bytearray()
    entries = [entry for section in source.sections for entry in section.entries]
    for section in source.sections:
        lines = [
            json.dumps([e.api, e.source], separators=(",", ":")).encode() + b"\n"
            for e in section.entries
        ]
        if lines:
            data = b"".join(lines)
            digest = hashlib.sha256(data).hexdigest()
            sections.append([len(body), len(data), digest, len(lines)])
            body += data
    about = asdict(source.envelope)
    about["retired_ids"] = sorted(about["retired_ids"])
    header = {
        "schema": SCHEMA,
        "key": name,
        "envelope": about,
        "ids": [entry.id for entry in entries],
        "index": record(entries),
        "sections": sections,
    }
    line = json.dumps(header, separators=(",", ":")).encode() + b"\n"
    return hashlib.sha256(line).hexdigest().encode() + b"\n" + line + bytes(body)


def unpack(data: bytes, name: str) -> Compiled | None:
    """Return the compiled database in some bytes, or None if they are damaged or another's."""
    end = data.find(b"\n", _HEX + 1) + 1
    line = data[_HEX + 1 : end]
    if not line or data[: _HEX + 1] != hashlib.sha256(line).hexdigest().encode() + b"\n":
        return None
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or (header.get("schema"), header.get("key")) != (SCHEMA, name):
        return None
    return Compiled(header, memoryview(data)[end:])


def envelope(compiled: Compiled) -> Envelope:
    """Return the envelope that a compiled file keeps."""
    about = compiled.header["envelope"]
    return Envelope(**{**about, "retired_ids": frozenset(about["retired_ids"])})


def find(name: str) -> Compiled | None:
    """Return the compiled database with a key, or None where there is none that can be used."""
    data = paths.read_regular(folder() / f"{name}.bin", MAX_BYTES)
    return None if data is None else unpack(data, name)


def keep(name: str, data: bytes) -> bool:
    """Store a compiled file, and remove the oldest beyond `KEPT`; False where that fails."""
    path = folder() / f"{name}.bin"
    if not paths.write_atomic(path, data):
        return False
    paths.sweep(path)
    try:
        found = [e for e in os.scandir(folder()) if e.name.endswith(".bin") and e.is_file()]
        found.sort(key=lambda e: e.stat().st_mtime_ns, reverse=True)
        for entry in found[KEPT:]:
            if entry.name != path.name:
                Path(entry.path).unlink(missing_ok=True)
    except OSError:
        pass
    return True


def discard(name: str) -> None:
    """Remove a compiled file that turned out damaged. Never raises."""
    try:
        (folder() / f"{name}.bin").unlink(missing_ok=True)
    except OSError:
        return
