"""Probes drivers in parallel child processes under one deadline.

Candidates of several backends that name the same driver file are levels of one driver: they share a
child, one after the other, so that it starts and imports once. A crash or a hang costs the level it
happened in; the others get a fresh child, and a level that failed after others had run in its child
is tried once more alone. Does not know about the cache or the report's order; `api` does.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.core import config
from gpuedge.probing import folders, forking, leftovers, process
from gpuedge.probing.forking import Zygote
from gpuedge.probing.judge import (
    Ending,
    Outcome,
    Transcript,
    is_cut_off,
    judge,
    parts,
    read_events,
    unreached,
    unstartable,
)
from gpuedge.probing.report import ProbeRow
from gpuedge.probing.retries import Retries
from gpuedge.probing.turns import Turn
from gpuedge.safety import interpreter, paths

MAX_RESULT_BYTES = 4 << 20
"""A result file larger than this is a driver's doing; the rest is not read."""

MIN_RETRY_S = 0.3
"""With less time than this left no further child is started: it could not even import numpy."""

MIN_START_S = 0.02
"""With less than this no child is: starting one could take longer than what is left."""

MAX_ATTEMPTS = 32
"""Children per driver: two more for each device that took its child down."""

MAX_SILENCE = 0.4
"""Share of the deadline for which a child that others wait for may give no sign of life."""

FOR_SURE = {"ok", "absent", "blocked"}
"""Statuses that are no worse for what ran in the same child before."""

MIN_FORKED = 2
"""With fewer drivers than this there is nothing to be shared."""

MAX_THREADS = 64
"""Drivers probed at the same time, however few of them are computing."""


def workers() -> int:
    """Return how many children may be computing at once: drivers wait for files now and then."""
    return 1 + (os.cpu_count() or 1)


def probe_all(
    candidates: Sequence[Candidate],
    deadline_s: float,
    command: Sequence[str] | None = None,
    *,
    begin: float | None = None,
) -> list[list[ProbeRow]]:
    """Probe every candidate and return its rows, in the order given.

    Parameters
    ----------
    candidates : sequence of Candidate
        Most wanted first: where time is short the last ones are not reached.
    deadline_s : float
        Seconds for all of them together; what is not done by then is killed.
    command : sequence of str, optional
        The program of the child process; tests put a misbehaving one here.
    begin : float, optional
        When the time began to run, on the clock of `time.monotonic`; None: now.
    """
    if not candidates:
        return []
    leftovers.collect()
    race = Race(deadline_s, command or process.COMMAND, begin)
    if race.command is None:
        return [unstartable(c, interpreter.why_none()) for c in candidates]
    try:
        with process.low_descriptors_taken():
            folder = folders.make()
            try:
                return _raced(candidates, folder, race)
            finally:
                folders.remove(folder)
    except (OSError, RuntimeError) as error:  # no temporary folder, no more descriptors or threads
        return [unstartable(c, str(error)) for c in candidates]


def _raced(candidates: Sequence[Candidate], folder: Path, race: Race) -> list[list[ProbeRow]]:
    drivers = group(candidates)
    pool = ThreadPoolExecutor(min(len(drivers), MAX_THREADS), thread_name_prefix="gpuedge-probe")
    try:
        if len(drivers) >= MIN_FORKED:
            race.prepare(folder)
        tasks = [
            pool.submit(Driver([candidates[i] for i in members], folder / str(n), race).rows)
            for n, members in enumerate(drivers)
        ]
        found: list[list[ProbeRow]] = [[] for _ in candidates]
        for members, task in zip(drivers, tasks, strict=True):
            for i, rows in zip(members, task.result(), strict=True):
                found[i] = rows
        return found
    finally:
        race.stop.set()  # after an interrupt: children are killed within a tick
        pool.shutdown(wait=True, cancel_futures=True)
        race.close()


def group(candidates: Sequence[Candidate]) -> list[list[int]]:
    """Return the positions of the candidates of each driver: same file, same environment."""
    drivers: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = {}
    for i, candidate in enumerate(candidates):
        drivers.setdefault((candidate.key, tuple(sorted(candidate.env.items()))), []).append(i)
    return list(drivers.values())


