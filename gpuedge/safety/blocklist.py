"""The crash blocklist: a device that ended two processes is left alone for a while.

A probe runs a driver in a process of its own, the work itself does not (unless isolated). So every
process that opens a device inline leaves a marker (`gpuedge.safety.markers`) of what it is doing.
A marker whose process is gone while the driver was at work is an *unfinished start*, and counts as
a crash; so does the death of a worker in a call. A process counts once a day, however often it
restarts a worker. Two crashes within 30 days block the device: for 1 day at first, then one start
is let through, and if that ends unfinished too, for 7 and from then on for 30 days. Never forever:
only the setting ``pin`` is.

The list is kept in ``<cache folder>/crashes.json`` by a key over the driver, its files, the device,
gpuedge's own files and the hardware, so that a change of any of them is a fresh start. All of it is
silent where the folder cannot be written: then nothing is remembered.
"""

from __future__ import annotations

import os
import time

from gpuedge.core.reasons import Reason
from gpuedge.core.record import Record
from gpuedge.safety import machine, markers
from gpuedge.safety.lock import Lock
from gpuedge.safety.markers import Watch
from gpuedge.safety.store import is_number, load_sealed, save_sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gpuedge.core.driver import Candidate
    from gpuedge.safety.markers import Marker

FILE = "crashes.json"
FOLDER = "crashes"
"""Where the list and the markers lie, in the cache folder."""

SCHEMA = "gpuedge.crashes/2"
DAY = 86400.0
CRASHES = 2
WINDOW = 30 * DAY
PATIENCE = (1 * DAY, 7 * DAY, 30 * DAY)
"""How long a device is left alone, by how often it had to be."""

LATE_WEIGHT = 0.25
"""What the end of a process counts that had long got along with its driver. A busy server that is
killed from outside dies in a run more often than not, and a start it was not."""

CLEAN = 5
"""Starts that ended well after which crashes that led to no block are forgotten."""

MAX_ENTRIES = 64
MAX_CRASHES = 16

WORDS = {
    "open": "while the device was opened",
    "compile": "while kernels were compiled",
    "run": "during a run",
    "close": "while the device was closed",
}


class Block(Record):
    """Why a device is left alone, and until when (seconds since the epoch)."""

    until: float
    crashes: int
    level: int
    step: str
    why: str = ""

    @property
    def reason(self) -> Reason:
        """The reason that a row of the probe report shows."""
        starts = f"{self.crashes} unfinished start" + ("" if self.crashes == 1 else "s")
        how = WORDS.get(self.step, "in the driver") + (f" ({self.why})" if self.why else "")
        detail = f"{starts}, the last {how}; tried again after {date(self.until)}"
        return Reason("crash-blocklist", detail)


