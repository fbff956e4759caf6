"""The application's side of a cold probe: start the launcher, wait for it, read its rows.

Drivers are tried by another process (`gpuedge.probing.launcher`), which starts a child for each of
them. So signals, threads and settings of the application have no part in it, and all of it is gone
at the deadline: the launcher ends its children, this side ends the launcher. They work in one
private folder, which the launcher removes where the application is killed. Where both were, a probe
of another day does.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.core.errors import InputError
from gpuedge.probing.judge import without_child
from gpuedge.probing.report import ProbeRow, fits
from gpuedge.safety import child, interpreter, paths
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

STALE_S = 86400.0
"""No probe lasts so long: a folder of that age was left behind."""

MAX_SWEPT = 64
"""Stale folders removed by one probe: it must begin at once, and the next one goes on."""


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
    found: dict[int, list[ProbeRow]] = {}
    program = interpreter.command("gpuedge.probing.launcher")
    if program is None:
        ending = Ending("no-child", 0, interpreter.why_none())
    else:
        try:
            with _folder() as folder:
                request = {
                    "folder": str(folder),
                    "token": secrets.token_hex(16),
                    "deadline_s": deadline_s,
                    "ends": (time.monotonic() if begin is None else begin) + deadline_s,
                    "command": command or COMMAND,
                    "candidates": [candidate.as_dict() for candidate in candidates],
                }
                found, ending = _launched(program, request, stop)
        except (OSError, RuntimeError) as error:  # no temporary folder, no more descriptors
            ending = Ending("no-child", 0, str(error))
    return [
        found[i] if i in found else without_child(candidate, ending, deadline_s)
        for i, candidate in enumerate(candidates)
    ]


def _launched(
    program: Sequence[str], request: dict[str, Any], stop: Callable[[], bool]
) -> tuple[dict[int, list[ProbeRow]], Ending]:
    """Run a launcher; return rows by candidate, and what became of those without."""
    folder, ends = Path(request["folder"]), request["ends"]
    data = json.dumps(request, default=dict).encode() + b"\n"
    one = Child(program, child.environment(), folder, request=data, output=folder / "output")
    is_early = True
    try:
        is_early = not one.wait(ends + LATE_S, stop) and time.monotonic() < ends
    finally:  # after an interrupt too: that its input ends tells it to end everything
        if is_early and one.stdin is not None:
            one.stdin.close()
        ending = one.end(STOP_S if is_early else 0.0)
    found = _read(folder / "rows", request["token"])
    if ending.how == "deadline" or ending == child.CLEAN:
        return found, Ending("deadline")
    if not found:
        load_database()  # which says so where that is what the launcher ended of
    said = one.tail().strip().splitlines()[-1:]
    return found, ending.replace(what="; ".join(filter(None, [ending.what, *said]))[:300])


def load_database() -> None:
    """Load what children need of the capability database. Raises DatabaseError."""
    from gpuedge import capdb
    from gpuedge.capdb import database

    database.load()
    capdb.load()
    capdb.load_names()


def _read(path: Path, token: str) -> dict[int, list[ProbeRow]]:
    """Return the rows that the launcher wrote."""
    found: dict[int, list[ProbeRow]] = {}
    with suppress(OSError):
        for line in paths.read_start(path, MAX_BYTES).split(b"\n"):
            with suppress(ValueError, RecursionError, InputError):
                record = json.loads(line)
                if fits(record, {"at": int, "rows": [dict]}) and record.get("token") == token:
                    found[record["at"]] = [ProbeRow.from_dict(row) for row in record["rows"]]
    return found


@contextmanager
def _folder() -> Iterator[Path]:
    """Make the private folder of a probe; remove it at the end, and stale ones of others before."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        sweep(path.parent, path.stat().st_mtime)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep(temporary: Path, now: float) -> None:
    """Remove what killed probes of this user left behind: folders of ours, never through links.

    `now` is the file system's own time, so that a wrong clock of this process harms no live probe.
    """
    with suppress(OSError), os.scandir(temporary) as entries:
        stale = [e.path for e in entries if OURS.fullmatch(e.name) and _is_stale(e, now)]
        for path in stale[:MAX_SWEPT]:
            shutil.rmtree(path, ignore_errors=True)


def _is_stale(entry: os.DirEntry[str], now: float) -> bool:
    try:
        found = entry.stat(follow_symlinks=False)
        is_mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
        is_folder = entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
    return is_mine and is_folder and abs(now - found.st_mtime) > STALE_S
