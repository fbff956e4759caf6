"""The crash blocklist: a device that ended two processes is left alone for a while.

A probe runs a driver in a process of its own, the work itself does not (unless isolated). So every
process that opens a device inline keeps a small file, its marker, in ``<cache folder>/crashes``. It
is locked as long as the process lives, and one byte of it says what the driver is doing; that byte
survives the process, however it ends. Whoever later finds a marker that nobody locks reads what the
process died of. If the driver was at work that was a crash, and the marker is renamed and stays as
the record of it. A worker process that dies in a call leaves such a record too.

There is no other file: whether a device is left alone follows from its records (`last_block`). Two
crashes within 30 days block it for 1 day; then one start is let through, and if that ends
unfinished too, it is for 7 and from then on for 30 days. Never forever: only the setting ``pin``
is. Every change is one byte or one rename, so a process may be killed at any time, and two may do
the same work. Where the folder cannot be written nothing is remembered, and nothing is said.
"""

from __future__ import annotations

import json
import os
import time
from hashlib import sha256

from gpuedge.core.reasons import Reason
from gpuedge.core.record import Record
from gpuedge.safety import lock, machine
from gpuedge.safety.store import is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from mmap import mmap
    from typing import Any

    from gpuedge.core.driver import Candidate

FOLDER = "crashes"
"""Where the markers and records lie, in the cache folder."""

MARK, RECORD, NEW = ".mark", ".crash", ".new"
"""Suffixes: of a process that runs or was not looked at yet, of a crash that was counted, and of
what is not finished."""

STALE_S = 60.0
"""What was not finished by now never will be: its writer was killed."""

MAGIC = b"GEMARK02"
SIZE = 4096
"""Bytes of a file: one block, so that a byte of it can always be written later."""

STATE, RAN, LATE, CLEAN = 8, 9, 10, 11
"""Places of single bytes: the state; 1 once a run was begun; 1 once `LATE_AFTER` steps were
finished; in a record the good starts since then."""

_DIGEST, _TEXT = 12, 44
QUIET = ord("q")
STEPS = {"open": ord("o"), "compile": ord("c"), "run": ord("r"), "close": ord("x")}
"""States in which the end of the process counts as the driver's doing."""

_NAMES = {code: name for name, code in STEPS.items()}

PROCESS = os.urandom(12).hex()
"""This process in the names of its files: process ids are used again."""

DAY = 86400.0
CRASHES = 2
WINDOW = 30 * DAY
PATIENCE = (1 * DAY, 7 * DAY, 30 * DAY)
"""How long a device is left alone, by how often it had to be."""

KEPT = 90 * DAY
"""How long the records of a device are kept after its last crash."""

LATE_AFTER = 1000
"""Steps after which a process has shown that it gets along with its driver."""

LATE_WEIGHT = 0.25
"""What the end of such a process counts. A busy server that is killed from outside dies in a run
more often than not."""

GOOD_STARTS = 5
"""Starts that ended well after which crashes that led to no block are forgotten. Those that led to
one need a single good start; for 30 days they still make the next block longer."""

SAFE_TO_MAP = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
MAX_FILES = 256
MAX_WORDS = 150
"""Characters of a name or a cause that fit into a file, however they are written in JSON."""

_OPEN = os.O_RDWR
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_NOINHERIT"):
    _OPEN |= getattr(os, _flag, 0)

WORDS = {
    "open": "while the device was opened",
    "compile": "while kernels were compiled",
    "run": "during a run",
    "close": "while the device was closed",
}


class Crash(Record):
    """What a file says. `began` and `when` are seconds since the epoch."""

    path: str
    key: str
    name: str
    began: float
    when: float
    step: str
    has_run: bool
    weight: float
    clean: int
    why: str

    @property
    def is_forgiven(self) -> bool:
        """Whether good starts have made up for it."""
        return self.clean >= GOOD_STARTS

    @property
    def process(self) -> str:
        """The process that died, or whose worker did."""
        return os.path.basename(self.path).partition("-")[0]


