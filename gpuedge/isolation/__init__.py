"""A device in a worker process: a driver that crashes or hangs takes only that process along.

The cut is the seam. `IsolatedDevice` is a `gpuedge.backends.base.DeviceImpl` like any other; its
`client` passes each call through pipes and `shared` memory to the `worker`, which
holds the driver and the real device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuedge.core.times import WORKER_OPEN_S

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceInfo
    from gpuedge.isolation.device import IsolatedDevice

__all__ = ["open_isolated"]


def open_isolated(info: DeviceInfo, *, deadline_s: float = WORKER_OPEN_S) -> IsolatedDevice:
    """Start a worker process and open a device in it.

    Parameters
    ----------
    info : DeviceInfo
        The device, as its backend or a probe named it.
    deadline_s : float
        Seconds that starting the worker and opening the device may take together.

    Raises
    ------
    DeviceLostError (GE-401)
        The driver ended the worker (reason ``worker-died``).
    DeviceTimeoutError (GE-403)
        The device did not open in time (reason ``device-hung``); the worker was killed.
    DeviceError (GE-4xx)
        The driver refused, or no worker can be started here (reason ``no-child``).
    """
    from gpuedge.isolation.device import IsolatedDevice

    return IsolatedDevice(info, deadline_s)
