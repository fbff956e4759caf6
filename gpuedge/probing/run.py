"""Probes candidates in parallel child processes under one deadline.

Does not know about the cache or the report's order; `api` does.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpuedge.backends.base import Candidate
from gpuedge.core import config, paths
from gpuedge.probing import process
from gpuedge.probing.judge import Ending, Outcome, Transcript, judge, read_events, unreached
from gpuedge.probing.report import ProbeRow

MAX_RESULT_BYTES = 4 << 20
"""A result file larger than this is a driver's doing; the rest is not read."""

MIN_RETRY_S = 0.3
"""With less time than this left no further child is started: it could not even import numpy."""

MAX_ATTEMPTS = 16
"""Children per candidate: one more for each device that took its child down."""


STALE_S = 3600.0
"""Folders of probes older than this were left by probes that were killed."""

MAX_SWEPT = 64
"""Stale folders removed by one probe: it must begin at once, and the next one goes on."""

_PREFIX = "gpuedge-probe-"
_OURS = re.compile(_PREFIX + r"[a-z0-9_]{8}")
"""What `tempfile.mkdtemp` makes of the prefix."""


def workers(candidates: int) -> int:
    """Return how many children run at once: drivers wait more than they compute."""
    return max(1, min(candidates, 2 * (os.cpu_count() or 1)))


def probe_all(
    candidates: Sequence[Candidate],
    deadline_s: float,
    command: Sequence[str] | None = None,
) -> list[list[ProbeRow]]:
    """Probe every candidate and return its rows, in the order given.

    Parameters
    ----------
    candidates : sequence of Candidate
    deadline_s : float
        Seconds for all of them together; what is not done by then is killed.
    command : sequence of str, optional
        The program of the child process; tests put a misbehaving one here.
    """
    if not candidates:
        return []
    limit = Limit(deadline_s, time.monotonic() + deadline_s)
    stop = threading.Event()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    _sweep(tempfile.gettempdir(), folder.stat().st_mtime)
    command = command or process.COMMAND
    pool = ThreadPoolExecutor(workers(len(candidates)), thread_name_prefix="gpuedge-probe")
    try:
        tasks = [
            pool.submit(_Probe(c, folder / str(i), limit, stop, command).rows)
            for i, c in enumerate(candidates)
        ]
        return [task.result() for task in tasks]
    finally:
        stop.set()  # after an interrupt: children are killed within a tick, not at the deadline
        pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(temporary: str, now: float | None = None) -> None:
    """Remove what killed probes of this user left behind: folders of ours, never through links.

    `now` is the file system's own time, so that a wrong clock of this process harms no live probe.
    """
    now = time.time() if now is None else now
    try:
        with os.scandir(temporary) as entries:
            stale = [e.path for e in entries if _OURS.fullmatch(e.name) and _is_stale(e, now)]
    except OSError:
        return
    for path in stale[:MAX_SWEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _is_stale(entry: os.DirEntry[str], now: float) -> bool:
    try:
        found = entry.stat(follow_symlinks=False)
        is_folder = entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
    is_mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return is_folder and is_mine and now - found.st_mtime > STALE_S


class Limit(NamedTuple):
    """The seconds that were given, and when they are over (`time.monotonic`)."""

    given_s: float
    ends: float


class _Probe:
    """The probe of one candidate: a child, and another past each device that killed the last."""

    def __init__(
        self,
        candidate: Candidate,
        folder: Path,
        limit: Limit,
        stop: threading.Event,
        command: Sequence[str],
    ) -> None:
        self._candidate = candidate
        self._folder = folder
        self._given_s, self._deadline = limit
        self._stop = stop
        self._command = command

    def rows(self) -> list[ProbeRow]:
        """Return this candidate's rows."""
        found: dict[int | None, ProbeRow] = {}
        waiting: list[int] = []
        listing: Transcript | None = None
        for attempt in range(MAX_ATTEMPTS):
            transcript = self._attempt(attempt, frozenset(i for i in found if i is not None))
            outcome = judge(self._candidate, transcript)
            self._collect(found, outcome)
            if None in found:  # it died before it listed its devices, perhaps only this time
                break
            waiting, listing = outcome.pending, transcript
            late = self._deadline - time.monotonic() < MIN_RETRY_S
            if not waiting or not outcome.rows or late:
                break
        if listing is not None:
            self._collect(found, unreached(self._candidate, listing, waiting))
            found.pop(None, None)
        return [row for _, row in sorted(found.items(), key=lambda item: item[0] or 0)]

    @staticmethod
    def _collect(found: dict[int | None, ProbeRow], outcome: Outcome) -> None:
        for row in outcome.rows:
            found.setdefault(row.index, row)

    def _attempt(self, attempt: int, skip: frozenset[int]) -> Transcript:
        return replace(self._tried(attempt, skip), deadline_s=self._given_s)

    def _tried(self, attempt: int, skip: frozenset[int]) -> Transcript:
        start = time.monotonic()
        token = secrets.token_hex(16)
        left = self._deadline - start
        if left <= 0 or self._stop.is_set():
            return Transcript([], 0, Ending("not-started"), "", 0.0, skip)
        try:
            folder = self._folder / str(attempt)
            folder.mkdir(parents=True, mode=0o700)
            result = folder / "result"
            result.touch(mode=0o600)
            child = process.spawn(
                self._command,
                self._request(token, result, left, skip),
                self._environment(),
                folder,
            )
        except OSError as error:
            ending = Ending("exit", -1, str(error))
            return Transcript([], 0, ending, f"the child cannot be started: {error}", 0.0, skip)
        ending, tail = process.supervise(child, self._deadline, self._stop)
        events, junk = read_events(_read(result), token)
        return Transcript(events, junk, ending, tail, time.monotonic() - start, skip)

    def _request(self, token: str, result: Path, left: float, skip: frozenset[int]) -> bytes:
        import sys

        request = {
            "token": token,
            "result": str(result),
            "deadline_s": left,
            "skip": sorted(skip),
            "path": [os.path.abspath(p) for p in sys.path],  # noqa: PTH100
            "candidate": {
                "backend": self._candidate.backend,
                "key": self._candidate.key,
                "fingerprint": self._candidate.fingerprint,
                "env": dict(self._candidate.env),
            },
        }
        return json.dumps(request).encode() + b"\n"

    def _environment(self) -> dict[str, str]:
        environ = {**os.environ, **self._candidate.env}
        environ["PYTHONPATH"] = process.python_path(os.environ)
        # Settings made in code reach the child too: both must use the same folders.
        # Absolute, because the child has a working folder of its own.
        environ["GPUEDGE_CACHE_DIR"] = os.path.abspath(paths.cache_folder())  # noqa: PTH100
        if config.get("db").value:
            environ["GPUEDGE_DB"] = paths.database_folder()
        if environ.get("GPUEDGE_CONFIG"):
            environ["GPUEDGE_CONFIG"] = os.path.abspath(environ["GPUEDGE_CONFIG"])  # noqa: PTH100
        return environ


def _read(path: Path) -> bytes:
    try:
        return paths.read_start(path, MAX_RESULT_BYTES)
    except OSError:
        return b""
