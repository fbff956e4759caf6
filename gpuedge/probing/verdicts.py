"""The verdict store: what earlier probes found, so that the next start touches no driver.

One sealed file, ``<cache folder>/verdicts.json``. A verdict is found by a key over everything that
could change it: the driver's files, the library's own files, the capability database and which of
its entries are ignored, the environment variables drivers listen to, the graphics hardware the
kernel shows, and a limit of the process's address space. Writers merge with what is there under a
lock (`gpuedge.safety.lock`) and replace the file in one step. Where there is no lock to be had a
race can lose a verdict (it is found again) but never tear one.
"""

from __future__ import annotations

import os

from gpuedge.core import config
from gpuedge.core.errors import DatabaseError, InputError
from gpuedge.core.reasons import SENTENCES
from gpuedge.core.record import Record, plain, read_each
from gpuedge.probing.report import ProbeRow
from gpuedge.safety import databases, machine
from gpuedge.safety.store import load_sealed, update_sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from typing import Any

    from gpuedge.core.driver import Candidate

SCHEMA = "gpuedge.verdicts/1"
FILE = "verdicts.json"
MAX_ENTRIES = 64
"""Verdicts kept; the newest win. A machine has a handful, a developer's farm a few dozen."""

DAY = 86400.0
LASTING = 90 * DAY
"""How long a verdict is believed at most: entries that it rests on may come up for review."""

DIED = 7 * DAY
"""How long a crash or hang is believed. Never forever: a driver that crashed once because memory
was short must get another chance."""

BRIEF = 1 * DAY
"""How long "nothing there" and "refused" are believed: what is missing may be installed or plugged
in without any driver file changing."""

UNFINISHED = 600.0
"""How long a verdict is believed for which time or memory was too short: a machine is busy when
much is started at once, and soon after is not."""


def check_database() -> None:
    """Refuse a setting ``db`` that names no database, at the price of a look at one file.

    Its rows are checked before a child is started, not at every start of an application.

    Raises
    ------
    DatabaseError (GE-600)
        The folder holds no ``classes.json``.
    """
    if not config.get("db").value:
        return
    path = os.path.join(databases.database_folder(), "classes.json")
    if not os.path.isfile(path):
        raise DatabaseError(
            "The capability database cannot be used.",
            asked_by=config.SETTINGS["db"].variable,
            known=f"{path} is not there, or no file",
            hint=f"unset {config.SETTINGS['db'].variable}",
        )


UNASKED = frozenset({"fixtures", "left_out", "notes"})
"""Folders of the capability database that only its own tools read."""

ENVELOPE = "database.json"
"""What holds the digests of all entries: where it is, entries cannot change unless it does."""


def _settings() -> list[str]:
    """Return the state of the capability database in use, and the entries that are ignored."""
    marks = [os.path.realpath(databases.database_folder())]
    is_sealed = os.path.isfile(os.path.join(marks[0], ENVELOPE))
    machine.walk(marks[0], "", marks, UNASKED | {"entries"} if is_sealed else UNASKED)
    return [*marks, "ignored", *sorted(set(config.get("ignore").value))]


class Keys:
    """Makes the keys of one probe: the parts all candidates share are gathered once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._variables = machine.driver_environment(environ)
        marks = [machine.library_state(), *_settings(), *machine.hardware()]
        self._shared = [*marks, machine.address_space()]

    def __call__(self, candidate: Candidate) -> str:
        """Return the SHA-256 (hex) of everything that could change this candidate's verdict."""
        import hashlib

        # The candidate sets these itself while it is loaded, whatever they are outside.
        own = candidate.env
        variables = [f"{k}={v}" for k, v in self._variables if k not in own]
        parts = [candidate.backend, candidate.key, candidate.fingerprint]
        parts += [f"{k}={v}" for k, v in sorted(own.items())]
        text = "\0".join([*parts, "", *variables, "", *self._shared])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def lifetime(rows: Collection[ProbeRow]) -> float:
    """Return for how many seconds a candidate's verdict is believed.

    Right and wrong numbers are facts about the driver. Restrictions that apply because a probe
    could not be finished are not, nor is a machine's lack of memory, so they are tried anew.
    """
    statuses = {row.status for row in rows}
    if any(row.is_unfinished or row.is_short_of_memory for row in rows):
        return UNFINISHED
    if {"crashed", "timeout"} & statuses:
        return DIED
    return BRIEF if {"absent", "broken"} & statuses else LASTING


