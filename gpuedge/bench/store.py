"""Where results are kept: a folder of JSON lines, here or wherever fsspec reaches.

Every measurement is a file of its own, named by its time and written once: several machines may
write into one place, and nothing is ever changed there.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuedge.bench.results import SCHEMA, BenchResult
from gpuedge.core.errors import InputError
from gpuedge.core.record import UnfitError, plain, read
from gpuedge.core.text import said
from gpuedge.safety.packages import needed
from gpuedge.safety.paths import read_start, write_atomic

SUFFIX = ".jsonl"

MAX_BYTES = 256 << 20
"""Of one file."""


def is_url(place: str) -> bool:
    """Say whether a place is for fsspec: it has a protocol, as in ``s3://bucket/results``."""
    return "://" in place


def lines(results: Iterable[BenchResult]) -> bytes:
    """Return results as JSON lines."""
    rows = ({"schema": SCHEMA, **plain(result)} for result in results)
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()


def parsed(data: bytes, source: str) -> list[BenchResult]:
    """Return the results in JSON lines. Raises InputError (GE-203) with the line that is wrong."""
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or row.pop("schema", None) != SCHEMA:
                raise UnfitError(f"it is no {SCHEMA}")
            found.append(read(BenchResult, row))
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{source} holds no results of gpuedge bench.", known=f"line {number}: {error}"
            ) from None
    return found


def keep(results: Sequence[BenchResult], place: str) -> str:
    """Write results into a new file of a folder or URL; return its name.

    Raises
    ------
    InputError (GE-203)
        It cannot be written.
    MissingPackageError (GE-104)
        A URL, and fsspec is not installed.
    """
    stamp = min(result.when for result in results).replace(":", "")
    name = f"{stamp}-{secrets.token_hex(3)}{SUFFIX}"
    data = lines(results)
    if is_url(place):
        files, folder = _remote(place)
        try:
            files.makedirs(folder, exist_ok=True)
            files.pipe_file(f"{folder}/{name}", data)
        except Exception as error:  # file systems raise whatever they raise
            raise InputError(f"{place} cannot be written: {said(error)}.", asked_by="--store"
                             ) from None  # fmt: skip
        return f"{place.rstrip('/')}/{name}"
    path = Path(place) / name
    if not write_atomic(path, data):
        raise InputError(f"{place} cannot be written.", asked_by="--store",
                         hint="a folder that can be written and has space")  # fmt: skip
    return str(path)


def kept(place: str) -> list[BenchResult]:
    """Return all results of a file, folder or URL, oldest first.

    Raises
    ------
    InputError (GE-203)
        It does not exist, or holds something else.
    MissingPackageError (GE-104)
        A URL, and fsspec is not installed.
    """
    if is_url(place):
        files, folder = _remote(place)
        try:
            names = sorted(n for n in files.find(folder) if n.endswith(SUFFIX))
            texts = [(name, bytes(files.cat_file(name))) for name in names]
        except Exception as error:  # file systems raise whatever they raise
            raise InputError(f"{place} cannot be read: {said(error)}.") from None
    else:
        path = Path(place)
        try:
            files_ = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
            texts = [(str(file), read_start(file, MAX_BYTES)) for file in files_]
        except (OSError, ValueError) as error:
            raise InputError(f"{place} cannot be read: {error}.") from None
    found = [result for name, data in texts for result in parsed(data, name)]
    return sorted(found, key=lambda result: result.when)


def _remote(place: str) -> tuple[Any, str]:
    """Return a file system of fsspec and the folder in it."""
    with needed("fsspec", place):
        library = import_module("fsspec")
    try:
        files, folder = library.core.url_to_fs(place)
    except (ValueError, ImportError, OSError) as error:
        raise InputError(f"{place} cannot be reached: {said(error)}.", asked_by="--store",
                         hint="a protocol of fsspec whose package is installed, or a folder"
                         ) from None  # fmt: skip
    return files, str(folder).rstrip("/")
