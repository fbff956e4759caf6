"""Runs cases in child processes, so that a driver's crash or hang costs one case and no more.

Several children run at once, each through a batch of cases. A child that ends early is judged by
the case it was in; a fresh one goes on after it. At the end a case that did not pass runs once
more, alone; where it passes then, the case that spoils it is looked for among those before it in
its child. Only children started here are ever ended.
"""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from gpuedge.conformance.bench import (
    CRASHED,
    FLAKE,
    PASSED,
    SKIPPED,
    TIMEOUT,
    Row,
    RowFields,
)
from gpuedge.conformance.case import Case
from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceError,
    DeviceTimeoutError,
    NoUsableDeviceError,
)
from gpuedge.safety import child, interpreter, temporary
from gpuedge.safety.channel import Event, EventReader, Told
from gpuedge.safety.child import CLEAN, Child, Ending

COMMAND: tuple[str, ...] | None = None
"""The program of a child; None: `gpuedge.conformance.child`. Tests put a bad one here."""

OPEN_S = 60.0
"""Time for starting a child and opening the device."""

CASE_S = 60.0
"""Time for one case unless said otherwise; software rasterisers need seconds for the largest."""

BATCH = 1024
"""Most cases for one child: what it leaks, or a driver does, ends with it."""

SHARES = 3
"""Batches for each of the children that run at once, at least: some take longer than others."""

LEAST_BATCH = 8
"""Fewest cases that a child is started for while others wait."""

MAX_FRUITLESS = 3
"""Children in a row that may end before they reach a case; then the device is given up."""

MOST_RETRIES = 64
"""Most cases that are run again: a device that gets everything wrong need not do so twice."""

MOST_SEARCHES = 48
"""Most children that look for cases that spoil others."""

TAIL = 300
"""Characters of what a dead child printed last that go into a row."""


class OpenTold(Told):
    """The device is open: who it is."""

    device: str
    identity: Mapping[str, Any]
    caps: Mapping[str, Any]
    versions: Mapping[str, Any]


class RefusalTold(Told):
    """The device cannot be opened: the parts of the error."""

    code: str
    what: str
    known: str | None
    hint: str | None


class StartTold(Told):
    """The case that is about to be run."""

    id: str


class RowTold(Told):
    """The row of the case that was run."""

    row: Annotated[Mapping[str, Any], RowFields]


EVENTS: Mapping[str, type[Told]] = {
    "open": OpenTold, "failed": RefusalTold, "start": StartTold, "row": RowTold, "done": Told,
}  # fmt: skip
"""The events of a child, and their fields."""


@dataclass
class _Progress:
    """What a child's file of events said so far, and how the child ended."""

    reader: EventReader
    reached: list[str] = field(default_factory=list)
    opened: Row | None = None
    failed: Event | None = None
    current: str | None = None
    since: float = field(default_factory=time.monotonic)
    is_done: bool = False
    ending: Ending = CLEAN
    said: str = ""

    def take(self, on_row: Callable[[Row], None]) -> None:
        """Bring this up to date."""
        for event in self.reader.take():
            self.since = time.monotonic()
            kind = event["event"]
            if kind == "open":
                self.opened = {k: event[k] for k in ("device", "identity", "caps", "versions")}
            elif kind == "failed":
                self.failed = event
            elif kind == "start":
                self.current = event["id"]
            elif kind == "row":
                self.current = None
                self.reached.append(event["row"]["id"])
                on_row(event["row"])
            elif kind == "done":
                self.is_done = True

    @property
    def last_words(self) -> str:
        """How the child ended and what it printed last."""
        how = self.ending.how
        end = f"exit code {self.ending.code}" if how == "exit" else self.ending.what
        end = end or {"deadline": "no sign of life"}.get(how, how)
        return f"{end}; it printed: {self.said}" if self.said else end


