"""Printed kernels on disk: one file, checked as a whole, never trusted further than its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuedge.core.kernel import KernelBlob
from gpuedge.core.paths import read_regular, write_atomic

LANGUAGE_VERSION = 3
"""Raise this whenever a printer's output for an unchanged text changes."""

MAX_BYTES = 64 << 20
"""A larger file is not read (some thousand kernels fit), and none is written."""

_MAGIC = b"gpuedge kernels\n"
_HEADER = len(_MAGIC) + 4 + 32  # magic, version, SHA-256 of the rest


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


class BlobCache:
    """Printed kernels by key, kept in the single file `path`.

    A file that is missing, truncated, altered or of another version is as good as empty, and is
    replaced at the next `flush`. A folder that cannot be written only means work is done again.
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
        self._merge()
        body = _encode_newest(self._blobs)
        header = _MAGIC + LANGUAGE_VERSION.to_bytes(4, "little") + hashlib.sha256(body).digest()
        if not write_atomic(self.path, header + body):
            return False
        self._new = False
        self._seen = self._stamp()
        return True

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except (OSError, ValueError):
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _merge(self) -> None:
        """Take over what the file holds and this object does not, if the file changed."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return
        self._seen = stamp
        data = read_regular(self.path, MAX_BYTES)
        if data is not None:
            self._blobs = {**_decode(data), **self._blobs}


def _encode_newest(blobs: Mapping[str, KernelBlob]) -> bytes:
    """Encode all blobs, or as many of the last ones as a file may hold."""
    kept = list(blobs.items())
    while len(body := _encode(dict(kept))) > MAX_BYTES - _HEADER:
        kept = kept[len(kept) // 2 + 1 :]
    return body


def _encode(blobs: Mapping[str, KernelBlob]) -> bytes:
    index: list[Any] = []
    code = bytearray()
    for key, b in blobs.items():
        index.append([key, len(b.code), *b.to_record()])
        code += b.code
    head = json.dumps(index, separators=(",", ":")).encode()
    return len(head).to_bytes(4, "little") + head + bytes(code)


def _decode(data: bytes) -> dict[str, KernelBlob]:
    body = data[_HEADER:]
    expected = _MAGIC + LANGUAGE_VERSION.to_bytes(4, "little") + hashlib.sha256(body).digest()
    if data[:_HEADER] != expected:
        return {}
    # The hash covers all of it, so only a file sealed by something else fails from here on.
    try:
        return _blobs(body)
    except (TypeError, ValueError, RecursionError):
        return {}


def _blobs(body: bytes) -> dict[str, KernelBlob]:
    end = 4 + int.from_bytes(body[:4], "little")
    blobs: dict[str, KernelBlob] = {}
    at = end
    for row in json.loads(body[4:end]):
        key, size, *record = row
        blobs[key] = KernelBlob.from_record(record, body[at : at + size])
        at += size
    return blobs
