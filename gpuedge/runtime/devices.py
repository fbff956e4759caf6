"""The devices that are open in this process, by device string and isolation, and their health.

The pool is the one thing this library keeps between calls besides the backend registry: opening a
driver costs tens of milliseconds, and two copies of it cost twice the memory. All sessions share
what it opens, and what happens to it: a device that failed is closed, tried in a child process, and
opened anew. All of that happens in daemon threads, so that no request waits for a driver in trouble
and nothing holds up the end of the interpreter.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    GpuEdgeError,
    KernelError,
    KernelLimitError,
    NoUsableDeviceError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from gpuedge.core.reasons import SENTENCES, Reason
from gpuedge.core.times import AWAY_S, CLOSE_FAILED_S, DEVICE_END_S, NAMED_S, REOPEN_S
from gpuedge.decide.options import DEFAULT
from gpuedge.executors.driver_calls import cause_of
from gpuedge.runtime import clock, opening
from gpuedge.runtime.health import DEMOTED, RECOVERING, DeviceState
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.strings import CPU, check_in_use, find
from gpuedge.safety.deadline import DeadlineCall, NoThreadError
from gpuedge.safety.interrupts import held, rlock
from gpuedge.safety.monitor import Monitor

if TYPE_CHECKING:
    from gpuedge.executors.base import Executor
    from gpuedge.executors.cpu import CpuExecutor
    from gpuedge.probing.report import ProbeReport, ProbeRow

Key = tuple[str, str]
"""A device string with its number, and where the driver lives."""

Backends = tuple[str, ...]
"""Names of backends; none: those of the settings."""

log = logging.getLogger("gpuedge")

_CODES: tuple[tuple[type[GpuEdgeError], str], ...] = (
    (DeviceLostError, "device-lost"),
    (OutOfMemoryError, "out-of-memory"),
    (DeviceTimeoutError, "device-hung"),
    (UnsupportedOpError, "does-not-fit"),
    (KernelLimitError, "does-not-fit"),
)

REFUSED = "does-not-fit"
"""Code of what planning for a device finds that it cannot run: no failure of it."""

DEVICE_FATAL_ERRORS = (DeviceLostError, DeviceTimeoutError)
"""Errors after which a device is of no use until it is opened anew."""

COMPILE_ERRORS = (DeviceError, KernelError, UnsupportedOpError)
"""What compiling for a device may end with that another device may do without."""


def reason_of(error: GpuEdgeError, code: str = "run-failed") -> Reason:
    """Return the reason an error stands for: its own, that of its class, else `code`."""
    own = error.reason if isinstance(error, DeviceError) else None
    known = own.code if own is not None else None
    named = next((name for kind, name in _CODES if isinstance(error, kind)), code)
    return Reason(known or named, cause_of(error))


@dataclass(frozen=True)
class RetryLimits:
    """How often a device may fail.

    Parameters
    ----------
    failures : int
        The failure within `window_s` that is one too many: the device is left for good.
    window_s : float
        Seconds after which a failure counts no more.
    pauses_s : tuple of float
        Waits before each attempt to open it anew; after the last one it is left for good.
    probe_s : float
        Deadline of the child process that tries the driver first.
    """

    failures: int = 3
    window_s: float = 600.0
    pauses_s: tuple[float, ...] = (0.5, 2.0, 8.0)
    probe_s: float = 20.0


class PooledDevice:
    """One device of this process in one isolation, open or not; all sessions that use it share it.

    Attributes
    ----------
    state : DeviceState
        ``ok``, ``recovering`` or ``demoted``, and why.
    executor : Executor or None
        What is open of it.
    """

    def __init__(self, pool: Pool, key: Key) -> None:
        self.key = key
        self.device = key[0]
        self.state = DeviceState()
        self.executor: Any = None
        self._pool = pool
        self._opening = rlock()
        self._failures: list[tuple[float, Any]] = []  # when, and what hung
        self._monitor = Monitor()
        self._stop, self._hurry = threading.Event(), threading.Event()
        self._back = threading.Event()  # clear while a stalled opening has the device
        self._back.set()
        self._back_until = 0.0
        self._suspended: Any = None  # what was open then

    @property
    def is_stuck(self) -> bool:
        """Whether a thread is stuck in its driver: it is left alone for good."""
        reason = self.state.reason
        return self.state.health == DEMOTED and reason is not None and reason.code == "device-hung"

    def open(self, make: Callable[[], Executor]) -> Executor:
        """Return what is open of it, made anew if there is nothing."""
        left_s = max(self._back_until - monotonic(), 0.0)
        if self.is_stuck or not (self._back.is_set() or self._back.wait(left_s)):
            raise DeviceTimeoutError(
                f"The device '{self.device}' did not answer before and is left alone.",
                hint="restart the process; gpuedge probe --refresh tries the driver again",
                reason="device-hung",
            )
        with self._opening:  # a driver that hangs while opening must not hold up other devices
            ready = self.executor
            if ready is None or getattr(ready, "closed", False):
                if not getattr(ready, "released", True):  # an interrupt broke it off
                    bounded(ready.close, CLOSE_FAILED_S, f"close {self.device}")
                # Of a worker process the wait is long, and nothing of it stays in this one.
                with held if self.key[1] == INLINE else nullcontext():
                    self.executor = ready = make()  # or what is open would be nobody's
            return cast("Executor", ready)

    def abandon(self) -> None:
        """Leave it alone for good: a thread is stuck in its driver. It is not closed."""
        with held, self._monitor.lock:
            if not self.is_stuck:
                self._become(DEMOTED, Reason("device-hung", "a thread is stuck in its driver"))
            executor, self.executor = self.executor, None
            if executor is not None:
                executor.retire()

    def suspend(self) -> None:
        """Leave it alone until `resume`; whoever asks for it waits, at most `AWAY_S`."""
        self._suspended, self.executor = self.executor, None
        self._back_until = monotonic() + AWAY_S
        self._back.clear()
        if self._suspended is not None:
            self._suspended.retire()
        log.info("%s: left alone until its opening ends", self.device)

    def resume(self) -> None:
        """Take it back after `suspend`: it was slow, not stuck. Closes what was retired."""
        if self._back.is_set():
            return
        executor, self._suspended = self._suspended, None
        try:
            if executor is not None:
                executor.close()
        finally:
            self._back.set()
        log.info("%s: its opening ended, it may be used again", self.device)

    # -- failing and coming back --------------------------------------------------------------

    def fail(self, reason: Reason, executor: Any, *, is_final: bool = False) -> None:
        """Take it out of use after a failure, and begin to recover it unless it fails too often.

        Several requests may report the failure of one executor: it counts once. After a final one
        there is no recovery.
        """
        with held:
            counted = self._count(reason, executor, is_final=is_final)
            if counted is None:
                return
            again, slow = counted
            try:
                DeadlineCall(
                    lambda: self._recover(executor, slow, again=again), f"gpuedge-{self.device}"
                )
            except NoThreadError:
                self.demote(Reason("recovering", "no thread can be started"))

    def _count(
        self, reason: Reason, executor: Any, *, is_final: bool
    ) -> tuple[bool, list[Any]] | None:
        """Count a failure; None if it was counted before.

        Returns whether to open the device anew, and what only seemed to hang before.
        """
        with self._monitor.lock:
            if executor.closed:
                return None
            executor.retire()
            now, limits = monotonic(), self._pool.limits
            # A run that was given up and has ended since was slow: that is no failure of a device.
            slow = [hung for _, hung in self._failures if hung is not None and hung.has_come_back()]
            self._failures = [
                (when, hung) for when, hung in self._failures
                if now - when < limits.window_s and hung not in slow
            ] + [(now, executor if getattr(executor, "is_hung", False) else None)]  # fmt: skip
            is_demoted = self.state.health == DEMOTED
            again = len(self._failures) < limits.failures and not is_demoted
            if is_final:
                again = False
                self._become(DEMOTED, reason)
            elif again:
                self._become(RECOVERING, Reason("recovering", reason.sentence))
            elif not is_demoted:
                times = f"{len(self._failures)} times in {limits.window_s / 60:g} minutes"
                self._become(DEMOTED, Reason("failed-often", f"{times}, last: {reason.sentence}"))
            return again, slow

    def demote(self, reason: Reason) -> None:
        """Leave the device alone for the life of this process."""
        with held, self._monitor.lock:
            if self.state.health != DEMOTED:
                self._become(DEMOTED, reason)

    def wait(self, seconds: float) -> bool:
        """Wait until the device is in use again, without its pauses; False if it is not."""
        with held:
            self._hurry.set()
        self._monitor.wait_for(lambda: not self.state.is_recovering or None, seconds)
        return self.state.is_ok

    def error(self) -> DeviceLostError:
        """Return the error for a request that takes no other device."""
        reason = self.state.reason or Reason("recovering")
        return DeviceLostError(
            f"The device {self.device} is not in use: {reason.sentence}.",
            known=reason.detail or None,
            hint="fallback='cpu' lets the CPU answer meanwhile",
            reason=reason.code,
        )

    def stop(self) -> None:
        """End all attempts; nothing is opened after this. Does not wait."""
        with held:
            self._stop.set()
            self._hurry.set()

    def _become(self, health: str, reason: Reason) -> None:
        self.state = DeviceState(health, reason)
        self._monitor.notify()
        if health == DEMOTED:
            log.warning("%s: not used any more by this process: %s", self.device, reason.sentence)

    def _recover(self, executor: Any, slow: list[Any], *, again: bool) -> None:
        """Close what failed and open the device anew; the work of a thread.

        Closes as well what is known by now to have been slow.
        """
        for hung in slow:
            hung.is_hung = False
        for failed in (executor, *slow):
            if not bounded(
                partial(self._pool.drop, failed), CLOSE_FAILED_S, f"close {self.device}"
            ):
                self.demote(Reason("device-hung", "closing it did not end"))
                return
        if not again:
            return
        why: str | None = None
        pauses = self._pool.limits.pauses_s
        for pause_s in pauses:
            self._hurry.wait(pause_s)
            if self._stop.is_set():
                return
            why = self._attempt()
            if self._stop.is_set() or self.state.health == DEMOTED:
                return
            if why is None:
                with self._monitor.lock:
                    if self.state.is_recovering:
                        self.state = DeviceState()
                        self._monitor.notify()
                log.warning("%s: in use again", self.device)
                return
            log.info("%s: not yet in use again: %s", self.device, why)
        last = f"{len(pauses)} attempts to open it anew failed, last: {why}"
        self.demote(Reason("failed-often", last))

    def _attempt(self) -> str | None:
        """Try the driver in a child and open the device; return why that failed, or None."""
        answer: list[str | None] = []

        def work() -> None:
            try:
                answer.append(self._opened_anew())
            except GpuEdgeError as error:
                answer.append(error.what.rstrip("."))

        if not bounded(work, REOPEN_S, f"open {self.device}"):
            self.demote(Reason("device-hung", "opening it anew did not end"))
        return answer[0] if answer else "opening it anew ended in nothing"

    def _opened_anew(self) -> str | None:
        pool = self._pool
        blocked = pool.blocked(self.device)
        if blocked is not None:  # its last failure was one too many: it is not even tried
            self.demote(blocked)
            return blocked.sentence
        why = pool._try_in_child(self.device, self._stop)
        if why is not None or self._stop.is_set():
            return why or "stopped"
        pool.gpu(*self.key)
        return None


def bounded(call: Callable[[], None], seconds: float, name: str) -> bool:
    """Run a call in a thread of its own; False if it did not end in time. It is never stopped."""
    try:
        started = DeadlineCall(call, f"gpuedge-{name}")
    except NoThreadError:
        return False
    if not started.wait(seconds):
        return False
    try:
        started.result()
    except Exception:
        log.debug("%s", name, exc_info=True)
    return True


@dataclass
class _Known:
    """A report that is in use, the newest of this process at the time, and when it is renewed."""

    report: ProbeReport
    newest: ProbeReport | None
    asked: int
    again_ns: int | None = None


class Pool:
    """The devices of this process by device string; a forked child starts with none.

    Parameters
    ----------
    limits : RetryLimits, optional
        How often a device may fail.
    """

    def __init__(self, limits: RetryLimits | None = None) -> None:
        self.limits = limits or RetryLimits()
        self._inherited: list[object] = []
        self._is_forked = False  # a driver was open when this process was forked off
        self._is_ending = False
        self._start()

    def _start(self) -> None:
        self._lock = rlock()
        self._probing = rlock()
        self._owner = os.getpid()
        self._devices: dict[Key, PooledDevice] = {}
        self._reports: dict[Backends, _Known] = {}
        self._probes = 0  # how often drivers were asked
        self._waited: dict[str, int] = {}  # what that was when a backend was waited for

    def after_fork(self) -> None:
        """Start empty in a forked child; locks that threads of the parent held stay behind."""
        if self._owner != os.getpid():
            is_any_open = any(
                name != CPU and isolation == INLINE and device.executor is not None
                for (name, isolation), device in self._devices.items()
            )
            self._is_forked = self._is_forked or is_any_open or opening.is_any_inline()
            # Destroying what is open would wait for threads that did not come along.
            self._inherited.append(self._devices)
            self._start()

    def report(self, backends: Backends = (), device: str = "") -> ProbeReport:
        """Return the probe report of this process on some backends; probes on first use.

        A missed deadline may say more of the machine than of the driver: `again_ns` is when the
        drivers are asked again, and a newer report that the caller asked for counts at once.

        Parameters
        ----------
        backends : tuple of str, optional
            By default those of the settings.
        device : str, optional
            Its backend is looked at, too.
        """
        from gpuedge.probing import api

        self.after_fork()
        names = _with(backends or api.chosen(), device)
        with self._probing:  # not the other lock: requests go on meanwhile
            known = self._reports.get(names)
            if known is not None and not any(row.is_open for row in known.report.tried):
                return known.report
            newest = api.newest(names)
            if known is None or (known.again_ns is not None and clock.now_ns() >= known.again_ns):
                self._probes += 1
                newer = api.probe(backends=names)
            elif newest is not known.newest and newest is not None:
                newer = newest
            else:
                return known.report
            taken = _Known(newer, api.newest(names), 0 if known is None else known.asked)
            if taken.asked < DEFAULT.retries and any(r.is_starved for r in newer.tried):
                taken.again_ns = clock.now_ns() + DEFAULT.retry_ns(taken.asked)
                taken.asked += 1
            if known is not None and self._renames(known.report, newer):
                taken.report = known.report
            elif self._is_forked:
                taken.report = _ruled_out(newer)
            self._reports[names] = taken
            return taken.report

    def again_ns(self, backends: Backends = ()) -> int | None:
        """Return when drivers that missed the deadline of the probe are asked again."""
        from gpuedge.probing import api

        known = self._reports.get(backends or api.chosen())
        return None if known is None else known.again_ns

    def _renames(self, known: ProbeReport, newer: ProbeReport) -> bool:
        """Tell whether a report gives the name of a device in use to another one."""
        with self._lock:
            used = {device for device, _ in self._devices} - {CPU}
        before, after = ({r.device: (r.key, r.index) for r in x.tried} for x in (known, newer))
        return any(before.get(name) != after.get(name) for name in used)

    def current(self, backends: Backends = (), device: str = "") -> ProbeReport:
        """Return the report with what the crash blocklist says now: it may have learnt since."""
        from gpuedge.probing import pins

        report = self.report(backends, device)
        rows = pins.apply(report.tried)
        return report if rows is report.tried else report.replace(tried=tuple(rows))

    def named(self, device: str, backends: Backends = ()) -> ProbeRow:
        """Return the usable row of a device string, with what the blocklist says now.

        Parameters
        ----------
        device : str
        backends : tuple of str, optional
            Those that may be used; by default those of the settings.

        Raises
        ------
        NoUsableDeviceError (GE-103)
        """
        check_in_use(device, backends)
        return self._usable(device, lambda: self.current(backends, device))

    def _usable(self, device: str, report: Callable[[], ProbeReport]) -> ProbeRow:
        """Return the usable row of a device string in a report.

        Who names a device wants it: a driver that was not done within the deadline of the probe is
        given more time, once each time that the drivers were asked.

        Raises
        ------
        NoUsableDeviceError (GE-103)
        """
        from gpuedge.probing import api

        backend = device.partition(":")[0]
        try:
            return find(device, report())
        except NoUsableDeviceError:
            rows = [r for r in report().tried if r.backend == backend and r.is_open]
            if not rows or self._waited.get(backend) == self._probes:
                raise
        self._waited[backend] = self._probes
        text = "%s: %s was not done in the time of a start; it is waited for, at most %g s"
        log.warning(text, device, rows[0].name, NAMED_S)
        api.probe(backends=(backend,), deadline_s=NAMED_S)
        return find(device, report())

    def row(self, device: str) -> ProbeRow:
        """Return the usable row of a device string, judged with the driver that is there now.

        Raises
        ------
        NoUsableDeviceError (GE-103)
        """
        row = self._usable(device, lambda: self.current(device=device))
        if opening.is_stale(row):  # the driver was replaced: the old verdict says nothing of it
            with self._lock:
                self._reports.clear()
            row = find(device, self.current(device=device))
        return row

    def blocked(self, device: str) -> Reason | None:
        """Return why the blocklist says that a device be left alone now, None if it does not."""
        rows = (r for r in self.current(device=device).tried if r.device == device)
        row = next((r for r in rows if r.code == "crash-blocklist"), None)
        if row is None:
            return None
        return Reason(row.code, row.reason.removeprefix(f"{SENTENCES[row.code]}: "))

    def device(self, device: str, isolation: str = INLINE) -> PooledDevice:
        """Return a device of this process, named with its number."""
        self.after_fork()
        key = (device, isolation)
        with self._lock:
            if key not in self._devices:
                self._devices[key] = PooledDevice(self, key)
            return self._devices[key]

    def cpu(self) -> CpuExecutor:
        """Return the CPU executor."""
        from gpuedge.executors.cpu import CpuExecutor

        return cast("CpuExecutor", self.device(CPU).open(CpuExecutor))

    def gpu(self, device: str, isolation: str = INLINE) -> Executor:
        """Return the executor of a device string that names a GPU.

        One device may be open inline and in a process of its own at the same time. Raises
        NoUsableDeviceError (GE-103) and DeviceError (GE-4xx).
        """
        name = self._usable(device, lambda: self.report(device=device)).device
        return self.device(name, isolation).open(lambda: self._open_gpu(name, isolation))

    def executor(self, device: str, isolation: str = INLINE) -> Executor:
        """Return the executor of a device string other than ``auto``."""
        return self.cpu() if device == CPU else self.gpu(device, isolation)

    def _open_gpu(self, name: str, isolation: str) -> Executor:
        if self._is_ending:
            raise DeviceLostError("No device is opened any more: the interpreter ends.")
        blocked = self.blocked(name)
        if blocked is not None:
            raise BackendUnavailableError(
                f"The device '{name}' is left alone.", known=blocked.detail, reason=blocked.code
            )
        return cast("Executor", opening.open_row(self.row(name), isolation))

    def _try_in_child(self, name: str, stop: threading.Event) -> str | None:
        """Probe a device in a child process; return why it failed, or None."""
        from gpuedge.probing.run import probe_all

        row = self.row(name)
        try:
            (rows,) = probe_all([row.info().candidate], self.limits.probe_s, stop=stop.is_set)
        except GpuEdgeError as error:
            return error.what
        tried = next((r for r in rows if r.index == row.index), None) or next(iter(rows), None)
        if tried is None:
            return "it is no longer there"
        return None if tried.is_usable and tried.index == row.index else tried.reason

    def drop(self, executor: Executor) -> None:
        """Close and forget an executor whose device failed."""
        self.after_fork()
        with self._lock:
            for device in self._devices.values():
                if device.executor is executor:
                    device.executor = None
        executor.close()

    def close(self) -> None:
        """Close every device, forget the report, and recover nothing any more."""
        for executor in self._cleared():
            executor.close()

    def _cleared(self) -> list[Any]:
        self.after_fork()
        with self._lock:
            before = list(self._devices.values())
            self._reports.clear()
            self._devices = {device.key: device for device in before if device.is_stuck}
        for device in before:
            device.stop()
        ready = [device.executor for device in before if device.executor is not None]
        # What failed has been retired, and is being closed where nobody waits for it.
        return [executor for executor in ready if not getattr(executor, "closed", False)]

    def end(self) -> None:
        """Close what can be closed in time: the interpreter ends, and waits for nothing else."""
        self._is_ending = True
        for executor in self._cleared():
            if executor.device == CPU:
                executor.close()
            else:
                give_back = partial(executor.give_back, DEVICE_END_S)
                if not bounded(give_back, 2 * DEVICE_END_S, f"close {executor.device}"):
                    log.debug("%s is left open: it does not answer", executor.device)


def _with(backends: Backends, device: str) -> Backends:
    """Return the backends with that of a device, which may be a plug-in."""
    backend = device.partition(":")[0]
    return backends if not backend or backend in backends else (*backends, backend)


def _ruled_out(report: ProbeReport) -> ProbeReport:
    """Rule every device out: threads and locks of a loaded driver do not survive a fork."""
    rows = tuple(
        r.replace(status="blocked", code="forked", reason=SENTENCES["forked"]) if r.is_usable else r
        for r in report.tried
    )
    return report.replace(tried=rows)


POOL = Pool()
atexit.register(POOL.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.after_fork)
