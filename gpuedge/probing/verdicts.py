"""The verdict store: what earlier probes found, so that the next start touches no driver.

One sealed file, ``<cache folder>/verdicts.json``. A verdict is found by a key over everything that
could change it: the driver's files, the library's own files, the capability database and which of
its entries are ignored, the environment variables drivers listen to, and the graphics hardware the
kernel shows. Writers merge with what is there under a lock (`gpuedge.safety.lock`) and replace the
file in one step. Where there is no lock to be had a race can lose a verdict (it is found again) but
never tear one.
"""

from __future__ import annotations

import os
import time

from gpuedge.core import config
from gpuedge.core.errors import DatabaseError, InputError
from gpuedge.core.reasons import SENTENCES
from gpuedge.probing.report import ProbeRow, fits
from gpuedge.safety import machine, paths
from gpuedge.safety.store import load_sealed, update_sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path
    from typing import Any

    from gpuedge.core.driver import Candidate

SCHEMA = "gpuedge.verdicts/1"
FILE = "verdicts.json"
MAX_ENTRIES = 64
"""Verdicts kept; the newest win. A machine has a handful, a developer's farm a few dozen."""

MAX_PER_DRIVER = 8
"""Verdicts kept of one driver: of other versions of it or of gpuedge, and in other environments."""

DAY = 86400.0
PATIENCE = (1 * DAY, 7 * DAY, 30 * DAY)
"""How long a crash or hang is believed, by how often it was seen in a row. Never forever: a
driver that crashed once because memory was short must get another chance."""

UNFINISHED = 600.0
"""How long a verdict is believed for which time was too short: a machine is busy when much is
started at once, and soon after is not."""

BRIEF = 1 * DAY
"""How long "nothing there" and "refused" are believed: what is missing may be installed or plugged
in without any driver file changing."""


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
    path = os.path.join(paths.database_folder(), "classes.json")
    if not os.path.isfile(path):
        raise DatabaseError(
            "The capability database cannot be used.",
            asked_by=config.SETTINGS["db"].variable,
            known=f"{path} is not there, or no file",
            hint=f"unset {config.SETTINGS['db'].variable}",
        )


UNASKED = frozenset({"fixtures", "left_out"})
"""Folders of the capability database that only its own tools read."""

ENVELOPE = "database.json"
"""What holds the digests of all entries: where it is, entries cannot change unless it does."""


def database_state() -> str:
    """Return the state of the capability database in use: its folder and its files."""
    marks = [os.path.realpath(paths.database_folder())]
    is_sealed = os.path.isfile(os.path.join(marks[0], ENVELOPE))
    machine.walk(marks[0], "", marks, UNASKED | {"entries"} if is_sealed else UNASKED)
    return "\n".join(marks)


def ignored() -> str:
    """Return the setting ``ignore``, the same text for the same entries in any order."""
    words: tuple[str, ...] = config.get("ignore").value
    return f"ignore={' '.join(sorted(set(words)))}"


