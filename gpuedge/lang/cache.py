"""Printed kernels on disk: one file, checked as a whole, never trusted further than its hash."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuedge.core.kernel import KernelBlob
from gpuedge.safety.lock import Lock
from gpuedge.safety.paths import read_regular, stamp, sweep, write_atomic
from gpuedge.safety.store import TRIES

LANGUAGE_VERSION = 4
"""Raise this whenever a printer's output for an unchanged text changes."""

MAX_BYTES = 64 << 20
"""A larger file is not read (some thousand kernels fit), and none is written."""

_MAGIC = b"gpuedge kernels\n"
_LAYOUT = struct.Struct("<16sI16sQ32s")  # magic, version, writer, length and SHA-256 of the rest
_HEADER = _LAYOUT.size


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
        with Lock(self.path.parent):
            for _ in range(TRIES):  # another process may write although this one has the lock
                self._merge()
                seen = self._seen
                body = _encode_newest(self._blobs)
                if write_atomic(self.path, _header(body) + body, lambda: stamp(self.path) != seen):  # noqa: B023
                    self._new = False
                    self._seen = stamp(self.path)
                    sweep(self.path)
                    return True
                if stamp(self.path) == seen:
                    break
        return False

    def _merge(self) -> None:
        """Take over what the file holds and this object does not, if the file changed."""
        found = stamp(self.path)
        if found == self._seen:
            return
        self._seen = found
        if found is None:
            return
        data = read_regular(self.path, MAX_BYTES)
        if data is not None:
            self._blobs = {**_decode(data), **self._blobs}


def _header(body: bytes) -> bytes:
    """Return what stands before `body`: all of it must match for the file to be believed."""
    from gpuedge import __version__

    writer = __version__.encode()[:16]
    digest = hashlib.sha256(body).digest()
    return _LAYOUT.pack(_MAGIC, LANGUAGE_VERSION, writer, len(body), digest)


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
    if data[:_HEADER] != _header(body):
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
