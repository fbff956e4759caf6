"""What watches over the calls into a driver: crash memory, and how long a run may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from gpuedge.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError, GpuEdgeError

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

MAX_WORDS = 300
"""Characters of a cause that are kept: a compiler's log may fill pages."""


def cause_of(error: GpuEdgeError) -> str:
    """Return what is known of the cause of an error, in one line; else what happened."""
    own = error.reason if isinstance(error, DeviceError) else None
    what = error.what.rstrip(".")
    text = own.detail if own is not None and own.detail else what
    if own is None and error.known:
        text = f"{what}: {error.known}"
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]}..."


class Watch(Protocol):
    """What is told before each risky call (`gpuedge.probing.crashes.Watch` writes it down)."""

    def step(self, name: str) -> None:
        """Note that ``open``, ``compile``, ``run`` or ``close`` begins."""

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


class Closings:
    """The devices that are being closed: a driver that ends the process there did so itself.

    Not so where the interpreter ends: what is not closed by then is left as it is, and threads
    that close something are stopped anywhere.
    """

    def __init__(self) -> None:
        self._watches: set[Watch] = set()
        self._is_over = False

    @contextmanager
    def one(self, watch: Watch) -> Iterator[None]:
        """Have a watch told before and after a device is closed."""
        self._watches.add(watch)
        if not self._is_over:
            watch.step("close")
            if self._is_over:  # it ended in this very moment
                watch.quiet()
        try:
            yield
        finally:
            self._watches.discard(watch)
            watch.quiet()

    def end(self) -> None:
        """Hold nothing that is still being closed against a driver: the interpreter ends."""
        self._is_over = True
        for watch in list(self._watches):
            watch.quiet()


CLOSING = Closings()


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
        elif not isinstance(error, DeviceLostError) or error.is_outside:
            return
        elif error.reason is not None:
            self._executor.lost(error.reason.code, cause_of(error))


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
