"""Calls into a driver: the wait for submitted work, what is noted about a call, and causes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from gpuedge.backends.base import DeviceImpl, Recording
from gpuedge.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError, GpuEdgeError
from gpuedge.safety.blocklist import Marker
from gpuedge.safety.watchdog import Watchdog

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


class Unwatched:
    """A watch that writes nothing down; `gpuedge.safety.blocklist.Marker` does."""

    def step(self, name: str) -> None:
        """Do nothing."""

    def quiet(self) -> None:
        """Do nothing."""

    def crashed(self, why: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


Watch = Unwatched | Marker
"""What is told before each risky call, and after it."""


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
    spent_s = perf_counter() - start
    if spent_s > watchdog.quick_s:
        watchdog.note(spent_s)