class Block(Record):
    """Why a device is, or was, left alone, and until when (seconds since the epoch)."""

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

    Of the driver, its files, gpuedge's own files and the hardware: a change of any of them is a
    fresh start. Not of the environment: what a driver does to a process is believed whatever
    variables were set.
    """
    parts = [candidate.backend, candidate.key, candidate.fingerprint, str(index)]
    text = "\0".join([*parts, "", machine.library_state(), *machine.hardware()])
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# --- from crashes to a block ----------------------------------------------------------------------


def last_block(crashes: Iterable[Crash]) -> Block | None:
    """Return the last block that a device's crashes led to, None if there was none.

    Its `until` is 0 where a good start has ended it for good.
    """
    level, until, last, count = 0, 0.0, None, 0
    is_on_trial = is_forgiven = False
    before = 0.0
    recent: list[Crash] = []
    for crash in sorted(crashes, key=lambda c: c.when):
        if is_forgiven and not crash.is_forgiven:
            is_on_trial, recent = False, []
            if crash.when - before > WINDOW:
                level, last = 0, None
        before = crash.when
        is_forgiven = crash.is_forgiven
        count += not is_forgiven
        # What began before a block was over is not the try after it: what starts together ends
        # together, and a program that has the device open may go on.
        if is_on_trial and crash.began < until:
            continue
        recent = [c for c in recent if crash.when - c.when < WINDOW] + [crash]
        if sum(c.weight for c in recent) >= (1 if is_on_trial else CRASHES):
            level, is_on_trial = min(level + 1, len(PATIENCE)), True
            until, last, recent = crash.when + PATIENCE[level - 1], crash, []
    if last is None:
        return None
    is_over = is_forgiven or not is_on_trial
    return Block(0.0 if is_over else until, count, level, last.step, last.why)


def blocked(crashes: Iterable[Crash], now: float | None = None) -> Block | None:
    """Return why a device is to be left alone at this time, None if it may be tried."""
    block = last_block(crashes)
    now = time.time() if now is None else now
    return block if block is not None and now < block.until else None


class Blocklist:
    """The markers and crashes of one cache folder. Nothing here raises or waits."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.join(os.fspath(folder), FOLDER)

    def begin(self, key: str, name: str = "", *, is_hosted: bool = False) -> Marker:
        """Return the marker for a device about to be opened; `name` is for people."""
        self.collect()
        return Marker(self, key, name, is_hosted=is_hosted)

    def block(self, key: str, now: float | None = None) -> Block | None:
        """Return why the device is to be left alone at this time, None if it is not."""
        return blocked(self.entries(now).get(key, ()), now)

    def entries(self, now: float | None = None) -> dict[str, list[Crash]]:
        """Return the crashes that are remembered, by the key of the device, oldest first."""
        now = time.time() if now is None else now
        self.collect(now)
        found = []
        for name in self._names(RECORD):
            crash = _read(os.path.join(self.folder, name))
            if crash is None:
                _quietly(os.unlink, os.path.join(self.folder, name))
            else:
                found.append(crash)
        found.sort(key=lambda c: c.when)
        by_key: dict[str, list[Crash]] = {}
        seen: dict[tuple[str, str], float] = {}
        for crash in found[-MAX_FILES:]:
            process = (crash.key, crash.process)
            if crash.when - seen.get(process, -DAY) < DAY:
                _quietly(
                    os.unlink, crash.path
                )  # one counts once a day, however often it restarts a worker
            elif crash.when < now + DAY:  # else the clock was set back: its time means nothing
                by_key.setdefault(crash.key, []).append(crash)
                seen[process] = crash.when
        old = [key for key, crashes in by_key.items() if crashes[-1].when < now - KEPT]
        for crash in [*found[:-MAX_FILES], *(c for key in old for c in by_key.pop(key))]:
            _quietly(os.unlink, crash.path)
        return by_key

    def collect(self, now: float | None = None) -> None:
        """Turn the markers of processes that are gone into records of crashes, or remove them."""
        own = {marker.path for marker in tuple(_markers)}
        for name in self._names(NEW):  # their locks are not asked for: writers need them
            if _is_stale(path := os.path.join(self.folder, name)):
                _quietly(os.unlink, path)
        for name in self._names(MARK):
            path = os.path.join(self.folder, name)
            if path in own or not _is_left(path):
                continue
            end = _read(path)
            if end is None or not end.step:
                if _quietly(os.unlink, path) and end is not None and end.has_run:
                    self.note_good_start(end.key)
                continue
            when = time.time() if now is None else now
            _quietly(os.utime, path, (when, when))
            _quietly(os.rename, path, path.removesuffix(MARK) + RECORD)

    def note_good_start(self, key: str) -> None:
        """Note that a device was opened, compiled, ran and came to a good end.

        One after a block says enough; before one it takes `GOOD_STARTS`, since a driver may crash
        at every second start.
        """
        now = time.time()
        crashes = self.entries(now).get(key, [])
        block = last_block(crashes)
        if block is not None and now < block.until:
            return  # it began before the block
        is_trial = block is not None and block.until > 0
        for crash in crashes:
            if is_trial:
                _count_into(crash, GOOD_STARTS)
            elif crash.clean + 1 == GOOD_STARTS:
                _quietly(os.unlink, crash.path)  # it led to no block
            elif not crash.is_forgiven:
                _count_into(crash, crash.clean + 1)

    def _names(self, suffix: str) -> list[str]:
        try:
            return sorted(n for n in os.listdir(self.folder) if n.endswith(suffix))
        except (OSError, ValueError):
            return []


