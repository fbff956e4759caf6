"""The application's end of a worker: it is started, asked, waited for, and ended.

No thread watches the worker. What its driver prints is read while a reply is waited for; between
calls it waits in the pipe.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from gpuedge.backends.base import Counters, DeviceInfo
from gpuedge.core import debug
from gpuedge.core.caps import Caps
from gpuedge.core.errors import (
    BackendUnavailableError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
)
from gpuedge.core.record import UnfitError, checked, plain
from gpuedge.core.times import (
    FLOOR_S,
    MARGIN_S,
    WORKER_BUILD_S,
    WORKER_CALL_S,
    WORKER_ENDING_S,
    WORKER_IDLE_S,
)
from gpuedge.isolation.messages import (
    HEADER,
    MAX_REPLY,
    RaisedError,
    Reply,
    pack,
    parse,
    sizes,
)
from gpuedge.isolation.shared import ALIGNMENT, CONTROL, NOTHING, TOTAL, Arena
from gpuedge.safety import interpreter
from gpuedge.safety.child import (
    TAIL_BYTES,
    Child,
    Ending,
    environment,
    low_descriptors_taken,
)
from gpuedge.safety.interrupts import rlock
from gpuedge.safety.watchdog import LOOK_S, STRETCH, Watch

MODULE = "gpuedge.isolation.worker"

OWN_TIME = frozenset({"build", "record", "wait", "read"})
"""Calls whose time does not depend on the run they go with."""

WHERE = {
    "start": "before the driver was loaded",
    "open": "while opening the device",
    "alloc": "while reserving memory",
    "free": "while giving memory back",
    "write": "while copying data to the device",
    "read": "while reading results back",
    "build": "while building a kernel",
    "record": "while recording work",
    "submit": "while running a kernel",
    "wait": "while running a kernel",
    "release": "while giving memory back",
}
"""How to say what a worker was doing."""

OUTSIDE = frozenset(
    getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
)
"""Signals that an administrator, a service manager or the system's OOM killer sends."""

CHUNK = 65536
MAX_LINES = 3
MAX_WORDS = 300


class WorkerEndedError(Exception):
    """The worker is no longer there."""


class WorkerSilentError(Exception):
    """The worker did not answer, or take a request, in time."""


@dataclass(frozen=True, slots=True)
class Op:
    """One call for a worker to make; `limit_s` is the time it may take."""

    verb: str
    args: list[Any]
    limit_s: float


