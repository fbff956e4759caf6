"""Printed kernels on disk, in one sealed file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuedge.core.kernel import KernelBlob
from gpuedge.lang.dialects import maker
from gpuedge.safety.lock import Lock
from gpuedge.safety.paths import stamp
from gpuedge.safety.store import load_bytes, save_bytes

LANGUAGE_VERSION = 14
"""Raise this whenever a printer's output for an unchanged text changes."""

MAX_BYTES = 8 << 20
"""A larger file is not read, and none is written: it is written whole with every new kernel, which
takes some 30 ms at this size. About 1,000 kernels fit."""


def blob_key(
    text: str,
    epilogue: str | None,
    consts: Mapping[str, int] | None,
    dialect: str,
    storage: Mapping[str, str] | None = None,
    *,
    is_half: bool = False,
    along: str = "",
) -> str:
    """Return the SHA-256 that stands for a printed kernel: everything its bytes depend on."""
    fixed, kept = sorted((consts or {}).items()), sorted((storage or {}).items())
    language = dialect + maker(dialect)
    parts = [LANGUAGE_VERSION, text, epilogue, fixed, language, kept, along]
    parts += ["half"] if is_half else []
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def seal_of() -> tuple[str, str]:
    """Return the schema and the identity that the file is sealed with."""
    from gpuedge import __version__

    return f"gpuedge.kernels/{LANGUAGE_VERSION}", __version__


class BlobCache:
    """Printed kernels by key, kept in the single file `path`.

    A file that is missing, damaged or of another version is as good as empty, and is replaced at
    the next `flush`. A folder that cannot be written only means work is done again. A kernel stays
    the bytes that the file has of it until somebody asks for it: there may be many thousand.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[str, bytes] = {}
        self._new = False
        self._seen: tuple[int, int, int] | None = None
        self._merge()

    def get(self, key: str) -> KernelBlob | None:
        """Return the blob kept under `key`, or None."""
        data = self._kept.get(key)
        return None if data is None else unpacked(data)

    def put(self, key: str, blob: KernelBlob) -> None:
        """Keep a blob; it reaches the disk with `flush`."""
        data = packed(blob)
        if self._kept.get(key) != data:
            self._kept[key] = data
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
        written = stamp(self.path)
        if written == self._seen:
            return
        self._seen = written
        body = load_bytes(self.path, *seal_of(), max_bytes=MAX_BYTES) if written else None
        if body is not None:
            self._kept = {**decoded(body), **self._kept}

    def _encoded(self) -> bytes:
        """Encode all blobs, or as many of the last ones as a file may hold."""
        kept = list(self._kept.items())
        while len(body := encoded(kept)) > MAX_BYTES and kept:
            kept = kept[len(kept) // 2 + 1 :]
        return body


def packed(blob: KernelBlob) -> bytes:
    """Return one line of JSON about a blob, then its code."""
    return json.dumps(blob.to_record(), separators=(",", ":")).encode() + b"\n" + blob.code


def unpacked(data: bytes) -> KernelBlob | None:
    """Return the blob that bytes of a file hold; None if `BlobCache` never writes such bytes."""
    head, _, code = data.partition(b"\n")
    try:
        return KernelBlob.from_record(json.loads(head), code)
    except (TypeError, ValueError, RecursionError):
        return None


def encoded(kept: Sequence[tuple[str, bytes]]) -> bytes:
    """Return one line of JSON, which names all blobs and their lengths, then the blobs."""
    index = [[key, len(data)] for key, data in kept]
    line = json.dumps(index, separators=(",", ":")).encode() + b"\n"
    return line + b"".join([data for _, data in kept])


def decoded(body: bytes) -> dict[str, bytes]:
    """Return what the body of a file holds; nothing if it is not as `BlobCache` writes it."""
    head, _, rest = body.partition(b"\n")
    kept: dict[str, bytes] = {}
    at = 0
    try:
        for key, size in json.loads(head):
            kept[key] = rest[at : at + size]
            at += size
    except (TypeError, ValueError, RecursionError):
        return {}
    return kept
