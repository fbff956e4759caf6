"""What a worker announces: who it is and the devices that it has, found by the probe."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import gpuedge
from gpuedge.core.errors import FarmError, NoUsableDeviceError
from gpuedge.core.identity import Identity
from gpuedge.core.record import Record, UnfitError, plain, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuedge.probing.report import ProbeReport

OWN = ("deviceUUID",)
"""What tells two equal devices apart."""

PROBE_S = 120.0
"""Time for finding the devices of a worker."""

MOST_DEVICES = 64

MOST_SERIAL = 199
"""Characters of what a machine is called."""


def _identity(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    read(Identity, fields)
    return fields


class FarmDevice(Record):
    """A device of a worker: the device string it has there, and who it is."""

    device: Annotated[str, range(1, 100)]
    identity: Annotated[Mapping[str, Any], _identity]
    caps: str = ""
    """A digest of what the device offers: a driver may hide extensions of the same GPU."""

    @property
    def level(self) -> str:
        """Such as ``vulkan``."""
        return self.device.partition(":")[0]

    @property
    def key(self) -> str:
        """The same for equal devices, such as ``vulkan-0f3a5b7c9d1e``: what cases are run on."""
        same = {name: value for name, value in self.identity.items() if name not in OWN}
        text = json.dumps([self.level, same, self.caps], sort_keys=True)
        return f"{self.level}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Announcement(Record):
    """What a worker says of itself when it joins. Nothing of it is believed without a look."""

    version: Annotated[str, range(1, 100)]
    serial: Annotated[str, range(1, MOST_SERIAL + 1)]
    labels: Mapping[str, str]
    devices: Annotated[tuple[FarmDevice, ...], range(MOST_DEVICES + 1)]

    def resources(self) -> dict[str, float]:
        """Return Dask's abstract resources: so many devices of each level, and of each key."""
        names = [name for one in self.devices for name in (one.level, one.key)]
        return {resource(name): float(count) for name, count in Counter(names).items()}


def resource(name: str) -> str:
    """Return the name of the resource that a level or key of devices is."""
    return f"gpuedge-{name}"


def announcement(said: object) -> Announcement:
    """Return what a worker announced. Raises UnfitError where it is no such thing."""
    if not isinstance(said, str):
        raise UnfitError("it is no worker of gpuedge")
    try:
        return read(Announcement, json.loads(said))
    except RecursionError:
        raise UnfitError("it is nested too deep") from None
    except UnfitError:
        raise
    except ValueError:
        raise UnfitError("it is no JSON") from None


def found_here(
    wanted: Sequence[str], labels: Mapping[str, str], serial: str | None
) -> Announcement:
    """Return what this machine has: usable GPUs, or those of them that are wanted by name.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        There is none.
    """
    report = gpuedge.probe(deadline_s=PROBE_S)
    devices = tuple(_usable(report, wanted))
    if not devices:
        raise NoUsableDeviceError(
            "A worker needs a GPU that works, and there is none here.",
            known="; ".join(f"{row.device}: {row.status}" for row in report.tried) or "no driver",
            hint="gpuedge probe",
        )
    return Announcement(gpuedge.__version__, serial or socket.gethostname(), labels, devices)


def _usable(report: ProbeReport, wanted: Sequence[str]) -> Iterator[FarmDevice]:
    names = {row.device for row in report.devices}
    for name in wanted:
        if not any(name in (device, device.partition(":")[0]) for device in names):
            raise NoUsableDeviceError(
                f"The device '{name}' does not work here.",
                asked_by="--device",
                known=", ".join(sorted(names)) or "no GPU works",
                hint="gpuedge probe",
            )
    for row in report.devices[:MOST_DEVICES]:
        if not wanted or row.device in wanted or row.backend in wanted:
            digest = hashlib.sha256(json.dumps(row.caps, sort_keys=True).encode())
            yield FarmDevice(row.device, dict(row.identity), digest.hexdigest()[:12])


@dataclass
class Desk:
    """The devices of this process, each lent to one shard at a time, and how far work is.

    Dask calls it for the announcement once, and asks for `progress` with every heartbeat.
    """

    announcement: Announcement
    jobs: int
    _free: dict[str, list[str]] = field(init=False)
    _done: dict[str, int] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._free = {}
        for one in self.announcement.devices:
            self._free.setdefault(one.key, []).append(one.device)

    def __call__(self, worker: object) -> str:
        """Return the announcement as JSON."""
        return json.dumps(plain(self.announcement))

    def progress(self, worker: object) -> dict[str, int]:
        """Return how many cases each running shard has behind it."""
        with self._lock:
            return dict(self._done)

    def step(self, task: str) -> None:
        """Note that a case of a shard is done."""
        with self._lock:
            self._done[task] = self._done.get(task, 0) + 1

    def lent(self, key: str, task: str) -> AbstractContextManager[str]:
        """Lend a device of that key for a shard. Raises FarmError where none is free."""
        return self._lent(key, task)

    @contextmanager
    def _lent(self, key: str, task: str) -> Iterator[str]:
        with self._lock:
            free = self._free.get(key)
            if not free:
                raise FarmError(f"This worker has no free device {key}.")
            device = free.pop(0)
            self._done[task] = 0
        try:
            yield device
        finally:
            with self._lock:
                free.append(device)
                self._done.pop(task, None)