class Marker:
    """What one open device reports of itself; cheap, and silent where nothing can be written.

    Use it from one thread at a time, as the device: ``step`` before a risky call, ``quiet`` after
    it, ``close`` when the device was closed. That of a device in a worker process (`is_hosted`) has
    no file: the end of this process says nothing of a driver that is not in it.
    """

    def __init__(self, owner: Blocklist, key: str, name: str, *, is_hosted: bool) -> None:
        self._owner, self._is_hosted = owner, is_hosted
        self._key = key
        self._facts = {"key": key, "name": name[:MAX_WORDS], "began": time.time()}
        self._cells = bytearray(_DIGEST)
        self._cells[STATE] = QUIET
        self._fd: int | None = None
        self._map: mmap | None = None
        self.path = ""
        self._seen: set[str] = set()
        self._finished = 0
        self._was_crash = self._is_closed = False

    @property
    def is_clean(self) -> bool:
        """True if it was opened, compiled, ran, and nothing is under way or went wrong."""
        is_used = {"open", "compile", "run"} <= self._seen
        return is_used and not self._was_crash and self._cells[STATE] == QUIET

    def step(self, name: str) -> None:
        """Say that ``open``, ``compile``, ``run`` or ``close`` is about to begin."""
        self._set(STATE, STEPS[name])
        if name not in self._seen:
            self._first(name)

    def quiet(self) -> None:
        """Say that nothing is under way in the driver."""
        self._set(STATE, QUIET)
        self._finished += 1
        if self._finished == LATE_AFTER:
            self._set(LATE, 1)

    def crashed(self, why: str) -> None:
        """Record a crash although this process lives: the driver's own process died.

        It counts only while something is under way.
        """
        if self._cells[STATE] != QUIET:
            self._was_crash = True
            made = _write(
                self._owner.folder, self._facts | {"why": why[:MAX_WORDS]}, self._cells, RECORD
            )
            if made is not None:
                os.close(made[0])
            self.quiet()

    def close(self) -> None:
        """Remove the marker; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._let_go()
        if self.path:
            _quietly(os.unlink, self.path)
        if self.is_clean:
            self._owner.note_good_start(self._key)

    def _set(self, at: int, value: int) -> None:
        self._cells[at] = value
        if self._map is not None:
            self._map[at] = value
        elif self._fd is not None:
            _put(self._fd, at, value)

    def _first(self, name: str) -> None:
        """Do what the first step of a kind needs: the file, or that it reaches the disk."""
        if not self._seen and not self._is_closed and not self._is_hosted:
            made = _write(self._owner.folder, self._facts, self._cells, MARK)
            if made is not None:
                self._fd, self.path = made
                self._map = _mapped(self._fd)
                _markers.add(self)
        if name == "run":
            self._set(RAN, 1)
        elif self._seen and self._fd is not None:
            _quietly(os.fsync, self._fd)  # the whole machine may go down with the driver
        self._seen.add(name)

    def _let_go(self) -> None:
        """Write to the file no more: it is closed, or it is the parent's."""
        fd, self._fd = self._fd, None
        if self._map is not None:  # it has a descriptor of its own, which keeps the lock as well
            self._map.close()
            self._map = None
        _markers.discard(self)
        if fd is not None:
            os.close(fd)

    def forget(self) -> None:
        """Leave the marker to the parent: the lock must go with its process, not with this one."""
        self._let_go()
        self.path, self._is_closed = "", True


_markers: set[Marker] = set()
"""Those of this process that have a file."""


def _after_fork() -> None:
    global PROCESS  # noqa: PLW0603
    PROCESS = os.urandom(12).hex()
    for marker in tuple(_markers):
        marker.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- the files ------------------------------------------------------------------------------------


