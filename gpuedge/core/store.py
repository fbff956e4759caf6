"""Sealed cache files: JSON with a schema name, a version and a SHA-256 over the body.

Everything cached on disk (verdicts, calibrations) goes through this pair of functions, so a file
that was cut short, edited, or written by another format version reads as "not there" and is
rebuilt. A cache never raises: it cannot be the reason that an application fails.
"""

from __future__ import annotations

import json

from gpuedge.core.paths import read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

FORMAT = 1
"""Version of the envelope itself; the schema's own version is part of the schema name."""

MAX_BYTES = 16 << 20
"""Files larger than this are not ours; reading one must not exhaust a small device's memory."""


def is_number(value: object) -> bool:
    """Say whether a value that was read is a finite number that times, sizes and counts can have.

    JSON may hold whole numbers of any length, and names for infinity and NaN.
    """
    return type(value) in (int, float) and abs(value) < 1e30  # type: ignore[arg-type]


TRIES = 32
"""Times that an update is made again because another process was faster."""


def update_sealed(
    path: str | os.PathLike[str],
    schema: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> bool:
    """Replace a sealed file by what `change` makes of its body, losing no other process's change.

    It happens under the folder's lock. Where that is not to be had (see `gpuedge.core.lock`), and
    against those who could not have it, whether the file is still the one that was read is looked
    at just before it is replaced.

    Parameters
    ----------
    change : callable
        Given the present body, empty where there is none; returns the new one. It may be called
        more than once.

    Returns
    -------
    bool
        As `save_sealed`.
    """
    from pathlib import Path

    from gpuedge.core.lock import Lock
    from gpuedge.core.paths import stamp

    with Lock(Path(path).parent):
        for _ in range(TRIES):
            seen = stamp(path)
            body = change(load_sealed(path, schema) or {})
            if save_sealed(path, schema, body, lambda seen=seen: stamp(path) != seen):  # type: ignore[misc]
                return True
            if stamp(path) == seen:  # it was not the others
                return False
    return False


def save_sealed(
    path: str | os.PathLike[str],
    schema: str,
    body: dict[str, Any],
    unless: Callable[[], bool] | None = None,
) -> bool:
    """Write `body` to `path` in one step, with its schema name and checksum.

    Parameters
    ----------
    path : path
        The file to replace; its folder is made if needed.
    schema : str
        What the body is, with its version, such as ``"gpuedge.verdicts/1"``.
    body : dict
        JSON-ready: string keys, no NaN or infinity.
    unless : callable, optional
        See `gpuedge.core.paths.write_atomic`.

    Returns
    -------
    bool
        False if the folder is read-only or full, or the body is not JSON-ready.
    """
    from pathlib import Path

    from gpuedge.core.paths import sweep, write_atomic

    try:
        text = _canonical(body)
        if json.loads(text) != body:  # tuples, integer keys: would not read back as written
            return False
        envelope = {
            "body": body,
            "format": FORMAT,
            "schema": schema,
            "sha256": _digest(schema, text),
        }
        data = _canonical(envelope).encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError):
        return False
    if len(data) > MAX_BYTES or not write_atomic(Path(path), data, unless):
        return False
    sweep(path)
    return True


def load_sealed(path: str | os.PathLike[str], schema: str) -> dict[str, Any] | None:
    """Return the body stored in `path`, or None if it is absent, damaged or of another schema."""
    data = read_regular(path, MAX_BYTES)
    return None if data is None else unsealed(data, schema)


def unsealed(data: bytes, schema: str) -> dict[str, Any] | None:
    """Return the body in the bytes of a sealed file, or None if they are damaged or another's."""
    try:
        envelope = json.loads(data.decode("utf-8"))
        if not isinstance(envelope, dict):
            return None
        body = envelope.get("body")
        if (envelope.get("format"), envelope.get("schema")) != (FORMAT, schema):
            return None
        if not isinstance(body, dict):
            return None
        intact = envelope.get("sha256") == _digest(schema, _canonical(body))
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return body if intact else None


def _canonical(value: dict[str, Any]) -> str:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def _digest(schema: str, text: str) -> str:
    import hashlib

    return hashlib.sha256(f"{FORMAT}\n{schema}\n{text}".encode()).hexdigest()
