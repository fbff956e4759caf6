"""Sealed files: what gpuedge keeps on disk, and the one table of all of it.

A sealed file is one line of text and a body. The line names the format, the schema of the body,
whom it is for (a driver's identity, where only that driver may read it), and the length and SHA-256
of the body. So a file that was cut short, edited, or written by another version or for
another driver reads as "not there", and what was in it is found again. Neither reading nor writing
ever raises: a cache cannot be the reason that an application fails.
"""

from __future__ import annotations

import json
import os

from gpuedge.core.record import Record
from gpuedge.safety.lock import Lock
from gpuedge.safety.paths import read_regular, sweep, write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAGIC = "gpuedge-sealed/2"
MAX_BYTES = 16 << 20
"""Bytes of a file where nothing else is said: reading one must not exhaust a small device."""

MAX_HEAD = 1024
MEGABYTE = 1 << 20


class FileKind(Record):
    """One row of the table of files: `gpuedge cache` and docs/tables/files.md read it.

    `pattern` is a glob below the cache folder, where ``**`` stands for everything below.
    """

    pattern: str
    purpose: str
    writer: str
    expires: str
    max_bytes: int | None
    is_crash: bool = False


FILES = (
    FileKind(
        "verdicts.json", "what the probe found of each driver", "probe()",
        "when the driver, gpuedge or its database changes, or after 90 days; a crash or hang: 7",
        16 * MEGABYTE,
    ),
    FileKind(
        "answers.json", "which 8-bit products ONNX Runtime gets wrong on this processor",
        "opening the first quantised model",
        "when onnxruntime, gpuedge or the processor changes; 16 newest kept", 16 * MEGABYTE,
    ),
    FileKind(
        "launches.json", "requests and measurements of each model's earlier application starts",
        "Session and operations under auto", "512 newest models kept", 16 * MEGABYTE,
    ),
    FileKind(
        "tunings.json", "which variants of kernels the tuner found the best on each device",
        "Policy(tune=...), gpuedge tune", "when the driver, gpuedge or its kernels change; 1024 "
        "newest kernels of 16 devices", 16 * MEGABYTE,
    ),
    FileKind(
        "kernels.bin", "printed kernels", "the first compilation of each kernel",
        "when gpuedge changes; newest kept", 8 * MEGABYTE,
    ),
    FileKind(
        "crashes/*.mark", "one per device that a running process has open", "opening a device",
        "when the device is closed, else counted at the next start", 4096, is_crash=True,
    ),
    FileKind(
        "crashes/*.fatal", "where a fatal signal struck a running process; empty without one",
        "opening a device", "when its devices are closed, else at the next start", MEGABYTE,
        is_crash=True,
    ),
    FileKind(
        "crashes/*.crash", "the crash blocklist: one per process that a driver ended",
        "the first start after a crash", "90 days", 4096, is_crash=True,
    ),
    FileKind(
        "pipelines/*.new", "compiled pipelines of one Vulkan driver, not yet given back to it",
        "closing a Vulkan device", "the next time the device is opened", 256 * MEGABYTE,
    ),
    FileKind(
        "pipelines/*.trial", "pipelines that a driver is being given for the first time",
        "opening a Vulkan device", "when work is finished; else after a minute", 256 * MEGABYTE,
    ),
    FileKind(
        "pipelines/*.bin", "pipelines that a driver has worked with",
        "the first finished work", "when the driver changes", 256 * MEGABYTE,
    ),
    FileKind(
        "pipelines/*.bad", "pipelines that a process died of", "the first start after that",
        "after 30 days", 256 * MEGABYTE,
    ),
    FileKind(
        "capability_db/current.json", "which update of the database is in use", "gpuedge db update",
        "with the next update", 16 * MEGABYTE,
    ),
    FileKind(
        "capability_db/updates.json", "root of trust and versions held back of updates",
        "gpuedge db update", "never", 16 * MEGABYTE,
    ),
    FileKind(
        "capability_db/versions/**", "installed updates", "gpuedge db update",
        "the one in use and the one before it are kept", None,
    ),
    FileKind(
        "capability_db/tuf/**", "signed metadata of the mirror", "gpuedge db update",
        "as its signers say", None,
    ),
    FileKind(
        "bench/*", "files of specifications, named by their SHA-256", "gpuedge bench --fetch",
        "never", 2048 * MEGABYTE,
    ),
    FileKind(
        "**/lock", "keeps two processes from writing at once; empty", "every writer", "never", 8,
    ),
)  # fmt: skip
"""Every file that gpuedge keeps. Outside the cache folder there is only the folder of a probe under
way (``gpuedge-probe-*`` in the folder for temporary files), which is removed when it ends."""


