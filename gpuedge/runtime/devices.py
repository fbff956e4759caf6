"""Devices by their string: which driver a string means here, and opening it at most once.

The pool of open devices is the one thing this library keeps between calls besides the backend
registry: opening a driver costs tens of milliseconds, and two copies of it cost twice the memory.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import count
from typing import TYPE_CHECKING, cast

from gpuedge import backends
from gpuedge.capdb import classify
from gpuedge.core import config, debug
from gpuedge.core.caps import Caps
from gpuedge.core.errors import (
    FORK_HINT,
    DeviceTimeoutError,
    NoUsableDeviceError,
    UnknownDeviceError,
)
from gpuedge.core.identity import Identity
from gpuedge.core.interrupts import held
from gpuedge.core.reasons import SENTENCES

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl
    from gpuedge.decide.store import CalibrationStore
    from gpuedge.executors.base import Executor
    from gpuedge.executors.cpu import CpuExecutor
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.probing.report import ProbeReport, ProbeRow

AUTO = "auto"
CPU = "cpu"
_PATTERN = re.compile(r"([a-z][a-z0-9_]*)(?::(?:0|[1-9][0-9]{0,3}))?")
PATIENCE_S = 60
"""Deadline to suggest where a driver was not done within the usual one, in seconds."""


def parse(device: str) -> str:
    """Return the normal form of a device string.

    Raises
    ------
    UnknownDeviceError (GE-102)
        It is not a device string, or names a backend that does not exist.
    """
    if not isinstance(device, str):
        raise UnknownDeviceError(
            f"A device is named by a string, not by {type(device).__name__}.",
            known=f"such as {_known()}",
        )
    text = device.strip().lower()
    match = _PATTERN.fullmatch(text) if device.isascii() else None  # a Kelvin sign's small is k
    name = match.group(1) if match else ""
    if text in (AUTO, CPU):
        return text
    if not name or name not in backends.names():
        near = get_close_matches(text, [AUTO, *backends.names()], n=1)
        raise UnknownDeviceError(
            f"{device!r} names no device.",
            known=_known(),
            hint=f"did you mean {near[0]!r}?" if near else "gpuedge probe lists what is here",
        )
    return text


def _known() -> str:
    return ", ".join([AUTO, CPU, *(f"{name}[:N]" for name in backends.names())])


def wanted(device: str | None) -> str:
    """Return the device string after settings, in normal form."""
    value = config.get("device", call=device)
    try:
        return parse(value.value)
    except UnknownDeviceError as error:
        if error.asked_by is None:
            error.asked_by = value.source
        raise


def find(device: str, report: ProbeReport) -> ProbeRow:
    """Return the usable row a device string means.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        There is none; the message gives the reason of every candidate.
    """
    name, _, index = device.partition(":")
    rows = [r for r in report.tried if r.backend == name]
    if index:
        for row in rows:
            if row.device == device and row.is_usable:
                return row
        meant = [r for r in rows if r.device == device]
        there = ", ".join(f"{r.device} ({r.name})" for r in report.devices)
        if not meant:
            raise NoUsableDeviceError(
                f"There is no device '{device}' here.",
                asked_by=f"device={device!r}",
                known=f"usable here: {there}" if there else "no usable GPU was found",
                hint=_way_out(rows) or "gpuedge probe shows every driver",
            )
    else:
        for row in report.devices:
            if row.backend == name:
                return row
        meant = rows
    raise NoUsableDeviceError(
        f"The device '{device}' cannot be used here.",
        asked_by=f"device={device!r}",
        known="; ".join(dict.fromkeys(f"{r.name or r.device}: {r.reason}" for r in meant))
        or f"no driver of {name} was found",
        hint=_way_out(meant)
        or "gpuedge doctor shows what is missing; device='auto' or 'cpu' runs anywhere",
    )


def _way_out(rows: Sequence[ProbeRow]) -> str | None:
    """Return what the user can do where the reasons of refused rows tell it."""
    codes = {row.code for row in rows if not row.is_usable}
    if "forked" in codes:
        return FORK_HINT
    if "deadline" in codes:
        return f"gpuedge probe --deadline {PATIENCE_S} gives slow drivers more time, once for all"
    return None


def caps_of(row: ProbeRow) -> Caps:
    """Return the caps a row recorded, with the tuning class its identity has today."""
    identity = Identity.from_dict(dict(row.identity))
    return replace(Caps.from_dict(row.caps), device_class=classify(identity))


STAYING = ("gles31", "gles30", "gles20")
"""Backends whose drivers stay when their last device is closed, because a process shares the EGL
display. A child forked off then hangs as it does with an open device (Mesa 22.3.6, llvmpipe)."""


class Lent:
    """The GPU devices of this process that are not known to be closed.

    Whatever opened them: a driver with an open device does not survive a fork. A device that was
    dropped without being closed counts too, because nothing else ends its driver's threads.
    """

    def __init__(self) -> None:
        self._devices: dict[int, weakref.ref[GpuExecutor] | None] = {}
        self._numbers = count(1)

    def opening(self) -> int:
        """Count a device whose driver is about to be touched; return its number."""
        number = next(self._numbers)
        self._devices[number] = None
        return number

    def opened(self, number: int, executor: GpuExecutor) -> None:
        """Note the device of a number; one whose driver stays is counted for ever."""
        if executor.device.partition(":")[0] not in STAYING:
            self._devices[number] = weakref.ref(executor)

    def failed(self, number: int) -> None:
        """Count no longer a device that did not open."""
        self._devices.pop(number, None)

    def closed(self, executor: Executor) -> None:
        """Count no longer a device that was closed."""
        for number, kept in list(self._devices.items()):
            if kept is not None and kept() is executor:
                self._devices.pop(number, None)

    def any(self) -> bool:
        """Tell whether a device is open, or may be."""
        kept = [None if one is None else one() for one in list(self._devices.values())]
        return any(one is None or not one.closed for one in kept)


LENT = Lent()


def open_row(row: ProbeRow) -> GpuExecutor:
    """Open the device of a usable row in this process. Raises DeviceError (GE-4xx)."""
    number = LENT.opening()
    try:
        executor = _open(row)
    except BaseException:
        LENT.failed(number)
        raise
    LENT.opened(number, executor)
    return executor


closing: list[Callable[[Executor], None]] = []
"""Called with each executor that the caller opened and has closed, to forget what is its."""


def close(executor: Executor) -> None:
    """Close a device that the caller opened, and forget everything made for it."""
    try:
        executor.close()
    finally:
        LENT.closed(executor)
        for forget in closing:
            forget(executor)


def _open(row: ProbeRow) -> GpuExecutor:
    from gpuedge.executors.gpu import GpuExecutor

    with held:  # most of it is the driver's
        impl = backends.load(row.backend).open(row.info())
    if debug.level() >= 5:
        impl = cast("DeviceImpl", debug.Traced(impl))
    return GpuExecutor(impl, row.device)


def is_stale(row: ProbeRow) -> bool:
    """Tell whether a driver's files have changed since the row was made."""
    listed = backends.load(row.backend).candidates({**os.environ, **row.env})
    return not any(c.key == row.key and c.fingerprint == row.fingerprint for c in listed)