class WorkerClient:
    """What the application knows of one worker: asks, waits, and says what went wrong.

    `counters` are kept as the worker's are; `command` is the program of the worker, for tests.
    `was_alive` is whether it computed, or wanted to, when its latest reply came late.
    Memory of `arena` is placed by `room` and `place`.
    """

    def __init__(
        self, info: DeviceInfo, counters: Counters, command: Sequence[str] | None = None
    ) -> None:
        self._info = info
        self._counters = counters
        self._owner = os.getpid()
        self._sequence = 0
        self._queue: list[Op] = []
        self._used = CONTROL
        self._lost: str | None = None
        self._is_outside = True  # until the driver is found to have ended the worker
        self._idle_s, self._stretch = WORKER_IDLE_S, STRETCH
        self.was_alive = False
        self._said = b""
        self._is_mute = False
        self._got = bytearray()
        with _STARTING, low_descriptors_taken():
            self.arena = Arena()
            try:
                self._start(command)
            except BaseException as error:
                self.arena.close()
                if isinstance(error, OSError):
                    what = "The device's worker process cannot be started."
                    raise _no_worker(what, str(error)) from None
                raise
            _CLIENTS.add(self)

    def _start(self, given: Sequence[str] | None) -> None:
        """Start the worker: pipes to speak, and one that closes when this process is gone."""
        if sys.platform == "win32":
            raise _no_worker("isolation='process' does not exist on Windows yet.", None)
        command = given or interpreter.command(MODULE)
        if command is None:
            raise _no_worker("No worker process can be started here.", interpreter.why_none())
        self._its_life, self._life = os.pipe()
        try:
            environ = environment(self._info.candidate.env)
            fds = (self._its_life, self.arena.fd)
            self._child = child = Child(command, environ, "/", pass_fds=fds)
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(self._its_life)
        self._to, self._from, self._err = map(_unblocked, (child.stdin, child.stdout, child.stderr))

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._child.pid

    @property
    def is_lost(self) -> bool:
        """True once the worker is known to be gone."""
        return self._lost is not None

    @property
    def is_here(self) -> bool:
        """False in a child forked off the application."""
        return self._owner == os.getpid()

    def check_here(self) -> None:
        """Raise ClosedError (GE-204) in a forked child."""
        if not self.is_here:
            raise ClosedError(
                "This device was opened before this process was forked off.",
                known="its worker takes orders from the process that started it",
                hint="open the device in this process too: it gets a worker of its own",
            )

    def check_lost(self) -> None:
        """Raise DeviceLostError (GE-401) if the worker is gone."""
        if self._lost is not None:
            raise self._lost_error(self._lost)

    def open(self, deadline_s: float) -> Caps:
        """Have the device opened; return what it can do. Raises DeviceError."""
        request = {
            "device": plain(self._info), "deadline_s": deadline_s,
            "share": self.arena.fd, "life": self._its_life,
        }  # fmt: skip
        reply = self._exchange(request, b"", (), (), deadline_s)
        caps: Caps | None = reply.get("caps")
        if caps is None:
            raise self._nonsense("without caps")
        return caps

    # --- shared memory --------------------------------------------------------------------------

    def room(self, nbytes: int) -> int | None:
        """Return a place in this batch's part of the shared memory, None if it is full."""
        place = -(-self._used // ALIGNMENT) * ALIGNMENT
        if place + nbytes > TOTAL:
            return None
        self.arena.grow(place + nbytes)
        self._used = place + nbytes
        return place

    def place(self, nbytes: int) -> int:
        """Return a place; what is queued is done first where there is no room beside it."""
        place = self.room(nbytes)
        if place is None:
            self.flush()
            self._used = CONTROL
            place = self.room(nbytes)
        if place is None:
            raise ValueError(f"{nbytes} bytes are too many for one piece")
        return place

    # --- requests -------------------------------------------------------------------------------

    def queue(self, op: Op) -> None:
        """Have a call made with the next that is asked for."""
        self._queue.append(op)

    def limit_idle(self, watchdog_s: float | None) -> None:
        """Set how long the worker may be idle in a call: as long as a run may take.

        Where a policy sets that, a worker that computes has no more time than one that does not.
        """
        self._idle_s = WORKER_IDLE_S if watchdog_s is None else max(FLOOR_S, watchdog_s)
        self._stretch = STRETCH if watchdog_s is None else 1.0

    def flush(self) -> None:
        """Have what is queued done. Raises what those calls raise."""
        if self._queue:
            self.ask()

    def ask(self, *ops: Op, code: bytes = b"") -> None:
        """Have what is queued and then `ops` done, and wait for it. Raises what they raise."""
        batch, self._queue = [*self._queue, *ops], []
        waits = [op.limit_s for op in batch if op.verb == "wait"]
        # What goes with waiting for a run belongs to it: no call takes longer than that may.
        most = max(FLOOR_S, waits[0]) if waits else WORKER_BUILD_S
        limits = [op.limit_s if op.verb in OWN_TIME else min(op.limit_s, most) for op in batch]
        self._used = CONTROL  # what lies there stays until the next place is asked for
        body = {"ops": [[op.verb, *op.args] for op in batch], "arena": self.arena.size}
        self._exchange(body, code, batch, limits, min(WORKER_CALL_S, most))

    def _exchange(
        self,
        body: dict[str, Any],
        code: bytes,
        batch: Sequence[Op],
        limits: Sequence[float],
        begin_s: float,
    ) -> dict[str, Any]:
        """Send a request and return the reply; `begin_s` is the time until the first call begins.

        An empty batch stands for opening: `begin_s` is the time for all of it then.
        """
        self._sequence += 1
        self.arena.note(NOTHING)
        try:
            self._send(pack(self._sequence, body, code), begin_s)
            reply = self._reply(batch, limits, begin_s)
            error: RaisedError | None = reply.get("error")
            if reply.get("counters") is not None:
                for name, count in reply["counters"].items():
                    setattr(self._counters, name, count)
            elif error is None:
                raise UnfitError("without counters")
        except WorkerSilentError:
            raise self._hung(_where(batch, self.arena.noted(len(batch)))) from None
        except WorkerEndedError:
            raise self._died(batch, self.arena.noted(len(batch))) from None
        except UnfitError as nonsense:
            raise self._nonsense(str(nonsense)) from None
        except BaseException:  # an interrupt: its answer would be taken for the next one's
            self._end("the call was interrupted")
            raise
        if error is not None:
            raise error.error
        return reply

    def _reply(
        self, batch: Sequence[Op], limits: Sequence[float], begin_s: float
    ) -> dict[str, Any]:
        """Wait for the reply. Raises WorkerSilentError where the worker hangs.

        The worker notes which call of the batch it is at. Notes may be wrong: they only go forward,
        so each call has its time once. A worker that is idle hangs earlier, unless it waits for a
        run; one that computes, or has no processor, later: it may compile, and the machine be busy.
        """
        look_s = min([LOOK_S, begin_s, *limits])
        self.was_alive = False
        reply = self._receive(look_s)
        if reply is not None:  # what is quick is not watched: that costs time, too
            return reply
        position = -1
        # How long opening may take is the caller's to say.
        most_s = self._stretch * begin_s if batch else None
        watch = Watch(begin_s - look_s, self.pid, most_s=most_s)
        while True:
            noted = self.arena.noted(len(batch))
            if batch and noted > position:
                position = noted
                limit_s = limits[position] if position < len(batch) else begin_s
                is_wait = position < len(batch) and batch[position].verb == "wait"
                # The driver ends a wait; what may take longer is only to say so.
                more_s = MARGIN_S if is_wait else limit_s
                watch.restart(limit_s, limit_s + (self._stretch - 1.0) * more_s)
            may_idle = not batch or (0 <= position < len(batch) and batch[position].verb == "wait")
            is_idle = watch.idle_for_s >= (math.inf if may_idle else self._idle_s)
            if watch.look() or is_idle:
                raise WorkerSilentError
            reply = self._receive(look_s)
            if reply is not None:
                self.was_alive = watch.is_alive
                return reply

    # --- pipes ----------------------------------------------------------------------------------

    def _send(self, frame: bytes, seconds: float) -> None:
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

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the fields of a `Reply`, None if there is none in time.

        Raises WorkerEndedError, UnfitError.
        """
        until = time.monotonic() + seconds
        while True:
            if len(self._got) >= HEADER.size:
                sequence, text, extra = sizes(bytes(self._got[: HEADER.size]), MAX_REPLY)
                end = HEADER.size + text
                if extra or sequence != self._sequence or len(self._got) > end:
                    raise UnfitError("it is not the reply to this request alone")
                if len(self._got) == end:
                    body = bytes(self._got[HEADER.size :])
                    self._got.clear()
                    return checked(Reply, parse(body))
            if not self._ready(self._from, select.POLLIN, until):
                return None
            chunk = os.read(self._from, CHUNK)
            if not chunk:
                raise WorkerEndedError("it closed its pipe")
            self._got += chunk

    def _ready(self, fd: int, event: int, until: float) -> bool:
        """Wait for a pipe until a time, and read what the driver prints: it may block on that."""
        poll = select.poll()
        poll.register(fd, event)
        if not self._is_mute:
            poll.register(self._err, select.POLLIN)
        while True:
            left = max(0.0, until - time.monotonic())
            ready = [
                descriptor for descriptor, _ in poll.poll(min(math.ceil(left * 1000), 1 << 30))
            ]
            if fd in ready:
                return True
            if self._err in ready and not self._read_printed():
                self._is_mute = True
                poll.unregister(self._err)
            if not left:
                return False

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

    # --- endings --------------------------------------------------------------------------------

    def _end(self, why: str, seconds: float = 0.0) -> Ending | None:
        """Remember why, wait so long for the worker to end by itself, and end all that it started.

        Returns how it ended, None where that was done before.
        """
        if self._lost is None:
            self._lost = why
        ending = None
        if self._life >= 0:

            def read() -> bool:  # or it would wait for its last words to be read
                self._read_printed()
                return False

            self._child.wait(time.monotonic() + seconds, read)
            before = None
            while before != self._said:
                before = self._said
                self._read_printed()
            ending = self._child.end()
            life, self._life = self._life, -1  # as the interpreter ends, threads may meet here
            if life >= 0:
                os.close(life)
        self.arena.close()
        _CLIENTS.discard(self)
        return ending

    def _died(self, batch: Sequence[Op], position: int) -> DeviceError:
        is_known = self.is_lost  # another thread may have closed the device
        ending = self._end("", WORKER_ENDING_S)
        was_killed = ending is not None and ending.how == "signal" and ending.code in OUTSIDE
        self._is_outside = was_killed or position < 0
        if not is_known:
            said = self._last_words()
            words = f"; its last words: {said}" if said else ""
            self._lost = f"{_words(ending)} {_where(batch, position)}{words}"
        return self._lost_error(self._lost or "")

    def _last_words(self) -> str:
        """Return the last lines that the driver printed, without what Python adds to a crash."""
        text = self._said.decode("utf-8", "replace").partition("Fatal Python error: ")[0]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-MAX_LINES:])[-MAX_WORDS:]

    def _nonsense(self, why: str) -> DeviceError:
        self._is_outside = False
        self._end(f"its worker answered nonsense ({why}) and was ended")
        return self._lost_error(self._lost or "")

    def _lost_error(self, why: str) -> DeviceError:
        error = DeviceLostError(
            f"The worker process of {self._info.identity.name} is gone.",
            known=why, hint="open the device again", reason="worker-died",
        )  # fmt: skip
        error.is_outside = self._is_outside
        return error

    def _hung(self, where: str) -> DeviceError:
        self._end(f"it hung {where} and was ended")
        return DeviceTimeoutError(
            f"{self._info.identity.name} did not answer in time; its worker process was ended.",
            known=self._lost, hint="open the device again", reason="device-hung",
        )  # fmt: skip

    def close(self, seconds: float) -> None:
        """Close the device and end the worker within some seconds; never raises."""
        is_asked = False
        if self._lost is None and seconds > 0:
            with suppress(WorkerEndedError, WorkerSilentError):
                self._send(pack(0, {"close": True}), seconds)
                is_asked = True
        self._end("the device was closed", seconds if is_asked else 0.0)

    def kill(self) -> None:
        """Kill the worker while another thread waits for an answer; that thread cleans up."""
        if self._lost is None:
            self._lost = "the device was closed"
        self._child.kill()

    def abandon(self) -> None:
        """Let go of everything in a forked child, or its copies would keep the worker alive."""
        if self._life >= 0:
            self._child.abandon()
            life, self._life = self._life, -1  # as the interpreter ends, threads may meet here
            if life >= 0:
                os.close(life)
        self.arena.close()


def _words(ending: Ending | None) -> str:
    if ending is None or ending.how == "deadline":
        return "it closed its pipe"
    if ending.how == "unknown":  # the application collects children itself, or ignores them
        return "an end that was not seen"
    return f"exit status {ending.code}" if ending.how == "exit" else ending.what


def _where(batch: Sequence[Op], position: int) -> str:
    """Say at which call a worker was."""
    if not batch:
        return WHERE["start" if position < 0 else "open"]
    if position < 0:
        return "before the next call began"
    return WHERE[batch[min(position, len(batch) - 1)].verb]


def _unblocked(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise ValueError("a pipe was asked for")
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _no_worker(what: str, known: str | None) -> DeviceError:
    hint = "isolation='inline' runs the driver in this process"
    return BackendUnavailableError(what, known=known, hint=hint, reason="no-child")


_CLIENTS: weakref.WeakSet[WorkerClient] = weakref.WeakSet()
"""Those whose worker runs."""

_STARTING = rlock()
"""Held while a worker is being started, and by a fork: the child then knows all pipes."""


def _after_fork_in_child() -> None:
    _STARTING.release()
    for client in list(_CLIENTS):
        client.abandon()
    _CLIENTS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_STARTING.acquire,
        after_in_parent=_STARTING.release,
        after_in_child=_after_fork_in_child,
    )