def save_bytes(
    path: str | os.PathLike[str],
    schema: str,
    body: bytes,
    identity: str = "",
    *,
    max_bytes: int = MAX_BYTES,
) -> bool:
    """Write `body` to `path` in one step, sealed; False if that is impossible, or it is too large.

    `schema` is what the body is, with its version, such as ``"gpuedge.verdicts/1"``, and `identity`
    whom it is for: readers must name the same.
    """
    from pathlib import Path

    if len(body) > max_bytes:
        return False
    if not write_atomic(Path(path), sealed_bytes(schema, body, identity)):
        return False
    sweep(path)
    return True


def load_bytes(
    path: str | os.PathLike[str], schema: str, identity: str = "", *, max_bytes: int = MAX_BYTES
) -> bytes | None:
    """Return the body sealed in `path`; None if it is absent, damaged, or another's."""
    data = read_regular(path, max_bytes + MAX_HEAD)
    return None if data is None else unsealed_bytes(data, schema, identity)


def sealed_bytes(schema: str, body: bytes, identity: str = "") -> bytes:
    """Return the bytes of a sealed file."""
    return _head(schema, identity, body) + body


def unsealed_bytes(data: bytes, schema: str, identity: str = "") -> bytes | None:
    """Return the body in the bytes of a sealed file, or None if they are damaged or another's."""
    at = data.find(b"\n", 0, MAX_HEAD) + 1
    body = data[at:]
    return body if at and data[:at] == _head(schema, identity, body) else None


def _head(schema: str, identity: str, body: bytes) -> bytes:
    import hashlib

    whose = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    digest = hashlib.sha256(body).hexdigest()
    return f"{MAGIC} {schema} {whose} {len(body)} {digest}\n".encode()


def save_sealed(
    path: str | os.PathLike[str],
    schema: str,
    body: dict[str, Any],
) -> bool:
    """Write a JSON object to `path`, as `save_bytes` does.

    Returns False also where the body is not JSON-ready: string keys, no NaN or infinity.
    """
    try:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        if json.loads(text) != body:  # tuples, integer keys: would not read back as written
            return False
    except (TypeError, ValueError, RecursionError):
        return False
    return save_bytes(path, schema, text.encode())


def load_sealed(path: str | os.PathLike[str], schema: str) -> dict[str, Any] | None:
    """Return the JSON object sealed in `path`; None if it is absent, damaged, or another's."""
    return unsealed(load_bytes(path, schema))


def unsealed(body: bytes | None) -> dict[str, Any] | None:
    """Return the JSON object that the body of a sealed file is, None for anything else."""
    try:
        document = None if body is None else json.loads(body)
    except (ValueError, RecursionError):  # a seal proves no author
        return None
    return document if isinstance(document, dict) else None


def update_sealed(
    path: str | os.PathLike[str],
    schema: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> bool:
    """Replace a sealed JSON object by what `change` makes of it.

    It happens under the folder's lock. Where that is not to be had (see `gpuedge.safety.lock`) what
    another process writes at the same moment may be lost.
    `change` is given the present body, empty where there is none. Returns what `save_sealed` does.
    """
    with Lock(os.path.dirname(os.fspath(path))):
        return save_sealed(path, schema, change(load_sealed(path, schema) or {}))