def _after_fork(report: ProbeReport) -> ProbeReport:
    """Rule every device out: threads and locks of a loaded driver do not survive a fork."""
    rows = tuple(
        r.replace(status="blocked", code="forked", reason=SENTENCES["forked"]) if r.is_usable else r
        for r in report.tried
    )
    return report.replace(tried=rows)


class Pool:
    """Open executors by device string. One per process; a forked child starts an empty one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._inherited: list[dict[str, Executor]] = []
        self._is_forked = False  # a driver was open when this process was forked off
        self._open: dict[str, Executor] = {}
        self._opening: dict[str, threading.RLock] = {}
        self._stuck: set[str] = set()
        self._report: ProbeReport | None = None
        self._calibrations: CalibrationStore | None = None

    def _here(self) -> None:
        """Forget everything after a fork: drivers do not survive one."""
        if self._owner != os.getpid():
            pooled = any(name != CPU for name in self._open)
            self._is_forked = self._is_forked or pooled or LENT.any()
            self._lock = threading.RLock()
            self._owner = os.getpid()
            self._inherited.append(self._open)  # destroying them would wait for absent threads
            self._open, self._opening, self._stuck = {}, {}, set()
            self._report, self._calibrations = None, None

    def after_fork(self) -> None:
        """Start empty in a forked child; locks that threads of the parent held stay behind."""
        self._here()

    def report(self) -> ProbeReport:
        """Return the probe report of this process; probes on first use."""
        self._here()
        with self._lock:
            if self._report is None:
                from gpuedge.probing.api import probe

                self._report = _after_fork(probe()) if self._is_forked else probe()
            return self._report

    def row(self, device: str) -> ProbeRow:
        """Return the usable row of a device string, judged with the driver that is there now.

        Raises
        ------
        NoUsableDeviceError (GE-103)
        """
        row = find(device, self.report())
        if is_stale(row):  # the driver was replaced since: the old verdict says nothing of it
            with self._lock:
                self._report = None
            row = find(device, self.report())
        return row

    def calibrations(self) -> CalibrationStore:
        """Return the calibrations of this process; failures are remembered in it only."""
        self._here()
        with self._lock:
            if self._calibrations is None:
                from gpuedge.decide.store import CalibrationStore

                self._calibrations = CalibrationStore()
            return self._calibrations

    def cpu(self) -> CpuExecutor:
        """Return the CPU executor."""
        from gpuedge.executors.cpu import CpuExecutor

        made = self._get(CPU, CpuExecutor)
        if not isinstance(made, CpuExecutor):
            raise TypeError(made)
        return made

    def gpu(self, device: str) -> Executor:
        """Return the executor of a device string that names a GPU.

        Raises
        ------
        NoUsableDeviceError (GE-103), DeviceError (GE-4xx)
        """
        name = find(device, self.report()).device
        return self._get(name, lambda: open_row(self.row(name)))

    def executor(self, device: str) -> Executor:
        """Return the executor of a device string other than ``auto``."""
        return self.cpu() if device == CPU else self.gpu(device)

    def _get(self, name: str, make: Callable[[], Executor]) -> Executor:
        self._here()
        with self._lock:
            own = self._opening.setdefault(name, threading.RLock())
            stuck = name in self._stuck
        if stuck:
            raise DeviceTimeoutError(
                f"The device '{name}' did not answer before and is left alone.",
                hint="restart the process; gpuedge probe --refresh tries the driver again",
            )
        with own:  # a driver that hangs while opening must not hold up the other devices
            with self._lock:
                ready = self._open.get(name)
            if ready is None:
                ready = make()
                with self._lock:
                    self._open[name] = ready
            return ready

    def forget(self, name: str) -> None:
        """Leave a device alone for good: a thread is stuck in its driver. It is not closed."""
        self._here()
        with self._lock:
            self._open.pop(name, None)
            self._opening.pop(name, None)
            self._stuck.add(name)

    def drop(self, executor: Executor) -> None:
        """Close and forget an executor whose device failed."""
        self._here()
        with self._lock:
            for name, other in list(self._open.items()):
                if other is executor:
                    del self._open[name]
        executor.close()
        LENT.closed(executor)

    def close(self) -> None:
        """Close every device and forget the report."""
        self._here()
        with self._lock:
            ready, self._open, self._report = list(self._open.values()), {}, None
        for executor in ready:
            executor.close()
            LENT.closed(executor)


POOL = Pool()
atexit.register(POOL.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.after_fork)
