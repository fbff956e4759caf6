"""What watches over the calls into a driver: crash memory, and how long a run may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from gpuedge.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError, GpuEdgeError
from gpuedge.safety.watchdog import Watchdog

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl, Recording
    from gpuedge.executors.gpu import GpuExecutor

STOPPED_S = 1.0
"""A wait that took so much longer than it was told to: the whole process stood still meanwhile."""

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
    """What is told before each risky call (`gpuedge.safety.markers.Watch` writes it down)."""

    def step(self, name: str) -> None:
        """Note that ``open``, ``compile``, ``run`` or ``close`` begins."""

    def quiet(self) -> None:
        """Note that the driver has returned."""

    def crashed(self, why: str) -> None:
        """Note that the driver killed the process it lived in, which was not this one."""

    def close(self) -> None:
        """Note that the device was closed."""


class Unwatched:
    """A watch that writes nothing down."""

    def step(self, name: str) -> None:
        """Do nothing."""

    def quiet(self) -> None:
        """Do nothing."""

    def crashed(self, why: str) -> None:
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
