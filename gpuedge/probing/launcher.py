"""The launcher: a process that starts a child for each driver, watches them, and judges.

Python, numpy and gpuedge take longer to start and import than most drivers take to answer, so on
Linux that happens once: this process imports what children need and no driver, and forks off each
child. Elsewhere, and where something it imported started a thread, children are started one by one.
It has one thread, ends everything at the deadline or when the application is gone (its standard
input ends), and appends the rows of each driver to a file as soon as they are known.

Candidates of several backends that name the same driver file are levels of one driver: they share a
child, one after the other. A crash or a hang costs the level it happened in; the others get a fresh
child. What failed is tried once more, alone, when the other levels have their verdict: a good
driver fails now and then, because memory was short or another program had it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import secrets
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuedge import backends
from gpuedge.backends.base import Candidate
from gpuedge.capdb.identity import families
from gpuedge.core.system import is_linux
from gpuedge.probing import child as child_module
from gpuedge.probing import kat, quirks, run
from gpuedge.probing.judge import BUDGET_S, LevelResult, Transcript, parts
from gpuedge.probing.protocol import EVENTS
from gpuedge.probing.report import ProbeRow
from gpuedge.safety import child, interpreter
from gpuedge.safety.channel import Event, EventChannel, EventReader
from gpuedge.safety.child import Child, Ending
from gpuedge.safety.contain import reset_signals
from gpuedge.safety.watchdog import Activity

MIN_RETRY_S = 0.3
"""With less time than this left no further child is started: it could not even import numpy."""

PATIENCE = 1.5
"""A second attempt is made where there is this many times the time that the first one took."""

MAX_ATTEMPTS = 32
"""Children per driver: two for each device that took its child down."""

MAX_SILENCE = 0.4
"""Share of the deadline for which a child that others wait for may do nothing."""

MOST_SILENCE_S = 10.0
"""The same for any child, however long the deadline: it is known to do nothing, so it hangs."""

STALLED_S = 0.75
"""A child that did nothing for so long is waiting, not computing: another may start."""

MAX_RUNNING = 64
EARLY_S = 0.02
"""What ending all children and judging them takes."""

ORPHAN_S = 1.0
"""How long after the deadline a launcher ends itself if nobody did."""

OWN_START = ("LD_", "DYLD_", "GLIBC_", "MALLOC_", "PYTHON")
"""Variables that a process reads when it starts: a fork would not notice them."""


def main() -> int:
    """Do the request on standard input. Returns the exit status."""
    line = sys.stdin.buffer.readline()
    if not line:  # the application ended before it asked for anything
        shutil.rmtree(Path.cwd(), ignore_errors=True)
        return 0
    request = json.loads(line)
    if hasattr(signal, "setitimer"):
        reset_signals()
        # The default action ends the process whatever it is doing; a fork does not inherit it.
        left_s = max(0.0, request["ends"] - time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, left_s + ORPHAN_S)
    launcher = Launcher(request)
    work = launcher.run()
    if work is not None:  # this is a fork
        child_module.work(work)
        _leave()
    else:
        launcher.leave()
    return 0


class Launcher:
    """What all drivers share: the time, the order of starting, and the file of rows."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.given_s: float = request["deadline_s"]
        self.ends: float = request["ends"]
        self.command = request["command"] or interpreter.command("gpuedge.probing.child") or ()
        self.folder = Path(request["folder"])
        self.can_fork = is_linux() and request["command"] is None
        self._rows = EventChannel(self.folder / "rows", request["token"])
        self._candidates = [Candidate(**record) for record in request["candidates"]]
        self._poll: Any = None
        if sys.platform != "win32":
            self._poll = select.poll()
            self._poll.register(0, select.POLLHUP)

    def run(self) -> dict[str, Any] | None:
        """Probe everything; in a fork, return the request of the child that it is."""
        waiting, running = self._drivers(), list[DriverProbe]()
        while (waiting or running) and self.left() > EARLY_S and not self._is_orphan():
            busy = sum(driver.is_busy() for driver in running)
            if waiting and busy <= (os.cpu_count() or 1) and len(running) < MAX_RUNNING:
                running.append(waiting.pop(0))
            for driver in list(running):
                work = driver.advance()
                if work is not None:
                    return work
                if driver.is_over:
                    running.remove(driver)
                    self._say(driver.rows())
            time.sleep(child.TICK_S)
        for driver in running:
            driver.kill()  # all at once: each may take its time to end
        for driver in [*running, *waiting]:
            driver.stop()
            self._say(driver.rows())
        return None

    def leave(self) -> None:
        """Remove the folder when the application has read the rows, or is gone."""
        self._rows.send("over")
        if self._poll is not None:
            self._poll.poll()  # at the latest, the alarm set in `main` ends the wait
            shutil.rmtree(self.folder, ignore_errors=True)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.ends - time.monotonic()

    def _is_orphan(self) -> bool:
        """Say whether the application is gone, or has no use for this any more."""
        return self._poll is not None and bool(self._poll.poll(0))

    def _drivers(self) -> list[DriverProbe]:
        """Return what is to be tried; report what the database bars, and import the rest."""
        run.load_database()
        barred = {i: quirks.barred_row(candidate) for i, candidate in enumerate(self._candidates)}
        self._say([(i, [row]) for i, row in barred.items() if row is not None])
        self.can_fork = self.can_fork and _prepared()
        free = [i for i, row in barred.items() if row is None]
        return [
            DriverProbe(self, [(free[i], self._candidates[free[i]]) for i in members], n)
            for n, members in enumerate(group([self._candidates[i] for i in free]))
        ]

    def begin(self, places: Sequence[int]) -> None:
        """Tell that candidates are begun with."""
        for at in places:
            self._rows.turn(at)
            self._rows.send("begun")

    def _say(self, verdicts: Sequence[tuple[int, list[ProbeRow]]]) -> None:
        for at, rows in verdicts:
            self._rows.turn(at)
            self._rows.send("rows", rows=[row.to_dict() for row in rows])


