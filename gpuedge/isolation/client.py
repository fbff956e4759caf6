"""Requests and replies: what is asked of a worker, how long it may take, and what if it dies."""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpuedge.backends.base import Counters, DeviceInfo
from gpuedge.core.caps import Caps
from gpuedge.core.errors import (
    BackendUnavailableError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
)
from gpuedge.isolation.messages import (
    FrameError,
    caps_from_record,
    error_from_record,
    info_to_record,
    pack,
    parse,
    take_counts,
)
from gpuedge.isolation.shared import ALIGNMENT, CONTROL, NOTHING, TOTAL, Arena
from gpuedge.isolation.transport import (
    MODULE,
    Transport,
    WorkerEndedError,
    WorkerSilentError,
)
from gpuedge.safety import child, interpreter
from gpuedge.safety.watchdog import FLOOR_S, LOOK_S, Watch

CALL_S = 10.0
"""Time for a call that computes nothing, in seconds."""

BUILD_S = 60.0
"""Time for compiling a kernel and for recording work."""

IDLE_S = 10.0
"""How long a worker may be idle in a call where no policy says how long the device may take."""

MARGIN_S = 0.5
"""How much later than a driver should have given up waiting the worker is given up."""

CLOSE_S = 2.0
"""How long a worker may take to close its device."""

ENDING_S = 0.5
"""How long a worker that closed its pipe gets to be gone, so that its own ending is seen."""

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


@dataclass(frozen=True, slots=True)
class Op:
    """One call for a worker to make; `limit_s` is the time it may take."""

    verb: str
    args: list[Any]
    limit_s: float