@dataclass
class Runner:
    """Runs cases of a profile on a device, in so many children at once.

    `case_s` and `open_s` are seconds for a case and for opening the device; `command` is the
    program of a child, `COMMAND` by default. With `retry`, cases that did not pass run once more at
    the end, but for the ids in `final`.

    Attributes
    ----------
    header : dict, optional
        Who the device is, once a child has opened it.
    notes : list of str
        What went wrong outside of any case: children that died while leaving.
    """

    device: str
    profile: str
    cases: Sequence[Case]
    jobs: int = 2
    case_s: float = CASE_S
    open_s: float = OPEN_S
    command: Sequence[str] | None = None
    retry: bool = True
    final: Collection[str] = ()
    header: Row | None = field(default=None, init=False)
    notes: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        shares = self.jobs * SHARES if self.jobs > 1 else 1
        size = min(BATCH, max(LEAST_BATCH, -(-len(self.cases) // shares)))
        starts = range(0, len(self.cases), size)
        self._batches = deque(list(self.cases[i : i + size]) for i in starts)
        self._program: Sequence[str] = ()
        self._stop = threading.Event()
        self._events: queue.Queue[Row | BaseException | None] = queue.Queue()
        self._due: list[tuple[Row, Sequence[str]]] = []
        self._cases = {case.id: case for case in self.cases}
        self._searches = MOST_SEARCHES

    def rows(self) -> Iterator[Row]:
        """Run all cases and yield a row of each, in any order.

        A row with ``is_due`` is of a case that did not pass and is run again at the end; a second
        row then takes its place.

        Raises
        ------
        NoUsableDeviceError (GE-103), DeviceError (GE-4xx)
            The device cannot be opened, or no longer; cases that were not reached have no row.
        BackendUnavailableError (GE-404)
            No process can be started here.
        ConfigError (GE-101)
            There is no place for temporary files.
        """
        module = "gpuedge.conformance.child"
        self._program = self.command or COMMAND or interpreter.command(module) or ()
        if not self._program:
            raise _no_child(interpreter.why_none())
        count = min(self.jobs, len(self._batches))
        with temporary.folder("gpuedge-conformance-") as folder:
            threads = [
                threading.Thread(target=self._work, args=(folder / str(i),), daemon=True)
                for i in range(count)
            ]
            for thread in threads:
                thread.start()
            try:
                while count:
                    event = self._events.get()
                    if isinstance(event, BaseException):
                        raise event
                    if event is None:
                        count -= 1
                    else:
                        yield event
                yield from self._retried(folder / "again")
            finally:
                self._stop.set()  # children are killed within a tick
                for thread in threads:
                    thread.join(10)

    def _work(self, folder: Path) -> None:
        """Run batches in one child after the other until no case is left."""
        fruitless, number = 0, 0
        left: list[Case] = []
        try:
            while not self._stop.is_set():
                try:
                    left = left or self._batches.popleft()
                except IndexError:
                    break
                number += 1
                progress = self._child(left, folder / str(number), self._take)
                if progress.failed is not None and not self._stop.is_set():
                    raise _refusal(progress.failed)
                left = [case for case in left if case.id not in progress.reached]
                fruitless = 0 if progress.reached else fruitless + 1
                if fruitless == MAX_FRUITLESS and not self._stop.is_set():
                    raise self._given_up(progress)
        except BaseException as error:  # handed to the thread that reads
            self._events.put(error)
        finally:
            self._events.put(None)

    def _take(self, row: Row, before: Sequence[str]) -> None:
        """Hand a row on; keep what is to be run again."""
        if self.retry and row["status"] not in (PASSED, SKIPPED) and row["id"] not in self.final:
            self._due.append((row, before))
            row = {**row, "is_due": True}
        self._events.put(row)

    def _child(
        self, cases: Sequence[Case], folder: Path, on_row: Callable[[Row, Sequence[str]], None]
    ) -> _Progress:
        """Run cases in one child, for as long as it lives.

        `on_row` takes each row, and the cases that the child had run before.
        """
        folder.mkdir(parents=True, mode=0o700)
        token, path = secrets.token_hex(16), folder / "events"
        progress = _Progress(EventReader(path, token, EVENTS))
        asked = {
            "token": token, "result": str(path), "device": self.device,
            "profile": self.profile, "ids": [case.id for case in cases],
            "case_s": self.case_s, "open_s": self.open_s,
        }  # fmt: skip
        # No child has to look at drivers of other backends.
        environ = child.environment({"GPUEDGE_BACKENDS": self.device.partition(":")[0]})
        data = json.dumps(asked).encode() + b"\n"
        try:
            process = Child(self._program, environ, folder, request=data, output=folder / "output")
        except OSError as error:
            raise _no_child(str(error)) from None

        def take(row: Row) -> None:
            on_row(row, progress.reached[:-1])

        def is_over() -> bool:
            progress.take(take)
            is_open = progress.opened is not None and not progress.is_done
            limit = self.case_s if is_open else self.open_s
            return self._stop.is_set() or time.monotonic() - progress.since > limit

        try:
            process.wait(float("inf"), is_over)
        finally:
            progress.ending = process.end()
            progress.said = " ".join(process.tail()[-TAIL:].split())
        progress.take(take)
        self.header = self.header or progress.opened
        if progress.is_done and progress.ending != CLEAN:
            self.notes.append(f"a process done with its cases ended with {progress.last_words}")
        elif progress.current is not None and not self._stop.is_set():
            progress.reached.append(progress.current)
            take(self._casualty(self._cases[progress.current], progress))
        return progress

    def _retried(self, folder: Path) -> Iterator[Row]:
        """Run what did not pass once more, each case in a child of its own and no other beside."""
        lost = 0
        for number, (row, before) in enumerate(self._due):
            if number >= MOST_RETRIES or lost >= MAX_FRUITLESS:
                yield row
                continue
            again = self._run([row["id"]], folder / str(number))
            lost = lost + 1 if again is None else 0
            if again is None or again["status"] != PASSED:
                yield {**row, "again": "not reached" if again is None else again["status"]}
                continue
            first = {key: row[key] for key in ("status", "code", "reason") if key in row}
            about, how = self._spoiler(row["id"], before, folder / f"{number}-before")
            reason = f"{how}; in the run before it {first['status']}: {first.get('reason', '')}"
            yield {**again, "status": FLAKE, "first": first, "reason": reason, **about}
        if (skipped := len(self._due) - MOST_RETRIES) > 0:
            self.notes.append(f"{skipped} cases that did not pass were not run again")
        if lost >= MAX_FRUITLESS:
            self.notes.append("cases that did not pass could not be run again")

    def _run(self, names: Sequence[str], folder: Path) -> Row | None:
        """Run cases in one child; return the row of the last, None where it was not reached."""
        rows: dict[str, Row] = {}
        self._child(
            [self._cases[name] for name in names], folder,
            lambda row, _: rows.update({row["id"]: row}),
        )  # fmt: skip
        return rows.get(names[-1])

    def _spoiler(self, name: str, before: Sequence[str], folder: Path) -> tuple[Row, str]:
        """Look for the case that makes a case fail that passes alone.

        Returns ``after``, the id of that case, for the row where there is one, and what was found.
        """

        def fails(names: Sequence[str]) -> bool:
            self._searches -= 1
            row = self._run([*names, name], folder / str(self._searches))
            return row is not None and row["status"] not in (PASSED, SKIPPED)

        alone, suspects = "passes when run again alone", list(before)
        if not suspects or self._searches <= 0:
            return {}, alone
        if not fails(suspects):
            return {}, f"{alone}, and after the same {len(suspects)} cases"
        while len(suspects) > 1 and self._searches > 0:
            half = len(suspects) // 2
            part = next((p for p in (suspects[half:], suspects[:half]) if fails(p)), None)
            if part is None:
                return {}, f"{alone}, and fails after {len(suspects)} cases together"
            suspects = part
        if len(suspects) > 1:
            return {}, f"{alone}, and fails after one of {len(suspects)} cases"
        return {"after": suspects[0]}, f"{alone}, and fails after {suspects[0]}"

    def _casualty(self, case: Case, progress: _Progress) -> Row:
        """Return the row of the case that took its child down."""
        is_slow = progress.ending.how == "deadline"
        printed = f"; it printed: {progress.said}" if progress.said else ""
        slow = f"no answer within {self.case_s:g} s{printed}"
        return {
            **case.described(),
            "status": TIMEOUT if is_slow else CRASHED,
            "reason": slow if is_slow else f"the process ended with {progress.last_words}",
            "seconds": round(time.monotonic() - progress.since, 4),
        }

    def _given_up(self, progress: _Progress) -> Exception:
        kind = DeviceTimeoutError if progress.ending.how == "deadline" else DeviceError
        return kind(
            f"'{self.device}' cannot be opened any more: {MAX_FRUITLESS} processes in a row ended "
            "before they ran a case.",
            known=f"the last one: {progress.last_words}",
            hint="gpuedge probe --refresh; resume with --resume when the device is back",
        )


def _no_child(why: str) -> BackendUnavailableError:
    return BackendUnavailableError("No process can be started to run cases in.", known=why)


def _refusal(event: Event) -> Exception:
    """Return the error that a child met when it opened the device."""
    code = event["code"]
    kinds = {k.code: k for k in (NoUsableDeviceError, BackendUnavailableError, DeviceTimeoutError)}
    kind: Any = kinds.get(code, NoUsableDeviceError if code < "GE-400" else DeviceError)
    return kind(event["what"], known=event["known"], hint=event["hint"])  # type: ignore[no-any-return]
