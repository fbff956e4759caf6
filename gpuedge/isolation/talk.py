"""Questions and answers: what is asked of a host, how long it may take, and what if it dies."""

from __future__ import annotations

import os
import sys
import threading
import time
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
from gpuedge.isolation.link import MODULE, HostEndedError, HostSilentError, Link
from gpuedge.isolation.messages import (
    caps_from_record,
    error_from_record,
    info_to_record,
    take_counts,
)
from gpuedge.isolation.patience import CALL_S, FLOOR_S, STILL_S, Opening, Patience, Stillness
from gpuedge.isolation.shared import ALIGNMENT, CONTROL, NOTHING, TOTAL, Arena
from gpuedge.isolation.wire import FrameError, pack, parse
from gpuedge.probing import process
from gpuedge.probing.judge import STEPS
from gpuedge.safety import interpreter

BUILD_S = 60.0
"""Time for compiling a kernel and for recording work."""

MARGIN_S = 0.5
"""How much later than a driver should have given up waiting the host is given up."""

CLOSE_S = 2.0
"""How long a host may take to close its device."""

OWN_TIME = frozenset({"build", "record", "wait", "read"})
"""Calls whose time does not depend on the run they go with."""

WHERE = {
    "alloc": "while reserving memory",
    "free": "while giving memory back",
    "write": "while copying data to the device",
    "read": STEPS["read"],
    "build": STEPS["build"],
    "record": "while recording work",
    "submit": STEPS["run"],
    "wait": STEPS["run"],
    "release": "while giving memory back",
}
"""How to say what a host was doing."""


@dataclass(frozen=True, slots=True)
class Op:
    """One call for a host to make; `limit_s` is the time it may take."""

    verb: str
    args: list[Any]
    limit_s: float


class Talk:
    """The conversation with one host.

    Parameters
    ----------
    info : DeviceInfo
    counters : Counters
        Kept as the host's are.
    command : sequence of str, optional
        The program of the host.
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
        self._is_outside = True  # until the driver is found to have ended the host
        self._is_owed = False
        self._still_s = STILL_S
        self._ending = threading.Lock()
        with _STARTING, process.low_descriptors_taken():
            self._arena = Arena()
            try:
                self._link = _start(info, self._arena, command)
            except BaseException:
                self._arena.close()
                raise
            _TALKS[self._link.pid] = weakref.ref(self)

    @property
    def pid(self) -> int:
        """Process id of the host."""
        return self._link.pid

    @property
    def is_lost(self) -> bool:
        """True once the host is known to be gone."""
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
                known="its host takes orders from the process that started it",
                hint="open the device in this process too: it gets a host of its own",
            )

    def check_lost(self) -> None:
        """Raise DeviceLostError (GE-401) if the host is gone."""
        if self._lost is not None:
            raise self._lost_error(self._lost)

    def open(self, deadline_s: float) -> Caps:
        """Have the device opened; return what it can do. Raises DeviceError."""
        request = {
            "device": info_to_record(self._info),
            "deadline_s": deadline_s,
            "share": self._arena.fd,
            "life": self._link.far,
        }
        self._arena.tell(NOTHING, 0.0)
        end = time.monotonic() + deadline_s
        reply = self._exchange(request, b"", Opening(self._arena, end))
        try:
            return caps_from_record(reply.get("caps"))
        except FrameError as error:
            raise self._babble(error) from None

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

    # --- questions ------------------------------------------------------------------------------

    def queue(self, op: Op) -> None:
        """Have a call made with the next that is asked for."""
        self._queue.append(op)

    def bear(self, watchdog_s: float | None) -> None:
        """Set how long the host may do nothing in a call: as long as a run may take."""
        self._still_s = STILL_S if watchdog_s is None else max(FLOOR_S, watchdog_s)

    def flush(self) -> None:
        """Have what is queued done. Raises what those calls raise."""
        if self._queue:
            self.ask()

    def ask(self, *ops: Op, code: bytes = b"") -> None:
        """Have what is queued and then `ops` done, and wait for it. Raises what they raise."""
        batch, self._queue = [*self._queue, *ops], []
        waits = [i for i, op in enumerate(batch) if op.verb == "wait"]
        # What goes with waiting for a run belongs to it: no call takes longer than that may.
        most = max(FLOOR_S, batch[waits[0]].limit_s) if waits else BUILD_S
        limits = [op.limit_s if op.verb in OWN_TIME else min(op.limit_s, most) for op in batch]
        still = Stillness(self._link.pid, self._still_s)
        patience = Patience(self._arena, limits, min(CALL_S, most), still, waits)
        self._arena.tell(NOTHING, 0.0)
        self._used = CONTROL  # what lies there stays until the next place is asked for
        self._exchange(self._body(batch, reply=True), code, patience, batch)

    def trim(self) -> None:
        """Give back shared memory that only a model's constants needed."""
        self._arena.trim()

    def tell(self, op: Op) -> None:
        """Have a call made without waiting for it; its errors are nobody's."""
        self._sequence += 1
        frame = pack(self._sequence, self._body([op], reply=False))
        try:
            self._link.send(frame, time.monotonic() + CALL_S)
        except HostSilentError:
            raise self._hung(WHERE[op.verb]) from None
        except HostEndedError:
            raise self._died(_where([op], -1), is_idle=True) from None
        self._is_owed = True

    def _body(self, batch: Sequence[Op], *, reply: bool) -> dict[str, Any]:
        return {
            "ops": [[op.verb, *op.args] for op in batch],
            "arena": self._arena.size,
            "needs_s": sum(op.limit_s for op in batch),
            "reply": reply,
        }

    def _exchange(
        self, body: dict[str, Any], code: bytes, patience: Patience, batch: Sequence[Op] = ()
    ) -> dict[str, Any]:
        self._sequence += 1
        try:
            frame = pack(self._sequence, body, code)
            self._link.send(frame, patience.deadline())
            sequence, text = self._link.receive(patience.deadline, patience.look_s)
            if sequence != self._sequence:
                raise FrameError("a reply to another request")
            reply = parse(text)
            self._is_owed = False
            error = error_from_record(reply["error"]) if "error" in reply else None
            if "counters" in reply or error is None:
                take_counts(reply.get("counters"), self._counters)
        except HostSilentError:
            raise self._hung(_where(batch, patience.position)) from None
        except HostEndedError:
            patience.deadline()  # looks once more how far it came
            where = _where(batch, patience.position)
            raise self._died(where, is_idle=patience.position < 0) from None
        except FrameError as babble:
            raise self._babble(babble) from None
        except BaseException:  # an interrupt: its answer would be taken for the next one's
            self._end("the call was interrupted")
            raise
        if error is not None:
            raise error
        return reply

    # --- endings --------------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        """Kill the host and remember why."""
        with self._ending:
            if self._lost is None:
                self._lost = why
            self._link.kill()
            self._arena.close()
            _TALKS.pop(self._link.pid, None)

    def _died(self, where: str, *, is_idle: bool) -> DeviceError:
        how = self._link.how_it_ended()
        # It may have died of what it was told before and nobody waited for.
        self._is_outside = self._link.was_killed or (is_idle and not self._is_owed)
        said = self._link.last_words
        self._end(f"{how} {where}" + (f"; its last words: {said}" if said else ""))
        return self._lost_error(self._lost or how)

    def _babble(self, error: FrameError) -> DeviceError:
        self._is_outside = False
        self._end(f"its host answered nonsense ({error}) and was ended")
        return self._lost_error(self._lost or "")

    def _lost_error(self, why: str) -> DeviceError:
        error = DeviceLostError(
            f"The host process of {self._info.identity.name} is gone.",
            known=why, hint="open the device again", reason="host-died",
        )  # fmt: skip
        error.is_outside = self._is_outside
        return error

    def _hung(self, where: str) -> DeviceError:
        self._end(f"it hung {where} and was ended")
        return DeviceTimeoutError(
            f"{self._info.identity.name} did not answer in time; its host process was ended.",
            known=self._lost, hint="open the device again", reason="device-hung",
        )  # fmt: skip

    def close(self, seconds: float) -> None:
        """Close the device and end the host within some seconds; never raises."""
        if self._lost is None and seconds > 0:
            self._lost = "the device was closed"
            with suppress(HostEndedError, HostSilentError):
                self._link.send(pack(0, {"close": True}), time.monotonic() + seconds)
                self._link.leave(seconds)
        self._end("the device was closed")

    def strike(self) -> None:
        """Kill the host while another thread waits for an answer; that thread cleans up."""
        if self._lost is None:
            self._lost = "the device was closed"
        self._link.strike()

    def abandon(self) -> None:
        """Let go of everything in a forked child, or its copies would keep the host alive."""
        self._link.abandon()
        self._arena.close()


