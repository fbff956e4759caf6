"""What is noted about a call into a driver: a marker for the crash blocklist, and causes."""

from __future__ import annotations

from gpuedge.core.errors import DeviceError, GpuEdgeError

MAX_WORDS = 300
"""Characters of a cause that are kept: a compiler's log may fill pages."""


def cause_of(error: GpuEdgeError) -> str:
    """Return what is known of the cause of an error, in one line; else what happened."""
    own = error.reason if isinstance(error, DeviceError) else None
    what = error.what.rstrip(".")
    text = own.detail if own is not None and own.detail else what
    if own is None and error.known:
        text = f"{what}: {error.known}"
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]}..."


class NoMarker:
    """Takes the place of a `gpuedge.safety.blocklist.Marker`, and writes nothing down."""

    def step(self, name: str) -> None:
        """Do nothing."""

    def quiet(self) -> None:
        """Do nothing."""

    def crashed(self, why: str, step: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
