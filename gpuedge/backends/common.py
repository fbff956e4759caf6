"""What the backends do alike when they open a device again and close it."""

from __future__ import annotations

from gpuedge.core.driver import DeviceInfo
from gpuedge.core.errors import DriverError
from gpuedge.core.identity import Identity

CLOSE_TIMEOUT_S = 5.0
"""How long closing a device waits for work in flight, in seconds."""


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
