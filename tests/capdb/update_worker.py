"""Does a step of updating again and again, killed one step further each time.

Usage: update_worker.py ACTION FOLDER, in a folder that a test prepared. For every moment at which
the action changes something on disk, a forked process is killed by SIGKILL right there; another
then says which database an application would use, and a third does the action again. Prints one
JSON line per kill.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from capdb import signing

from gpuedge.capdb import place
from gpuedge.capdb.updates import update
from gpuedge.safety import paths

HALF = "half"
"""Cut the file in two before the kill, as a machine may that loses its power."""

CHANGES = {
    "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
    "os.truncate", "shutil.rmtree", "tempfile.mkdtemp", "tempfile.mkstemp",
}  # fmt: skip
"""Events that come before a change; opening a file to write is one more."""


class Killer:
    """Ends this process at its `nth` change below a folder."""

    def __init__(self, folder: Path, nth: int, how: str) -> None:
        self._prefix = str(folder) + os.sep
        self._left = nth
        self._how = how
        fsync = os.fsync

        def synced(fd: int) -> None:
            self._count("os.fsync", fd if how == HALF else None)
            fsync(fd)

        os.fsync = synced
        if how != HALF:
            sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._opened(*arguments)
        elif event in CHANGES and any(self._is_ours(path) for path in arguments):
            self._count(event)

    def _opened(self, path: object, mode: str | None, flags: int) -> None:
        is_read = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) == 0
        if not self._is_ours(path) or (is_read and not set(mode or "") & set("wax+")):
            return
        self._count("open")
        if self._left == 1:  # the next moment: it is open, so it may be empty, and nothing is in it
            self._left = 1 << 30  # not to be heard of here
            with suppress(IsADirectoryError):  # named by `tempfile` for what it opens in it next
                os.close(os.open(str(path), flags, 0o600))
            self._left = 1
        self._count("opened")

    def _is_ours(self, path: object) -> bool:
        return isinstance(path, (str, Path)) and str(path).startswith(self._prefix)

    def _count(self, event: str, fd: int | None = None) -> None:
        self._left -= 1
        if self._left == 0:
            if fd is not None and stat.S_ISREG(os.fstat(fd).st_mode):
                os.ftruncate(fd, os.fstat(fd).st_size // 2)
            os.write(2, f"{event}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


def forked(work: Callable[[], object]) -> tuple[int, Any]:
    """Do something in a process of its own; return its exit status and its answer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            os.write(writing, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, json.loads(text) if text else None


def used() -> dict[str, Any]:
    """Say which database is in use, having read all of its files from the disk."""
    from gpuedge.capdb.check import check_folder
    from gpuedge.capdb.database import load

    folder = place.folder()
    made = load(folder)
    return {"version": made.version, "digest": check_folder(folder).digest}


Action = tuple[Path, Callable[[], object], Callable[[], Any]]


def actions(folder: Path) -> dict[str, Action]:
    """Return by name which folder an action changes, the action, and how to look at what it did."""
    mirror, keys, cache = folder / "mirror", folder / "keys", folder / "cache"

    def updated() -> str:
        return update.update(mirror, root=folder / "trusted.json").code

    def published() -> Any:
        return signing.publish(folder / "next", mirror, keys).db_version

    def looked() -> dict[str, Any]:
        restore(cache)
        return {"code": updated(), **used()}

    return {
        "update": (cache, updated, used),
        "rollback": (cache, lambda: update.rollback().code, used),
        "publish": (mirror, published, looked),
    }


def restore(folder: Path) -> None:
    """Make a folder again what it was before."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder.with_name(f"{folder.name}.before"), folder, symlinks=True)


def killed(changed: Path, act: Callable[[], object], nth: int, how: str) -> int:
    """Restore what the action changes, and do it until its `nth` change; return the exit status."""
    restore(changed)

    def work() -> object:
        Killer(changed, nth, how)
        return act()

    return forked(work)[0]


def main(action: str, how: str, step: int, folder: Path) -> None:
    packaged, real = str(folder / "packaged"), paths.data_folder
    paths.data_folder = lambda name: packaged if name == "capability_db" else real(name)
    os.environ["GPUEDGE_CACHE_DIR"] = str(folder / "cache")
    import tuf.api.metadata
    import tuf.ngclient  # noqa: F401

    changed, act, look = actions(folder)[action]
    nth, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        nth += step
        status = killed(changed, act, nth, how)
        seen = forked(look)[1]
        again = forked(act)[1]
        print(json.dumps({"status": status, "seen": seen, "again": again, "then": forked(look)[1]}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
