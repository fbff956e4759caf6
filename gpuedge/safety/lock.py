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


def wait(fd: int) -> bool:
    """Lock an open file within `WAIT_S`; False where that is impossible, OSError without locks."""
    until = time.monotonic() + WAIT_S
    while not take(fd):
        if time.monotonic() > until:
            return False
        time.sleep(_TICK_S)
    return True


class Lock:
    """The lock of a folder, which is made if needed: ``with Lock(folder) as is_held: ...``.

    `is_held` is False where the work must go on without the lock. Never raises.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = folder
        self._fd: int | None = None

    def __enter__(self) -> bool:
        path = os.path.join(self._folder, FILE)
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._fd = os.open(path, _FLAGS, 0o600)
            return stat.S_ISREG(os.fstat(self._fd).st_mode) and wait(self._fd)
        except (OSError, ValueError):
            return False

    def __exit__(self, *_: object) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            if os.name != "nt":
                import fcntl

                fcntl.flock(fd, fcntl.LOCK_UN)  # children that were forked off have it open, too
        except OSError:  # no locks here
            return
        finally:
            os.close(fd)
