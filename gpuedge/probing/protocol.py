"""What a probe's child tells the launcher: one JSON line per event, in a private file.

Each line carries the request's token. Every step is told before it is taken, so that a crash or a
hang can be attributed, and every device's result as it comes. Standard output is not used: drivers
write there. They may write into the file, too, so what is read is checked field by field.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Mapping
from typing import Any, Final

from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceTimeoutError,
    OutOfMemoryError,
)
from gpuedge.core.reasons import SENTENCES, STATUSES, Reason
from gpuedge.probing.report import IDENTITY, RESTRICTIONS, fits

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

APPLIES, CLEARED, FAILED, CUT = "applies", "cleared", "failed", "cut"
"""What can become of an entry: it applied without a test; its tests passed; they failed; time was
over before they were done."""

RUNS = 2
"""Runs of each known answer: a race or stale data shows up as two different answers."""

HARDER_RUNS = 16
"""The same on a second attempt: a device that is wrong in one run of ten passes two of them four
times in five, and sixteen once in five."""

ROBBED = 70
"""Exit status of a child whose files a driver closed."""

STATUS_OF: Final = {
    "ok": "ok",
    "deadline": "timeout",
    "quirk": "blocked",
    **dict.fromkeys(("untouched-output", "wrong-numbers", "unstable-numbers"), "wrong"),
    **dict.fromkeys(("no-loader", "no-candidates", "no-device", "no-context"), "absent"),
    **dict.fromkeys(("no-format", "no-highp", "no-compute"), "absent"),
}
"""Status of each reason code the child can give; every other code is ``broken``."""

_ANY = {"when": (float, None), "cpu": (float, None), "at": (int, None)}
_VERDICT = {
    "status": frozenset(STATUSES),
    "code": frozenset(SENTENCES),
    "caps": (dict, None),
    "evidence": (dict, None),
    "restrictions": (RESTRICTIONS, None),
    "seconds": (float, None),
}
_DEVICE = {
    "index": int,
    "identity": IDENTITY,
    "is_software": bool,
    "model": (str, None),
}
EVENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "step": {**_ANY, "step": frozenset(STEPS)},
    "devices": {**_ANY, "database": (str, None), "devices": [_DEVICE]},
    "demand": {**_ANY, "index": int, "entries": [str]},
    "device": {**_ANY, "index": int, **_VERDICT},
    "failed": {**_ANY, **_VERDICT},
    "done": _ANY,
}
"""The events, and the shapes of their fields (`gpuedge.probing.report.fits`)."""


class EventChannel:
    """The private result file, open for appending; `at` is the candidate whose turn it is.

    A driver that closes descriptors which are not its own would rob the application of its files,
    or have it write into others. Here it robs this class, which ends the process.
    """

    def __init__(self, path: str, token: str) -> None:
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
        try:
            is_own = os.path.samestat(os.fstat(self._fd), self._file)
        except OSError:
            is_own = False
        if not is_own:
            os._exit(ROBBED)
        when, cpu = round(time.monotonic() - self._begin, 6), round(time.process_time(), 6)
        own = {"token": self._token, "event": event, "at": self.at, "when": when, "cpu": cpu}
        record = {**own, **fields}
        os.write(self._fd, json.dumps(record).encode() + b"\n")

    def step(self, name: str, index: int | None = None) -> None:
        """Announce the step about to be taken."""
        if (name, index) != self._last:
            self._last = (name, index)
            self.send("step", step=name, index=index)


def read_events(data: bytes, token: str) -> tuple[list[Event], int]:
    """Return the events that carry `token`, and how many lines are none."""
    events: list[Event] = []
    lines = [line for line in data.split(b"\n") if line.strip()]
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        is_ours = fits(event, {"event": frozenset(EVENTS)}) and event.get("token") == token
        if is_ours and fits(event, EVENTS[event["event"]]):
            events.append(event)
    return events, len(lines) - len(events)


def reason_of(error: Exception, fallback: str) -> Reason:
    """Return the reason code of an exception, with what it says as the detail.

    A backend's own errors may carry a `reason` that knows better than their class.
    """
    given = getattr(error, "reason", None)
    if isinstance(given, Reason):
        return given if given.detail else Reason(given.code, _words(error, is_brief=True))
    codes = {
        OutOfMemoryError: "out-of-memory",
        DeviceLostError: "device-lost",
        DeviceTimeoutError: "deadline",
        BackendUnavailableError: "no-device",
    }
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), fallback)
    return Reason(code, _words(error))


def _words(error: Exception, *, is_brief: bool = False) -> str:
    """Return what an error says; `is_brief` leaves out what its reason code says already."""
    known = getattr(error, "known", None)
    what = getattr(error, "what", None) or str(error) or type(error).__name__
    parts = [known] if known and is_brief else [what, known]
    text = "; ".join(str(part).strip().rstrip(".") for part in parts if part)
    return text.replace("\n", " ")[:300]


def trace(error: Exception) -> dict[str, Any]:
    """Return where an exception came from, as evidence."""
    return {"error": "".join(traceback.format_exception(error))[-2000:]}


def verdict(reason: Reason) -> dict[str, Any]:
    """Return the fields of an event that say what came of a driver or a device."""
    status = STATUS_OF.get(reason.code, "broken")
    return {"status": status, "code": reason.code, "detail": reason.detail}
