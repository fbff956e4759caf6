"""Frames between the application and a worker, and what replies hold.

A frame is a header of fixed size, a JSON object and bytes. What comes from a worker is read as a
`Reply`, field by field: a driver may have written over the worker's memory.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from gpuedge.backends.base import Counters
from gpuedge.core import errors
from gpuedge.core.caps import Caps
from gpuedge.core.errors import DeviceError, DriverError, GpuEdgeError, OutOfMemoryError
from gpuedge.core.reasons import Reason
from gpuedge.core.record import Record, UnfitError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Annotated

HEADER = struct.Struct("<4sIII")
"""Magic, sequence number, bytes of JSON, bytes that follow it."""

MAGIC = b"gpE1"
MAX_REPLY = 1 << 20
"""Most bytes of a reply; it holds an error or what a device can do, never data of a tensor."""

MAX_REQUEST = 1 << 28
"""Most bytes of a request: a kernel's code, or recorded work."""

MAX_TEXT = 2000
"""Most characters of one part of an error that are passed on."""


def pack(sequence: int, body: dict[str, Any], extra: bytes = b"") -> bytes:
    """Return a frame."""
    text = _ENCODER.encode(body).encode()
    return HEADER.pack(MAGIC, sequence & 0xFFFFFFFF, len(text), len(extra)) + text + extra


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} does not go through a pipe")
    return item()


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain, check_circular=False)


def sizes(header: bytes, most: int) -> tuple[int, int, int]:
    """Return sequence number, bytes of JSON and bytes after it. Raises UnfitError."""
    magic, sequence, text, extra = HEADER.unpack(header)
    if magic != MAGIC or text + extra > most:
        raise UnfitError("no frame begins there")
    return sequence, text, extra


def parse(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a frame. Raises UnfitError."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnfitError(f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise UnfitError("not a JSON object")
    return body


class RaisedError(Record):
    """An error of a device: its class, its four parts, and the code and detail of its reason."""

    kind: Annotated[str, errors.__all__]
    what: Annotated[str, range(MAX_TEXT + 1)]
    asked_by: Annotated[str | None, range(MAX_TEXT + 1)] = None
    known: Annotated[str | None, range(MAX_TEXT + 1)] = None
    hint: Annotated[str | None, range(MAX_TEXT + 1)] = None
    reason: Reason | None = None

    @classmethod
    def of(cls, error: Exception) -> RaisedError:
        """Return an error of a device; what no backend should raise as well."""
        if isinstance(error, MemoryError):
            error = OutOfMemoryError("The device's worker has no memory left.")
        if not isinstance(error, GpuEdgeError):
            name = type(error).__name__
            error = DriverError(f"The device failed with an unexpected {name}.", known=str(error))
        kind = next(k.__name__ for k in type(error).__mro__ if k.__name__ in errors.__all__)
        reason = getattr(error, "reason", None)
        return cls(
            kind, str(error.what)[:MAX_TEXT], _cut(error.asked_by), _cut(error.known),
            _cut(error.hint), reason and reason.replace(detail=reason.detail[:MAX_TEXT]),
        )  # fmt: skip

    @property
    def error(self) -> GpuEdgeError:
        """The error, to be raised once more."""
        parts = {"asked_by": self.asked_by, "known": self.known, "hint": self.hint}
        raised: GpuEdgeError = getattr(errors, self.kind)(self.what, **parts)
        if isinstance(raised, DeviceError) and self.reason is not None:
            raised.reason = self.reason
        return raised


def _cut(text: object) -> str | None:
    return None if text is None else str(text)[:MAX_TEXT]


class Reply(Record):
    """The JSON object of a reply: what was counted, an error, and of a device that opened, more."""

    counters: Annotated[Mapping[str, int] | None, Counters] = None
    error: RaisedError | None = None
    caps: Caps | None = None