def _where(batch: Sequence[Op], position: int) -> str:
    """Say at which call a host was."""
    if not batch:
        return STEPS["start"] if position < 0 else STEPS["open"]
    if position < 0:
        return "before the next call began"
    return WHERE[batch[min(position, len(batch) - 1)].verb]


def _start(info: DeviceInfo, arena: Arena, given: Sequence[str] | None) -> Link:
    from gpuedge.probing.run import child_environment

    if sys.platform == "win32":
        raise _no_host("isolation='process' does not exist on Windows yet.", None)
    command = given or process.command(MODULE)
    if command is None:
        raise _no_host("No host process can be started here.", interpreter.why_none())
    try:
        return Link(command, child_environment(info.candidate), arena.fd)
    except OSError as error:
        raise _no_host("The device's host process cannot be started.", str(error)) from None


def _no_host(what: str, known: str | None) -> DeviceError:
    hint = "isolation='inline' runs the driver in this process"
    return BackendUnavailableError(what, known=known, hint=hint, reason="no-child")


_TALKS: dict[int, weakref.ref[Talk]] = {}
"""The conversations that are going on, by the process id of their host."""

_STARTING = threading.RLock()
"""Held while a host is being started: a fork waits for that, so that it knows all pipes."""

FORK_S = 5.0
"""How long a fork waits at most; starting a process takes milliseconds."""


def _before_fork() -> None:
    _STARTING.acquire(timeout=FORK_S)


def _after_fork_here() -> None:
    with suppress(RuntimeError):  # it did not wait long enough to have it
        _STARTING.release()


def _after_fork() -> None:
    global _STARTING  # noqa: PLW0603  (a thread of the parent may hold the old one for ever)
    _STARTING = threading.RLock()
    for kept in list(_TALKS.values()):
        talk = kept()
        if talk is not None:
            talk.abandon()
    _TALKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_here, after_in_child=_after_fork
    )
