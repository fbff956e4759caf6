"""The crash blocklist: a device that ended two processes is left alone for a while.

A probe runs a driver in a process of its own, the work itself does not (unless isolated). So every
process that opens a device inline keeps a small file, its marker, in ``<cache folder>/crashes``. It
is locked as long as the process lives, and one byte of it says what the driver is doing for the
first time: opening, compiling, or running something new. That byte survives the process, however it
ends. Whoever later finds a marker that nobody locks reads what the process died of.

* An end while something was done for the first time counts, whatever it was: a driver that hangs
  there is ended by a kill.
* In service, with what ran before, nothing is written, and only a fatal signal that struck the code
  of the backend counts (`gpuedge.safety.fatal_signal`): a process that is killed, asked to end, or
  loses power says nothing of its driver. A machine that went down counts until the first run.

The marker of a crash is renamed and stays as the record of it. A worker process that dies in a call
leaves such a record too.

There is no other file: whether a device is left alone follows from its records (`last_block`). Two
crashes within 30 days block it for 1 day; then one start is let through, and if that ends
unfinished too, it is for 7 and from then on for 30 days. A good start ends that. Never forever:
only the setting ``pin`` is. Every change is one byte or one rename, so a process may be killed at
any time, and two may do the same work. Where the folder cannot be written nothing is remembered.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from hashlib import sha256

from gpuedge.core.reasons import Reason
from gpuedge.core.record import Record, plain, read
from gpuedge.safety import fatal_signal, lock, machine
from gpuedge.safety.paths import pass_on, read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuedge.core.driver import Candidate

FOLDER = "crashes"
"""Where the markers and records lie, in the cache folder."""

MARK, RECORD, FATAL = ".mark", ".crash", ".fatal"
"""Suffixes: of a process that runs or was not looked at yet, of a crash that was counted, and of
what a fatal signal left behind."""

STALE_S = 60.0
"""What cannot be read after so long was not half written, but damaged."""

MAGIC = b"GEMARK03"
SIZE = 4096
"""Bytes of a file: one block, so that a byte of it can always be written later."""

STATE, RAN, SIGNAL, CLEAN = 8, 9, 10, 11
"""Places of single bytes: the state; 1 once a run was finished; in a record the number of the
fatal signal (in `_SIGNALS`), and the good starts since then."""

_DIGEST, _TEXT = 12, 44
QUIET = ord("q")
STEPS = {"open": ord("o"), "compile": ord("c"), "first": ord("f"), "run": ord("r")}
"""What a driver does, by the byte for it; `run` is what ran before, and stands in records only."""

_NAMES = {code: name for name, code in STEPS.items()}
_SIGNALS = ("", *fatal_signal.SIGNALS.values())

_numbers = itertools.count(1)
PROCESS = os.urandom(12).hex()
"""This process in the names of its files: process ids are used again."""

DAY = 86400.0
CRASHES = 2
WINDOW = 30 * DAY
PATIENCE = (1 * DAY, 7 * DAY, 30 * DAY)
"""How long a device is left alone, by how often it had to be."""

KEPT = 90 * DAY
"""How long the crashes of a device are remembered after its last one."""

GOOD_STARTS = 5
"""Good starts that make up for a crash; after a block one is enough."""

MAX_FILES = 256
MAX_WORDS, MAX_CODE = 120, 900
"""Characters of a name or a cause that fit into a file, however they are written in JSON, and of a
path as it is written there."""

_OPEN = os.O_RDWR
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_NOINHERIT"):
    _OPEN |= getattr(os, _flag, 0)

WORDS = {
    "open": "while the device was opened",
    "compile": "while kernels were compiled",
    "first": "during a first run",
    "run": "in service",
}


def _write_at(fd: int, data: bytes, at: int) -> None:
    os.lseek(fd, at, os.SEEK_SET)
    os.write(fd, data)


_pwrite: Callable[[int, bytes, int], object] = getattr(os, "pwrite", _write_at)  # not on Windows


class MarkerFields(Record):
    """What a file says in JSON, see `Crash`."""

    IS_OPEN = True

    key: str
    name: str
    began: float
    why: str = ""
    boot: str = ""
    code: str = ""


class Crash(Record):
    """What a file says.

    `began` and `when` are seconds since the epoch, `boot` is the start of the system, `code` where
    the code of the backend lies.
    """

    path: str
    key: str
    name: str
    began: float
    when: float
    step: str
    has_run: bool
    clean: int
    why: str
    boot: str
    code: str


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


def surroundings() -> str:
    """Return the state of gpuedge's own files and of the hardware: part of every key.

    It takes a millisecond: every file is looked at.
    """
    return "\0".join([machine.library_state(), *machine.hardware()])


def key_of(candidate: Candidate, index: int, where: str | None = None) -> str:
    """Return the SHA-256 (hex) of what a device is to the blocklist.

    Of the driver, its files, gpuedge's own files and the hardware: a change of any of them is a
    fresh start. Not of the environment: what a driver does to a process is believed whatever
    variables were set. `where` is what `surroundings` returns, for those who need several keys.
    """
    parts = [candidate.backend, candidate.key, candidate.fingerprint, str(index)]
    text = "\0".join([*parts, "", surroundings() if where is None else where])
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# --- from crashes to a block ----------------------------------------------------------------------


def _order(crash: Crash) -> tuple[float, str]:
    """Order crashes by time; those of one process within a tick of the clock by their numbers."""
    return crash.when, crash.path


def last_block(crashes: Iterable[Crash]) -> Block | None:
    """Return the last block that a device's crashes led to, None if there was none."""
    level, until, last, count = 0, 0.0, None, 0
    recent: list[Crash] = []
    for count, crash in enumerate(sorted(crashes, key=_order), 1):  # noqa: B007
        # What began before a block was over is not the try after it: what starts together ends
        # together, and a program that has the device open may go on.
        if crash.began < until:
            continue
        recent = [c for c in recent if crash.when - c.when < WINDOW] + [crash]
        if len(recent) >= (1 if level else CRASHES):
            level = min(level + 1, len(PATIENCE))
            until, last, recent = crash.when + PATIENCE[level - 1], crash, []
    return None if last is None else Block(until, count, level, last.step, last.why)


