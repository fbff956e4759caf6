"""What is noted about a call into a driver: a marker for the crash blocklist, and causes."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from gpuedge.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError, GpuEdgeError
from gpuedge.executors.programs import RefusedPassError

if TYPE_CHECKING:
    from gpuedge.executors.opened import OpenedDevice

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


class DriverStage:
    """A block of calls into a driver: its failure is drawn conclusions from.

    What is done for the first time is noted before and after, too; runs of what ran before are not.
    Entered under the device's lock, so that one object serves every block of its kind.
    """

    def __init__(self, executor: OpenedDevice, name: str) -> None:
        self._executor = executor
        self._name = name
        self._is_noted = name != "run"

    def __enter__(self) -> None:
        if self._is_noted:
            self._executor.marker.step(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._conclude(error)
        if self._is_noted:
            self._executor.marker.quiet()

    def _conclude(self, error: BaseException) -> None:
        executor = self._executor
        if not isinstance(error, (GpuEdgeError, RefusedPassError, MemoryError)):
            # Of the application, such as a second Ctrl-C: nobody knows what is bound, mapped or
            # under way. The device, which did nothing wrong, is opened anew.
            executor.retire()
        elif isinstance(error, DeviceTimeoutError):
            executor.is_hung, executor.late = True, error.ticket
        elif not isinstance(error, DeviceLostError) or error.is_outside:
            return
        elif error.reason is not None:
            executor.lost(error.reason.code, cause_of(error), self._name)
