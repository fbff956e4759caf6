"""The application's side of a zygote: starts it, asks it for children, hears how they ended.

Where anything about it fails, `Zygote.start` answers None and goes on doing so, and the caller
starts its children one by one. Only on Linux: elsewhere forking a process that imported much is
not safe, or not possible.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuedge.probing import leftovers, process
from gpuedge.probing.judge import Ending

MAX_MESSAGE = 1 << 16
PATIENCE = 0.4
"""Share of the deadline that a zygote gets to be ready; after that children are started alone."""

GRANT_S = 0.25
"""One that is still computing then gets so long again: another process would be no faster."""

MAX_CPU_S = 3.0
"""Processor time after which one that is not ready never will be."""

ANSWER_S = 1.0
"""A zygote that takes longer to fork is not to be waited for."""

OWN_START = ("LD_", "DYLD_", "GLIBC_", "MALLOC_", "PYTHON")
"""Variables that a process reads when it starts: a fork would not notice them."""


def is_possible() -> bool:
    """Say whether children can be forked off a zygote on this system."""
    return sys.platform == "linux" and hasattr(socket, "send_fds") and hasattr(os, "waitid")


class Zygote:
    """A running zygote. Its methods may be called from several threads.

    Parameters
    ----------
    command : sequence of str
        What starts it.
    environ : mapping
        The environment of its children; `start` may add to it.
    folder : Path
        A private folder, current while it starts.
    ends : float
        When all is over, on the clock of `time.monotonic`.
    stop : Event
        Set when all is over earlier.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        ends: float,
        stop: threading.Event,
    ) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._names = 0
        self._pids: dict[int, int] = {}
        self._ended: dict[int, Ending] = {}
        self._is_ready = False
        self._cpu = 0.0
        self._ends = ends
        self.is_usable = True
        left = max(0.0, ends - time.monotonic())
        self._until = time.monotonic() + PATIENCE * left
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._control.setblocking(False)
            self._control.send(json.dumps({"deadline_s": left}).encode())
            self._own = subprocess.Popen(
                command, stdin=far.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=dict(environ), cwd=folder, close_fds=True, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._control.close()
            raise
        finally:
            far.close()
        self._handle = leftovers.handle(self._own.pid)

    def start(
        self, request: Mapping[str, Any], changes: Mapping[str, str], folder: Path
    ) -> Forked | None:
        """Fork off a child for a request, None where that cannot be had.

        Parameters
        ----------
        request : mapping
            What `child.work` takes.
        changes : mapping
            Variables of this child's environment.
        folder : Path
            Its current folder.
        """
        if any(name.startswith(OWN_START) for name in changes) or not self._wait_ready():
            return None
        reading, writing = os.pipe()
        try:
            with self._lock:
                self._names += 1
                name = self._names
                message = {
                    "start": name, "request": request, "environ": dict(changes),
                    "folder": os.fspath(folder),
                }  # fmt: skip
                socket.send_fds(self._control, [json.dumps(message).encode()], [writing])
            pid = self._wait_pid(name)
        except OSError:  # it is gone, or the message is longer than the system takes
            pid = None
        finally:
            os.close(writing)
        if pid is None:
            os.close(reading)
            return None
        return Forked(self, name, pid, reading)

    def _wait_ready(self) -> bool:
        while self.is_usable and not self._is_ready:
            with self._lock:
                if time.monotonic() > self._until and self._is_computing():
                    self._until += GRANT_S
            self._go_on_until(self._until)
        return self.is_usable

    def _is_computing(self) -> bool:
        used, before = process.cpu_seconds(self._own.pid) or 0.0, self._cpu
        self._cpu = used
        return before < used < MAX_CPU_S

    def _wait_pid(self, name: int) -> int | None:
        until = time.monotonic() + ANSWER_S
        while self.is_usable and name not in self._pids:
            self._go_on_until(until)
        return self._pids.get(name)

    def _go_on_until(self, until: float) -> None:
        if time.monotonic() > min(until, self._ends) or self._stop.is_set():
            self.is_usable = False  # also for the children that run: each is seen as lost
        elif not self.listen():
            time.sleep(0.001)

    def listen(self) -> bool:
        """Take in what it said; False where that is nothing new."""
        heard = False
        with self._lock:
            while self.is_usable:
                try:
                    data = self._control.recv(MAX_MESSAGE)
                except BlockingIOError:
                    break
                except OSError:
                    data = b""
                if not data:
                    self.is_usable = False
                    break
                heard = True
                self._take(json.loads(data))
        return heard

    def _take(self, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            self._is_ready = True
        elif "pid" in message:
            self._pids[message["start"]] = message["pid"]
        elif "end" in message:
            number = int(message["code"])
            what = process.signal_name(number) if message["how"] == "signal" else ""
            self._ended[message["end"]] = Ending(message["how"], number, what)

    def ending_of(self, name: int) -> Ending | None:
        """Return how a child ended, None where it runs."""
        self.listen()
        found = self._ended.get(name)
        if found is None and not self.is_usable:
            return Ending("unknown", 0, "the process it was forked from is gone")
        return found

    def collect(self, pid: int) -> None:
        """Say that this child will be signalled no more."""
        with self._lock, suppress(OSError):
            self._control.send(json.dumps({"collect": pid}).encode())

    def close(self) -> None:
        """End it, and with it what is left of its children."""
        self.is_usable = False
        self._control.close()  # which tells it to go
        is_late = time.monotonic() >= self._ends
        if not is_late:
            self._await(process.REAP_S)
        self._kill()
        self._await(process.LATE_S / 3 if is_late else process.REAP_S)
        if self._own.returncode is None:
            self._own.returncode = -9
            leftovers.leave(self._own.pid)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _await(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while self._is_running() and time.monotonic() < ends:
            time.sleep(0.001)

    def _is_running(self) -> bool:
        if self._own.returncode is None:
            try:
                pid, status = os.waitpid(self._own.pid, os.WNOHANG)
            except ChildProcessError:  # the application collected it
                self._own.returncode = 0
            else:
                if pid:
                    self._own.returncode = os.waitstatus_to_exitcode(status)
        return self._own.returncode is None

    def _kill(self) -> None:
        if not self._is_running():
            return
        with suppress(OSError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            else:
                os.kill(self._own.pid, signal.SIGKILL)


class Forked:
    """A child of a zygote."""

    def __init__(self, zygote: Zygote, name: int, pid: int, output: int) -> None:
        self._zygote = zygote
        self._name = name
        self._is_collected = False
        self.pid = pid
        self.output = output

    def has_ended(self) -> bool:
        """Say whether it ended; the zygote keeps its id taken until `ending`."""
        return self._zygote.ending_of(self._name) is not None

    def kill(self) -> None:
        """End it and its process group, now."""
        if self._is_collected:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._zygote.is_usable:  # it may be in no group of its own yet
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def ending(self, seconds: float) -> Ending | None:
        """Wait so long for it to be gone, let it be collected, and say how it ended."""
        ends = time.monotonic() + seconds
        while (found := self._zygote.ending_of(self._name)) is None and time.monotonic() < ends:
            time.sleep(0.001)
        self._is_collected = True
        self._zygote.collect(self.pid)
        return found

    def close(self, *, is_drained: bool) -> None:
        """Close the pipe, unless somebody still reads from it."""
        if is_drained and self.output >= 0:
            os.close(self.output)
            self.output = -1
