"""The zygote: a process that imported what children need, and is forked once per driver.

Python, numpy and gpuedge take longer to start and import than most drivers take to answer, so that
happens once: this program, with the far end of a socket as its standard input, imports what
`child` needs and no driver, says so, and forks off a child for each request. It watches them with
its own SIGCHLD, whatever the application does with its own, says how each of them ended, and
leaves it uncollected until it is told that nobody will signal it any more. When the socket ends it
kills what is left and goes. It must have one thread only; where something it imported started
another, it gives up, and children are started one by one as elsewhere.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuedge.probing import child

MAX_MESSAGE = 1 << 18
"""Bytes of a message; a larger one is refused by the system where it is sent."""

ORPHAN_S = 2.0
"""How long after the deadline a zygote ends itself if nobody told it to."""

_PDEATHSIG = 1


def main() -> int:
    """Fork off children until told to stop; in a child, do its work. Returns the exit status."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    control = socket.socket(fileno=_move_up(0))
    first = _receive(control)[0]
    if first is None:
        return 0
    # The default action ends the process whatever it is doing; a fork does not inherit the timer.
    signal.setitimer(signal.ITIMER_REAL, float(first["deadline_s"]) + ORPHAN_S)
    _prepare()
    nursery = Nursery(control)
    if not _has_one_thread():
        return 1
    control.send(b'{"ready": true}')
    request = nursery.serve()
    if request is None:
        os._exit(0)  # nothing here is worth the time of tearing an interpreter down
    child.work(request)
    _leave()
    return 0


def _leave() -> None:
    """End this fork as C does: exit handlers of Python and of drivers run, in their order.

    Python would take apart all it ever imported first, and a fork copies every page that it
    touches for that: 20 ms of processor time, and none of it is about a driver, whose devices are
    closed by now. Where Python has threads to wait for, it ends in its own way.
    """
    import threading

    if threading.active_count() > 1:
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()
    ctypes.CDLL(None).exit(0)


def _move_up(fd: int) -> int:
    """Return another name of a descriptor, above the standard ones; /dev/null takes its place."""
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, fd, inheritable=True)
    os.close(null)
    return moved


def _prepare() -> None:
    """Import what a child will need, and compute what all of them would compute."""
    from gpuedge import backends, capdb
    from gpuedge.capdb import database
    from gpuedge.capdb.identity import families
    from gpuedge.probing import kat

    for name in ("gpuedge.executors.gpu", "gpuedge.probing.device"):
        import_module(name)
    for name in backends.PROBED:
        with contextlib.suppress(Exception):  # its children will say what is wrong
            backends.load(name)
    with contextlib.suppress(Exception):
        capdb.load()
        capdb.load_names()
        families.load_families()
        database.load()
    kat.cases()
    gc.collect()
    gc.freeze()  # what lies here already is not to be copied into each child for its counts


def _has_one_thread() -> bool:
    """Say whether this process may be forked: locks of other threads would stay held for ever."""
    import threading

    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return threading.active_count() == 1


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return one message and the descriptors that came with it; None at the end."""
    try:
        data, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE, 4)
    except OSError:
        return None, []
    return (json.loads(data) if data else None), list(fds)


class Nursery:
    """The children of a zygote, by process id; the value is what the application calls each."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._alive: dict[int, int] = {}
        self._ended: set[int] = set()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> dict[str, Any] | None:
        """Do as told until the socket ends; in a child, return its request at once."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN | select.POLLHUP)
        poll.register(self._woken, select.POLLIN)
        while True:
            events = {fd for fd, _ in poll.poll(1000)}
            if self._woken in events:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._look()
            if self._control.fileno() not in events:
                continue
            message, fds = _receive(self._control)
            if message is None:
                self._kill_all()
                return None
            if "collect" in message:
                self._collect(message["collect"])
            elif self._fork(message["start"], fds[0]):
                return self._settle(message, fds[0])

    def _fork(self, name: int, output: int) -> bool:
        """Fork, and return True in the child."""
        pid = os.fork()
        if pid == 0:
            return True
        os.close(output)
        self._alive[pid] = name
        self._say(start=name, pid=pid)
        return False

    def _settle(self, message: dict[str, Any], output: int) -> dict[str, Any]:
        """Make a fork the same as a process started by itself; return its request."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _die_with_parent()
        for fd in (self._control.detach(), self._woken, self._wake):
            os.close(fd)
        os.dup2(output, 1, inheritable=True)
        os.dup2(output, 2, inheritable=True)
        os.close(output)
        os.environ.update(message["environ"])
        os.chdir(message["folder"])
        request: dict[str, Any] = message["request"]
        return request

    def _look(self) -> None:
        for pid, name in list(self._alive.items()):
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                del self._alive[pid]
                self._ended.add(pid)
                is_exit = found.si_code == os.CLD_EXITED
                self._say(end=name, how="exit" if is_exit else "signal", code=found.si_status)

    def _collect(self, pid: int) -> None:
        self._look()
        if pid in self._ended:
            self._ended.discard(pid)
            os.waitpid(pid, 0)

    def _say(self, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # the application is gone, which shows at the next look
            self._control.send(json.dumps(fields).encode())

    def _kill_all(self) -> None:
        for pid in (*self._alive, *self._ended):
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        for pid in self._alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    """Have the system kill this process when the zygote dies, be it before this call."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
