"""Frames between the application and a worker: devices, caps and errors as JSON, and back.

A frame is a header of fixed size, a JSON object and bytes. What comes from a worker must parse and
have the right types: a driver may have written over the worker's memory.
"""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from typing import Any

from gpuedge.backends.base import Counters
from gpuedge.core import errors
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.driver import Candidate, DeviceInfo
from gpuedge.core.errors import DeviceError, DriverError, GpuEdgeError, OutOfMemoryError
from gpuedge.core.identity import Identity
from gpuedge.core.reasons import Reason

HEADER = struct.Struct("<4sIII")
"""Magic, sequence number, bytes of JSON, bytes that follow it."""

MAGIC = b"gpE1"
MAX_REPLY = 1 << 20
"""Most bytes of a reply; it holds an error or what a device can do, never data of a tensor."""

MAX_REQUEST = 1 << 28
"""Most bytes of a request: a kernel's code, or recorded work."""

MAX_TEXT = 2000
"""Most characters of one part of an error that are passed on."""

_COUNTERS = tuple(f.name for f in fields(Counters))
_PARTS = ("what", "asked_by", "known", "hint")


class FrameError(ValueError):
    """What came through a pipe is not a frame, or not the one that was due."""


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
    """Return sequence number, bytes of JSON and bytes after it. Raises FrameError."""
    magic, sequence, text, extra = HEADER.unpack(header)
    if magic != MAGIC or text + extra > most:
        raise FrameError("no frame begins there")
    return sequence, text, extra


def parse(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a frame. Raises FrameError."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise FrameError("not a JSON object")
    return body


def info_to_record(info: DeviceInfo) -> dict[str, Any]:
    """Return a device as JSON-ready data."""
    return {
        **info.as_dict(),
        "candidate": {**info.candidate.as_dict(), "env": dict(info.candidate.env)},
        "identity": info.identity.to_dict(),
        "disabled": sorted(info.disabled),
        "limits": dict(info.limits),
    }


def info_from_record(record: dict[str, Any]) -> DeviceInfo:
    """Rebuild a device from `info_to_record`."""
    objects = {
        "candidate": Candidate(**record["candidate"]),
        "identity": Identity.from_dict(record["identity"]),
        "disabled": frozenset(record["disabled"]),
    }
    return DeviceInfo(**{**record, **objects})


def error_to_record(error: Exception) -> dict[str, Any]:
    """Return an error of a device as JSON-ready data; what no backend should raise as well."""
    if isinstance(error, MemoryError):
        error = OutOfMemoryError("The device's worker has no memory left.")
    if not isinstance(error, GpuEdgeError):
        name = type(error).__name__
        error = DriverError(f"The device failed with an unexpected {name}.", known=str(error))
    parts = {part: getattr(error, part) for part in _PARTS}
    reason = getattr(error, "reason", None)
    return {
        **{part: None if text is None else str(text)[:MAX_TEXT] for part, text in parts.items()},
        "class": next(k.__name__ for k in type(error).__mro__ if k.__name__ in errors.__all__),
        "reason": reason and [reason.code, reason.detail[:MAX_TEXT]],
    }


def error_from_record(record: Any) -> GpuEdgeError:
    """Rebuild an error. Raises FrameError for what is none."""
    try:
        what, asked_by, known, hint = (record.get(part) for part in _PARTS)
        for text in (what, asked_by, known, hint):
            if not isinstance(text, (str, type(None))) or len(text or "") > MAX_TEXT:
                raise TypeError("a part is not a text, or too long")
        kind = getattr(errors, errors.__all__[errors.__all__.index(record["class"])])
        made: GpuEdgeError = kind(what, asked_by=asked_by, known=known, hint=hint)
        if isinstance(made, DeviceError) and record["reason"] is not None:
            made.reason = Reason(*map(str, record["reason"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FrameError(f"an error of unknown form: {error}") from None
    if what is None:
        raise FrameError("an error that says nothing")
    return made


def caps_from_record(record: Any) -> Caps:
    """Rebuild what a device can do. Raises FrameError where a value has another type."""
    try:
        for name, usual in VULKAN_MINIMUM.to_dict().items():
            kinds = (int, bool, type(None)) if usual is None else (type(usual),)
            if type(record[name]) not in kinds:
                raise TypeError(f"{name}={str(record[name])[:40]}")
        return Caps.from_dict(record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FrameError(f"caps of unknown form: {error}") from None


def counts_of(counters: Counters) -> list[int]:
    """Return counters as JSON-ready data."""
    return [getattr(counters, name) for name in _COUNTERS]


def take_counts(record: Any, counters: Counters) -> None:
    """Set counters to what a worker counted. Raises FrameError for anything but counts."""
    if not isinstance(record, list) or [type(n) for n in record] != [int] * len(_COUNTERS):
        raise FrameError("counters of unknown form")
    for name, value in zip(_COUNTERS, record, strict=True):
        setattr(counters, name, value)
