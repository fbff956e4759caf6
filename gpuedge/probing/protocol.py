"""What a probe's child tells the launcher, and the launcher the application: events and fields.

Every step is told before it is taken, so that a crash or a hang can be attributed, and every
device's result as it comes (`gpuedge.safety.channel`).
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Annotated, Any, Final

from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceTimeoutError,
    OutOfMemoryError,
)
from gpuedge.core.identity import Identity
from gpuedge.core.reasons import SENTENCES, STATUSES, Reason
from gpuedge.core.record import Record
from gpuedge.core.text import named
from gpuedge.probing.report import ProbeRow, RestrictionFields
from gpuedge.safety.channel import Told
from gpuedge.safety.interrupts import is_of_handler

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

STATUS_OF: Final = {
    "ok": "ok",
    "deadline": "timeout",
    "quirk": "blocked",
    **dict.fromkeys(("untouched-output", "wrong-numbers", "unstable-numbers"), "wrong"),
    **dict.fromkeys(("no-loader", "no-candidates", "no-device", "no-context"), "absent"),
    **dict.fromkeys(("no-format", "no-highp", "no-compute"), "absent"),
}
"""Status of each reason code the child can give; every other code is ``broken``."""


class StepTold(Told):
    """The step that is about to be taken, on the device of that number."""

    step: Annotated[str, STEPS]
    index: int | None


class DeviceTold(Record):
    """A device that a driver listed."""

    index: int
    identity: Annotated[Mapping[str, Any], Identity]
    is_software: bool
    model: str | None = None


class DevicesTold(Told):
    """All devices of a driver, and the database that they were looked up in."""

    devices: tuple[DeviceTold, ...]
    database: str | None = None


class DemandTold(Told):
    """The entries whose required tests run from here on."""

    index: int
    entries: tuple[str, ...]


class FailureTold(Told):
    """What came of a driver that listed no device."""

    status: Annotated[str, STATUSES]
    code: Annotated[str, SENTENCES]
    detail: str = ""
    evidence: Mapping[str, Any] = {}


class VerdictTold(Told):
    """What came of a device."""

    index: int
    status: Annotated[str, STATUSES]
    code: Annotated[str, SENTENCES]
    detail: str = ""
    evidence: Mapping[str, Any] = {}
    caps: Mapping[str, Any] = {}
    restrictions: Annotated[Mapping[str, Any], RestrictionFields] = {}
    seconds: float | None = None


class RowsTold(Told):
    """The rows of a candidate."""

    rows: tuple[ProbeRow, ...]


EVENTS: Final[Mapping[str, type[Told]]] = {
    "step": StepTold, "devices": DevicesTold, "demand": DemandTold, "device": VerdictTold,
    "failed": FailureTold, "done": Told,
}  # fmt: skip
"""The events of a child, and their fields."""

ROWS: Final[Mapping[str, type[Told]]] = {"begun": Told, "rows": RowsTold, "over": Told}
"""The events of the launcher: a candidate is begun with, what came of it, and nothing follows."""


def reason_of(error: BaseException, fallback: str) -> Reason:
    """Return the reason code of an exception, with what it says as the detail.

    A backend's own errors may carry a `reason` that knows better than their class. What a handler
    of a signal raised, such as Ctrl-C, is raised again.
    """
    if is_of_handler(error):
        raise error
    given = getattr(error, "reason", None)
    if isinstance(given, Reason):
        return given if given.detail else Reason(given.code, _words(error, is_brief=True))
    codes = {
        OutOfMemoryError: "out-of-memory",
        MemoryError: "out-of-memory",
        DeviceLostError: "device-lost",
        DeviceTimeoutError: "deadline",
        BackendUnavailableError: "no-device",
    }
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), fallback)
    return Reason(code, _words(error))


def _words(error: BaseException, *, is_brief: bool = False) -> str:
    """Return what an error says; `is_brief` leaves out what its reason code says already."""
    known = getattr(error, "known", None)
    what = getattr(error, "what", None) or named(error)
    parts = [known] if known and is_brief else [what, known]
    text = "; ".join(str(part).strip().rstrip(".") for part in parts if part)
    return text.replace("\n", " ")[:300]


def trace(error: BaseException) -> dict[str, Any]:
    """Return where an exception came from, as evidence."""
    return {"error": "".join(traceback.format_exception(error))[-2000:]}


def verdict(reason: Reason) -> dict[str, Any]:
    """Return the fields of an event that say what came of a driver or a device."""
    status = STATUS_OF.get(reason.code, "broken")
    return {"status": status, "code": reason.code, "detail": reason.detail}