def blocked(crashes: Iterable[Crash], now: float | None = None) -> Block | None:
    """Return why a device is to be left alone at this time, None if it may be tried."""
    block = last_block(crashes)
    now = time.time() if now is None else now
    return block if block is not None and now < block.until else None


class Blocklist:
    """The markers and crashes of one cache folder. Nothing here raises."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.join(os.fspath(folder), FOLDER)

    def begin(self, key: str, name: str = "", *, code: str = "", is_hosted: bool = False) -> Marker:
        """Return the marker for a device about to be opened; `name` is for people.

        `code` is the file or folder of the backend, see `gpuedge.safety.fatal_signal.struck`.
        """
        self.collect()
        return Marker(self, key, name, code=code, is_hosted=is_hosted)

    def block(self, key: str, now: float | None = None) -> Block | None:
        """Return why the device is to be left alone at this time, None if it is not."""
        return blocked(self.entries(now).get(key, ()), now)

    def entries(self, now: float | None = None) -> dict[str, list[Crash]]:
        """Return the crashes that are remembered, by the key of the device, oldest first.

        One process counts once a day, however often it starts a worker anew.
        """
        now = time.time() if now is None else now
        self.collect(now)
        crashes = sorted(filter(None, map(_read, self._paths(RECORD))), key=_order)
        by_key: dict[str, list[Crash]] = {}
        counted: dict[tuple[str, str], float] = {}
        for left, crash in zip(range(len(crashes), 0, -1), crashes, strict=True):
            process = (crash.key, _process(crash.path))
            is_again = crash.when - counted.get(process, -DAY) < DAY
            if is_again or left > MAX_FILES:
                _quietly(os.unlink, crash.path)
            elif crash.when < now + DAY:  # else the clock was set back: its time means nothing
                by_key.setdefault(crash.key, []).append(crash)
                counted[process] = crash.when
        for key in [key for key, own in by_key.items() if own[-1].when < now - KEPT]:
            for crash in by_key.pop(key):
                _quietly(os.unlink, crash.path)
        return by_key

    def collect(self, now: float | None = None) -> None:
        """Turn the markers of processes that are gone into records of crashes, or remove them."""
        for path in self._paths(MARK):
            end = _read(path)
            if end is None:
                continue
            signal = fatal_signal.struck(_trace(path), end.code)
            # A machine that went down long after the first run went down for other reasons.
            is_power = end.has_run and end.boot != _boot_id()
            if signal and not end.step:
                _mark(path, {SIGNAL: _SIGNALS.index(signal), STATE: STEPS["run"]})
            if signal or (end.step and not is_power):
                when = time.time() if now is None else now
                _quietly(os.utime, path, (when, when))
                _quietly(os.rename, path, path.removesuffix(MARK) + RECORD)
            elif _quietly(os.unlink, path) and end.has_run:
                self.note_good_start(end.key)
        if traces := self._paths(FATAL):
            kept = {_process(path) for path in self._paths(MARK)}
            for path in traces:
                if _process(path) not in kept:
                    _quietly(os.unlink, path)

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
        for crash in crashes:
            if block is not None or crash.clean + 1 >= GOOD_STARTS:
                _quietly(os.unlink, crash.path)
            else:
                _mark(crash.path, {CLEAN: crash.clean + 1})
                _quietly(os.utime, crash.path, (crash.when, crash.when))

    def _paths(self, suffix: str) -> list[str]:
        try:
            names = sorted(n for n in os.listdir(self.folder) if n.endswith(suffix))
        except (OSError, ValueError):
            return []
        return [os.path.join(self.folder, name) for name in names]


class Marker:
    """What one open device reports of itself; cheap, and silent where nothing can be written.

    Use it from one thread at a time, as the device: ``step`` before the driver does something for
    the first time, ``quiet`` after it, ``close`` when the device was closed. That of a device in a
    worker process (`is_hosted`) has no file: the end of this process says nothing of a driver that
    is not in it.
    """

    def __init__(
        self, owner: Blocklist, key: str, name: str, *, code: str = "", is_hosted: bool = False
    ) -> None:
        self._owner, self._key = owner, key
        code = code if len(json.dumps(code)) <= MAX_CODE else ""
        self._facts = MarkerFields(key, name[:MAX_WORDS], time.time(), boot=_boot_id(), code=code)
        self._state = QUIET
        self._fd: int | None = None
        self.path = ""
        self._seen: set[str] = set()
        self._was_crash = self._is_closed = self._has_run = False
        self._has_file = not is_hosted

    @property
    def is_clean(self) -> bool:
        """True if it was opened, compiled, ran, and nothing is under way or went wrong."""
        is_used = {"open", "compile", "first"} <= self._seen
        return is_used and not self._was_crash and self._state == QUIET

    def step(self, name: str) -> None:
        """Say that ``open``, ``compile`` or a ``first`` run is about to begin."""
        self._set(STATE, STEPS[name])
        if not self._seen and self._has_file and not self._is_closed:
            self._make()
        elif name == "compile" and name not in self._seen:
            self._sync()
        self._state = STEPS[name]
        self._seen.add(name)

    def quiet(self) -> None:
        """Say that it is over, and nothing of the kind under way in the driver."""
        before, self._state = self._state, QUIET
        self._set(STATE, QUIET)
        if before == STEPS["first"] and not self._has_run:
            self._has_run = True
            self._set(RAN, 1)
            self._sync()  # from now on a loss of power says nothing

    def crashed(self, why: str, step: str) -> None:
        """Record a crash although this process lives: the driver's own process died in a step."""
        self._was_crash = True
        written = _write(
            self._owner.folder, self._facts.replace(why=why[:MAX_WORDS]), RECORD, STEPS[step]
        )
        if written is not None:
            os.close(written[0])
        self.quiet()

    def close(self) -> None:
        """Remove the marker; may be called twice."""
        if self._is_closed:
            return
        path = self.path
        self.forget()
        if path:
            _quietly(os.unlink, path)
            if not any(other.path for other in _markers):
                _quietly(os.unlink, _beside(path))
        if self.is_clean:
            self._owner.note_good_start(self._key)

    def forget(self) -> None:
        """Write to the file no more. In a fork: the lock must go with the parent, not with it."""
        fd, self._fd = self._fd, None
        self.path, self._is_closed = "", True
        _markers.discard(self)
        if fd is not None:
            os.close(fd)

    def _make(self) -> None:
        written = _write(self._owner.folder, self._facts, MARK, STEPS["open"])
        if written is not None:
            self._fd, self.path = written
            _markers.add(self)
            _quietly(fatal_signal.keep, _beside(self.path))

    def _set(self, at: int, value: int) -> None:
        if self._fd is not None:
            _quietly(_pwrite, self._fd, bytes((value,)), at)

    def _sync(self) -> None:
        """See to it that the file is on the disk: the whole machine may go down with the driver."""
        if self._fd is not None:
            _quietly(os.fsync, self._fd)


