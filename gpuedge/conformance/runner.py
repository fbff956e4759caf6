"""Runs cases in child processes, so that a driver's crash or hang costs one case and no more.

Several children run at once, each through a batch of cases. A child that ends early is judged by
the case it was in; a fresh one goes on after it. Only children started here are ever ended.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuedge.conformance.bench import CRASHED, TIMEOUT, Row
from gpuedge.conformance.case import Spec
from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceError,
    DeviceTimeoutError,
    NoUsableDeviceError,
)
from gpuedge.safety import child
from gpuedge.safety.child import CLEAN, Child, Ending
from gpuedge.safety.paths import read_start

COMMAND = (sys.executable or "", "-X", "faulthandler", "-m", "gpuedge.conformance.child")
"""The program of a child; tests put a misbehaving one here."""

OPEN_S = 60.0
"""Time for starting a child and opening the device."""

CASE_S = 60.0
"""Time for one case unless said otherwise; software rasterisers need seconds for the largest."""

BATCH = 96
"""Most cases for one child: what it leaks, or a driver does, ends with it."""

MAX_FRUITLESS = 3
"""Children in a row that may end before they reach a case; then the device is given up."""

MAX_EVENT_BYTES = 16 << 20
"""More than this in a file of events is a driver's doing; the rest is not read."""

TAIL = 300
"""Characters of what a dead child printed last that go into a row."""


@dataclass
class Request:
    """What to run.

    Attributes
    ----------
    device : str
        Device string, checked.
    profile : str
    specs : sequence of Spec
    jobs : int
        Children at once.
    case_s : float
        Seconds for one case.
    command : sequence of str
        The program of a child; `COMMAND` by default.
    """

    device: str
    profile: str
    specs: Sequence[Spec]
    jobs: int = 2
    case_s: float = CASE_S
    open_s: float = OPEN_S
    command: Sequence[str] | None = None


@dataclass
class _Progress:
    """What a child's file of events said so far."""

    path: Path
    token: str
    read: int = 0
    done: list[Row] = field(default_factory=list)
    opened: Row | None = None
    failed: Row | None = None
    current: str | None = None
    since: float = field(default_factory=time.monotonic)
    is_done: bool = False

    def events(self) -> Iterator[Row]:
        """Yield the events that are new; lines without the token are a driver's, not ours."""
        try:
            data = read_start(self.path, MAX_EVENT_BYTES)
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        fresh, self.read = data[self.read : whole], max(whole, self.read)
        for line in fresh.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("token") == self.token:
                yield event

    def take(self, on_row: Callable[[Row], None]) -> None:
        """Bring this up to date."""
        for event in self.events():
            self.since = time.monotonic()
            kind = event.get("event")
            if kind == "open":
                self.opened = event
            elif kind == "failed":
                self.failed = event
            elif kind == "start":
                self.current = str(event["id"])
            elif kind == "row":
                self.current = None
                self.done.append(event["row"])
                on_row(event["row"])
            elif kind == "done":
                self.is_done = True


