"""Frames: what goes through the pipes between the application and a worker.

A frame is a header of fixed size, a JSON object and bytes. Both sides read them strictly: a driver
may have written over the memory of a worker, and what comes out of it then must not do harm here.
"""

from __future__ import annotations

import json
import struct
from typing import Any

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