class Race:
    """What all children share: the time, the turns to compute, and the order to stop."""

    def __init__(
        self, given_s: float, command: Sequence[str] | None, begin: float | None = None
    ) -> None:
        self.given_s = given_s
        self.ends = (time.monotonic() if begin is None else begin) + given_s
        self.has_own = command is not None
        self.command = command if self.has_own else process.command("gpuedge.probing.child")
        self.stop = threading.Event()
        self.turns = threading.Semaphore(workers())
        self.zygote: Zygote | None = None
        self._lock = threading.Lock()

    def prepare(self, folder: Path) -> Zygote | None:
        """Start what children are forked off, once, where that is possible."""
        command = process.command("gpuedge.probing.zygote")
        if self.has_own or command is None or not forking.is_possible():
            return None
        with self._lock, suppress(OSError):  # children are started one by one then
            if self.zygote is None and self.left() > 0:
                environ = child_environment(Candidate("", "", ""))
                self.zygote = forking.Zygote(command, environ, folder, self.ends, self.stop)
        return self.zygote

    def close(self) -> None:
        """End what `prepare` started."""
        if self.zygote is not None:
            self.zygote.close()

    def left(self) -> float:
        """Return the seconds that are left, zero or less where it is over."""
        return 0.0 if self.stop.is_set() else self.ends - time.monotonic()


