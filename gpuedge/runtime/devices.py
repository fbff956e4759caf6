"""The devices that are open in this process, by device string and isolation, and how they fare.

The pool is the one thing this library keeps between calls besides the backend registry: opening a
driver costs tens of milliseconds, and two copies of it cost twice the memory. All sessions share
what it opens, and what happens to it (`gpuedge.runtime.recovery`).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, cast

from gpuedge.core.errors import BackendUnavailableError, DeviceLostError, DeviceTimeoutError
from gpuedge.core.reasons import SENTENCES, Reason
from gpuedge.executors.watching import CLOSING
from gpuedge.runtime import clock, opening
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.recovery import DeviceHealth, RetryLimits, bounded, try_in_child
from gpuedge.runtime.strings import CPU, find

if TYPE_CHECKING:
    from gpuedge.decide.store import CalibrationStore, LaunchStore
    from gpuedge.executors.base import Executor
    from gpuedge.executors.cpu import CpuExecutor
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.probing.report import ProbeReport, ProbeRow

Key = tuple[str, str]
"""A device string with its number, and where the driver lives."""

log = logging.getLogger("gpuedge")

EXIT_S = 2.0
"""How long the end of the interpreter waits for a device to be given back."""

AWAY_S = 20.0
"""How long a device whose calibration did not end in time may take to come back, before whoever
asks for it is told that it hangs."""


def _after_fork(report: ProbeReport) -> ProbeReport:
    """Rule every device out: threads and locks of a loaded driver do not survive a fork."""
    rows = tuple(
        r.replace(status="blocked", code="forked", reason=SENTENCES["forked"]) if r.is_usable else r
        for r in report.tried
    )
    return report.replace(tried=rows)


class Pool:
    """Open executors by device string. One per process; a forked child starts an empty one.

    Parameters
    ----------
    limits : RetryLimits, optional
        How often a device may fail.
    """

    def __init__(self, limits: RetryLimits | None = None) -> None:
        self.limits = limits or RetryLimits()
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._inherited: list[object] = []
        self._is_forked = False  # a driver was open when this process was forked off
        self._is_ending = False
        self._open: dict[Key, Executor] = {}
        self._opening: dict[Key, threading.RLock] = {}
        self._stuck: set[Key] = set()
        self._away: dict[Key, _Away] = {}
        self._healths: dict[Key, DeviceHealth] = {}
        self._report: ProbeReport | None = None
        self._calibrations: CalibrationStore | None = None
        self._past_launches: LaunchStore | None = None
        self._opened_ns: dict[Key, int] = {}

    def _here(self) -> None:
        """Forget everything after a fork: drivers do not survive one."""
        if self._owner != os.getpid():
            pooled = any(n != CPU and isolation == INLINE for n, isolation in self._open)
            self._is_forked = self._is_forked or pooled or opening.is_any_inline()
            self._lock = threading.RLock()
            self._owner = os.getpid()
            # Destroying what is open would wait for threads that did not come along.
            self._inherited += [self._open, self._healths]
            self._open, self._opening, self._stuck, self._healths = {}, {}, set(), {}
            self._away = {}
            self._report, self._calibrations, self._past_launches = None, None, None

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

    def current(self) -> ProbeReport:
        """Return the report with what the crash blocklist says now: it may have learnt since."""
        from gpuedge.probing import pins

        report = self.report()
        rows = pins.apply(report.tried)
        return report if rows is report.tried else report.replace(tried=tuple(rows))

    def row(self, device: str) -> ProbeRow:
        """Return the usable row of a device string, judged with the driver that is there now.

        Raises
        ------
        NoUsableDeviceError (GE-103)
        """
        row = find(device, self.current())
        if opening.is_stale(row):  # the driver was replaced: the old verdict says nothing of it
            with self._lock:
                self._report = None
            row = find(device, self.current())
        return row

    def barred(self, device: str) -> Reason | None:
        """Return why the blocklist says that a device be left alone now, None if it does not."""
        rows = (r for r in self.current().tried if r.device == device)
        row = next((r for r in rows if r.code == "crash-blocklist"), None)
        if row is None:
            return None
        return Reason(row.code, row.reason.removeprefix(f"{SENTENCES[row.code]}: "))

    def calibrations(self) -> CalibrationStore:
        """Return the calibrations of this process; failures are remembered in it only."""
        self._here()
        with self._lock:
            if self._calibrations is None:
                from gpuedge.decide.store import CalibrationStore

                self._calibrations = CalibrationStore()
            return self._calibrations

    def past_launches(self) -> LaunchStore:
        """Return what earlier launches came to believe about models on devices."""
        self._here()
        with self._lock:
            if self._past_launches is None:
                from gpuedge.decide.store import LaunchStore

                self._past_launches = LaunchStore()
            return self._past_launches

    def opened_ns(self, device: str, isolation: str = INLINE) -> int:
        """Return how long opening a device took, when it was last opened; 0 if it never was."""
        return self._opened_ns.get((device, isolation), 0)

    def cpu(self) -> CpuExecutor:
        """Return the CPU executor."""
        from gpuedge.executors.cpu import CpuExecutor

        made = self._get((CPU, INLINE), CpuExecutor)
        if not isinstance(made, CpuExecutor):
            raise TypeError(made)
        return made

    def gpu(self, device: str, isolation: str = INLINE) -> Executor:
        """Return the executor of a device string that names a GPU.

        Parameters
        ----------
        device : str
        isolation : {"inline", "process"}
            Where the driver lives; one device may be open in both ways.

        Raises
        ------
        NoUsableDeviceError (GE-103), DeviceError (GE-4xx)
        """
        name = find(device, self.report()).device
        return self._get((name, isolation), lambda: self._open_gpu(name, isolation))

    def executor(self, device: str, isolation: str = INLINE) -> Executor:
        """Return the executor of a device string other than ``auto``."""
        return self.cpu() if device == CPU else self.gpu(device, isolation)

    def device_health(self, device: str, isolation: str = INLINE) -> DeviceHealth:
        """Return how a device, named with its number, fares in this process."""
        self._here()
        key = (device, isolation)
        with self._lock:
            if key not in self._healths:
                revive = partial(self._revive, key)
                self._healths[key] = DeviceHealth(device, self.drop, revive, self.limits)
            return self._healths[key]

    def _open_gpu(self, name: str, isolation: str) -> Executor:
        if self._is_ending:
            raise DeviceLostError("No device is opened any more: the interpreter ends.")
        barred = self.barred(name)
        if barred is not None:
            raise BackendUnavailableError(
                f"The device '{name}' is left alone.", known=barred.detail, reason=barred.code
            )
        row = self.row(name)
        made = opening.open_row(row, isolation)
        return cast("Executor", made)

    def _get(self, key: Key, make: Callable[[], Executor]) -> Executor:
        self._here()
        with self._lock:
            own = self._opening.setdefault(key, threading.RLock())
            stuck, away = key in self._stuck, self._away.get(key)
        if stuck or (away is not None and not away.ends()):
            raise DeviceTimeoutError(
                f"The device '{key[0]}' did not answer before and is left alone.",
                hint="restart the process; gpuedge probe --refresh tries the driver again",
                reason="device-hung",
            )
        with own:  # a driver that hangs while opening must not hold up the other devices
            with self._lock:
                ready = self._open.get(key)
            if ready is None or getattr(ready, "closed", False):
                start = clock.now_ns()
                ready = make()
                with self._lock:
                    self._open[key] = ready
                    self._opened_ns[key] = clock.now_ns() - start
            return ready

    def forget(self, name: str, isolation: str = INLINE) -> None:
        """Leave a device alone for good: a thread is stuck in its driver. It is not closed.

        Of the CPU, which has none, another executor is made when one is asked for.
        """
        self._here()
        key = (name, isolation)
        if name == CPU:
            with self._lock:
                self._open.pop((CPU, INLINE), None)
            return
        with self._lock:
            left = self._open.pop(key, None)
            self._opening.pop(key, None)
            self._stuck.add(key)
        if left is not None:
            cast("GpuExecutor", left).retire()
        self.device_health(name, isolation).demote(
            Reason("device-hung", "a thread is stuck in its driver")
        )

    def leave(self, name: str, isolation: str = INLINE) -> None:
        """Leave a device alone until `take_back`: the thread that calibrates it is still in it.

        Whoever asks for it meanwhile waits for that, at most `AWAY_S` from now. It is not closed.
        """
        if name == CPU:
            self.forget(name, isolation)
            return
        self._here()
        key = (name, isolation)
        with self._lock:
            left = self._open.pop(key, None)
            self._away[key] = _Away(left, threading.Event(), monotonic() + AWAY_S)
        if left is not None:
            cast("GpuExecutor", left).retire()
        log.info("%s: left alone until its calibration ends", name)

    def take_back(self, name: str, isolation: str = INLINE) -> None:
        """Take a device back that was left: it was slow, not stuck. Closes what was retired."""
        self._here()
        key = (name, isolation)
        with self._lock:
            away = self._away.get(key)
        if away is None:
            return
        try:
            if away.left is not None:
                self.drop(away.left)
        finally:
            with self._lock:
                self._away.pop(key, None)
            away.is_back.set()
        log.info("%s: its calibration ended, it may be used again", name)

    def drop(self, executor: Executor) -> None:
        """Close and forget an executor whose device failed."""
        self._here()
        with self._lock:
            for key, other in list(self._open.items()):
                if other is executor:
                    del self._open[key]
        executor.close()

    def _revive(self, key: Key, stop: threading.Event) -> str | None:
        """Try a device in a child and open it anew; return why that failed, or None."""
        barred = self.barred(key[0])
        if barred is not None:  # its last failure was one too many: it is not even tried
            self.device_health(*key).demote(barred)
            return barred.sentence
        why = self._try_in_child(key[0], stop)
        if why is not None or stop.is_set():
            return why or "stopped"
        self.gpu(*key)
        return None

    def _try_in_child(self, name: str, stop: threading.Event) -> str | None:
        return try_in_child(self.row(name), self.limits.probe_s, stop)

    def close(self) -> None:
        """Close every device, forget the report, and recover nothing any more."""
        self._here()
        for executor in self._cleared():
            executor.close()

    def _cleared(self) -> list[Executor]:
        with self._lock:
            # What failed has been retired, and is being closed where nobody waits for it.
            ready = [e for e in self._open.values() if not getattr(e, "closed", False)]
            self._open, self._report = {}, None
            healths, self._healths = list(self._healths.values()), {}
        for one in healths:
            one.stop()
        return ready

    def end(self) -> None:
        """Close what can be closed in time: the interpreter ends, and waits for nothing else."""
        self._here()
        self._is_ending = True
        executors = self._cleared()
        for executor in executors:
            if executor.device == CPU:
                executor.close()
            else:
                work = partial(_give_back, cast("GpuExecutor", executor))
                if not bounded(work, 2 * EXIT_S, f"close {executor.device}"):
                    log.debug("%s is left open: it does not answer", executor.device)


@dataclass(frozen=True)
class _Away:
    """A device that was left: what was open of it, when it is back, until when that is awaited."""

    left: Executor | None
    is_back: threading.Event
    until: float

    def ends(self) -> bool:
        return self.is_back.wait(max(self.until - monotonic(), 0.0))


def _give_back(executor: GpuExecutor) -> None:
    executor.give_back(EXIT_S)


POOL = Pool()
atexit.register(CLOSING.end)  # after the next
atexit.register(POOL.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.after_fork)
