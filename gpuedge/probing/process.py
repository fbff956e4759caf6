"""One disposable process: started with everything it needs, drained, and gone at the deadline.

Does not know what a probe is; `run` gives it a command and a request, `judge` reads the result.
A process is started by this one (`spawn`) or forked off a `zygote`; `supervise` watches both. How
one ended is never guessed: an application that ignores SIGCHLD, or collects every child that ends,
takes the exit status of a spawned one away, and then the ending is ``unknown``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from gpuedge.probing import leftovers
from gpuedge.probing.judge import Ending
from gpuedge.safety import interpreter

COMMAND: tuple[str, ...] | None = None
"""The program of a probe's child; None: what `command` says. Tests put a misbehaving one here."""

TAIL_BYTES = 4096
"""How much of what a driver prints is kept, from the end."""

TICK_S = 0.02
"""How often a waiting parent looks whether it should stop."""

REAP_S = 0.05
"""How long a killed process gets to be gone before `leftovers` sees to it."""

LATE_S = 0.03
"""The same at the deadline, which may be overrun by no more than 0.1 s in all."""

LOST = "its exit status was taken by another part of the application, which collects children"


def command(module: str) -> tuple[str, ...] | None:
    """Return the command that runs ``main()`` of a module of gpuedge, None where none can be run.

    See `interpreter.command`.
    """
    return interpreter.command(module)


class Started(Protocol):
    """A running process, however it was started.

    Attributes
    ----------
    pid : int
    output : int
        The end of a pipe that holds what it prints.
    """

    pid: int
    output: int

    def has_ended(self) -> bool:
        """Say whether it ended; its id stays its own until `ending` is asked for."""

    def kill(self) -> None:
        """End it and its process group, now: a hung driver may ignore anything gentler."""

    def ending(self, seconds: float) -> Ending | None:
        """Collect it, waiting so long, and say how it ended; None where it does not end."""

    def close(self, *, is_drained: bool) -> None:
        """Close the pipe, unless somebody still reads from it."""


class Drain:
    """Reads a pipe on a thread so that its writer never blocks; keeps the last `TAIL_BYTES`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._tail = b""
        self._stop = threading.Event()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuedge-drain", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if not _wait_readable(self._fd, TICK_S):
                    continue
                chunk = os.read(self._fd, 65536)
                if not chunk:
                    break
                self._tail = (self._tail + chunk)[-TAIL_BYTES:]
        except OSError:
            pass
        self.ended.set()

    def finish(self, seconds: float) -> str:
        """Stop reading and return the tail; a process that outlived its group is not waited for."""
        self.ended.wait(seconds)
        self._stop.set()
        self._thread.join(0.1)
        return self._tail.decode("utf-8", "replace")


def _wait_readable(fd: int, seconds: float) -> bool:
    """Wait for a pipe; on Windows, where pipes cannot be polled, say yes and let read block."""
    if sys.platform == "win32":
        return True
    import select

    poll = select.poll()  # select.select fails for descriptors above 1023
    poll.register(fd, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(int(seconds * 1000)))


@contextmanager
def low_descriptors_taken() -> Iterator[None]:
    """Keep descriptors 0 to 2 from being given to pipes of ours where the application closed them.

    What it prints all the same, or a library of it, would end up in such a pipe.
    """
    taken: list[int] = []
    with suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            taken.append(fd)
        os.close(fd)
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)


def python_path(environ: Mapping[str, str]) -> str:
    """Return PYTHONPATH for the child, so that it finds this gpuedge wherever it runs.

    Site-packages is never put there: it would come before the standard library.
    """
    import sysconfig

    root = str(Path(__file__).parents[2])
    given = environ.get("PYTHONPATH", "")
    if root in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        return given
    return os.pathsep.join(p for p in (root, given) if p)


def spawn(
    command: Sequence[str], request: bytes, environ: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    """Start `command` in a process group of its own with `request` on its standard input.

    Raises
    ------
    OSError
        The process cannot be started.
    """
    group: dict[str, Any] = (
        {"creationflags": 0x08000200}  # CREATE_NO_WINDOW | CREATE_NEW_PROCESS_GROUP
        if sys.platform == "win32"
        else {"start_new_session": True}
    )
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        cwd=folder,
        close_fds=True,
        bufsize=0,
        **group,
    )
    assert child.stdin is not None  # PIPE was asked for
    # A child that died at once refuses the request; its ending says why.
    with suppress(OSError), child.stdin:
        child.stdin.write(request)
    return child


class Spawned:
    """A process that this one started."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None  # PIPE was asked for
        self._child = child
        self._is_lost = False
        self.pid = child.pid
        self.output = child.stdout.fileno()

    def has_ended(self) -> bool:
        """Say whether it ended, leaving it to be collected so that its id cannot be reused yet."""
        if self._is_lost or self._child.returncode is not None:
            return True
        if sys.platform == "win32" or not hasattr(os, "waitid"):
            return self._child.poll() is not None
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, how) is not None
        except ChildProcessError:
            self._is_lost = True
            self._child.returncode = 0  # or Popen would wait for it once more
            return True

    def kill(self) -> None:
        """End it and its process group; one that was collected already has no group to find."""
        if not self._is_lost:
            kill(self._child)

    def ending(self, seconds: float) -> Ending | None:
        """Collect it, and say how it ended."""
        ends = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > ends:
                # The machine is busy, or it is stuck inside the kernel, as a process in a broken
                # kernel driver can be; it ends when that call returns.
                self._child.returncode = -9
                leftovers.leave(self.pid)
                return None
            time.sleep(0.001)
        return Ending("unknown", 0, LOST) if self._is_lost else _ending(self._collect())

    def _collect(self) -> int | None:
        if self._child.returncode is None and hasattr(os, "waitid"):
            try:  # not Popen.wait: where the status was taken away it says 0
                _, status = os.waitpid(self.pid, 0)
            except ChildProcessError:
                self._child.returncode = 0
                return None
            self._child.returncode = os.waitstatus_to_exitcode(status)
        return self._child.returncode

    def close(self, *, is_drained: bool) -> None:
        """Close the pipe, unless somebody still reads from it."""
        if is_drained and self._child.stdout is not None:
            self._child.stdout.close()


