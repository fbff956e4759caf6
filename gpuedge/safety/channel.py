"""The event channel: what a child process tells the one that watches it, a JSON line per event.

Lines lie in a private file, and each carries the token of the request. They survive the child,
however it ends. Standard output is not used: drivers write there. They may write into the file,
too, so a line that is no event of ours, field by field, is counted and otherwise ignored.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gpuedge.core.record import Record, checked
from gpuedge.safety.paths import open_regular

ROBBED = 70
"""Exit status of a child whose files a driver closed."""

MAX_BYTES = 16 << 20
"""More than this in a file is a driver's doing; the rest is not read."""

Event: TypeAlias = Mapping[str, Any]
"""The fields of an event; its kind is ``event``."""


class Told(Record):
    """The fields of every event.

    `at` is the task that it is about, `when` it was sent, in seconds since the channel was opened,
    and `cpu` the seconds of processor time used by then.
    """

    at: int
    when: float
    cpu: float


class EventChannel:
    """The child's end: the file, open for appending; `at` is the task whose turn it is.

    A driver that closes descriptors which are not its own would rob the application of its files,
    or have it write into others. Here it robs this class, which ends the process.
    """

    def __init__(self, path: str | os.PathLike[str], token: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fstat(self._fd)
        self._token = token
        self._last: tuple[str, int | None] | None = None
        self._begin = time.monotonic()
        self.at = 0

    def turn(self, at: int) -> None:
        """Go on to another task."""
        self.at, self._last = at, None

    def send(self, event: str, **fields: Any) -> None:
        """Write one event; it survives the process from here on."""
        try:
            is_own = os.path.samestat(os.fstat(self._fd), self._file)
        except OSError:
            is_own = False
        if not is_own:
            os._exit(ROBBED)
        when, cpu = round(time.monotonic() - self._begin, 6), round(time.process_time(), 6)
        own = {"token": self._token, "event": event, "at": self.at, "when": when, "cpu": cpu}
        os.write(self._fd, json.dumps({**own, **fields}).encode() + b"\n")

    def step(self, name: str, index: int | None = None) -> None:
        """Announce the step about to be taken."""
        if (name, index) != self._last:
            self._last = (name, index)
            self.send("step", step=name, index=index)


class EventReader:
    """The other end, which may be asked again and again while the child is at work.

    `kinds` are the events there are, each with a class of its fields, a `Told`. `size` is how much
    there was when it was last looked at, `junk` counts lines that are no such event.
    """

    def __init__(self, path: Path, token: str, kinds: Mapping[str, type[Told]]) -> None:
        self._path, self._token, self._kinds = path, token, kinds
        self._taken = 0
        self.size = self.junk = 0

    def take(self, *, is_over: bool = False) -> list[Event]:
        """Return the events that are new; where all `is_over`, half a line counts as one."""
        try:
            size = self._path.stat().st_size
            if size == self.size and not is_over:
                return []
            with open_regular(self._path) as file:
                file.seek(self._taken)
                data, self.size = file.read(max(0, MAX_BYTES - self._taken)), size
        except OSError:
            return []
        fresh = data if is_over else data[: data.rfind(b"\n") + 1]
        self._taken += len(fresh)
        lines = [line for line in fresh.split(b"\n") if line.strip()]
        events = [event for line in lines if (event := self._event(line)) is not None]
        self.junk += len(lines) - len(events)
        return events

    def _event(self, line: bytes) -> Event | None:
        try:
            event = json.loads(line)
            is_ours = isinstance(event, dict) and event.pop("token", None) == self._token
            kind = event.pop("event", None) if is_ours else None
            if not isinstance(kind, str) or kind not in self._kinds:
                return None
            return {"event": kind, **checked(self._kinds[kind], event)}
        except (ValueError, RecursionError):
            return None
