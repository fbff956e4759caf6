"""What becomes of a device that failed: closed, tried in a child process, and opened anew.

All of it happens in daemon threads, so that no request waits for a driver that is in trouble and
nothing holds up the end of the interpreter. A call into a driver that may not return runs in a
thread of its own: what waits for it stops waiting after a while.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, cast

from gpuedge.core.errors import (
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    GpuEdgeError,
    KernelError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from gpuedge.core.reasons import Reason
from gpuedge.executors.watching import cause_of
from gpuedge.safety.deadline import Call

if TYPE_CHECKING:
    from gpuedge.executors.base import Executor
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.probing.report import ProbeRow

OK, RECOVERING, DEMOTED = "ok", "recovering", "demoted"

CLOSE_S = 10.0
"""How long closing a device that failed may take before it counts as hung."""

OPEN_S = 30.0
"""How long opening a device anew may take before it counts as hung."""

_CODES: tuple[tuple[type[DeviceError], str], ...] = (
    (DeviceLostError, "device-lost"),
    (OutOfMemoryError, "out-of-memory"),
    (DeviceTimeoutError, "device-hung"),
)

GONE = (DeviceLostError, DeviceTimeoutError)
"""Errors after which a device is of no use until it is opened anew."""

UNCOMPILED = (DeviceError, KernelError, UnsupportedOpError)
"""What compiling for a device may end with that another device may do without."""

FAILURES = frozenset({
    "compile-failed", "device-hung", "device-lost", "worker-died", "open-failed", "out-of-memory",
    "run-failed",
})  # fmt: skip
"""Codes whose details do not say by themselves that the device failed, and how."""

log = logging.getLogger("gpuedge")


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
    probe_s: float = 4.0


class DeviceHealth:
    """How one device of this process fares; all sessions that use it share this.

    Parameters
    ----------
    device : str
    dispose : callable
        Closes the executor that failed and forgets it.
    revive : callable
        Tries the driver in a child and opens the device; returns why that failed, or None. Given
        an event that is set when it is to stop.
    limits : RetryLimits

    Attributes
    ----------
    state : {"ok", "recovering", "demoted"}
    reason : Reason or None
        Why it is not ``ok``.
    """

    def __init__(
        self,
        device: str,
        dispose: Callable[[Executor], None],
        revive: Callable[[threading.Event], str | None],
        limits: RetryLimits,
    ) -> None:
        self.device = device
        self.state = OK
        self.reason: Reason | None = None
        self._dispose, self._revive_once = dispose, revive
        self._limits = limits
        self._failures: list[float] = []
        self._changed = threading.Condition()
        self._stop, self._hurry = threading.Event(), threading.Event()

    def fail(self, reason: Reason, executor: GpuExecutor, *, is_final: bool = False) -> None:
        """Take a device that failed out of use, and begin to recover it unless it fails too often.

        Several requests may report the failure of one executor: it counts once. After a final one
        there is no recovery.
        """
        with self._changed:
            if executor.closed:
                return
            executor.retire()
            now = monotonic()
            recent = [t for t in self._failures if now - t < self._limits.window_s]
            self._failures = [*recent, now]
            again = len(self._failures) < self._limits.failures and self.state != DEMOTED
            if is_final:
                again = False
                self._become(DEMOTED, reason)
            elif again:
                self._become(RECOVERING, Reason("recovering", reason.sentence))
            elif self.state != DEMOTED:
                times = f"{len(self._failures)} times in {self._limits.window_s / 60:g} minutes"
                self._become(DEMOTED, Reason("failed-often", f"{times}, last: {reason.sentence}"))
        try:
            Call(lambda: self._recover(executor, again=again), f"gpuedge-{self.device}")
        except RuntimeError:  # no more threads, or the interpreter is ending
            self.demote(Reason("recovering", "no thread can be started"))

    def demote(self, reason: Reason) -> None:
        """Leave the device alone for the life of this process."""
        with self._changed:
            if self.state != DEMOTED:
                self._become(DEMOTED, reason)

    def wait(self, seconds: float) -> bool:
        """Wait until the device is in use again, without its pauses; False if it is not."""
        self._hurry.set()
        with self._changed:
            self._changed.wait_for(lambda: self.state != RECOVERING, seconds)
            return self.state == OK

    def error(self) -> DeviceLostError:
        """Return the error for a request that takes no other device."""
        reason = self.reason or Reason("recovering")
        return DeviceLostError(
            f"The device {self.device} is not in use: {reason.sentence}.",
            known=reason.detail or None,
            hint="fallback='cpu' lets the CPU answer meanwhile",
            reason=reason.code,
        )

    def stop(self) -> None:
        """End all attempts; nothing is opened after this. Does not wait."""
        self._stop.set()
        self._hurry.set()

    def _become(self, state: str, reason: Reason | None) -> None:
        self.state, self.reason = state, reason
        self._changed.notify_all()
        if state == DEMOTED and reason is not None:
            log.warning("%s: not used any more by this process: %s", self.device, reason.sentence)

    def _recover(self, executor: GpuExecutor, *, again: bool) -> None:
        """Close what failed and open the device anew; the work of a thread."""
        if not bounded(
            lambda: self._dispose(cast("Executor", executor)), CLOSE_S, f"close {self.device}"
        ):
            self.demote(Reason("device-hung", "closing it did not end"))
            return
        if again:
            self._revive()

    def _revive(self) -> None:
        why: str | None = None
        for pause_s in self._limits.pauses_s:
            self._hurry.wait(pause_s)
            if self._stop.is_set():
                return
            why = self._attempt()
            if self._stop.is_set() or self.state == DEMOTED:
                return
            if why is None:
                with self._changed:
                    if self.state == RECOVERING:
                        self._become(OK, None)
                log.warning("%s: in use again", self.device)
                return
            log.info("%s: not yet in use again: %s", self.device, why)
        times = len(self._limits.pauses_s)
        self.demote(Reason("failed-often", f"{times} attempts to open it anew failed, last: {why}"))

    def _attempt(self) -> str | None:
        answer: list[str | None] = []

        def work() -> None:
            try:
                answer.append(self._revive_once(self._stop))
            except GpuEdgeError as error:
                answer.append(error.what.rstrip("."))

        if not bounded(work, OPEN_S, f"open {self.device}"):
            self.demote(Reason("device-hung", "opening it anew did not end"))
        return answer[0] if answer else "opening it anew ended in nothing"


def bounded(call: Callable[[], None], seconds: float, name: str) -> bool:
    """Run a call in a thread of its own; False if it did not end in time. It is never stopped."""
    try:
        started = Call(call, f"gpuedge-{name}")
    except RuntimeError:  # no more threads, or the interpreter is ending
        return False
    if not started.wait(seconds):
        return False
    try:
        started.result()
    except Exception:
        log.debug("%s", name, exc_info=True)
    return True


def try_in_child(row: ProbeRow, deadline_s: float, stop: threading.Event) -> str | None:
    """Probe the driver of one row in a child process; return why the device failed, or None."""
    from gpuedge.probing.run import probe_all

    try:
        (rows,) = probe_all([row.info().candidate], deadline_s, stop=stop.is_set)
    except GpuEdgeError as error:
        return error.what
    found = next((r for r in rows if r.index == row.index), None) or next(iter(rows), None)
    if found is None:
        return "it is no longer there"
    return None if found.is_usable and found.index == row.index else found.reason
