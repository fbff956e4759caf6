"""An open device, whatever runs on it: who may use it, how it is left, and how it is closed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpuedge.core.errors import FORK_HINT, ClosedError
from gpuedge.executors.driver_calls import DriverStage, NoMarker
from gpuedge.safety.blocklist import Marker
from gpuedge.safety.deadline import keep
from gpuedge.safety.interrupts import held, rlock
from gpuedge.safety.watchdog import Slowness, Watchdog


class OpenedDevice:
    """What every executor of a device has but that of the CPU.

    Parameters
    ----------
    driver : object
        What is open; `close` closes it.
    name : str
        Device string, such as ``vulkan:0``.
    isolation : str
        ``inline``, or ``process`` where the driver lives in a process of its own.
    marker : Marker, optional
        What is told before and after the driver is at work, for the crash blocklist.

    Attributes
    ----------
    closed : bool
        True as soon as nothing may start on it any more.
    released : bool
        True once the driver has given everything back.
    on_released : callable, optional
        Called then.
    at_work : Watchdog or None
        What knows how long the run under way, or the latest one, may take.
    is_hung : bool
        True after it did not finish in time.
    late : object
        What it did not finish, where that can be asked for.
    slowness : Slowness
        How much longer than predicted its runs took.
    compiling, running_first, running : DriverStage
        Blocks to build, to run something for the first time and to run it again in, entered under
        `lock`.
    """

    def __init__(
        self, driver: Any, name: str, *, isolation: str = "inline", marker: Marker | None = None
    ) -> None:
        self.device = name
        self.isolation = isolation
        self.marker: Marker | NoMarker = marker or NoMarker()
        self.slowness = Slowness()
        self.lock = rlock()
        self.closed = self.released = self.is_hung = self._was_struck = False
        self.compiling, self.running = DriverStage(self, "compile"), DriverStage(self, "run")
        self.running_first = DriverStage(self, "first")
        self.on_released: Callable[[], None] | None = None
        self.late: object = None
        self.at_work: Watchdog | None = None
        self._driver = driver
        self._owner = os.getpid()

    def check_open(self) -> None:
        """Raise ClosedError (GE-204) if the device was closed, or opened before a fork."""
        if self.is_inherited:
            raise ClosedError(
                f"The device {self.device} was opened before this process was forked off.",
                hint=FORK_HINT,
            )
        if self.closed:
            raise ClosedError(f"The device {self.device} was closed before this call.")

    @property
    def is_inherited(self) -> bool:
        """True in a forked child, where the driver's threads and locks are dead."""
        return self._owner != os.getpid()

    @property
    def driver_pid(self) -> int | None:
        """The process whose work says that the driver works; None where none's does."""
        return None

    def progress(self) -> object:
        """Return something that changes whenever a piece of a run has ended."""
        return self.at_work, 0 if self.at_work is None else self.at_work.pieces_done

    def has_come_back(self) -> bool:
        """Tell whether a device of this process that hung has ended its work since: it was slow."""
        return False

    def lost(self, code: str, why: str, step: str) -> None:
        """Note that the device was lost; where its driver ended its worker, on disk too."""
        if code == "worker-died" and not self._was_struck:
            self._was_struck = True
            self.marker.crashed(why, step)

    def retire(self) -> None:
        """Let nothing start on it any more; closing it is left to `close`."""
        self.closed = True

    def close(self) -> None:
        """Close the device; executables made from it cannot run any more.

        Waits for calls of other threads that are under way. A device that hung in this process is
        left as it is: closing it would wait for it.
        """
        self.give_back(-1.0)

    def give_back(self, patience_s: float) -> bool:
        """Close the device unless calls of other threads take too long.

        Parameters
        ----------
        patience_s : float, unit: seconds
            How long to wait for them; negative: until they end.

        Returns
        -------
        bool
            False if they did not end in time. Nothing was closed then, but nothing new starts.
        """
        if self.is_inherited:
            return True
        self.closed = True
        with held:
            if not self.lock.acquire(timeout=patience_s):
                return False
            try:
                if not self.released and not self._leave():
                    self.released = True
                    self._shut()
                    if self.on_released is not None and not getattr(self._driver, "is_kept", False):
                        self.on_released()
            finally:
                self.lock.release()
        self.marker.close()
        return True

    def _shut(self) -> None:
        """Close what is open."""
        self._driver.close()

    def _leave(self) -> bool:
        """Tell whether the device must be left to the end of the process; keep it till then."""
        if not self.is_hung or self.isolation != "inline":
            return False
        keep(self._driver)
        return True
