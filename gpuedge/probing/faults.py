"""From exceptions of drivers to the verdicts that a probe's child sends."""

from __future__ import annotations

from typing import Any, Final

from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceTimeoutError,
    OutOfMemoryError,
)
from gpuedge.core.reasons import Reason

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
