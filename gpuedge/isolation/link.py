"""A host process seen from the application: started, spoken to, and ended.

No thread watches it. What a driver prints is read while a reply is waited for; between calls it
waits in the pipe.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from gpuedge.core import debug
from gpuedge.isolation.wire import HEADER, MAX_REPLY, FrameError, sizes
from gpuedge.probing import process
from gpuedge.probing.judge import Ending
from gpuedge.probing.process import TAIL_BYTES

MODULE = "gpuedge.isolation.host"
CHUNK = 65536
OUTSIDE = frozenset(
    getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
)
"""Signals that an administrator, a service manager or the system's OOM killer sends."""

MAX_LINES = 3
MAX_WORDS = 300
_CRASH = "Fatal Python error: "

ENDING_S = 0.5
"""How long a host that closed its pipe gets to be gone, so that its own ending is seen."""


class HostEndedError(Exception):
    """The host is no longer there."""


class HostSilentError(Exception):
    """The host did not answer in time."""


class Link:
    """A host process and the pipes to it.

    Parameters
    ----------
    environ : mapping
        Environment of the host.
    share : int
        Descriptor of the shared memory.
    command : sequence of str
        The program.

    Raises
    ------
    OSError
        The process cannot be started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], share: int) -> None:
        self._is_over = False
        self._is_loud = debug.level() > 0
        self._said = b""
        self._got = bytearray()
        self._signal: int | None = None
        far, self._life = os.pipe()
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=dict(environ), cwd="/", bufsize=0, pass_fds=(far, share),
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(far)
        self.far = far
        self._pipes = (child.stdin, child.stdout, child.stderr)
        self._to, self._from, self._err = map(_unblocked, self._pipes)
        self._poll = _poll((self._from, self._err))
        self._process = child
        self._one = process.Spawned(child)
        self._ending = threading.Lock()

    @property
    def pid(self) -> int:
        """Process id of the host."""
        return self._one.pid

    @property
    def was_killed(self) -> bool:
        """True if a signal ended the host that others send: no driver ends its process by one."""
        return self._signal in OUTSIDE

    @property
    def last_words(self) -> str:
        """The last lines that the driver printed, without what Python adds to a crash."""
        text = self._said.decode("utf-8", "replace").partition(_CRASH)[0]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-MAX_LINES:])[-MAX_WORDS:]

    def send(self, frame: bytes, deadline: float) -> None:
        """Send a frame. Raises HostEndedError, HostSilentError."""
        left = memoryview(frame)
        while left:
            try:
                left = left[os.write(self._to, left) :]
            except BlockingIOError:
                self._until_writable(deadline)
            except OSError as error:
                raise HostEndedError(str(error)) from None

    def _until_writable(self, deadline: float) -> None:
        import select

        poll = _poll((self._err,))
        poll.register(self._to, select.POLLOUT)
        for fd, _ in poll.poll(_milliseconds(deadline - time.monotonic())):
            if fd != self._err or self._drain():
                return
            poll.unregister(fd)
        if time.monotonic() >= deadline:
            raise HostSilentError

    def receive(self, deadline: Callable[[], float], look_s: float) -> tuple[int, bytes]:
        """Wait for a reply; return its sequence number and JSON.

        `deadline` is asked again after each `look_s` seconds: progress moves it, to and fro.

        Raises
        ------
        HostEndedError, HostSilentError, FrameError
        """
        while True:
            reply = self._whole()
            if reply is not None:
                return reply
            left = deadline() - time.monotonic()
            ready = [fd for fd, _ in self._poll.poll(_milliseconds(min(left, look_s)))]
            if self._err in ready and not self._drain():
                self._poll.unregister(self._err)
            if self._from in ready:
                self._fill()
            elif left <= 0:
                raise HostSilentError

    def _whole(self) -> tuple[int, bytes] | None:
        if len(self._got) < HEADER.size:
            return None
        sequence, text, extra = sizes(bytes(self._got[: HEADER.size]), MAX_REPLY)
        if extra:
            raise FrameError("a reply with bytes after it")
        end = HEADER.size + text
        if len(self._got) < end:
            return None
        body = bytes(self._got[HEADER.size : end])
        del self._got[:end]
        if self._got:
            raise FrameError("more than one reply")
        return sequence, body

    def _fill(self) -> None:
        with suppress(BlockingIOError):
            chunk = os.read(self._from, CHUNK)
            if not chunk:
                raise HostEndedError("it closed its pipe")
            self._got += chunk

    def _drain(self) -> bool:
        """Read what was printed; False where nothing can come any more."""
        try:
            chunk = os.read(self._err, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._said = (self._said + chunk)[-TAIL_BYTES:]
        if self._is_loud and chunk:
            print(chunk.decode("utf-8", "replace"), end="", file=sys.stderr)
        return bool(chunk)

    def leave(self, seconds: float) -> None:
        """Let the host end by itself for so long, then end it."""
        self._wait(seconds)
        self.kill()

    def kill(self) -> str:
        """End the host and all that it started, now; return how it ended, if by itself."""
        with self._ending:
            if self._is_over:
                return ""
            self._is_over = True
            has_ended = self._one.has_ended()
            self._one.kill()  # its group too, while its process id is still its own
            ending = self._one.ending(ENDING_S)
        while self._drain_rest():
            pass
        self._close()
        if not has_ended or ending is None:
            return ""
        self._signal = ending.code if ending.how == "signal" else None
        return _words(ending)

    def strike(self) -> None:
        """Kill the host while another thread waits for it: that one sees it, and cleans up."""
        with self._ending:
            if not self._is_over:
                self._one.kill()

    def how_it_ended(self) -> str:
        """Return how a host that closed its pipe ended, and end what is left of it."""
        self._wait(ENDING_S)
        return self.kill() or "it closed its pipe"

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        pause = 0.001
        while not self._one.has_ended() and time.monotonic() < end:
            self._drain_rest()
            time.sleep(pause)
            pause = min(0.02, pause * 2)

    def _drain_rest(self) -> bool:
        before = self._said
        return self._drain() and self._said is not before

    def _close(self) -> None:
        for pipe in self._pipes:
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def abandon(self) -> None:
        """Close this process's copies of the pipes: it is a child forked off the application."""
        if not self._is_over:
            self._is_over = True
            self._process.returncode = 0  # not its child
            self._close()


def _words(ending: Ending) -> str:
    if ending.how == "unknown":  # the application collects children itself, or ignores them
        return "an end that was not seen"
    return f"exit status {ending.code}" if ending.how == "exit" else ending.what


def _unblocked(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise ValueError("a pipe was asked for")
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _poll(fds: Sequence[int]) -> Any:
    import select

    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return poll


def _milliseconds(seconds: float) -> int:
    return min(math.ceil(max(0.0, seconds) * 1000), 1 << 30)
