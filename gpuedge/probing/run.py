"""The application's side of a cold probe: start the launcher, wait for it, read its rows.

Drivers are tried by another process (`gpuedge.probing.launcher`), which starts a child for each of
them. So signals, threads and settings of the application have no part in it, and all of it is gone
at the deadline: the launcher ends its children, this side ends the launcher. They work in one
private folder, which the launcher removes where the application is killed, and the next probe
where both were.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.core.errors import InputError
from gpuedge.probing.judge import Transcript, judge, unstartable
from gpuedge.probing.report import ProbeRow
from gpuedge.safety import child, interpreter, lock, paths
from gpuedge.safety.child import Child, Ending

COMMAND: tuple[str, ...] | None = None
"""The program of a driver's child; None: `gpuedge.probing.child`. Tests put a bad one here."""

LATE_S = 0.07
"""How much later than the launcher, which ends everything at the deadline, this side ends it."""

STOP_S = 0.5
"""How long a launcher that is told to stop gets to end its children."""

MAX_BYTES = 16 << 20
"""The rows of one probe are no longer than this."""

PREFIX = "gpuedge-probe-"
OURS = re.compile(PREFIX + r"[a-z0-9_]{8}")
"""What `tempfile.mkdtemp` makes of the prefix."""

MAX_SWEPT = 64
"""Stale folders removed by one probe: it must begin at once, and the next one goes on."""

YOUNG_S = 60.0
"""A folder without a lock belongs to a probe that is about to take it, for so long."""


def probe_all(
    candidates: Sequence[Candidate],
    deadline_s: float,
    command: Sequence[str] | None = None,
    *,
    begin: float | None = None,
    stop: Callable[[], bool] = lambda: False,
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
    stop : callable, optional
        Asked now and then whether to give up earlier.

    Raises
    ------
    DatabaseError (GE-600)
        The capability database cannot be read.
    """
    if not candidates:
        return []
    program = interpreter.command("gpuedge.probing.launcher")
    if program is None:
        return [unstartable(c, interpreter.why_none()) for c in candidates]
    ends = (time.monotonic() if begin is None else begin) + deadline_s
    try:
        with _Folder() as folder:
            request = _request(folder, candidates, deadline_s, ends, command or COMMAND)
            found, why = _launched(program, request, ends, stop)
    except (
        OSError,
        RuntimeError,
    ) as error:  # no temporary folder, no more descriptors
        return [unstartable(c, str(error)) for c in candidates]
    return [
        found[i] if i in found else _missing(candidate, deadline_s, why)
        for i, candidate in enumerate(candidates)
    ]


def _request(
    folder: Path,
    candidates: Sequence[Candidate],
    deadline_s: float,
    ends: float,
    command: Sequence[str] | None,
) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "token": secrets.token_hex(16),
        "deadline_s": deadline_s,
        "left_s": ends - time.monotonic(),
        "ends": ends,
        "command": None if command is None else list(command),
        "candidates": [candidate.as_dict() for candidate in candidates],
    }


def _launched(
    program: Sequence[str], request: dict[str, Any], ends: float, stop: Callable[[], bool]
) -> tuple[dict[int, list[ProbeRow]], Ending | None]:
    """Run a launcher; return rows by candidate, and how it ended if it failed."""
    folder = Path(request["folder"])
    rows = folder / "rows"
    data = json.dumps(request, default=dict).encode() + b"\n"
    one = Child(program, child.environment(), folder, request=data, output=folder / "output")
    is_early = True
    try:
        is_early = not one.wait(ends + LATE_S, stop) and time.monotonic() < ends
    finally:  # after an interrupt too: that its input ends tells it to end everything
        if is_early and one.stdin is not None:
            one.stdin.close()
        ending = one.end(STOP_S if is_early else 0.0)
    found, is_refused = _read(rows, request["token"])
    if is_refused:
        load_database()  # which says what is wrong with it
    has_failed = ending.how != "deadline" and ending != child.CLEAN
    said = one.tail().strip().splitlines()[-1:]
    if has_failed and said:
        ending = ending.replace(what="; ".join([*filter(None, [ending.what]), said[0][:200]]))
    return found, ending if has_failed else None


def load_database() -> None:
    """Load what children need of the capability database. Raises DatabaseError."""
    from gpuedge import capdb
    from gpuedge.capdb import database

    database.load()
    capdb.load()
    capdb.load_names()


def _read(path: Path, token: str) -> tuple[dict[int, list[ProbeRow]], bool]:
    """Return the rows that the launcher wrote, and whether it could not read the database."""
    found: dict[int, list[ProbeRow]] = {}
    is_refused = False
    try:
        lines = paths.read_start(path, MAX_BYTES).split(b"\n")
    except OSError:
        return {}, False
    for line in lines:
        with suppress(ValueError, RecursionError, InputError, TypeError, AttributeError):
            record = json.loads(line)
            if record.get("token") != token:
                continue
            is_refused |= record.get("event") == "no-database"
            if type(record.get("at")) is int:
                found[record["at"]] = [ProbeRow.from_dict(row) for row in record["rows"]]
    return found, is_refused


def _missing(candidate: Candidate, deadline_s: float, why: Ending | None) -> list[ProbeRow]:
    """Return the row of a candidate that the launcher said nothing of."""
    ending = Ending("deadline") if why is None else why
    nothing = Transcript([], 0, ending, "", 0.0, deadline_s=deadline_s)
    return judge(candidate, nothing).rows


class _Folder:
    """The private folder of a probe; it is removed at the end, stale ones of others before."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self._path / lock.FILE, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):  # no locks here: a probe that lasts longer than `YOUNG_S` is swept
            lock.take(self._lock)
        sweep(self._path.parent, self._path.stat().st_mtime)
        return self._path

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)
        shutil.rmtree(self._path, ignore_errors=True)


def sweep(temporary: Path, now: float) -> None:
    """Remove what killed probes of this user left behind: folders of ours, never through links.

    `now` is the file system's own time, so that a wrong clock of this process harms no live probe.
    """
    try:
        with os.scandir(temporary) as entries:
            stale = [e.path for e in entries if OURS.fullmatch(e.name) and _is_stale(e, now)]
    except OSError:
        return
    for path in stale[:MAX_SWEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _is_stale(entry: os.DirEntry[str], now: float) -> bool:
    """Say whether nobody holds the lock of a folder, which ends with the probe's process."""
    try:
        found = entry.stat(follow_symlinks=False)
        is_mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
        if not is_mine or not entry.is_dir(follow_symlinks=False):
            return False
        if abs(now - found.st_mtime) < YOUNG_S and not Path(entry.path, lock.FILE).exists():
            return False
        fd = os.open(Path(entry.path, lock.FILE), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return lock.take(fd)
    except OSError:  # no locks here
        return abs(now - found.st_mtime) > YOUNG_S
    finally:
        os.close(fd)
