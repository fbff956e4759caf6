"""A whole database as one file: what an update's signature covers.

One file cannot be mixed: whoever has the bundle has every file of one state of the database. It is
JSON and holds text only; unpacking creates plain files with checked names and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.files import MAX_FILE, document
from gpuedge.capdb.source import FILE as ENVELOPE
from gpuedge.capdb.source import MAX_FILES
from gpuedge.core.errors import DatabaseError

SCHEMA: Final = "gpuedge.bundle/1"

NAME: Final = "capability_db.json"
"""The one target that clients ask a mirror for."""

MAX_BYTES: Final = 64 << 20

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9_-]+)*")
"""Lower case, so that no two names are one where case does not count; no leading dot, no `..`."""

_RESERVED = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{word}{i}" for word in ("com", "lpt") for i in range(10)}
)
"""What Windows takes for a device, whatever follows the first dot."""

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
for _flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _flag, 0)


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def wrong_name(name: str) -> str | None:
    """Return why a relative path may not be in a bundle, or None.

    >>> wrong_name("entries/vulkan/arm.json") is None
    True
    >>> wrong_name("../current.json")
    "'..' is not a name that a file of a database may have"
    """
    parts = name.split("/")
    if len(name) > 200 or len(parts) > 5:
        return "it is too long"
    if not name.endswith(".json"):
        return "it is not a .json file"
    for part in parts:
        if not _NAME.fullmatch(part) or part.split(".")[0] in _RESERVED:
            return f"{part!r} is not a name that a file of a database may have"
    return None


def unpack(data: bytes, into: Path) -> None:
    """Write the files of a bundle into an empty folder, and force them to disk.

    Parameters
    ----------
    data : bytes
        The bundle. Everything about it is checked before the first file is written.
    into : Path
        An empty folder of ours.

    Raises
    ------
    ValueError
        It is no bundle, or not a whole one: truncated, with a name that leads elsewhere, with a
        file that its envelope does not name or without one that it does.
    OSError
        The disk is full, or the folder cannot be written to.
    """
    for name, text in _files(data).items():
        place = into / name
        place.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(place, _FLAGS, 0o644)
        with os.fdopen(fd, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _files(data: bytes) -> dict[str, bytes]:
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    found = _object(data, NAME)
    if found.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA!r}")
    files = found.get("files")
    if set(found) != {"schema", "files"} or not isinstance(files, dict):
        raise ValueError("it must have exactly schema and files")
    if not all(isinstance(text, str) for text in files.values()):
        raise ValueError("its files must be texts by name")
    check_files(files)
    made = {name: text.encode("utf-8") for name, text in files.items()}
    too_large = next((name for name, text in made.items() if len(text) > MAX_FILE), None)
    if too_large:
        raise ValueError(f"{too_large} is larger than {MAX_FILE} bytes")
    return made


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        return document(Path(name), data)
    except DatabaseError as error:
        raise ValueError(error.known) from None


def check_files(files: Mapping[str, str]) -> None:
    """Refuse texts by name that are not the files of one database. Raises ValueError."""
    if len(files) > MAX_FILES:
        raise ValueError(f"it has more than {MAX_FILES} files")
    for name in files:
        problem = wrong_name(name)
        if problem:
            raise ValueError(f"{name[:80]!r}: {problem}")
        above = name.rpartition("/")[0]
        if above in files:
            raise ValueError(f"{above} is a file and a folder")
    if ENVELOPE not in files:
        raise ValueError(f"it has no {ENVELOPE}")
    named = listed(files[ENVELOPE]) | {ENVELOPE}
    extra, missing = sorted(set(files) - named), sorted(named - set(files))
    if extra:
        raise ValueError(f"{extra[0]} is not named in {ENVELOPE}")
    if missing:
        raise ValueError(f"{missing[0][:80]!r} is missing")


def listed(envelope: str) -> set[str]:
    """Return the names of the files in an envelope's list. Raises ValueError."""
    files = _object(envelope.encode("utf-8"), ENVELOPE).get("files")
    if not isinstance(files, dict):
        raise ValueError(f"{ENVELOPE} has no list of files")
    return set(files)