class Runner:
    """Runs a request; `rows` yields results as they come, in any order."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.header: Row | None = None
        """Who the device is, once a child has opened it."""
        self.notes: list[str] = []
        """What went wrong outside of any case: children that died while leaving."""
        self._waiting = deque(request.specs)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._events: queue.Queue[Row | BaseException | None] = queue.Queue()

    def rows(self) -> Iterator[Row]:
        """Run all cases and yield one row each.

        Raises
        ------
        NoUsableDeviceError (GE-103), DeviceError (GE-4xx)
            The device cannot be opened, or no longer; cases that were not reached have no row.
        """
        if not self.request.specs:
            return
        folder = Path(tempfile.mkdtemp(prefix="gpuedge-conformance-"))
        count = min(self.request.jobs, -(-len(self.request.specs) // 8))
        threads = [
            threading.Thread(target=self._work, args=(folder / str(i),), daemon=True)
            for i in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            left = len(threads)
            while left:
                event = self._events.get()
                if event is None:
                    left -= 1
                elif isinstance(event, BaseException):
                    raise event
                else:
                    yield event
        finally:
            self._stop.set()  # children are killed within a tick
            for thread in threads:
                thread.join(10)
            shutil.rmtree(folder, ignore_errors=True)

    def _work(self, folder: Path) -> None:
        try:
            number = 0
            while not self._stop.is_set() and (batch := self._batch()):
                number = self._through(batch, folder, number)
        except BaseException as error:  # handed to the thread that reads
            self._events.put(error)
        finally:
            self._events.put(None)

    def _batch(self) -> list[Spec]:
        """Take cases for one child: fewer towards the end, so that all children end together."""
        with self._lock:
            share = -(-len(self._waiting) // (2 * self.request.jobs))
            size = min(BATCH, max(share, 8), len(self._waiting))
            return [self._waiting.popleft() for _ in range(size)]

    def _through(self, batch: list[Spec], folder: Path, number: int) -> int:
        """Run a batch in as many children as it takes; return how many there were so far."""
        fruitless = 0
        left = [spec.id for spec in batch]
        while left and not self._stop.is_set():
            number += 1
            progress, ending, tail = self._child(left, folder / str(number))
            if self._stop.is_set():
                break
            if progress.failed is not None:
                raise _refusal(progress.failed)
            reached = {row["id"] for row in progress.done}
            if progress.current is not None and not progress.is_done:
                reached.add(progress.current)
                self._events.put(self._casualty(progress, batch, ending, tail))
            left = [name for name in left if name not in reached]
            fruitless = 0 if reached else fruitless + 1
            if fruitless == MAX_FRUITLESS:
                raise _given_up(self.request.device, ending, tail)
        return number

    def _child(self, names: list[str], folder: Path) -> tuple[_Progress, Ending, str]:
        request = self.request
        token = secrets.token_hex(16)
        folder.mkdir(parents=True, mode=0o700)
        result = folder / "events"
        result.touch(mode=0o600)
        asked = {
            "token": token, "result": str(result), "device": request.device,
            "profile": request.profile, "ids": names, "case_s": request.case_s,
            "open_s": request.open_s, "path": [os.path.abspath(p) for p in sys.path],  # noqa: PTH100
        }  # fmt: skip
        # No child has to look at drivers of other backends.
        only = {"GPUEDGE_BACKENDS": request.device.partition(":")[0]}
        data = json.dumps(asked).encode() + b"\n"
        argv, environ = request.command or COMMAND, child.environment(only)
        one = Child(argv, environ, folder, request=data, output=folder / "output")
        progress = _Progress(result, token)

        def is_over() -> bool:
            progress.take(self._events.put)
            is_open = progress.opened is not None and not progress.is_done
            limit = request.case_s if is_open else request.open_s
            return self._stop.is_set() or time.monotonic() - progress.since > limit

        try:
            one.wait(float("inf"), is_over)
        finally:
            ending, tail = one.end(), one.tail()
        progress.take(self._events.put)
        if progress.is_done and ending != CLEAN:
            self.notes.append(f"a process that was done with its cases left with {_said(ending)}")
        if progress.opened is not None:
            with self._lock:
                self.header = self.header or {
                    k: progress.opened[k] for k in ("device", "identity", "caps", "versions")
                }
        return progress, ending, tail

    def _casualty(self, progress: _Progress, batch: list[Spec], ending: Ending, tail: str) -> Row:
        """Return the row of the case that took its child down."""
        spec = next(s for s in batch if s.id == progress.current)
        is_slow = ending.how == "deadline"
        if is_slow:
            reason = f"no answer within {self.request.case_s:g} s"
        else:
            reason = f"the process ended with {_said(ending)}"
        said = " ".join(tail[-TAIL:].split())
        return {
            "id": spec.id, "op": spec.op, "dtype": spec.dtype, "shape": spec.geometry.text,
            "data": spec.data, "storage": spec.storage, "variant": spec.variant,
            "status": TIMEOUT if is_slow else CRASHED,
            "reason": f"{reason}; it printed: {said}" if said else reason,
            "seconds": round(time.monotonic() - progress.since, 4),
        }  # fmt: skip


def _refusal(event: Row) -> Exception:
    """Return the error that a child met when it opened the device."""
    code = str(event.get("code"))
    kinds = {k.code: k for k in (NoUsableDeviceError, BackendUnavailableError, DeviceTimeoutError)}
    kind: Any = kinds.get(code, NoUsableDeviceError if code < "GE-400" else DeviceError)
    return kind(str(event.get("what")), known=event.get("known"), hint=event.get("hint"))  # type: ignore[no-any-return]


def _said(ending: Ending) -> str:
    if ending.how == "exit":
        return f"exit code {ending.code}"
    return ending.what or {"deadline": "no sign of life"}.get(ending.how, ending.how)


def _given_up(device: str, ending: Ending, tail: str) -> Exception:
    said = " ".join(tail[-TAIL:].split())
    kind = DeviceTimeoutError if ending.how in ("stalled", "deadline") else DeviceError
    return kind(
        f"'{device}' cannot be opened any more: {MAX_FRUITLESS} processes in a row ended before "
        "they ran a case.",
        known=f"the last one: {_said(ending)}; it printed: {said or 'nothing'}",
        hint="gpuedge probe --refresh; resume with --resume when the device is back",
    )