_markers: set[Marker] = set()
"""Those of this process that have a file."""


def _after_fork() -> None:
    global PROCESS  # noqa: PLW0603
    PROCESS = os.urandom(12).hex()
    for marker in tuple(_markers):
        marker.forget()
    _quietly(fatal_signal.after_fork)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- the files ------------------------------------------------------------------------------------


def _process(path: str) -> str:
    """Return the process in the name of a file."""
    return os.path.basename(path).partition("-")[0].removesuffix(FATAL)


def _beside(path: str) -> str:
    """Return where a fatal signal leaves its evidence for the marker of a process."""
    return os.path.join(os.path.dirname(path), _process(path) + FATAL)


def _trace(path: str) -> str:
    """Return what a fatal signal left for the marker of a process; nothing is the rule."""
    return (read_regular(_beside(path), fatal_signal.MAX_BYTES) or b"").decode("ascii", "replace")


def _boot_id() -> str:
    """Return what names the start of the system, "" where it is not told (all but Linux)."""
    data = read_regular("/proc/sys/kernel/random/boot_id", 64) or b""
    return data.decode("ascii", "replace").strip()


def _write(folder: str, facts: MarkerFields, suffix: str, state: int) -> tuple[int, str] | None:
    """Write a file, locked and on disk; return its descriptor and path, None if impossible."""
    path = os.path.join(folder, f"{PROCESS}-{next(_numbers):08}{suffix}")
    # The single bytes change all the time: they lie outside what the SHA-256 covers.
    text = json.dumps(plain(facts)).encode().ljust(SIZE - _TEXT)
    fd = None
    try:
        os.makedirs(folder, exist_ok=True)
        fd = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        if not lock.wait(fd):  # somebody may look at it just now
            raise OSError("another process has locked a new file")
        os.lseek(fd, 0, os.SEEK_SET)
        if os.write(fd, MAGIC + bytes((state, 0, 0, 0)) + sha256(text).digest() + text) != SIZE:
            raise OSError("the disk is full")
        os.fsync(fd)
        if os.name != "nt":
            place = os.open(folder, os.O_RDONLY)
            _quietly(os.fsync, place)  # some file systems cannot; they order names themselves
            os.close(place)
    except (OSError, ValueError):
        if fd is not None:
            os.close(fd)
            _quietly(os.unlink, path)
        return None
    return fd, path


