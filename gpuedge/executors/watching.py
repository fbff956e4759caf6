"""What watches over the calls into a driver: crash memory, and how long a run may take."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from gpuedge.core.errors import DeviceLostError, DeviceTimeoutError

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl, Recording
    from gpuedge.executors.gpu import GpuExecutor

RUN_TIMEOUT_S = 60.0
"""What a first run may take: drivers compile during it, software rasterisers need seconds."""

FLOOR_S = 2.0
"""The least a run may take before its device counts as hung: shorter gaps are the system's."""

FACTOR = 10.0
"""A run that takes this many times the slowest of the runs before it is no slow run any more."""

WINDOW = 128
"""Runs that the watchdog remembers."""

STOPPED_S = 1.0
"""A wait that took so much longer than it was told to: the whole process stood still meanwhile."""

_OFTEN, _SELDOM = 8, 32


class Watch(Protocol):
    """What is told before each risky call (`gpuedge.probing.crashes.Watch` writes it down)."""

    def step(self, name: str) -> None:
        """Note that ``open``, ``compile`` or ``run`` begins."""

    def quiet(self) -> None:
        """Note that the driver has returned."""

    def strike(self, why: str) -> None:
        """Note that the driver killed the process it lived in, which was not this one."""

    def close(self) -> None:
        """Note that the device was closed."""


class Unwatched:
    """A watch that writes nothing down."""

    def step(self, name: str) -> None:
        """Do nothing."""

    def quiet(self) -> None:
        """Do nothing."""

    def strike(self, why: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Stage:
    """A block of calls into a driver: noted before and after, its failure drawn conclusions from.

    Entered under the device's lock, so that one object serves every block of its kind.
    """

    def __init__(self, executor: GpuExecutor, name: str) -> None:
        self._executor = executor
        self._name = name
        self._step = executor.watch.step
        self._quiet = executor.watch.quiet

    def __enter__(self) -> None:
        self._step(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._conclude(error)
        self._quiet()

    def _conclude(self, error: BaseException) -> None:
        if isinstance(error, DeviceTimeoutError):
            self._executor.is_hung = True
        elif isinstance(error, DeviceLostError) and error.reason is not None:
            self._executor.lost(error.reason.code, error.what)


class Watchdog:
    """How long a run may take: ten times the 99th percentile of its own past, at least 2 s.

    Attributes
    ----------
    limit_s : float
        What the next run may take, in seconds.
    """

    def __init__(self) -> None:
        self._is_fixed = False
        self._times: list[float] = []
        self._runs = 0
        self.limit_s = RUN_TIMEOUT_S

    def fix(self, limit_s: float) -> None:
        """Set a limit that stays, whatever is measured."""
        self._is_fixed, self.limit_s = True, limit_s

    def note(self, seconds: float) -> None:
        """Remember how long a run took."""
        times, runs = self._times, self._runs
        if runs < WINDOW:
            times.append(seconds)
        else:
            times[runs % WINDOW] = seconds
        self._runs = runs = runs + 1
        if (runs <= _OFTEN or runs % _SELDOM == 0) and not self._is_fixed:
            slow = percentile(sorted(times), 99)
            self.limit_s = min(max(FLOOR_S, FACTOR * slow), RUN_TIMEOUT_S)


def percentile(ordered: list[float], share: int) -> float:
    """Return the smallest of the ordered times that `share` per cent of them do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def submit_and_wait(impl: DeviceImpl, recording: Recording, watchdog: Watchdog) -> None:
    """Run recorded work for as long as the watchdog allows. Raises DeviceError (GE-4xx)."""
    limit_s = watchdog.limit_s
    start = perf_counter()
    ticket = impl.submit(recording)
    try:
        impl.wait(ticket, limit_s)
    except DeviceTimeoutError as late:
        if perf_counter() - start < limit_s + STOPPED_S:
            raise
        try:  # stopped and continued: the device stood still as well
            impl.wait(ticket, limit_s)
        except DeviceLostError:
            raise late from None  # its host was ended for it
    watchdog.note(perf_counter() - start)
