"""Markers: one small file per open device and process, which says what that process is doing.

The file is written and forced to disk before the driver is opened, and again before its first
compilation; after that its state is one byte in mapped memory, which costs a fraction of a
microsecond and survives the process however it ends (the pages belong to the kernel). Whoever comes
later finds the marker, sees by its lock that the process is gone, and reads what it died of
(`dead`).

Who lives is asked of a lock on the marker, not of a process id: the kernel drops the lock with the
process, knows no two processes by one name, and answers for containers that share the folder. A
forked child has the descriptor too and would keep the lock, so it closes its copy at once.
"""

from __future__ import annotations

import os
import time

from gpuedge.core.record import Record
from gpuedge.safety import lock
from gpuedge.safety.store import is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAGIC = b"GEMARK01"
SIZE = 4096
"""Bytes of a marker: one block, so that a byte of it can always be written later."""

STATE, RAN, LATE = 8, 9, 10
"""Offsets: the state; 1 once a run was begun; 1 once `LATE_AFTER` steps were finished."""

_LENGTH, _DIGEST, _TEXT = 12, 16, 48

QUIET = ord("q")
STEPS = {"open": ord("o"), "compile": ord("c"), "run": ord("r"), "close": ord("x")}
"""States in which the end of the process counts as the driver's doing."""

_NAMES = {code: name for name, code in STEPS.items()}

PROCESS = os.urandom(12).hex()
"""This process, as the markers that it leaves name it: process ids are used again."""

LATE_AFTER = 1000
"""Steps after which a process has shown that it gets along with its driver."""

SUFFIX = ".mark"
NEW = ".new-"
MAX_WORDS = 150
"""Characters of a name or a cause that fit into a marker, however they are written in JSON."""

OPEN = os.O_RDWR
"""Flags for opening a marker: never through a link, never inherited, never waiting."""

for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_NOINHERIT"):
    OPEN |= getattr(os, _flag, 0)

_SAFE_TO_MAP = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
"""File systems that write a block in place. Others (btrfs, overlays, network) may need new space
for a block that exists; mapped memory answers a full disk with SIGBUS, a system call with an error.
"""


class Marker(Record):
    """What a marker says. `began` and `when` are seconds since the epoch."""

    id: str
    key: str
    name: str
    began: float
    when: float
    step: str = ""
    has_run: bool = False
    is_late: bool = False
    why: str = ""
    process: str = ""