def stat_fields(place: str) -> list[str]:
    """Return what the system says of a process or thread, from its state on (Linux, proc(5)).

    Raises
    ------
    OSError
        It is gone, or the system has no such folder.
    """
    with open(f"{place}/stat", encoding="ascii", errors="replace") as file:
        return file.read(4096).rpartition(")")[2].split()


def is_ready(place: str) -> bool:
    """Say whether a thread runs or waits for a processor. Raises OSError, IndexError."""
    return stat_fields(place)[0] == "R"


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time a process used so far, None where the system does not say (Linux).

    Tells one that computes, or that waits for its turn on a busy machine, from one that hangs.
    """
    try:
        fields = stat_fields(f"/proc/{pid}")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its process group, now: a hung driver may ignore anything gentler."""
    try:
        if sys.platform != "win32":
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
    except (ProcessLookupError, PermissionError):
        pass


def supervise(
    child: subprocess.Popen[bytes] | Started,
    deadline: float,
    stop: threading.Event,
    is_stalled: Callable[[int], bool] = lambda pid: False,
) -> tuple[Ending, str]:
    """Wait for a child until `deadline` (of `time.monotonic`), kill it then, and say how it ended.

    It is killed earlier where `is_stalled`, which is asked every `TICK_S` with the process id,
    says so.

    Returns
    -------
    tuple of (Ending, str)
        The ending, and the last `TAIL_BYTES` of what it printed.
    """
    one = Spawned(child) if isinstance(child, subprocess.Popen) else child
    ending: Ending | None = None
    drain: Drain | None = None
    try:
        drain = Drain(one.output)
        ending = _watched(one, drain, deadline, stop, is_stalled)
    finally:
        one.kill()  # with what it left behind in its group, while its process id is still its own
        until = time.monotonic() + (REAP_S if ending is None else LATE_S)
        tail = "" if drain is None else drain.finish(until - time.monotonic())
        collected = one.ending(REAP_S if ending is None else until - time.monotonic())
        one.close(is_drained=drain is None or drain.ended.is_set())
    if ending is not None:
        return ending, tail
    collected = collected or Ending("deadline")
    # Whoever sees first that time is over kills all, and the zygote too: that was no crash.
    is_ours = collected.how == "unknown" or (collected.how, collected.code) == ("signal", 9)
    is_over = stop.is_set() or time.monotonic() >= deadline
    return (Ending("deadline") if is_ours and is_over else collected), tail


def _watched(
    one: Started,
    drain: Drain,
    deadline: float,
    stop: threading.Event,
    is_stalled: Callable[[int], bool],
) -> Ending | None:
    """Wait until a process ended by itself (None), or return what it is ended for."""
    nap = 0.001
    while not one.has_ended():
        left = deadline - time.monotonic()
        if left <= 0 or stop.is_set():
            return Ending("deadline")
        if is_stalled(one.pid):
            return Ending("stalled")
        if drain.ended.wait(min(TICK_S, left)):
            # It closed its output: the end is near, unless it did so for another reason.
            time.sleep(max(0.0, min(nap, left)))
            nap = min(2 * nap, TICK_S)
    return None


def _ending(code: int | None) -> Ending:
    if code is None:
        return Ending("unknown", 0, LOST)
    if code < 0:
        return Ending("signal", -code, signal_name(-code))
    if code >= 0x80000000:  # Windows reports a crash as an exception code such as 0xC0000005
        return Ending("signal", code, f"exception 0x{code:08X}")
    return Ending("exit", code)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