class Keys:
    """Makes the keys of one probe: the parts all candidates share are gathered once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._variables = machine.driver_environment(environ)
        self._shared = [machine.library_state(), database_state(), ignored(), *machine.hardware()]

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


def lifetime(statuses: Collection[str], crashes: int, *, is_final: bool = True) -> float:
    """Return for how many seconds a candidate's verdict is believed.

    Right and wrong numbers are believed until a file changes: both are facts about the driver.
    Restrictions that apply because a probe could not be finished are not, so they are tried anew.
    """
    if not is_final:
        return UNFINISHED
    if {"crashed", "timeout"} & set(statuses):
        return PATIENCE[min(max(crashes, 1), len(PATIENCE)) - 1]
    if {"absent", "broken"} & set(statuses):
        return BRIEF
    return float("inf")


class Store:
    """The verdicts on disk, read once; `save` merges and replaces."""

    def __init__(self, folder: str | Path) -> None:
        self.path = os.path.join(folder, FILE)
        self._entries = _sound(load_sealed(self.path, SCHEMA))

    def find(self, key: str, deadline_s: float, now: float) -> list[ProbeRow] | None:
        """Return the rows stored under `key`, or None if there are none worth believing.

        A hang says only "not within that deadline", so a longer one asks again; so it does where
        time was too short for something.
        """
        entry = self._entries.get(key)
        rows = [] if entry is None else _rows(entry)
        if entry is None or not all(row.code in SENTENCES for row in rows):
            return None
        is_unfinished = _is_unfinished(rows)
        is_open = is_unfinished or any(r.status == "timeout" for r in rows)
        if not rows or (is_open and entry["deadline_s"] < deadline_s):
            return None
        age, crashes = now - entry["when"], entry["crashes"]
        believed_s = lifetime({r.status for r in rows}, crashes, is_final=not is_unfinished)
        # A clock set back by more than a day makes the age meaningless.
        is_fresh = -DAY < age < believed_s
        # An entry that the rows rest on may have come up for review since.
        ends = min((row.valid_until for row in rows if row.valid_until), default="")
        is_over = bool(ends) and ends < time.strftime("%Y-%m-%d", time.gmtime(now))
        return rows if is_fresh and not is_over else None

    def save(
        self,
        found: Mapping[str, tuple[Candidate, list[ProbeRow]]],
        deadline_s: float,
        now: float,
    ) -> bool:
        """Merge new verdicts, by key, into the file; False where it cannot be written."""

        def merged(body: dict[str, Any]) -> dict[str, Any]:
            entries = _sound(body)
            for key, (candidate, rows) in found.items():
                entries[key] = {
                    "backend": candidate.backend,
                    "candidate": candidate.key,
                    "rows": [r.to_dict() for r in rows],
                    "when": now,
                    "deadline_s": deadline_s,
                    "crashes": self._crashes(candidate, rows),
                }
            return {"entries": _newest(entries)}

        is_saved = update_sealed(self.path, SCHEMA, merged)
        now_there = (
            load_sealed(self.path, SCHEMA) if is_saved else merged({"entries": self._entries})
        )
        self._entries = _sound(now_there)
        return is_saved

    def latest(self, candidate: Candidate) -> list[ProbeRow]:
        """Return the newest rows of a driver, whatever they were found under and however old."""
        found = sorted(self._of(candidate), key=lambda e: float(e["when"]), reverse=True)
        return next((rows for entry in found if (rows := _rows(entry))), [])

    def _of(self, candidate: Candidate) -> list[dict[str, Any]]:
        here = (candidate.backend, candidate.key)
        return [e for e in self._entries.values() if (e["backend"], e["candidate"]) == here]

    def _crashes(self, candidate: Candidate, rows: list[ProbeRow]) -> int:
        if not any(r.status in {"crashed", "timeout"} for r in rows):
            return 0
        before = [
            e["crashes"]
            for e in self._of(candidate)
            if any(r.get("fingerprint") == candidate.fingerprint for r in e["rows"])
        ]
        if _is_unfinished(rows):  # seen once only, and tried again soon
            return max(before, default=1)
        return 1 + max(before, default=0)


def _rows(entry: dict[str, Any]) -> list[ProbeRow]:
    """Return the rows of an entry, none where one of them cannot be used."""
    try:
        return [ProbeRow.from_dict({**row, "is_cached": True}) for row in entry["rows"]]
    except InputError:
        return []


def _is_unfinished(rows: Iterable[ProbeRow]) -> bool:
    return any(row.evidence.get("is_unfinished") for row in rows)


ENTRY = {
    "backend": str, "candidate": str, "rows": [dict], "when": float, "deadline_s": float,
    "crashes": int,
}  # fmt: skip
"""The shape of an entry, as `save` writes it; a seal proves no author."""


def _sound(body: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the entries of a file that can be used."""
    entries = (body or {}).get("entries")
    found = entries.items() if isinstance(entries, dict) else ()
    return {key: entry for key, entry in found if fits(entry, ENTRY)}


def _newest(entries: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries to keep: reading what nothing will ask for again costs every start."""
    kept: dict[str, dict[str, Any]] = {}
    counts: dict[tuple[str, str], int] = {}
    for key in sorted(entries, key=lambda k: float(entries[k]["when"]), reverse=True):
        driver = (entries[key]["backend"], entries[key]["candidate"])
        counts[driver] = counts.get(driver, 0) + 1
        if counts[driver] <= MAX_PER_DRIVER and len(kept) < MAX_ENTRIES:
            kept[key] = entries[key]
    return kept
