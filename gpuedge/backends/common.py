"""What the backends do alike: errors of every API in the same words, opening a device again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuedge.core.caps import Caps
from gpuedge.core.driver import DeviceInfo
from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    OutOfMemoryError,
)
from gpuedge.core.identity import Identity

MAX_WAIT_S = 2.0**32
"""Waits of a century and more have no limit; larger numbers need not fit a driver's arithmetic."""


def no_loader(what: str, known: object, hint: str) -> BackendUnavailableError:
    """Return the error of a package or library that is not installed (not raised here)."""
    return BackendUnavailableError(what, known=str(known), hint=hint, reason="no-loader")


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


@dataclass(frozen=True, slots=True)
class Found:
    """A device that a driver lists: its handle and what it reports."""

    handle: Any
    identity: Identity
    caps: Caps


F = TypeVar("F", bound=Found)


def infos(instance: Any) -> list[DeviceInfo]:
    """Return the devices of an `Instance` as the seam wants them, and close it."""
    try:
        return [
            DeviceInfo(instance.candidate, index, physical.identity, physical.caps.is_software)
            for index, physical in enumerate(instance.devices())
        ]
    finally:
        instance.close()


def found_again(info: DeviceInfo, physicals: Sequence[F]) -> F:
    """Return the device of `info` among those the driver lists now.

    Raises DriverError where none is in its place, or another one.
    """
    if info.index >= len(physicals):
        raise DriverError(
            "The device is gone.",
            asked_by=f"{info.candidate.key} #{info.index}",
            known=f"the driver now offers {len(physicals)} devices",
        )
    physical, before = physicals[info.index], info.identity
    if before.differences(physical.identity, ("vendorID", "deviceID")):
        raise DriverError(
            "The driver now lists another device in this place.",
            known=before.differences(physical.identity, ("name", "vendorID", "deviceID")),
        )
    return physical
