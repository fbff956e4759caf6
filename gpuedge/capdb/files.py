"""Reading single files of a database, and the error for one that cannot be used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from gpuedge.core import config
from gpuedge.core.errors import DatabaseError
from gpuedge.safety import paths

MAX_FILE: Final = 16 << 20


def bad(path: Path, why: str) -> DatabaseError:
    """Return the error for a file of the database."""
    return DatabaseError(
        "The capability database cannot be used.",
        asked_by=config.SETTINGS["db"].variable if config.get("db").value else None,
        known=f"{path}: {why}",
        hint="unset GPUEDGE_DB, or reinstall gpuedge",
    )


def check_place(folder: Path) -> None:
    """Refuse what is not a folder that can be listed. Raises DatabaseError."""
    try:
        with os.scandir(folder):
            return
    except NotADirectoryError:
        why = "it is not a folder"
    except FileNotFoundError:
        why = "there is no such folder"
    except (OSError, ValueError) as error:
        why = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    raise bad(folder, why)


def contents(path: Path, most: int = MAX_FILE) -> bytes:
    """Return the bytes of a file of bounded size. Raises DatabaseError where it has none such."""
    try:
        size = path.stat().st_size
        data = paths.read_start(path, most + 1) if size <= most else b""
    except (OSError, ValueError) as error:
        paths.pass_on(error)
        raise bad(path, f"it cannot be read: {error}") from None
    if max(size, len(data)) > most:
        raise bad(path, f"it is larger than {most >> 20} MiB")
    return data


def document(path: Path, data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file's bytes. Raises DatabaseError for anything else."""
    try:
        body = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_refused)
    except RecursionError:
        raise bad(path, "it is nested too deeply") from None
    except ValueError as error:
        raise bad(path, f"it is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad(path, "it is not a JSON object")
    return body


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a field that is there twice: two readers could see two different values."""
    body = dict(pairs)
    if len(body) < len(pairs):
        raise ValueError("a field is there twice")
    return body


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not a number")