def group(candidates: Sequence[Candidate]) -> list[list[int]]:
    """Return the positions of the candidates of each driver: same file, same environment."""
    drivers: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = {}
    for i, candidate in enumerate(candidates):
        drivers.setdefault((candidate.key, tuple(sorted(candidate.env.items()))), []).append(i)
    return list(drivers.values())


class DriverProbe:
    """The probe of one driver: a child for its levels, and more where one of them failed."""

    def __init__(
        self, launcher: Launcher, members: Sequence[tuple[int, Candidate]], number: int
    ) -> None:
        self.is_over = False
        self._launcher = launcher
        self._places = [at for at, _ in members]
        self._levels = [LevelResult(candidate) for _, candidate in members]
        self._folder = launcher.folder / str(number)
        self._attempts = 0
        self._running: Running | None = None

    def is_busy(self) -> bool:
        """Say whether its child computes, or wants to."""
        return self._running is None or self._running.activity.idle_s() < STALLED_S

    def advance(self) -> dict[str, Any] | None:
        """Start a child, or look at the one there is; in a fork, return its request."""
        if self._running is None:
            levels = self._next()
            if not levels:
                self.is_over = True
                return None
            if not self._attempts:
                self._launcher.begin(self._places)
            self._attempts += 1
            try:
                return self._start(levels)
            except OSError as error:
                ending = Ending("no-child", 0, str(error))
                self._take(levels, Transcript([], 0, ending, "", 0.0))
                self.is_over = True
        elif self._running.has_ended(MAX_SILENCE * self._launcher.given_s):
            self._finish(self._running)
        return None

    def kill(self) -> None:
        """End the child; `stop` waits for it."""
        if self._running is not None:
            self._running.child.kill()

    def stop(self) -> None:
        """Time is over: judge what there is."""
        if self._running is not None:
            self._running.is_late = True
            self._finish(self._running)

    def rows(self) -> list[tuple[int, list[ProbeRow]]]:
        """Return the rows of each candidate, with its place."""
        given = self._launcher.given_s
        return list(zip(self._places, (v.rows(given) for v in self._levels), strict=True))

    def _next(self) -> list[LevelResult]:
        """Return what the next child is to try: levels together first, retries alone at the end."""
        left = self._launcher.left()
        if self._attempts == MAX_ATTEMPTS or (self._attempts and left < MIN_RETRY_S):
            return []
        together = [level for level in self._levels if not level.is_begun]
        alone = [level for level in self._levels if level.is_untried]
        again = [v for v in self._levels if v.is_doubtful and left > PATIENCE * v.took_s]
        return together or alone[:1] or again[:1]

    def _start(self, levels: list[LevelResult]) -> dict[str, Any] | None:
        folder = self._folder / str(self._attempts)
        folder.mkdir(parents=True, mode=0o700)
        result, output = folder / "result", folder / "output"
        token = secrets.token_hex(16)
        request = {
            "token": token, "result": str(result), "ends": self._launcher.ends,
            "candidates": [level.request() for level in levels],
        }  # fmt: skip
        env = levels[0].candidate.env
        if self._launcher.can_fork and not any(name.startswith(OWN_START) for name in env):
            forked = Child.fork(output)
            if forked is None:
                os.environ.update(env)
                os.chdir(folder)
                return request
            child = forked
        else:
            data = json.dumps(request).encode() + b"\n"
            environ = {**os.environ, **env}
            child = Child(self._launcher.command, environ, folder, request=data, output=output)
        self._running = Running(child, levels, token, result)
        return None

    def _finish(self, running: Running) -> None:
        self._running = None
        self._take(running.levels, running.transcript(self._launcher.given_s))

    def _take(self, levels: list[LevelResult], transcript: Transcript) -> None:
        cut = parts(transcript, [level.skip for level in levels])
        for i, (level, part) in enumerate(zip(levels, cut, strict=True)):
            if part is not None:
                # What ends a process when results are complete may be the doing of any level.
                late = part.first("done") is not None and not part.is_complete
                is_doubtful = i > 0 or late or transcript.is_stalled
                level.take(part, is_shared=len(levels) > 1 and is_doubtful)


