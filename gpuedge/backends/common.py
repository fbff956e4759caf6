"""What the backends do alike: errors of every API in the same words, opening a device again."""

from __future__ import annotations

from gpuedge.core.driver import DeviceInfo
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    OutOfMemoryError,
)
from gpuedge.core.identity import Identity

CLOSE_TIMEOUT_S = 5.0
"""How long closing a device waits for work in flight, in seconds."""
COPY_TIMEOUT_S = 60.0
"""How long a copy between device and host may take."""


def lost_error(device: str, known: str | None) -> DeviceLostError:
    """Return the error of a lost device (not raised here)."""
    return DeviceLostError(f"The driver lost {device}.", known=known)


def memory_error(device: str, known: str) -> OutOfMemoryError:
    """Return the error of exhausted memory (not raised here)."""
    return OutOfMemoryError(f"There is not enough memory on {device}.", known=known)


def timeout_error(device: str, timeout_s: float) -> DeviceTimeoutError:
    """Return the error of work that is not done in time (not raised here)."""
    return DeviceTimeoutError(
        f"Work on {device} did not finish within {timeout_s:g} s.",
        known="it is still running; wait again, or close the device",
    )


def check_size(device: str, nbytes: int, most: int, what: str) -> None:
    """Raise OutOfMemoryError for a buffer larger than a device's largest `what`."""
    if nbytes > most:
        raise OutOfMemoryError(
            f"A buffer of {nbytes} bytes does not fit on {device}.",
            known=f"its largest {what} has {most} bytes",
        )


def check_place(info: DeviceInfo, count: int) -> None:
    """Raise DriverError where a driver that lists `count` devices has none in `info`'s place."""
    if info.index >= count:
        raise DriverError(
            "The device is gone.",
            asked_by=f"{info.candidate.key} #{info.index}",
            known=f"the driver now offers {count} devices",
        )


def check_same(info: DeviceInfo, found: Identity) -> None:
    """Raise DriverError where another device took the place of the one in `info`."""
    before = info.identity
    if (before.vendorID, before.deviceID) != (found.vendorID, found.deviceID):
        raise DriverError(
            "The driver now lists another device in this place.",
            known=f"expected {before.name}, found {found.name}",
        )