def date(when: float) -> str:
    """Return a time for people, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(when))


def key_of(candidate: Candidate, index: int) -> str:
    """Return the SHA-256 (hex) of what a device is to the blocklist.

    Not of the environment: what a driver does to a process is believed whatever variables were set.
    """
    import hashlib

    parts = [candidate.backend, candidate.key, candidate.fingerprint, str(index)]
    text = "\0".join([*parts, "", machine.library_state(), *machine.hardware()])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Blocklist:
    """The crashes and blocks kept in one cache folder. Nothing here raises or waits for long.

    Parameters
    ----------
    folder : path
        The cache folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self.markers = os.path.join(self._folder, FOLDER)
        self.path = os.path.join(self._folder, FILE)
        self._entries: dict[str, dict[str, Any]] | None = None

    def begin(self, key: str, name: str = "", *, is_hosted: bool = False) -> Watch:
        """Return the watch for a device about to be opened; `name` is for people."""
        self.collect()
        return Watch(self.markers, key, name, self._ended, is_hosted=is_hosted)

    def block(self, key: str, now: float | None = None) -> Block | None:
        """Return why the device is to be left alone at this time, None if it is not."""
        self.collect()
        entry = self._known().get(key)
        return None if entry is None else blocked(entry, time.time() if now is None else now)

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return what is remembered, by key."""
        self.collect()
        return dict(self._known())

    def clear(self) -> bool:
        """Forget all crashes, and markers of processes that are gone; False if impossible."""
        with Lock(self._folder):
            for one in markers.dead(self.markers):
                one.close(is_counted=True)
            self._entries = None
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            return True

    def collect(self, now: float | None = None) -> None:
        """Count the unfinished starts of processes that are gone.

        Under the lock only: without it a crash could be lost, and a marker that stays can be
        counted by the next process. A marker is removed after its crash is on disk; one that was
        counted by a process that was then killed is known by its id and not counted twice.
        """
        if not markers.listed(self.markers):
            return
        with Lock(self._folder) as is_held:
            if not is_held:
                return
            markers.sweep_new(self.markers)
            found = markers.dead(self.markers)
            is_saved = not found or self._count([d.marker for d in found], now)
            for one in found:
                one.close(is_counted=is_saved)

    def _count(self, found: Sequence[Marker | None], now: float | None) -> bool:
        now = time.time() if now is None else now
        entries = self._load()
        before = dict(entries)
        for marker in sorted((m for m in found if m is not None), key=lambda m: m.when):
            if marker.step:
                entries[marker.key] = crashed(entries.get(marker.key), marker, now)
            elif marker.has_run and marker.key in entries:
                entries[marker.key] = cleaned(entries[marker.key], now)
        return entries == before or self._save(entries)

    def _ended(self, watch: Watch) -> None:
        """Note that a device opened, compiled, ran and was closed."""
        if not os.path.exists(self.path):
            return
        with Lock(self._folder) as is_held:
            entries = self._load()
            old = entries.get(watch.key)
            if is_held and old is not None and (new := cleaned(old, time.time())) != old:
                self._save({**entries, watch.key: new})

    def _known(self) -> dict[str, dict[str, Any]]:
        if self._entries is None:
            self._entries = self._load()
        return self._entries

    def _load(self) -> dict[str, dict[str, Any]]:
        entries = (load_sealed(self.path, SCHEMA) or {}).get("entries")
        found = entries.items() if isinstance(entries, dict) else ()
        return {key: entry for key, entry in found if _is_sound(entry)}

    def _save(self, entries: dict[str, dict[str, Any]]) -> bool:
        entries = {k: e for k, e in entries.items() if e["crashes"] or e["level"]}
        newest = sorted(entries, key=lambda k: float(entries[k]["when"]), reverse=True)
        self._entries = {key: entries[key] for key in newest[:MAX_ENTRIES]}
        return save_sealed(self.path, SCHEMA, {"entries": self._entries})


# --- what is remembered of one device ------------------------------------------------------------


def crashed(entry: dict[str, Any] | None, marker: Marker, now: float) -> dict[str, Any]:
    """Return the entry after one more unfinished start, noticed `now`."""
    entry = {"level": 0, "since": 0.0, "cleared": None, "crashes": [], **(entry or {})}
    crashes = [s for s in entry["crashes"] if abs(now - s["when"]) < WINDOW]
    # A clock that was set back since makes a time in the future: it was some time before now.
    when = min(marker.when, now)
    if any(_is_counted(s, marker, when) for s in entry["crashes"]):
        return entry
    crash = {"id": marker.id, "when": when, "step": marker.step, "why": marker.why}
    crash["weight"] = LATE_WEIGHT if marker.is_late else 1.0
    crash["process"] = marker.process
    if now - when < WINDOW:
        crashes.append(crash)
    entry |= {"crashes": crashes[-MAX_CRASHES:], "name": marker.name, "when": now, "clean": 0}
    cleared, since = entry["cleared"], entry["since"]
    if cleared is not None and abs(now - cleared) > WINDOW:
        entry |= {"level": 0, "cleared": None}
    if entry["cleared"] is None and since - DAY >= now:
        entry["cleared"] = now  # a block from the future is void, see `blocked`
    is_probation = entry["level"] > 0 and entry["cleared"] is None
    until = since + _patience(entry["level"]) if is_probation else 0.0
    # What began before the block was over is not a try after it. What started together ends
    # together, and a program that has the device open may go on: that is paid for.
    is_old = is_probation and marker.began < until
    needed = 1 if is_probation else CRASHES
    weights = [s["weight"] for s in crashes if s["when"] >= until]
    if weights and not is_old and sum(weights) >= needed:
        level = min(entry["level"] + 1, len(PATIENCE))
        entry |= {"level": level, "since": now, "cleared": None}
    return entry


def _is_counted(crash: dict[str, Any], marker: Marker, when: float) -> bool:
    """Say whether a marker is one that was counted, or of a process that has had its crash."""
    is_same = bool(marker.process) and crash.get("process") == marker.process
    return bool(crash["id"] == marker.id or (is_same and abs(when - crash["when"]) < DAY))


def _patience(level: int) -> float:
    return PATIENCE[min(level, len(PATIENCE)) - 1]


def cleaned(entry: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the entry after a start that opened, compiled, ran and ended well.

    One on probation says enough; before a block it takes `CLEAN` of them, since a driver may crash
    at every second start. The level is kept for 30 days, so that a device that fails now and then
    is left alone longer each time.
    """
    if blocked(entry, now) is not None:
        return entry
    if entry["level"] > 0 and entry["cleared"] is None:
        return {**entry, "crashes": [], "cleared": now, "when": now}
    if not entry["crashes"]:
        return entry
    clean = entry.get("clean", 0) + 1
    return {**entry, "clean": clean} if clean < CLEAN else {**entry, "crashes": [], "clean": 0}


def blocked(entry: dict[str, Any], now: float) -> Block | None:
    """Return the block that an entry means at this time, None if the device may be tried."""
    level = min(entry["level"], len(PATIENCE))
    if level < 1 or entry["cleared"] is not None:
        return None
    since = float(entry["since"])
    until = since + _patience(level)
    # A clock set back by more than a day says nothing any more; one set forward ends the block.
    if not since - DAY < now < until:
        return None
    last = entry["crashes"][-1] if entry["crashes"] else {"step": "", "why": ""}
    return Block(until, len(entry["crashes"]), level, last["step"], last["why"])


def _is_sound(entry: object) -> bool:
    """Say whether an entry has the fields that `crashed` gives it; a seal proves no author."""
    if not isinstance(entry, dict) or not isinstance(crashes := entry.get("crashes"), list):
        return False
    cleared = entry.get("cleared")
    clean = entry.get("clean", 0)
    return (
        type(clean) is int
        and clean >= 0
        and all(is_number(entry.get(name)) for name in ("since", "when"))
        and type(entry.get("level")) is int
        and entry["level"] >= 0
        and isinstance(entry.get("name"), str)
        and (cleared is None or is_number(cleared))
        and all(map(_is_crash, crashes))
    )


def _is_crash(crash: object) -> bool:
    return (
        isinstance(crash, dict)
        and all(isinstance(crash.get(name), str) for name in ("id", "step", "why"))
        and isinstance(crash.get("process", ""), str)
        and all(is_number(crash.get(name)) for name in ("when", "weight"))
    )