def _read(path: str) -> Crash | None:
    """Return what a file says, None if a process has it open, it is damaged, or of another version.

    A marker is read under its lock: nobody sees one without its owner. A record has none, and what
    cannot be read for `STALE_S` is removed.
    """
    try:
        fd = os.open(path, _OPEN)
        try:
            if path.endswith(MARK) and not lock.take(fd):
                return None
            os.lseek(fd, 0, os.SEEK_SET)
            data, when = os.read(fd, SIZE + 1), os.fstat(fd).st_mtime
        finally:
            os.close(fd)
    except OSError as error:
        pass_on(error)
        return None
    try:
        return _parsed(path, data, when)
    except (ValueError, RecursionError):
        if abs(time.time() - when) > STALE_S:
            _quietly(os.unlink, path)
        return None


def _parsed(path: str, data: bytes, when: float) -> Crash:
    """Return what the bytes of a file say. Raises ValueError or RecursionError."""
    is_whole = len(data) == SIZE and data[:STATE] == MAGIC
    if not is_whole or sha256(data[_TEXT:]).digest() != data[_DIGEST:_TEXT]:
        raise ValueError("damaged, or of another version")
    facts = read(MarkerFields, json.loads(data[_TEXT:]))
    return Crash(
        path, facts.key, facts.name, float(facts.began), when, _NAMES.get(data[STATE], ""),
        data[RAN] == 1, data[CLEAN], facts.why or _SIGNALS[data[SIGNAL] % len(_SIGNALS)],
        facts.boot, facts.code,
    )  # fmt: skip


def _mark(path: str, values: dict[int, int]) -> None:
    """Write single bytes into a file, by their places, if that is possible."""
    try:
        fd = os.open(path, _OPEN)
    except OSError:
        return
    for at, value in values.items():
        _quietly(_pwrite, fd, bytes((value,)), at)
    os.close(fd)


def _quietly(call: Callable[..., object], *arguments: object) -> bool:
    """Call something whose failing changes nothing; say whether it succeeded."""
    try:
        call(*arguments)
    except OSError:
        return False
    return True
