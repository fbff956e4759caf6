"""A whole database as one file: what an update's signature covers.

It is JSON that holds the text of every file of one state of the database by name, so nobody can mix
two states. Which files belong to the database, and their digests, its own envelope says; that is
checked when the unpacked folder is read.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from gpuedge.capdb.files import MAX_FILE, document
from gpuedge.capdb.source import FILE as ENVELOPE
from gpuedge.capdb.source import NAME as FILE_NAME

SCHEMA: Final = "gpuedge.bundle/1"

NAME: Final = "capability_db.json"
"""The one target that clients ask a mirror for."""

MAX_BYTES: Final = 64 << 20
MAX_ROOT: Final = 256 << 10


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def unpack(data: bytes, into: Path) -> None:
    """Write the files of a bundle into an empty folder, once its form and names were checked.

    Raises ValueError or DatabaseError for what is not a bundle, OSError for a full disk.
    """
    for name, text in _files(data).items():
        place = into / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _files(data: bytes) -> dict[str, bytes]:
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    body = document(Path(NAME), data)
    files = body.get("files")
    if body.get("schema") != SCHEMA or set(body) != {"schema", "files"}:
        raise ValueError(f"it must have files and the schema {SCHEMA!r}, and nothing else")
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise ValueError("its files must be texts by name")
    for name, text in files.items():
        if not FILE_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not the name of a file of a database")
        if len(text) > MAX_FILE:
            raise ValueError(f"{name} is larger than {MAX_FILE} bytes")
    if ENVELOPE not in files:
        raise ValueError(f"it has no {ENVELOPE}")
    return {name: text.encode("utf-8") for name, text in files.items()}