class Level:
    """What is known so far of one candidate."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.found: dict[int | None, ProbeRow] = {}
        self.pending: list[int] = []
        self.listing: Transcript | None = None
        self.is_done = False
        self.is_alone = False
        self.was_trial = False
        self.doubted: list[ProbeRow] = []
        self.retries = Retries()

    @property
    def skip(self) -> frozenset[int]:
        """Devices that have their verdict, and those tried again once all others have one."""
        known = frozenset(i for i in self.found if i is not None)
        return known | self.retries.waiting if self._has_untried else known

    @property
    def _has_untried(self) -> bool:
        return not self.retries.waiting.issuperset(self.pending)

    def is_worth(self, left_s: float) -> bool:
        """Say whether there is time for what is still to be done."""
        return self._has_untried or self.retries.is_worth(left_s)

    def take(self, transcript: Transcript, *, is_shared: bool) -> None:
        """Judge a transcript; what is bad in a shared child is doubted, and tried alone."""
        outcome = judge(self.candidate, transcript)
        if is_shared and any(row.status not in FOR_SURE for row in outcome.rows):
            self.doubted, self.is_alone = outcome.rows, True
            self.retries.note(outcome.rows)
            return
        died = any(row.status in {"crashed", "timeout"} for row in outcome.rows)
        if died and not self.was_trial and _has_trials():
            # Perhaps of a cache it used for the first time, which is in quarantine from now on.
            self.doubted, self.was_trial = outcome.rows, True
            self.retries.note(outcome.rows)
            return
        count = len(outcome.rows)
        outcome.rows = self.retries.sift(outcome.rows, transcript)
        self._collect(outcome)
        if len(outcome.rows) < count:
            self.listing, self.pending, self.is_alone = transcript, outcome.pending, True
            return
        if None in self.found:  # it died before it listed its devices, perhaps only this time
            self.is_done = True
            return
        self.pending, self.listing = outcome.pending, transcript
        is_over = not outcome.pending or not outcome.rows
        self.is_done = is_over and not self.retries.waiting

    def _collect(self, outcome: Outcome) -> None:
        for row in outcome.rows:
            self.found.setdefault(row.index, row)

    def rows(self, given_s: float) -> list[ProbeRow]:
        """Return its rows; what it never came to has a row that says so."""
        for index, row in self.retries.left_over().items():
            if index not in self.found or is_cut_off(self.found[index]):
                self.found[index] = row
        if self.listing is not None:
            self._collect(unreached(self.candidate, self.listing, self.pending))
        if self.skip:
            self.found.pop(None, None)
        if not self.found or (self.doubted and all(map(is_cut_off, self.found.values()))):
            nothing = Transcript([], 0, Ending("not-started"), "", 0.0, deadline_s=given_s)
            return self.doubted or judge(self.candidate, nothing).rows
        return [row for _, row in sorted(self.found.items(), key=lambda item: item[0] or 0)]


class Driver:
    """The probe of one driver: a child for its levels, and more where one of them failed."""

    def __init__(self, candidates: Sequence[Candidate], folder: Path, race: Race) -> None:
        self._levels = [Level(c) for c in candidates]
        self._folder = folder
        self._race = race

    def rows(self) -> list[list[ProbeRow]]:
        """Return the rows of each candidate."""
        for attempt in range(MAX_ATTEMPTS):
            levels = self._next()
            if not levels or (attempt and self._race.left() < MIN_RETRY_S):
                break
            self._take(levels, self._attempt(attempt, levels))
        return [level.rows(self._race.given_s) for level in self._levels]

    def _next(self) -> list[Level]:
        left = self._race.left()
        waiting = [v for v in self._levels if not v.is_done and v.is_worth(left)]
        return [level for level in waiting if not level.is_alone] or waiting[:1]

    @staticmethod
    def _take(levels: list[Level], transcript: Transcript) -> None:
        cut = parts(transcript, [level.skip for level in levels])
        for i, (level, part) in enumerate(zip(levels, cut, strict=True)):
            if part is not None:
                # What ends a process when results are complete may be the doing of any level.
                late = part.first("done") is not None and not part.is_complete
                open_to_doubt = i > 0 or late or part.ending.how == "stalled"
                level.take(part, is_shared=len(levels) > 1 and open_to_doubt)

    def _attempt(self, attempt: int, levels: list[Level]) -> Transcript:
        race = self._race
        nothing = Transcript([], 0, Ending("not-started"), "", 0.0, deadline_s=race.given_s)
        if not race.turns.acquire(timeout=max(0.0, race.left())):
            return nothing
        folder = self._folder / str(attempt)
        patience = MAX_SILENCE * race.given_s if len(levels) > 1 else None
        turn = Turn(race.turns, folder / "result", patience)
        try:
            if race.left() < MIN_START_S:
                return nothing
            zygote = race.zygote
            tried = self._tried(folder, levels, turn, zygote)
            if tried.ending.how == "unknown" and race.left() > MIN_RETRY_S:
                # What it was forked from is gone, or the application took its exit status: neither
                # says anything about this driver, and the other way to start it knows how it ends.
                other = None if zygote else race.prepare(self._folder.parent)
                tried = self._tried(self._folder / f"{attempt}-again", levels, turn, other)
            return tried
        except (OSError, RuntimeError) as error:
            return replace(nothing, ending=Ending("no-child", 0, str(error)))
        finally:
            turn.give_back()

    def _tried(
        self, folder: Path, levels: list[Level], turn: Turn, zygote: Zygote | None
    ) -> Transcript:
        race, start, token = self._race, time.monotonic(), secrets.token_hex(16)
        folder.mkdir(parents=True, mode=0o700)
        result = turn.result = folder / "result"
        result.touch(mode=0o600)
        child = self._start(self._request(token, result, levels), folder, zygote)
        ending, tail = process.supervise(child, race.ends, race.stop, turn.is_stalled)
        events, junk = read_events(_read(result), token)
        took = time.monotonic() - start
        return Transcript(
            events, junk, ending, tail, took, deadline_s=race.given_s,
            silent_s=turn.silent_s, cpu_s=turn.cpu_s, busy_s=turn.activity.busy_s,
            window_s=turn.activity.window_s, waited_s=turn.activity.waited_s,
        )  # fmt: skip

    def _start(
        self, request: dict[str, Any], folder: Path, zygote: Zygote | None
    ) -> Popen[bytes] | process.Started:
        candidate = self._levels[0].candidate
        forked = zygote and zygote.start(request, candidate.env, folder)
        if forked:
            return forked
        assert self._race.command is not None  # probe_all looked
        request["deadline_s"] = self._race.left()
        data = json.dumps(request).encode() + b"\n"
        return process.spawn(self._race.command, data, child_environment(candidate), folder)

    def _request(self, token: str, result: Path, levels: list[Level]) -> dict[str, Any]:
        return {
            "token": token,
            "result": str(result),
            "deadline_s": self._race.left(),
            "ends": self._race.ends,
            "path": interpreter.absolute(sys.path),
            "candidates": [
                {
                    "backend": level.candidate.backend,
                    "key": level.candidate.key,
                    "fingerprint": level.candidate.fingerprint,
                    "env": dict(level.candidate.env),
                    "skip": sorted(level.skip),
                    "answers": level.retries.answers,
                    "harder": level.retries.harder,
                }
                for level in levels
            ],
        }


def child_environment(candidate: Candidate) -> dict[str, str]:
    """Return the environment of a child: this process's, with what selects the driver."""
    environ = {**interpreter.environment(), **candidate.env}
    environ["PYTHONPATH"] = process.python_path(environ)
    # Settings made in code reach the child too: both must use the same folders.
    # Absolute, because the child has a working folder of its own.
    environ["GPUEDGE_CACHE_DIR"] = os.path.abspath(paths.cache_folder())  # noqa: PTH100
    if config.get("db").value:
        environ["GPUEDGE_DB"] = paths.database_folder()
    environ["GPUEDGE_IGNORE"] = " ".join(config.get("ignore").value)
    if environ.get("GPUEDGE_CONFIG"):
        environ["GPUEDGE_CONFIG"] = os.path.abspath(environ["GPUEDGE_CONFIG"])  # noqa: PTH100
    # numpy's own threads do nothing here but take time to start, on all cores.
    environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return environ


def _has_trials() -> bool:
    """Say whether a process is giving a driver its own compiled pipelines, or just died of it."""
    return any(paths.cache_dir().glob("pipelines/*.trial"))


def _read(path: Path) -> bytes:
    try:
        return paths.read_start(path, MAX_RESULT_BYTES)
    except OSError:
        return b""
