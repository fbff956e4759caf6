"""What a probe's child tells the launcher: one JSON line per event, in a private file.

Each line carries the request's token. Every step is told before it is taken, so that a crash or a
hang can be attributed, and every device's result as it comes. Standard output is not used: drivers
write there. They may write into the file, too, so what is read is checked field by field.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceTimeoutError,
    OutOfMemoryError,
)
from gpuedge.core.reasons import SENTENCES, STATUSES, Reason
from gpuedge.probing import report
from gpuedge.safety.store import is_number

Event = Mapping[str, Any]

STEPS: Final = {
    "start": "before the driver was loaded",
    "load": "while loading the API",
    "enumerate": "while loading the driver and listing its devices",
    "prepare": "before the device was opened",
    "open": "while opening the device",
    "build": "while building a kernel",
    "run": "while running a kernel",
    "read": "while reading results back",
    "close": "while closing the device",
    "exit": "while leaving the process, after its results were complete",
}
"""Steps of a probe, in order, as they stand in ``evidence["step"]``, and how to say them."""

APPLIES = "applies"
CLEARED = "cleared"
FAILED = "failed"
CONFIRMED = "confirmed"
CUT = "cut"
"""What can become of an entry: it applied without a test; its tests passed; they failed once; they
failed in a second process too; time was over before they were done."""

UNFINISHED = frozenset({FAILED, CUT})
"""Outcomes that another probe may change."""

RUNS = 2
"""Runs of each known answer: a race or stale data shows up as two different answers."""

HARDER_RUNS = 16
"""The same on a device whose numbers were wrong before, and may be wrong now and then: one that is
in one run of ten passes two of them four times in five, and sixteen once in five."""

STATUS_OF: Final = {
    "ok": "ok",
    "no-loader": "absent",
    "no-candidates": "absent",
    "no-device": "absent",
    "no-context": "absent",
    "no-format": "absent",
    "no-highp": "absent",
    "no-compute": "absent",
    "untouched-output": "wrong",
    "wrong-numbers": "wrong",
    "unstable-numbers": "wrong",
    "deadline": "timeout",
    "quirk": "blocked",
}
"""Status of each reason code the child can give; every other code is ``broken``."""


class Channel:
    """The private result file, open for appending; `at` is the candidate whose turn it is.

    A driver that closes descriptors which are not its own would rob the application of its files,
    or have it write into others. Here it robs this class, which says so and ends the process.
    """

    def __init__(self, path: str, token: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._file = os.fstat(self._fd)
        self._token = token
        self._last: tuple[str, int | None] | None = None
        self._begin = time.monotonic()
        self.at = 0

    def turn(self, at: int) -> None:
        """Go on to another candidate."""
        self.at, self._last = at, None

    def send(self, event: str, **fields: Any) -> None:
        """Write one event; it survives the process from here on."""
        self._require_own()
        self._write(event, **fields)

    def _write(self, event: str, **fields: Any) -> None:
        when = round(time.monotonic() - self._begin, 6)
        line = json.dumps(
            {"token": self._token, "event": event, "at": self.at, "when": when, **fields}
        )
        os.write(self._fd, line.encode() + b"\n")

    def _require_own(self) -> None:
        try:
            is_own = os.path.samestat(os.fstat(self._fd), self._file)
        except OSError:
            is_own = False
        if not is_own:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            self._write("robbed")
            os._exit(1)

    def step(self, name: str, index: int | None = None) -> None:
        """Announce the step about to be taken."""
        if (name, index) != self._last:
            self._last = (name, index)
            self.send("step", step=name, index=index)


def read_events(data: bytes, token: str) -> tuple[list[Event], int]:
    """Return the events that carry `token`, and how many lines are none."""
    events: list[Event] = []
    junk = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and event.get("token") == token and _is_sound(event):
            events.append(event)
        else:
            junk += 1
    return events, junk


def required(events: Sequence[Event], index: int | None) -> frozenset[str]:
    """Return the entries whose tests of a device were under way when the events end."""
    found: frozenset[str] = frozenset()
    for event in events:
        if event.get("index") != index:
            continue
        if event["event"] == "demand":
            found = frozenset(event["entries"])
        elif event["event"] == "device":
            found = frozenset()
    return found


def _is_index(value: object) -> bool:
    return type(value) is int


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_table(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(_has(record, _DEVICE) for record in value)


def _one_of(known: Sequence[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in known


_VERDICT: Final[Mapping[str, Callable[[Any], bool]]] = {
    "status": _one_of(list(STATUSES)),
    "code": _one_of(list(SENTENCES)),
    "caps": _is_table,
    "evidence": _is_table,
    "restrictions": lambda value: _is_table(value) and report.are_restrictions(value or {}),
    "seconds": lambda value: is_number(value or 0),
}
_DEVICE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "index": _is_index,
    "identity": lambda value: isinstance(value, dict),
    "is_software": lambda value: isinstance(value, bool),
    "model": _is_text,
    "valid_until": lambda value: value is None or report.is_day(value),
}
_EVENTS: Final[Mapping[str, Mapping[str, Callable[[Any], bool]]]] = {
    "step": {"step": _one_of(list(STEPS))},
    "devices": {"database": _is_text, "devices": _is_list},
    "demand": {"index": _is_index, "entries": report.are_words},
    "device": {"index": _is_index, **_VERDICT},
    "failed": _VERDICT,
    "done": {},
    "robbed": {},
}
"""The events, and what their fields must be."""


def _is_sound(event: Event) -> bool:
    """Say whether an event is one that a child sends."""
    kind = event.get("event")
    known = isinstance(kind, str) and kind in _EVENTS and is_number(event.get("when") or 0)
    return known and _has(event, _EVENTS[str(kind)])


def _has(record: object, fields: Mapping[str, Callable[[Any], bool]]) -> bool:
    if not isinstance(record, dict):
        return False
    return all(is_good(record.get(name)) for name, is_good in fields.items())


def reason_of(error: Exception, fallback: str) -> Reason:
    """Return the reason code of an exception, with what it says as the detail.

    A backend's own errors may carry a `reason` that knows better than their class.
    """
    given = getattr(error, "reason", None)
    if isinstance(given, Reason):
        return given if given.detail else Reason(given.code, words(error, brief=True))
    for kind, code in (
        (OutOfMemoryError, "out-of-memory"),
        (DeviceLostError, "device-lost"),
        (DeviceTimeoutError, "deadline"),
        (BackendUnavailableError, "no-device"),
    ):
        if isinstance(error, kind):
            return Reason(code, words(error))
    return Reason(fallback, words(error))


def words(error: Exception, *, brief: bool = False) -> str:
    """Return what an error says; `brief` leaves out what its reason code says already."""
    known = getattr(error, "known", None)
    what = getattr(error, "what", None) or str(error) or type(error).__name__
    parts = [known] if known and brief else [what, known]
    text = "; ".join(str(part).strip().rstrip(".") for part in parts if part)
    return text.replace("\n", " ")[:300]


def trace(error: Exception) -> dict[str, Any]:
    """Return where an exception came from, as evidence."""
    import traceback

    return {"error": "".join(traceback.format_exception(error))[-2000:]}


def verdict(reason: Reason) -> dict[str, Any]:
    """Return the fields of an event that say what came of a driver or a device."""
    status = STATUS_OF.get(reason.code, "broken")
    return {"status": status, "code": reason.code, "detail": reason.detail}
