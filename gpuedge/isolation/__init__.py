"""A device in a process of its own: a driver that crashes or hangs takes only that process along.

The cut is the seam. `HostedDevice` is a `gpuedge.backends.base.DeviceImpl` like any other; each of
its calls is passed to a host process, which holds the driver and the real device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceInfo
    from gpuedge.isolation.device import HostedDevice

__all__ = ["open_hosted"]

OPEN_S = 30.0
"""Time for starting a host and opening its device, in seconds."""


def open_hosted(info: DeviceInfo, *, deadline_s: float = OPEN_S) -> HostedDevice:
    """Start a host process and open a device in it.

    Parameters
    ----------
    info : DeviceInfo
        The device, as its backend or a probe named it.
    deadline_s : float
        Seconds that starting the host and opening the device may take together.

    Raises
    ------
    DeviceLostError (GE-401)
        The driver ended the host (reason ``host-died``).
    DeviceTimeoutError (GE-403)
        The device did not open in time (reason ``device-hung``); the host was killed.
    DeviceError (GE-4xx)
        The driver refused, or no host can be started here (reason ``no-child``).
    """
    from gpuedge.isolation.device import HostedDevice

    return HostedDevice(info, deadline_s)