class Watch:
    """What one open device reports of itself; cheap, and silent where nothing can be written.

    Use it from one thread at a time, as the device. ``step`` before a risky call, ``quiet`` after
    it, ``close`` when the device was closed. That of a device in a worker process (`is_hosted`)
    leaves nothing behind: the end of this process says nothing of a driver that is not in it.
    """

    def __init__(
        self,
        folder: str,
        key: str,
        name: str = "",
        ended: Callable[[Watch], object] | None = None,
        *,
        is_hosted: bool = False,
    ) -> None:
        self._folder, self._key, self._name = folder, key, name[:MAX_WORDS]
        self._ended = ended
        self._is_hosted = is_hosted
        self._was_crash = False
        self._began = time.time()
        # Until there is a file, and in a forked child forever, states go to memory of no one.
        self._cells: Any = bytearray(_TEXT)
        self._fd: int | None = None
        self._map: Any = None
        self._path = ""
        self._seen: set[str] = set()
        self._finished = 0
        self.is_closed = False

    @property
    def path(self) -> str:
        """Where the marker lies; empty while there is none."""
        return self._path

    @property
    def key(self) -> str:
        """The key it was begun with."""
        return self._key

    @property
    def is_clean(self) -> bool:
        """True if it was opened, compiled, ran, and nothing is under way or went wrong."""
        is_used = {"open", "compile", "run"} <= self._seen
        return is_used and not self._was_crash and self._cells[STATE] == QUIET

    def step(self, name: str) -> None:
        """Say that ``open``, ``compile``, ``run`` or ``close`` is about to begin."""
        self._cells[STATE] = STEPS[name]
        if name not in self._seen:
            self._first(name)

    def quiet(self) -> None:
        """Say that nothing is under way in the driver."""
        self._cells[STATE] = QUIET
        self._finished += 1
        if self._finished == LATE_AFTER:
            self._cells[LATE] = 1

    def crashed(self, why: str) -> None:
        """Count an unfinished start although this process lives: the driver's own process died.

        It counts only while something is under way.
        """
        if self._cells[STATE] == QUIET:
            return
        self._was_crash = True
        step = _NAMES.get(self._cells[STATE], "run")
        text = {**self._facts(), "why": why[:MAX_WORDS]}
        made = _written(self._folder, text, STEPS[step], is_late=bool(self._cells[LATE]))
        if made is not None:
            os.close(made[0])  # a marker that nobody holds is an unfinished start
        self.quiet()

    def close(self) -> None:
        """Remove the marker; may be called twice."""
        if self.is_closed:
            return
        self.is_closed = True
        is_clean = self.is_clean
        self._let_go()
        if is_clean and self._ended is not None:
            self._ended(self)

    def _let_go(self) -> None:
        """Write to no file from now on, and leave none behind."""
        fd, self._fd = self._fd, None
        self._cells = bytearray(_TEXT)
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()
        watches.discard(self)
        if fd is None:
            return
        if os.name == "nt":  # an open file cannot be removed there
            os.close(fd)
        remove(self._path)
        if os.name != "nt":
            os.close(fd)

    def _facts(self) -> dict[str, Any]:
        facts = {"key": self._key, "name": self._name, "began": self._began}
        return {**facts, "pid": os.getpid(), "process": PROCESS}

    def _first(self, name: str) -> None:
        """Do what the first step of a kind needs: the file, or that it reaches the disk."""
        if not self._seen and not self.is_closed and not self._is_hosted:
            self._create(STEPS[name])
        if name == "run":
            self._cells[RAN] = 1
        elif self._seen and self._fd is not None:
            if self._map is not None and os.name == "nt":
                _quietly(self._map.flush)  # elsewhere fsync writes mapped bytes too
            _quietly(os.fsync, self._fd)
        self._seen.add(name)

    def _create(self, state: int) -> None:
        made = _written(self._folder, self._facts(), state)
        if made is None:
            return
        self._fd, self._path = made
        self._cells = self._map = _mapped(self._fd)
        watches.add(self)
        if self._map is None and hasattr(os, "pwrite"):
            self._cells = _Cells(self._fd)
        elif self._map is None:  # what cannot say that all is well must not stay
            self._let_go()

    def _forked(self) -> None:
        """Leave the marker to the parent; only the parent's own process is watched by it."""
        fd, self._fd = self._fd, None
        mapped, self._map = self._map, None
        self._cells = bytearray(_TEXT)
        self.is_closed = True
        if mapped is not None:  # it has a descriptor of its own, which would keep the lock as well
            mapped.close()
        if fd is not None:
            _quietly(os.close, fd)


class _Cells:
    """The bytes of a marker through system calls, where its file cannot be mapped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._kept = bytearray(_TEXT)

    def __setitem__(self, at: int, value: int) -> None:
        self._kept[at] = value
        _quietly(os.pwrite, self._fd, bytes((value,)), at)

    def __getitem__(self, at: int) -> int:
        return self._kept[at]


watches: set[Watch] = set()


def _after_fork() -> None:
    global PROCESS  # noqa: PLW0603
    PROCESS = os.urandom(12).hex()
    for watch in watches:
        watch._forked()
    watches.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _mapped(fd: int) -> Any:
    """Return the file as memory, or None where that is impossible or unwise."""
    if hasattr(os, "pwrite") and _kind(os.fstat(fd).st_dev) not in _SAFE_TO_MAP:
        return None
    try:
        import mmap

        return mmap.mmap(fd, SIZE)
    except (ImportError, OSError, ValueError):
        return None


def _kind(device: int) -> str:
    """Return the type of the file system with this device number; empty where unknown."""
    mark = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                fields = line.split()
                if fields[2] == mark:
                    return fields[fields.index("-") + 1]
    except (OSError, IndexError, ValueError):
        pass
    return ""


def _written(
    folder: str, facts: dict[str, Any], state: int, *, is_late: bool = False
) -> tuple[int, str] | None:
    """Write a marker, locked and on disk; return its descriptor and path, None if impossible.

    It gets its name only when it is complete and locked: nobody sees half a marker, or one without
    its owner.
    """
    unique = os.urandom(12).hex()
    path = os.path.join(folder, unique + SUFFIX)
    # An open file cannot be renamed on Windows; there it has its name while it is written.
    temporary = path if os.name == "nt" else os.path.join(folder, NEW + unique)
    fd = None
    try:
        os.makedirs(folder, exist_ok=True)
        fd = os.open(temporary, OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        if not lock.take(fd):
            raise OSError("a new file is locked by another")
        os.lseek(fd, 0, os.SEEK_SET)
        if os.write(fd, packed(facts, state, is_late=is_late)) != SIZE:
            raise OSError("the disk is full")
        os.fsync(fd)
        if temporary != path:
            os.rename(temporary, path)
        _sync_folder(folder)
        return fd, path
    except (OSError, ValueError):
        if fd is not None:
            os.close(fd)
        remove(temporary)
        return None


def packed(facts: dict[str, Any], state: int, *, is_late: bool = False) -> bytes:
    """Return the bytes of a marker; its state lies outside what the SHA-256 covers."""
    import hashlib
    import json

    text = json.dumps(facts).encode()[: SIZE - _TEXT]
    head = MAGIC + bytes((state, 0, is_late, 0)) + len(text).to_bytes(4, "little")
    return (head + hashlib.sha256(text).digest() + text).ljust(SIZE, b"\0")


def unpacked(data: bytes, unique: str, when: float) -> Marker | None:
    """Return what the bytes of a marker say, or None if they are not one."""
    import hashlib
    import json

    if len(data) != SIZE or data[:8] != MAGIC:
        return None
    end = _TEXT + int.from_bytes(data[_LENGTH:_DIGEST], "little")
    text = data[_TEXT:end]
    if end > SIZE or hashlib.sha256(text).digest() != data[_DIGEST:_TEXT]:
        return None
    try:
        facts = json.loads(text)
        texts = [facts[name] for name in ("key", "name")]
        texts += [facts.get(name, "") for name in ("why", "process")]
        began = facts["began"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    if not is_number(began) or not all(isinstance(t, str) for t in texts):
        return None
    key, name, why, process = texts
    return Marker(
        unique, key, name, float(began), when, _NAMES.get(data[STATE], ""),
        data[RAN] == 1, data[LATE] == 1, why, process,
    )  # fmt: skip


def _sync_folder(folder: str) -> None:
    if os.name == "nt":
        return  # folders cannot be opened there; renaming is journalled
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(fd)
    except OSError:  # some file systems cannot; they order names themselves, or not at all
        pass
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove a file if that is possible."""
    _quietly(os.unlink, path)


