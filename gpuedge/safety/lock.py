"""A lock between processes that can delay work but never stop it.

Writers of a cache file read what is there, merge and replace the file; this lock keeps two of them
from doing so at once. It is advisory and bounded: where it cannot be had (the folder is read-only,
the file system has no locks, the holder is stopped in a debugger) the caller goes on without, and
the worst that can follow is that what one writer wrote is lost. Files are never torn either way.

The lock is the operating system's (`flock`, on Windows `msvcrt.locking`), so that the death of its
holder releases it, whatever the death was. Process ids cannot say as much.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

FILE = "lock"
"""One lock file serves all caches of a folder: they are written seldom and in milliseconds."""

WAIT_S = 2.0
"""Nobody waits longer than this: a holder needs milliseconds, unless it is stopped."""

_TICK_S = 0.002
_FAR = 1 << 30
"""Offset of the byte that is locked on Windows, where a locked byte cannot be read by others."""

_FLAGS = os.O_RDWR | os.O_CREAT
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", "O_NOINHERIT"):
    _FLAGS |= getattr(os, _flag, 0)

_held: set[int] = set()
"""Descriptors that hold a lock. A forked child closes its copies: they would keep the lock."""


def take(fd: int) -> bool:
    """Lock an open file without waiting; False where another has it, OSError without locks."""
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(fd, _FAR, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


class Lock:
    """The lock of a folder, which is made if needed: ``with Lock(folder) as is_held: ...``.

    `is_held` is False where the work must go on without the lock. Never raises.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._path = os.path.join(folder, FILE)
        self._fd: int | None = None

    def __enter__(self) -> bool:
        try:
            fd = _opened(self._path)
        except (OSError, ValueError):
            return False
        _held.add(fd)
        self._fd = fd
        try:
            is_held = _wait(fd)
        except OSError:  # no locks here
            is_held = False
        if not is_held:
            self._close()
        return is_held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None and fd in _held:  # not in a child that was forked off meanwhile
            _held.discard(fd)
            os.close(fd)  # which releases the lock


def _opened(path: str) -> int:
    try:
        fd = os.open(path, _FLAGS, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, _FLAGS, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a file")
    return fd


def _wait(fd: int) -> bool:
    until = time.monotonic() + WAIT_S
    while not take(fd):
        if time.monotonic() > until:
            return False
        time.sleep(_TICK_S)
    return True


def _after_fork() -> None:
    for fd in _held:
        try:
            os.close(fd)
        except OSError:
            continue
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
