"""Frames between the application and a worker: devices, caps and errors as JSON, and back.

A frame is a header of fixed size, a JSON object and bytes. Both sides read them strictly: a driver
may have written over the memory of a worker, and what comes out of it then must not do harm here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from gpuedge.backends.base import Counters
from gpuedge.core import errors
from gpuedge.core.caps import Caps
from gpuedge.core.driver import Candidate, DeviceInfo
from gpuedge.core.errors import DeviceError, DriverError, GpuEdgeError, OutOfMemoryError
from gpuedge.core.identity import Identity
from gpuedge.core.reasons import SENTENCES, Reason
from gpuedge.core.storage import KINDS

HEADER = struct.Struct("<4sIII")
"""Magic, sequence number, bytes of JSON, bytes that follow it."""

MAGIC = b"gpE1"
MAX_REPLY = 1 << 20
"""Most bytes of a reply; it holds an error or what a device can do, never data of a tensor."""

MAX_REQUEST = 1 << 28
"""Most bytes of a request: a kernel's code, or recorded work."""


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


MAX_TEXT = 2000
"""Most characters of one part of an error that are passed on."""

MAX_COUNT = 1 << 64
FORMS = frozenset({"map", "group", "raw"})
_COUNTERS = tuple(f.name for f in fields(Counters))
_PARTS = ("what", "asked_by", "known", "hint")
_CLASSES: dict[str, type[GpuEdgeError]] = {
    name: kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), GpuEdgeError)
}


def info_to_record(info: DeviceInfo) -> dict[str, Any]:
    """Return a device as JSON-ready data."""
    return {
        "candidate": {**info.candidate.as_dict(), "env": dict(info.candidate.env)},
        "index": info.index,
        "identity": info.identity.to_dict(),
        "is_software": info.is_software,
        "disabled": sorted(info.disabled),
        "limits": dict(info.limits),
    }


def info_from_record(record: dict[str, Any]) -> DeviceInfo:
    """Rebuild a device from `info_to_record`."""
    return DeviceInfo(
        Candidate(**record["candidate"]),
        record["index"],
        Identity.from_dict(record["identity"]),
        record["is_software"],
        frozenset(record["disabled"]),
        record["limits"],
    )


def error_to_record(error: Exception) -> dict[str, Any]:
    """Return an error of a device as JSON-ready data; what no backend should raise as well."""
    if isinstance(error, MemoryError):
        error = OutOfMemoryError("The device's worker has no memory left.")
    if not isinstance(error, GpuEdgeError):
        name = type(error).__name__
        error = DriverError(f"The device failed with an unexpected {name}.", known=str(error))
    kind = next(k.__name__ for k in type(error).__mro__ if k.__name__ in _CLASSES)
    reason = getattr(error, "reason", None)
    record: dict[str, Any] = {"class": kind, "reason": None}
    if isinstance(reason, Reason):
        record["reason"] = [reason.code, reason.detail[:MAX_TEXT]]
    for part in _PARTS:
        text = getattr(error, part)
        record[part] = None if text is None else str(text)[:MAX_TEXT]
    return record


def error_from_record(record: object) -> GpuEdgeError:
    """Rebuild an error. Raises FrameError for what `error_to_record` never returns."""
    if not isinstance(record, dict):
        raise FrameError("an error is not an object")
    name, given = record.get("class"), record.get("reason")
    kind = _CLASSES.get(name) if isinstance(name, str) else None
    parts = [record.get(part) for part in _PARTS]
    texts = all(p is None or (isinstance(p, str) and len(p) <= MAX_TEXT) for p in parts)
    if kind is None or not texts or not isinstance(parts[0], str):
        raise FrameError("an error of unknown form")
    made = kind(parts[0], asked_by=parts[1], known=parts[2], hint=parts[3])
    if given is not None and isinstance(made, DeviceError):
        made.reason = _reason(given)
    return made


def _reason(record: object) -> Reason:
    if isinstance(record, list) and len(record) == 2:
        code, detail = record
        if isinstance(code, str) and code in SENTENCES and isinstance(detail, str):
            return Reason(code, detail[:MAX_TEXT])
    raise FrameError("a reason of unknown form")


def caps_from_record(record: object) -> Caps:
    """Rebuild what a device can do. Raises FrameError unless every value can be meant so."""
    if not isinstance(record, dict) or set(record) != {f.name for f in fields(Caps)}:
        raise FrameError("caps of unknown form")
    for field in fields(Caps):
        if not _is_sound(str(field.type), record[field.name]):
            raise FrameError(f"caps with {field.name}={str(record[field.name])[:40]}")
    caps = Caps.from_dict(record)
    if not (caps.forms <= FORMS and set(caps.storages) <= set(KINDS) and caps.storages):
        raise FrameError("caps with unknown forms or storages")
    if caps.offset_alignment < 1:
        raise FrameError("caps without an alignment")
    return caps


def _is_sound(kind: str, value: object) -> bool:
    """Say whether a value is of a field's type, as it is written in `Caps`."""
    if kind.endswith(" | None"):
        return value is None or _is_sound(kind.removesuffix(" | None"), value)
    check = _CHECKS.get(kind)
    if check is not None:
        return check(value)
    return isinstance(value, list) and len(value) <= 64 and all(map(_is_text, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_size(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_count, value))


_CHECKS: dict[str, Callable[[object], bool]] = {
    "int": _is_count,
    "bool": lambda value: isinstance(value, bool),
    "str": _is_text,
    "tuple[int, int, int]": _is_size,
}


def counts_of(counters: Counters) -> list[int]:
    """Return counters as JSON-ready data."""
    return [getattr(counters, name) for name in _COUNTERS]


def take_counts(record: object, counters: Counters) -> None:
    """Set counters to what a worker counted. Raises FrameError for anything but counts."""
    known = isinstance(record, list) and len(record) == len(_COUNTERS)
    if not isinstance(record, list) or not known or not all(map(_is_count, record)):
        raise FrameError("counters of unknown form")
    for name, value in zip(_COUNTERS, record, strict=True):
        setattr(counters, name, value)