def _quietly(call: Callable[..., object], *arguments: object) -> None:
    """Call something whose failing changes nothing (contextlib is not on the start path)."""
    try:
        call(*arguments)
    except OSError:
        return


# --- markers of processes that are gone: to be read under the lock of the caches ------------------

STALE_S = 60.0
"""A marker that was not finished by now never will be."""

MAX_LISTED = 1024
MAX_NEW = 64


class Dead:
    """The marker of a process that is gone, held so that no other process counts it as well."""

    def __init__(self, path: str, fd: int, marker: Marker | None) -> None:
        self.path, self._fd = path, fd
        self.marker = marker

    def close(self, *, is_counted: bool) -> None:
        """Let it go, and remove it once it was counted."""
        if is_counted and os.name != "nt":
            remove(self.path)
        os.close(self._fd)
        if is_counted and os.name == "nt":  # an open file cannot be removed there
            remove(self.path)


def listed(folder: str) -> list[str]:
    """Return the names of the markers in a folder, at most `MAX_LISTED` of them."""
    try:
        names = [n for n in os.listdir(folder) if n.endswith(SUFFIX)]
    except OSError:
        return []
    return sorted(names)[:MAX_LISTED]


def dead(folder: str) -> list[Dead]:
    """Return the markers whose process is gone. What is damaged or of another kind has none."""
    own = {watch.path for watch in tuple(watches)}
    found = []
    for name in listed(folder):
        path = os.path.join(folder, name)
        one = None if path in own else _dead(path, name.removesuffix(SUFFIX))
        if one is not None:
            found.append(one)
    return found


def _dead(path: str, unique: str) -> Dead | None:
    try:
        fd = os.open(path, OPEN)
    except OSError:
        return None
    try:
        if lock.take(fd) and os.path.samestat(os.fstat(fd), os.lstat(path)):
            os.lseek(fd, 0, os.SEEK_SET)
            data = os.read(fd, SIZE + 1)
            return Dead(path, fd, unpacked(data, unique, os.fstat(fd).st_mtime))
    except OSError:
        pass
    os.close(fd)
    return None


def sweep_new(folder: str) -> None:
    """Remove markers that were never finished, because their writer was killed."""
    try:
        with os.scandir(folder) as entries:
            new = [e for e in entries if e.name.startswith(NEW)][:MAX_LISTED]
            now = os.stat(folder).st_mtime
            stale = [
                e.path for e in new if abs(now - e.stat().st_mtime) > STALE_S or len(new) > MAX_NEW
            ]
    except OSError:
        return
    for path in stale:
        remove(path)