def _write(
    folder: str, facts: dict[str, Any], cells: bytearray, suffix: str
) -> tuple[int, str] | None:
    """Write a file, locked and on disk; return its descriptor and path, None if impossible.

    It gets its name only when it is complete and locked: nobody sees half a marker, or one without
    its owner. An open file cannot be renamed on Windows; there it has its name while it is written.
    """
    path = os.path.join(folder, f"{PROCESS}-{os.urandom(4).hex()}{suffix}")
    temporary = path if os.name == "nt" else os.path.join(folder, f".{os.path.basename(path)}{NEW}")
    # The single bytes change all the time: they lie outside what the SHA-256 covers.
    text = json.dumps(facts).encode().ljust(SIZE - _TEXT)
    fd = None
    try:
        os.makedirs(folder, exist_ok=True)
        fd = os.open(temporary, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        data = MAGIC + cells[STATE:] + sha256(text).digest() + text
        if not lock.take(fd):
            raise OSError("another process has locked a new file")
        os.lseek(fd, 0, os.SEEK_SET)
        if os.write(fd, data) != SIZE:
            raise OSError("the disk is full")
        os.fsync(fd)
        if temporary != path:
            os.rename(temporary, path)
            place = os.open(folder, os.O_RDONLY)
            _quietly(os.fsync, place)  # some file systems cannot; they order names themselves
            os.close(place)
    except (OSError, ValueError):
        if fd is not None:
            os.close(fd)
            _quietly(os.unlink, temporary)
            _quietly(os.unlink, path)
        return None
    return fd, path


def _read(path: str) -> Crash | None:
    """Return what a file says, None if it is damaged, gone, or of another version."""
    try:
        fd = os.open(path, _OPEN)
        try:
            data, when = os.read(fd, SIZE + 1), os.fstat(fd).st_mtime
        finally:
            os.close(fd)
        if len(data) != SIZE or data[:STATE] != MAGIC:
            return None
        if sha256(data[_TEXT:]).digest() != data[_DIGEST:_TEXT]:
            return None
        facts = json.loads(data[_TEXT:])
        texts = [facts["key"], facts["name"], facts.get("why", "")]
        began = facts["began"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not is_number(began) or not all(isinstance(text, str) for text in texts):
        return None
    key, name, why = texts
    return Crash(
        path, key, name, float(began), when, _NAMES.get(data[STATE], ""), data[RAN] == 1,
        LATE_WEIGHT if data[LATE] == 1 else 1.0, data[CLEAN], why,
    )  # fmt: skip


def _is_stale(path: str) -> bool:
    """Say whether a file was last written long ago."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) > STALE_S
    except OSError:
        return False


def _is_left(path: str) -> bool:
    """Say whether nobody holds the lock of a marker: its process is gone."""
    try:
        fd = os.open(path, _OPEN)
    except OSError:
        return False
    try:
        return lock.take(fd)
    except OSError:
        return False
    finally:
        os.close(fd)


def _mapped(fd: int) -> mmap | None:
    """Return the file as memory, None where that is impossible or unwise.

    A byte costs 0.1 us so, and more than 1 us by a system call. But memory answers a full disk with
    SIGBUS, unless the file system writes a block in place (btrfs, overlays and networks do not).
    """
    from mmap import mmap

    try:
        found = os.fstat(fd).st_dev
        mark = f"{os.major(found)}:{os.minor(found)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            kinds = {x.split(" - ")[1].split()[0] for x in lines if x.split()[2] == mark}
        return mmap(fd, SIZE) if kinds and kinds <= SAFE_TO_MAP else None
    except (OSError, IndexError, ValueError):
        return None


def _put(fd: int, at: int, value: int) -> None:
    """Write one byte into a file, if that is possible."""
    if hasattr(os, "pwrite"):
        _quietly(os.pwrite, fd, bytes((value,)), at)
    else:
        os.lseek(fd, at, os.SEEK_SET)
        _quietly(os.write, fd, bytes((value,)))


def _count_into(crash: Crash, count: int) -> None:
    """Write the number of good starts into a record; its time stays."""
    try:
        fd = os.open(crash.path, _OPEN)
    except OSError:
        return
    _put(fd, CLEAN, count)
    os.close(fd)
    _quietly(os.utime, crash.path, (crash.when, crash.when))


def _quietly(call: Callable[..., object], *arguments: object) -> bool:
    """Call something whose failing changes nothing; say whether it succeeded."""
    try:
        call(*arguments)
    except OSError:
        return False
    return True
