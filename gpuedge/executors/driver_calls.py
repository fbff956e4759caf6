"""What is noted about a call into a driver: a marker for the crash blocklist, and causes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuedge.core.errors import DeviceError, GpuEdgeError
from gpuedge.safety.blocklist import Marker

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
