"""The application's side of a cold probe: start the launcher, wait for it, read its rows.

Drivers are tried by another process (`gpuedge.probing.launcher`), which starts a child for each of
them. So signals, threads and settings of the application have no part in it, and all of it is gone
at the deadline: the launcher ends its children, this side ends the launcher. They work in one
private folder, which the launcher removes when the application has read its rows or was killed, the
application where the launcher was, and a probe of another day where both were.
"""

from __future__ import annotations

import json
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.core.errors import ConfigError
from gpuedge.probing.judge import without_child
from gpuedge.probing.protocol import ROWS
from gpuedge.probing.report import ProbeRow
from gpuedge.safety import child, interpreter, temporary
from gpuedge.safety.channel import EventReader
from gpuedge.safety.child import Child, Ending

COMMAND: tuple[str, ...] | None = None
"""The program of a driver's child; None: `gpuedge.probing.child`. Tests put a bad one here."""

LATE_S = 0.07
"""How much later than the launcher, which ends everything at the deadline, this side ends it."""

STOP_S = 5.0
"""How long a launcher that is told to stop gets to end its children; on an idle machine it takes
some milliseconds. Children of one that is killed before that would live on until the deadline."""

PREFIX, STALE_S = "gpuedge-probe-", 86_400.0
"""Of the private folders; no probe lasts a day."""


def probe_all(
    candidates: Sequence[Candidate],
    deadline_s: float,
    command: Sequence[str] | None = None,
    *,
    begin: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[int, list[ProbeRow]], object] = lambda at, rows: None,
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
    tell : callable, optional
        Called with a candidate's place when it is begun with (no rows), and as soon as its rows are
        there, but for those that are there at the end.

    Raises
    ------
    DatabaseError (GE-600)
        The capability database cannot be read.
    """
    if not candidates:
        return []
    rows_of: dict[int, list[ProbeRow]] = {}
    request = {
        "token": secrets.token_hex(16),
        "deadline_s": deadline_s,
        "ends": (time.monotonic() if begin is None else begin) + deadline_s,
        "command": command or COMMAND,
        "candidates": [candidate.as_dict() for candidate in candidates],
    }
    program = interpreter.command("gpuedge.probing.launcher")
    if program is None:
        ending = Ending("no-child", 0, interpreter.why_none())
    else:
        try:
            folder = temporary.make_folder(PREFIX)
        except ConfigError as error:
            ending = Ending("no-child", 0, f"{error.known}; {error.hint}")
        else:
            rows_of, ending = _launched_in(folder, program, request, stop, tell)
    return [
        rows_of[i] if i in rows_of else without_child(candidate, ending, deadline_s)
        for i, candidate in enumerate(candidates)
    ]


def _launched_in(
    folder: Path,
    program: Sequence[str],
    request: dict[str, Any],
    stop: Callable[[], bool],
    tell: Callable[[int, list[ProbeRow]], object],
) -> tuple[dict[int, list[ProbeRow]], Ending]:
    """Run a launcher in a private folder, which is removed after that; the same as `_launched`."""
    try:
        _sweep(folder)
        return _launched(program, {**request, "folder": str(folder)}, stop, tell)
    except (OSError, RuntimeError) as error:  # no more processes or descriptors
        return {}, Ending("no-child", 0, str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # without a free descriptor only this works
            folder.rmdir()


def _launched(
    program: Sequence[str],
    request: dict[str, Any],
    stop: Callable[[], bool],
    tell: Callable[[int, list[ProbeRow]], object],
) -> tuple[dict[int, list[ProbeRow]], Ending]:
    """Run a launcher; return rows by candidate, and what became of those without."""
    folder, ends = Path(request["folder"]), request["ends"]
    data = json.dumps(request, default=dict).encode() + b"\n"
    process = Child(program, child.environment(), folder, request=data, output=folder / "output")
    reader = EventReader(folder / "rows", request["token"], ROWS)
    rows_of: dict[int, list[ProbeRow]] = {}
    is_over = False

    def look() -> bool:
        nonlocal is_over
        for event in reader.take():
            is_over = event["event"] == "over"
            if not is_over:
                rows_of[event["at"]] = list(event.get("rows", ()))
                tell(event["at"], rows_of[event["at"]])
        return is_over or stop()

    is_early = True
    try:
        is_early = not process.wait(ends + LATE_S, look) and time.monotonic() < ends
    finally:  # after an interrupt too: that its input ends tells it to end everything
        if is_early and process.stdin is not None:
            process.stdin.close()
        ending = process.end(STOP_S if is_early else 0.0)
    last = reader.take(is_over=True)
    rows_of |= {event["at"]: list(event["rows"]) for event in last if event["event"] == "rows"}
    rows_of = {at: rows for at, rows in rows_of.items() if rows}
    if ending.how == "deadline" or ending == child.CLEAN:
        return rows_of, Ending("deadline")
    if not rows_of:
        load_database()  # which says so where that is what the launcher ended of
    said = process.tail().strip().splitlines()[-1:]
    return rows_of, ending.replace(what="; ".join(filter(None, [ending.what, *said]))[:300])


def load_database() -> None:
    """Load what children need of the capability database. Raises DatabaseError."""
    from gpuedge import capdb
    from gpuedge.capdb import database

    database.load()
    capdb.load()
    capdb.load_names()


def _sweep(own: Path) -> None:
    """Remove folders that killed probes of this user left a day ago or earlier, never a link."""
    mine = own.stat()  # its time is the file system's, which a wrong clock does not move
    for path in own.parent.glob(f"{PREFIX}????????"):
        with suppress(OSError):
            status = path.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == mine.st_uid
            if is_ours and mine.st_mtime - status.st_mtime > STALE_S:
                shutil.rmtree(path, ignore_errors=True)