class Client:
    """What the application knows of one worker: asks, waits, and says what went wrong.

    `counters` are kept as the worker's are; `command` is the program of the worker, for tests.
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
        self._idle_s = IDLE_S
        with _STARTING, child.low_descriptors_taken():
            self._arena = Arena()
            try:
                self._transport = _start(info, self._arena, command)
            except BaseException:
                self._arena.close()
                raise
            _CLIENTS.add(self)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._transport.pid

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
            "device": info_to_record(self._info),
            "deadline_s": deadline_s,
            "share": self._arena.fd,
            "life": self._transport.life,
        }
        reply = self._exchange(request, b"", (), (), deadline_s)
        try:
            return caps_from_record(reply.get("caps"))
        except FrameError as error:
            raise self._nonsense(error) from None

    # --- shared memory --------------------------------------------------------------------------

    def room(self, nbytes: int) -> int | None:
        """Return a place in this batch's part of the shared memory, None if it is full."""
        place = -(-self._used // ALIGNMENT) * ALIGNMENT
        if place + nbytes > TOTAL:
            return None
        self._arena.grow(place + nbytes)
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

    def view(self, place: int, nbytes: int) -> memoryview:
        """Return the bytes at a place."""
        return self._arena.view(place, nbytes)

    def trim(self) -> None:
        """Give back shared memory that only a model's constants needed."""
        self._arena.trim()

    # --- requests -------------------------------------------------------------------------------

    def queue(self, op: Op) -> None:
        """Have a call made with the next that is asked for."""
        self._queue.append(op)

    def limit_idle(self, watchdog_s: float | None) -> None:
        """Set how long the worker may be idle in a call: as long as a run may take."""
        self._idle_s = IDLE_S if watchdog_s is None else max(FLOOR_S, watchdog_s)

    def flush(self) -> None:
        """Have what is queued done. Raises what those calls raise."""
        if self._queue:
            self.ask()

    def ask(self, *ops: Op, code: bytes = b"") -> None:
        """Have what is queued and then `ops` done, and wait for it. Raises what they raise."""
        batch, self._queue = [*self._queue, *ops], []
        waits = [op.limit_s for op in batch if op.verb == "wait"]
        # What goes with waiting for a run belongs to it: no call takes longer than that may.
        most = max(FLOOR_S, waits[0]) if waits else BUILD_S
        limits = [op.limit_s if op.verb in OWN_TIME else min(op.limit_s, most) for op in batch]
        self._used = CONTROL  # what lies there stays until the next place is asked for
        body = {"ops": [[op.verb, *op.args] for op in batch], "arena": self._arena.size}
        self._exchange(body, code, batch, limits, min(CALL_S, most))

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
        self._arena.note(NOTHING)
        try:
            self._transport.send(pack(self._sequence, body, code), begin_s)
            sequence, text = self._reply(batch, limits, begin_s)
            if sequence != self._sequence:
                raise FrameError("a reply to another request")
            reply = parse(text)
            error = error_from_record(reply["error"]) if "error" in reply else None
            if "counters" in reply or error is None:
                take_counts(reply.get("counters"), self._counters)
        except WorkerSilentError:
            raise self._hung(_where(batch, self._arena.noted(len(batch)))) from None
        except WorkerEndedError:
            raise self._died(batch, self._arena.noted(len(batch))) from None
        except FrameError as nonsense:
            raise self._nonsense(nonsense) from None
        except BaseException:  # an interrupt: its answer would be taken for the next one's
            self._end("the call was interrupted")
            raise
        if error is not None:
            raise error
        return reply

    def _reply(
        self, batch: Sequence[Op], limits: Sequence[float], begin_s: float
    ) -> tuple[int, bytes]:
        """Wait for the reply. Raises WorkerSilentError where the worker hangs.

        The worker notes which call of the batch it is at. Notes may be wrong: they only go forward,
        so each call has its time once. A worker that is idle hangs earlier, unless it waits for a
        run.
        """
        look_s = min([LOOK_S, begin_s, *limits])
        reply = self._transport.receive(look_s)
        if reply is not None:  # what is quick is not watched: that costs time, too
            return reply
        position = -1
        watch = Watch(begin_s - look_s, self.pid)
        while True:
            noted = self._arena.noted(len(batch))
            if batch and noted > position:
                position = noted
                watch.restart(limits[position] if position < len(batch) else begin_s)
            may_idle = not batch or (0 <= position < len(batch) and batch[position].verb == "wait")
            is_idle = watch.idle_for_s >= (math.inf if may_idle else self._idle_s)
            if watch.look() or is_idle:
                raise WorkerSilentError
            reply = self._transport.receive(look_s)
            if reply is not None:
                return reply

    # --- endings --------------------------------------------------------------------------------

    def _end(self, why: str, seconds: float = 0.0) -> str:
        """End the worker, remember why, and return how it ended if it did so by itself."""
        if self._lost is None:
            self._lost = why
        how = self._transport.end(seconds)
        self._arena.close()
        _CLIENTS.discard(self)
        return how

    def _died(self, batch: Sequence[Op], position: int) -> DeviceError:
        transport, is_known = self._transport, self.is_lost
        how = self._end("", ENDING_S) or "it closed its pipe"
        self._is_outside = transport.was_killed or position < 0
        if not is_known:  # another thread may have closed the device
            said = transport.last_words
            words = f"; its last words: {said}" if said else ""
            self._lost = f"{how} {_where(batch, position)}{words}"
        return self._lost_error(self._lost or how)

    def _nonsense(self, error: FrameError) -> DeviceError:
        self._is_outside = False
        self._end(f"its worker answered nonsense ({error}) and was ended")
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
        if self._lost is None and seconds > 0:
            self._lost = "the device was closed"
            with suppress(WorkerEndedError, WorkerSilentError):
                self._transport.send(pack(0, {"close": True}), seconds)
                self._transport.end(seconds)
        self._end("the device was closed")

    def kill(self) -> None:
        """Kill the worker while another thread waits for an answer; that thread cleans up."""
        if self._lost is None:
            self._lost = "the device was closed"
        self._transport.kill()

    def abandon(self) -> None:
        """Let go of everything in a forked child, or its copies would keep the worker alive."""
        self._transport.abandon()
        self._arena.close()


def _where(batch: Sequence[Op], position: int) -> str:
    """Say at which call a worker was."""
    if not batch:
        return WHERE["start" if position < 0 else "open"]
    if position < 0:
        return "before the next call began"
    return WHERE[batch[min(position, len(batch) - 1)].verb]


def _start(info: DeviceInfo, arena: Arena, given: Sequence[str] | None) -> Transport:
    if sys.platform == "win32":
        raise _no_worker("isolation='process' does not exist on Windows yet.", None)
    command = given or interpreter.command(MODULE)
    if command is None:
        raise _no_worker("No worker process can be started here.", interpreter.why_none())
    try:
        return Transport(command, child.environment(info.candidate.env), arena.fd)
    except OSError as error:
        raise _no_worker("The device's worker process cannot be started.", str(error)) from None


def _no_worker(what: str, known: str | None) -> DeviceError:
    hint = "isolation='inline' runs the driver in this process"
    return BackendUnavailableError(what, known=known, hint=hint, reason="no-child")


_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()
"""Those whose worker runs."""

_STARTING = threading.RLock()
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
