"""One disposable process: started with everything it needs, drained, and gone at the deadline.

Does not know what a probe is; `run` gives it a command and a request, `judge` reads the result.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from gpuedge.probing.judge import Ending

COMMAND: tuple[str, ...] = (
    sys.executable or "",
    "-X",
    "faulthandler",
    "-m",
    "gpuedge.probing.child",
)
TAIL_BYTES = 4096
"""How much of what a driver prints is kept, from the end."""

TICK_S = 0.02
"""How often a waiting parent looks whether it should stop."""

REAP_S = 0.05
"""How long a killed process gets to be gone; the deadline may be overrun by no more than 0.1 s."""


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
                if not _wait_readable(self._fd, 0.05):
                    continue
                chunk = os.read(self._fd, 65536)
                if not chunk:
                    break
                self._tail = (self._tail + chunk)[-TAIL_BYTES:]
        except OSError:
            pass
        self.ended.set()

    def finish(self) -> str:
        """Stop reading and return the tail; a process that outlived its group is not waited for."""
        self.ended.wait(REAP_S)
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


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time a process used so far, None where the system does not say (Linux).

    Tells one that computes, or that waits for its turn on a busy machine, from one that hangs.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read(4096).rpartition(")")[2].split()
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
    child: subprocess.Popen[bytes],
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
    assert child.stdout is not None  # PIPE was asked for
    drain = Drain(child.stdout.fileno())
    try:
        code = _wait(child, drain, deadline, stop, is_stalled)
    finally:
        if child.returncode is None:
            kill(child)
        tail = drain.finish()
        _reap(child)
        if drain.ended.is_set():
            child.stdout.close()
    return Ending("stalled") if code == "stalled" else _ending(code), tail


def _wait(
    child: subprocess.Popen[bytes],
    drain: Drain,
    deadline: float,
    stop: threading.Event,
    is_stalled: Callable[[int], bool],
) -> int | Literal["stalled"] | None:
    while not _has_ended(child):
        left = deadline - time.monotonic()
        if left <= 0 or stop.is_set():
            return None
        if is_stalled(child.pid):
            return "stalled"
        if not drain.ended.wait(min(TICK_S, left)):
            continue
        time.sleep(min(0.001, left))  # it closed its output: the end is near
    kill(child)  # what it left behind in its group, while its process id is still its own
    return child.wait()


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Say whether a child ended, leaving it to be reaped so that its id cannot be reused yet."""
    if sys.platform != "win32" and hasattr(os, "waitid"):
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, child.pid, how) is not None
    return child.poll() is not None


def _reap(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(REAP_S)
    except subprocess.TimeoutExpired:
        # Stuck inside the kernel, as a process in a broken kernel driver can be; it ends when
        # that call returns. Nothing more can be done from here.
        child.returncode = -9


def _ending(code: int | None) -> Ending:
    if code is None:
        return Ending("deadline")
    if code < 0:
        return Ending("signal", -code, _signal_name(-code))
    if code >= 0x80000000:  # Windows reports a crash as an exception code such as 0xC0000005
        return Ending("signal", code, f"exception 0x{code:08X}")
    return Ending("exit", code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
