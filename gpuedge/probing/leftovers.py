"""What a probe cannot wait for: processes that were killed and are not gone yet, and files.

SIGKILL takes effect when a process next runs or leaves the kernel: on a loaded machine after the
moment a probe can wait, behind a broken kernel driver much later. Whatever is left here is asked
for by its own id, on a short-lived thread and at the next probe; children of the application are
never touched, nor one that got the id of ours after somebody else had collected it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

PATIENCE_S = 30.0
"""How long the thread looks; after that the next probe does."""

NAPS_S = (0.005, 0.25)
"""Between two looks: at first, and at most."""

_left: dict[int, int | None] = {}
"""Process ids, with a descriptor that means the process for ever where the system has such."""

_lock = threading.Lock()
_threads: list[threading.Thread] = []


def handle(pid: int) -> int | None:
    """Return a descriptor that means this process for ever; ids are given out again."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # an older system, or another one
        return None


def leave(pid: int) -> None:
    """Have a child that was killed collected when it is gone; it must not have been collected."""
    if not hasattr(os, "waitid"):
        return
    with _lock:
        if pid not in _left:
            _left[pid] = handle(pid)
    with suppress(RuntimeError):  # no more threads: the next probe collects it
        behind(_watch, 0.0)


def behind(work: Callable[[], object], seconds: float) -> None:
    """Do something on a thread of its own, and wait so long for it.

    Raises
    ------
    RuntimeError
        There are no more threads, or the interpreter is ending.
    """
    thread = threading.Thread(target=work, name="gpuedge-leftovers", daemon=True)
    thread.start()
    with _lock:
        _threads[:] = [*(t for t in _threads if t.is_alive()), thread]
    thread.join(seconds)


def settle(seconds: float) -> bool:
    """Wait so long until nothing is left to do; say whether that is so."""
    ends = time.monotonic() + seconds
    for thread in list(_threads):
        thread.join(max(0.0, ends - time.monotonic()))
    return not collect() and not any(thread.is_alive() for thread in _threads)


def collect() -> int:
    """Collect what is gone by now, without waiting; return how many are left."""
    with _lock:
        for pid, descriptor in list(_left.items()):
            if _is_gone(pid, descriptor):
                del _left[pid]
                if descriptor is not None:
                    os.close(descriptor)
        return len(_left)


def _is_gone(pid: int, descriptor: int | None) -> bool:
    kind, number = (os.P_PID, pid) if descriptor is None else (os.P_PIDFD, descriptor)
    try:
        return os.waitid(kind, number, os.WEXITED | os.WNOHANG) is not None
    except OSError:  # somebody else collected it, or it was a child of the process before a fork
        return True


def _watch() -> None:
    ends, (nap, longest) = time.monotonic() + PATIENCE_S, NAPS_S
    while collect() and time.monotonic() < ends:
        time.sleep(nap)
        nap = min(2 * nap, longest)


def _forget() -> None:
    """In a fork of the application: these are not its children, and the lock may be held."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _threads.clear()
    for descriptor in _left.values():
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
    _left.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
