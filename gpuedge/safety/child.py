"""Child processes: one way to start one, watch it, and end it with all that it started.

Probes, conformance runs and isolated devices run drivers in child processes. Each is a process
group of its own, started with a known interpreter (`gpuedge.safety.interpreter`), and is killed as
a whole: no zombie, no descriptor and no grandchild outlives `Child.end`. How one ended is never
guessed: an application that ignores SIGCHLD, or collects every child that ends, takes the exit
status away, and then the ending is ``unknown``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Literal

from gpuedge.core import config
from gpuedge.core.record import Record
from gpuedge.safety import databases, interpreter, paths

TICK_S = 0.005
"""How often a child is looked at while it is waited for."""

REAP_S = 0.05
"""How long a killed process is waited for. On a busy machine, or behind a broken kernel driver, it
takes longer: then a thread collects it."""

TAIL_BYTES = 4096
"""How much is kept of what a child prints, from the end."""

MAX_OUTPUT_BYTES = 1 << 20
"""A file of output that grew beyond this is emptied: a driver may print without end."""

MOST_DESCRIPTORS = 1 << 20
"""Of a process, where they cannot be listed; a limit may be a thousand times that."""

LOST = "its exit status was taken by another part of the application, which collects children"


class Ending(Record):
    """How a process ended: ``deadline`` means by us, because its time was over.

    ``unknown`` means that somebody else took its exit status, ``no-child`` that it could not be
    started. `code` is the exit status or signal number, `what` the name of the signal, or why.
    """

    how: Literal["exit", "signal", "deadline", "unknown", "no-child"]
    code: int = 0
    what: str = ""


CLEAN = Ending("exit", 0)
"""What is right where a process gave all that was asked of it."""


class Child:
    """A process in a group of its own. Use it from one thread at a time, but for `kill`.

    `request` is written to its standard input, which stays open until `end`: a child may watch for
    that. The file `output` takes what it prints (see `tail`); without one, standard output and
    standard error are unbuffered pipes, `stdout` and `stderr`. It inherits the descriptors
    `pass_fds`. Raises OSError where it cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        folder: str | os.PathLike[str],
        *,
        request: bytes = b"",
        output: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        options: dict[str, Any] = (
            {"creationflags": 0x08000200}  # CREATE_NO_WINDOW | CREATE_NEW_PROCESS_GROUP
            if sys.platform == "win32"
            else {"start_new_session": True, "pass_fds": pass_fds}
        )
        opened = nullcontext() if output is None else output.open("ab", buffering=0)
        with low_descriptors_taken(), opened as file:
            pipe = subprocess.PIPE
            self._popen: subprocess.Popen[bytes] | None = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe if file is None else file,
                stderr=pipe if file is None else subprocess.STDOUT,
                env=dict(environ), cwd=folder, bufsize=0, **options,
            )  # fmt: skip
        self.pid = self._popen.pid
        self.stdin: IO[bytes] | None = self._popen.stdin
        self.stdout: IO[bytes] | None = self._popen.stdout
        self.stderr: IO[bytes] | None = self._popen.stderr
        self._begin(output)
        if request and self.stdin is not None:
            with suppress(OSError):  # it died at once; its ending says why
                self.stdin.write(request)

    def _begin(self, output: Path | None) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._ending: Ending | None = None

    @classmethod
    def fork(cls, output: Path) -> Child | None:
        """Fork this process, on Linux; return the child, or None in the child itself.

        That is like a process started by itself: in a group of its own, it prints into the file
        `output`, has no other descriptors, and its standard input stays open until `end`.
        """
        life, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _become_child(life, output)
            except BaseException:  # or it would go on as if it were the parent
                os._exit(1)
            return None
        os.close(life)
        child = cls.__new__(cls)
        child.pid, child._popen = pid, None
        child.stdin, child.stdout, child.stderr = os.fdopen(ours, "wb", 0), None, None
        child._begin(output)
        return child

    def has_ended(self) -> bool:
        """Say whether it ended; then all that it started is ended, too."""
        with self._lock:
            if self._ending is None:
                self._ending = self._look()
                if self._ending is not None and sys.platform != "win32":
                    # The id of a group is not given away as long as there are members.
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, signal.SIGKILL)
            return self._ending is not None

    def _look(self) -> Ending | None:
        """Return how it ended, None if it has not; its id is its own until this says so."""
        if sys.platform == "win32":
            code = None if self._popen is None else self._popen.poll()
            return None if code is None else _ending(code)
        try:  # not Popen.poll: where the status was taken away it says 0
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self._forget_popen()
            return Ending("unknown", 0, LOST)
        if pid == 0:
            return None
        self._forget_popen()
        return _ending(os.waitstatus_to_exitcode(status))

    def _forget_popen(self) -> None:
        if self._popen is not None:
            self._popen.returncode = 0  # or it would wait for the process once more

    def wait(self, until: float, stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait for it to end by itself until a time of `time.monotonic`; say whether it did.

        `stop` is asked now and then whether to give up earlier.
        """
        while not self.has_ended():
            if time.monotonic() >= until or stop():
                return False
            self.trim()
            time.sleep(max(0.0, min(TICK_S, until - time.monotonic())))
        return True

    def kill(self) -> None:
        """End it and all that it started, now: a hung driver may ignore anything gentler."""
        with self._lock:
            if self._ending is not None:
                return
            if sys.platform == "win32":
                if self._popen is not None:
                    self._popen.kill()
                return
            for kill in (os.killpg, os.kill):  # a fork may be in no group of its own yet
                with suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)

    def end(self, seconds: float = 0.0) -> Ending:
        """Wait so long for it to end by itself, end what is left, and say how it ended."""
        if not self.wait(time.monotonic() + seconds):
            self.kill()
            if not self.wait(time.monotonic() + REAP_S):
                self._forget_popen()
                _collect_later(self.pid)
            with self._lock:
                self._ending = Ending("deadline")
        self._close()
        assert self._ending is not None
        return self._ending

    def abandon(self) -> None:
        """Close our copies of the pipes: this process was forked off the one that has the child."""
        self._forget_popen()
        self._ending = Ending("unknown", 0, LOST)
        self._close()

    def _close(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def trim(self) -> None:
        """Empty the file of output where it has grown too large."""
        with suppress(OSError):
            if self._output is not None and self._output.stat().st_size > MAX_OUTPUT_BYTES:
                os.truncate(self._output, 0)

    def tail(self) -> str:
        """Return the end of what it printed into its file."""
        if self._output is None:
            return ""
        try:
            with self._output.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                return file.read(TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: this process's, `extra`, and settings made in code."""
    environ = {**interpreter.environment(), **(extra or {})}
    # Both must use the same folders. Absolute, because the child has a folder of its own.
    environ["GPUEDGE_CACHE_DIR"] = os.path.abspath(paths.cache_folder())
    if config.get("db").value:
        environ["GPUEDGE_DB"] = databases.database_folder()
    environ["GPUEDGE_IGNORE"] = " ".join(config.get("ignore").value)
    if environ.get("GPUEDGE_CONFIG"):
        environ["GPUEDGE_CONFIG"] = os.path.abspath(environ["GPUEDGE_CONFIG"])
    # numpy's own threads do nothing here but take time to start, on all cores.
    environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return environ


def _collect_later(pid: int) -> None:
    """Collect a killed process when it is gone, on a thread."""

    def collect() -> None:
        with suppress(OSError):
            if sys.platform != "win32":
                os.waitpid(pid, 0)

    with suppress(RuntimeError):  # no more threads
        threading.Thread(target=collect, name="gpuedge-collect", daemon=True).start()


def _become_child(life: int, output: Path) -> None:
    """Make a process that was just forked what `Child.fork` says of it."""
    os.setsid()
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, at in ((life, 0), (said, 1), (said, 2)):
        os.dup2(fd, at, inheritable=True)
    try:
        most = max(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # no /proc here
        most = min(os.sysconf("SC_OPEN_MAX"), MOST_DESCRIPTORS)
    # The ends of other children's pipes are among these: all would live while one does.
    os.closerange(3, most + 1)


def _ending(code: int) -> Ending:
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return Ending("signal", -code, known.get(-code, f"signal {-code}"))
    if code >= 0x80000000:  # Windows reports a crash as an exception code such as 0xC0000005
        return Ending("signal", code, f"exception 0x{code:08X}")
    return Ending("exit", code)


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
