"""Printed kernels on disk, in one sealed file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuedge.core.kernel import KernelBlob
from gpuedge.safety.lock import Lock
from gpuedge.safety.paths import stamp
from gpuedge.safety.store import load_bytes, save_bytes

LANGUAGE_VERSION = 5
"""Raise this whenever a printer's output for an unchanged text changes."""

MAX_BYTES = 64 << 20
"""A larger file is not read (some thousand kernels fit), and none is written."""


def blob_key(
    text: str,
    epilogue: str | None,
    consts: Mapping[str, int] | None,
    dialect: str,
    storage: Mapping[str, str] | None = None,
) -> str:
    """Return the SHA-256 that stands for a printed kernel: everything its bytes depend on."""
    fixed, kept = sorted((consts or {}).items()), sorted((storage or {}).items())
    parts = [LANGUAGE_VERSION, text, epilogue, fixed, dialect, kept]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def seal_of() -> tuple[str, str]:
    """Return the schema and the identity that the file is sealed with."""
    from gpuedge import __version__

    return f"gpuedge.plan/{LANGUAGE_VERSION}", __version__


class BlobCache:
    """Printed kernels by key, kept in the single file `path`.

    A file that is missing, damaged or of another version is as good as empty, and is replaced at
    the next `flush`. A folder that cannot be written only means work is done again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._blobs: dict[str, KernelBlob] = {}
        self._new = False
        self._seen: tuple[int, int, int] | None = None
        self._merge()

    def get(self, key: str) -> KernelBlob | None:
        """Return the blob kept under `key`, or None."""
        return self._blobs.get(key)

    def put(self, key: str, blob: KernelBlob) -> None:
        """Keep a blob; it reaches the disk with `flush`."""
        if self._blobs.get(key) != blob:
            self._blobs[key] = blob
            self._new = True

    def flush(self) -> bool:
        """Write what is new, keeping what other processes wrote meanwhile; False if impossible."""
        if not self._new:
            return True
        schema, version = seal_of()
        with Lock(self.path.parent):
            self._merge()
            body = self._encoded()
            if not save_bytes(self.path, schema, body, version, max_bytes=MAX_BYTES):
                return False
            self._new = False
            self._seen = stamp(self.path)
            return True

    def _merge(self) -> None:
        """Take over what the file holds and this object does not, if the file changed."""
        found = stamp(self.path)
        if found == self._seen:
            return
        self._seen = found
        body = load_bytes(self.path, *seal_of(), max_bytes=MAX_BYTES) if found else None
        if body is not None:
            self._blobs = {**decoded(body), **self._blobs}

    def _encoded(self) -> bytes:
        """Encode all blobs, or as many of the last ones as a file may hold."""
        kept = list(self._blobs.items())
        while len(body := _encode(kept)) > MAX_BYTES and kept:
            kept = kept[len(kept) // 2 + 1 :]
        return body


def _encode(blobs: list[tuple[str, KernelBlob]]) -> bytes:
    """Return one line of JSON about all blobs, then their codes."""
    index = [[key, len(b.code), *b.to_record()] for key, b in blobs]
    codes = b"".join([b.code for _, b in blobs])
    return json.dumps(index, separators=(",", ":")).encode() + b"\n" + codes


def decoded(body: bytes) -> dict[str, KernelBlob]:
    """Return the blobs in the body of a file; none if it is not as `BlobCache` writes it."""
    head, _, codes = body.partition(b"\n")
    blobs: dict[str, KernelBlob] = {}
    at = 0
    try:
        rows: list[list[Any]] = json.loads(head)
        for key, size, *record in rows:
            blobs[key] = KernelBlob.from_record(record, codes[at : at + size])
            at += size
    except (TypeError, ValueError, RecursionError):
        return {}
    return blobs