class Running:
    """A child that is at work on some levels of a driver."""

    def __init__(self, child: Child, levels: list[LevelResult], token: str, result: Path) -> None:
        self.child, self.levels = child, levels
        self.activity = Activity(child.pid)
        self.is_late = False
        self._is_stalled, self._idle_s = False, 0.0
        self._reader = EventReader(result, token, EVENTS)
        self._events: list[Event] = []
        self._start = time.monotonic()

    def has_ended(self, patience_s: float) -> bool:
        """Look at it; True where it ended, hangs, used up its time, or is to make way for others.

        Time is the processor's: what it waits for one is not its own.
        """
        before = self._reader.size
        self._events += self._reader.take()
        if self._reader.size != before:
            self.activity.touch()
        self.child.trim()
        if self.child.has_ended():
            return True
        idle_s, count = self.activity.idle_s(), len(self.levels)
        self._idle_s = idle_s  # not asked again: a process that is being killed has work to do
        self._is_stalled = count > 1 and idle_s > patience_s
        is_hung = self.activity.is_known and idle_s > MOST_SILENCE_S
        return self._is_stalled or is_hung or (self.activity.used_s or 0.0) > BUDGET_S * count

    def transcript(self, given_s: float) -> Transcript:
        """End it, and return all that it left behind."""
        ending = self.child.end()
        if self.is_late and (ending.how, ending.code) == ("signal", signal.SIGKILL):
            ending = Ending("deadline")  # the kill was ours
        self._events += self._reader.take(is_over=True)
        took = time.monotonic() - self._start
        return Transcript(
            self._events, self._reader.junk, ending, self.child.tail(), took, deadline_s=given_s,
            idle_s=self._idle_s, cpu_s=self.activity.used_s, is_stalled=self._is_stalled,
        )  # fmt: skip


def _prepared() -> bool:
    """Import what a child will need; say whether this process may be forked after that."""
    for name in backends.PROBED:
        with suppress(Exception):  # its children will say what is wrong
            backends.load(name)
    families.load_families()
    kat.cases()
    gc.collect()
    gc.freeze()  # what lies here already is not to be copied into each child for its counts
    try:  # locks of other threads would stay held forever
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  (a count)
    except OSError:
        return threading.active_count() == 1


def _leave() -> None:
    """End this fork as C does: exit handlers of Python and of drivers run, in their order.

    Python would take apart all it ever imported first, and a fork copies every page that it
    touches for that: 20 ms of processor time, and none of it is about a driver, whose devices are
    closed by now. Where Python has threads to wait for, it ends in its own way.
    """
    if threading.active_count() > 1:
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()
    ctypes.CDLL(None).exit(0)


if __name__ == "__main__":
    sys.exit(main())
