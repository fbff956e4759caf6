"""A worker process seen from the application: started, spoken to, and ended.

No thread watches it. What a driver prints is read while a reply is waited for; between calls it
waits in the pipe.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

from gpuedge.core import debug
from gpuedge.isolation.messages import HEADER, MAX_REPLY, FrameError, sizes
from gpuedge.safety.child import TAIL_BYTES, Child, Ending

MODULE = "gpuedge.isolation.worker"
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


class WorkerEndedError(Exception):
    """The worker is no longer there."""


class WorkerSilentError(Exception):
    """The worker did not answer, or take a request, in time."""


class Transport:
    """A worker process and the pipes to it; `share` is the descriptor of the shared memory.

    `life` is the worker's number of the pipe that closes when this process is gone. Raises OSError
    where the process cannot be started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], share: int) -> None:
        self._said = b""
        self._got = bytearray()
        self._signal: int | None = None
        self._is_mute = False
        self.life, self._life = os.pipe()
        try:
            self._child = Child(command, environ, "/", pass_fds=(self.life, share))
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(self.life)
        child = self._child
        self._to, self._from, self._err = map(_unblocked, (child.stdin, child.stdout, child.stderr))

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._child.pid

    @property
    def was_killed(self) -> bool:
        """True if a signal ended the worker that others send: no driver ends its process by one."""
        return self._signal in OUTSIDE

    @property
    def last_words(self) -> str:
        """The last lines that the driver printed, without what Python adds to a crash."""
        text = self._said.decode("utf-8", "replace").partition(_CRASH)[0]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-MAX_LINES:])[-MAX_WORDS:]

    def send(self, frame: bytes, seconds: float) -> None:
        """Send a frame. Raises WorkerEndedError, WorkerSilentError."""
        until = time.monotonic() + seconds
        left = memoryview(frame)
        while left:
            try:
                left = left[os.write(self._to, left) :]
            except BlockingIOError:
                if not self._ready(self._to, select.POLLOUT, until):
                    raise WorkerSilentError from None
            except OSError as error:
                raise WorkerEndedError(str(error)) from None

    def receive(self, seconds: float) -> tuple[int, bytes] | None:
        """Wait so long for a reply; return its sequence number and JSON, None if there is none.

        Raises WorkerEndedError, FrameError.
        """
        until = time.monotonic() + seconds
        while (reply := self._whole()) is None:
            if not self._ready(self._from, select.POLLIN, until):
                return None
            chunk = os.read(self._from, CHUNK)
            if not chunk:
                raise WorkerEndedError("it closed its pipe")
            self._got += chunk
        return reply

    def _ready(self, fd: int, event: int, until: float) -> bool:
        """Wait for a pipe until a time, and read what the driver prints: it may block on that."""
        poll = select.poll()
        poll.register(fd, event)
        if not self._is_mute:
            poll.register(self._err, select.POLLIN)
        while True:
            left = max(0.0, until - time.monotonic())
            ready = [found for found, _ in poll.poll(min(math.ceil(left * 1000), 1 << 30))]
            if fd in ready:
                return True
            if self._err in ready and not self._read_printed():
                self._is_mute = True
                poll.unregister(self._err)
            if not left:
                return False

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

    def _read_printed(self) -> bool:
        """Read what was printed; False where nothing can come any more."""
        try:
            chunk = os.read(self._err, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._said = (self._said + chunk)[-TAIL_BYTES:]
        if chunk and debug.level() > 0:
            print(chunk.decode("utf-8", "replace"), end="", file=sys.stderr)
        return bool(chunk)

    def kill(self) -> None:
        """Kill the worker while another thread waits for it: that one sees it, and cleans up."""
        self._child.kill()

    def end(self, seconds: float = 0.0) -> str:
        """Wait so long for the worker to end by itself, then end it with all that it started.

        Returns how it ended, empty if it did not do so by itself. May be called twice.
        """
        if self._life < 0:
            return ""

        def read() -> bool:  # or it would wait for its last words to be read
            self._read_printed()
            return False

        self._child.wait(time.monotonic() + seconds, read)
        before = None
        while before != self._said:
            before = self._said
            self._read_printed()
        ending = self._child.end()
        os.close(self._life)
        self._life = -1
        self._signal = ending.code if ending.how == "signal" else None
        return _words(ending)

    def abandon(self) -> None:
        """Close this process's copies of the pipes: it is a child forked off the application."""
        if self._life >= 0:
            self._child.abandon()
            os.close(self._life)
            self._life = -1


def _words(ending: Ending) -> str:
    if ending.how == "unknown":  # the application collects children itself, or ignores them
        return "an end that was not seen"
    if ending.how == "deadline":
        return ""
    return f"exit status {ending.code}" if ending.how == "exit" else ending.what


def _unblocked(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise ValueError("a pipe was asked for")
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()