class Verdict(Record):
    """What the file holds of a driver: its rows, when they were found, and within which time."""

    backend: str
    candidate: str
    rows: tuple[Mapping[str, Any], ...]
    when: float
    deadline_s: float


_unsaved: dict[str, dict[str, Verdict]] = {}
"""Verdicts that could not be written, by the path of their file: good for this process."""


class Store:
    """The verdicts on disk, read once, and those of this process; `save` merges and replaces."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = os.fspath(folder)
        self.path = os.path.join(folder, FILE)
        self._entries = _sound(load_sealed(self.path, SCHEMA)) | _unsaved.get(self.path, {})

    def find(self, key: str, deadline_s: float, now: float) -> list[ProbeRow] | None:
        """Return the rows stored under `key`, or None if there are none worth believing.

        A hang says only "not within that deadline", so a longer one asks again; so it does where
        time was too short for something.
        """
        entry = self._entries.get(key)
        rows = [] if entry is None else _rows(entry)
        if entry is None or not rows or not all(row.code in SENTENCES for row in rows):
            return None
        if any(row.is_open for row in rows) and entry.deadline_s < deadline_s:
            return None
        # A clock set back by more than a day makes the age meaningless.
        return rows if -DAY < now - entry.when < lifetime(rows) else None

    def save(
        self,
        judged: Mapping[str, tuple[Candidate, list[ProbeRow]]],
        deadline_s: float,
        now: float,
    ) -> bool:
        """Merge new verdicts, by key, into the file.

        Where it cannot be written they are kept for this process, and False is returned.
        """

        def merged(body: dict[str, Any]) -> dict[str, Any]:
            self._entries = _sound(body) | _unsaved.get(self.path, {})
            for key, (candidate, rows) in judged.items():
                told = tuple(row.to_dict() for row in rows)
                self._entries[key] = Verdict(
                    candidate.backend, candidate.key, told, now, deadline_s
                )
            # Reading what nothing will ask for again costs every start.
            newest = sorted(self._entries.items(), key=lambda e: e[1].when, reverse=True)
            self._entries = dict(newest[:MAX_ENTRIES])
            return {"entries": plain(self._entries)}

        is_saved = update_sealed(self.path, SCHEMA, merged)
        if is_saved:
            _unsaved.pop(self.path, None)
        else:
            own = {key: self._entries[key] for key in judged if key in self._entries}
            _unsaved[self.path] = {**_unsaved.get(self.path, {}), **own}
        return is_saved

    def latest(self, candidate: Candidate) -> list[ProbeRow]:
        """Return the newest rows of a driver, whatever they were found under and however old."""
        here = (candidate.backend, candidate.key)
        own = [e for e in self._entries.values() if (e.backend, e.candidate) == here]
        own.sort(key=lambda e: e.when, reverse=True)
        return next((rows for entry in own if (rows := _rows(entry))), [])


def _rows(entry: Verdict) -> list[ProbeRow]:
    """Return the rows of an entry, none where one of them cannot be used."""
    try:
        return [ProbeRow.from_dict({**row, "is_cached": True}) for row in entry.rows]
    except InputError:
        return []


def _sound(body: Mapping[str, Any] | None) -> dict[str, Verdict]:
    """Return the entries of a file that can be used; a seal proves no author."""
    return read_each(Verdict, (body or {}).get("entries"))
