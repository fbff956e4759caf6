"""Answering the requests of a session: in turn, in time, to the end of the program."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import (
    ClosedError,
    DeviceTimeoutError,
    GpuEdgeError,
    InputError,
    RequestTimeoutError,
    UsageError,
)
from gpuedge.core.reasons import Reason
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import OnnxModel
from gpuedge.kernels.storages import Range
from gpuedge.runtime.attempt import DONE, GIVEN_UP, RUNNING, Attempt
from gpuedge.runtime.backlog import Backlog
from gpuedge.runtime.compiled import Compiled
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.health import PENDING, Health, Tally
from gpuedge.runtime.inputs import check_inputs
from gpuedge.runtime.ranges import measure
from gpuedge.runtime.recovery import OK, RECOVERING
from gpuedge.runtime.strings import CPU
from gpuedge.runtime.trying import Purse
from gpuedge.runtime.turns import STILL_S, Turns
from gpuedge.runtime.variants import Shapes, Variants
from gpuedge.safety.watchdog import RUN_LIMIT_S

if TYPE_CHECKING:
    from gpuedge.decide.policy import Policy
    from gpuedge.runtime.placing import Request

LEAVE_S = 5.0
"""How long `Server.close` waits for a request that is under way in another thread."""

EXIT_S = 5.0
"""How long the end of the interpreter waits for requests under way, all sessions together."""

MARGIN_S = 0.5
"""What a device's own watchdog gets beyond its time: it ends a run in a better way."""

KEPT = 1000
"""Times that are kept; the first one always is."""

Outputs = dict[str, Array]


def note(times: list[float], seconds: float) -> None:
    """Add a time to those that are kept."""
    times.append(seconds)
    if len(times) > KEPT:
        del times[1 : KEPT // 2 + 1]


class Compiler:
    """Compiles one model for shapes of its inputs; knows what calibrates it.

    Attributes
    ----------
    times : list of float
        Seconds that compiling took.

    Raises
    ------
    UsageError (GE-2xx)
        Inputs of calibration that do not fit the model.
    """

    def __init__(self, model: OnnxModel, policy: Policy) -> None:
        self.times: list[float] = []
        self._model = model
        self._ranges: dict[str, Range] | None = None
        self._purse = Purse(policy.calibration_s)  # of all shapes together
        try:
            self._feeds = [check_inputs(f, model.inputs) for f in policy.calibration or ()]
        except UsageError as error:
            error.asked_by = "Policy(calibration=...)"
            raise

    def compile(self, shapes: Shapes, request: Request) -> Compiled:
        """Compile the model for these input shapes. Raises GpuEdgeError."""
        graph = self._model.specialise(dict(zip(self._model.inputs, shapes, strict=True)))
        start = perf_counter()
        calibrate = self._calibrate if self._feeds else None
        made = Compiled(graph, request, calibrate=calibrate, purse=self._purse)
        note(self.times, perf_counter() - start)
        _end_first()
        return made

    def _calibrate(self) -> dict[str, Range]:
        """Return the bounds that the calibration inputs give, whatever their shapes."""
        if self._ranges is None:
            feeds = self._feeds
            graphs = (self._model.specialise({n: a.shape for n, a in f.items()}) for f in feeds)
            self._ranges = measure(zip(graphs, feeds, strict=True), POOL.cpu())
        return self._ranges


class Server:
    """Answers requests, one at a time, from any number of threads.

    Parameters
    ----------
    compiler : Compiler
    request : Request

    Attributes
    ----------
    latest : Compiled or None
        What answered the last request.
    times : list of float
        Seconds that requests took.
    """

    def __init__(self, compiler: Compiler, request: Request) -> None:
        self.latest: Compiled | None = None
        self.times: list[float] = []
        self._compiler = compiler
        self._request = request
        self._owner = os.getpid()
        self._inherited: list[Any] = []
        self._is_closed = self._is_closing = False
        self._failure: GpuEdgeError | None = None  # of the last attempt to compile
        self._looked = self._awake = 0.0  # when `_is_stuck` was asked last, and since when
        self._tally = Tally()  # what no compiled model can count
        self._empty()
        _servers.add(self)

    def _empty(self) -> None:
        self.latest = None
        self._state = threading.Lock()
        self._turns = Turns()
        self._backlog: Backlog | None = None
        on_cpu = replace(self._request, device=CPU, executor=None)
        self._variants = Variants(self._compiler, self._request)
        self._instead = Variants(self._compiler, on_cpu)

    def _here(self) -> None:
        """Start anew in a forked child: threads and locks behind the old parts are not here.

        They are kept, because destroying them would wait for those threads.
        """
        if self._owner != os.getpid():
            self._owner = os.getpid()
            old = (self._variants, self._instead, self._backlog, self._turns, self.latest)
            self._inherited.append(old)
            self._empty()

    def check_open(self) -> None:
        """Raise ClosedError (GE-204) if this was closed."""
        if self._is_closed:
            raise _closed()

    def prepare(self, shapes: Shapes) -> None:
        """Compile for input shapes that are known before the first request."""
        self.latest = self._variants.get(shapes)

    # -- answering ----------------------------------------------------------------------------

    def run(
        self, arrays: Mapping[str, Array], timeout_s: float | None, left_s: float | None = None
    ) -> Outputs:
        """Answer a request in the time it has, of which `left_s` are left. Raises GpuEdgeError."""
        self._here()
        if timeout_s is None:
            return self._answer(arrays)
        until = monotonic() + (timeout_s if left_s is None else left_s)
        if until <= monotonic():
            raise _no_result(timeout_s, GIVEN_UP)
        attempt = Attempt[Outputs](lambda attempt: self._answer(arrays, attempt))
        try:
            is_done = attempt.wait(until - monotonic())
        except BaseException:  # Ctrl-C, or what the handler of another signal raised
            self._give_up(attempt)
            raise
        if is_done and attempt.ended <= until:
            return attempt.result()
        raise _no_result(timeout_s, self._give_up(attempt))

    def submit(self, arrays: Mapping[str, Array], timeout_s: float | None) -> Future[Outputs]:
        """Queue a request. Raises ClosedError, UsageError, RequestTimeoutError."""
        self._here()
        with self._state:
            if self._is_closing:
                raise _closed()
            if self._backlog is None:
                self._backlog = Backlog()
                weakref.finalize(self, self._backlog.cancel).atexit = False
            backlog = self._backlog
        return backlog.submit(lambda left_s: self.run(arrays, timeout_s, left_s), timeout_s)

    def _answer(
        self, arrays: Mapping[str, Array], attempt: Attempt[Outputs] | None = None
    ) -> Outputs:
        """Answer a request when its turn has come; behind one that is stuck, on the CPU."""
        turn = self._turns.take(attempt, self._look)
        if turn is None:
            return self._answer_instead(arrays)
        variants = self._variants
        try:
            self.check_open()
            self.latest = compiled = self._compiled(variants, arrays)
            start = perf_counter()
            result = compiled.run(arrays)
            note(self.times, perf_counter() - start)
            return result
        finally:
            if self._is_closed and variants is self._variants:
                variants.close()  # the session did not wait for this one
            turn.release()

    def _compiled(self, variants: Variants, arrays: Mapping[str, Array]) -> Compiled:
        try:
            found = variants.get(_shapes(arrays))
        except GpuEdgeError as error:
            self._failure = error
            raise
        self._failure = None
        return found

    def _answer_instead(self, arrays: Mapping[str, Array]) -> Outputs:
        """Answer on the CPU while a request that was given up holds the device."""
        if self._request.fallback == "error":
            raise DeviceTimeoutError(
                "The device has not returned from a request that was given up.",
                asked_by="fallback='error'",
                hint="fallback='cpu' lets the CPU answer meanwhile",
                reason="device-hung",
            )
        with self._instead.lock:
            self.check_open()
            result = self._instead.get(_shapes(arrays)).run(arrays)
            self._tally.on_cpu += 1
            return result

    # -- looking ------------------------------------------------------------------------------

    def decided(self) -> Compiled:
        """Return what answered the last request. Raises InputError (GE-203) before the first."""
        if self.latest is not None:
            return self.latest
        if self._failure is not None:
            raise InputError(
                "Nothing has been decided yet: the model was not compiled.",
                known=f"the last attempt failed: {self._failure.what}",
            ) from self._failure
        raise InputError(
            "Nothing has been decided yet: the model leaves input shapes open.",
            hint="run the model once, then ask",
        )

    def health(self) -> Health:
        """Return how the model fares, with what the CPU answered behind requests given up."""
        latest, asked = self.latest, self._request
        if latest is None and asked.device == CPU:
            return Health(CPU, CPU)
        if latest is None:
            why = "" if self._failure is None else self._failure.what.rstrip(".")
            return Health(PENDING, asked.device, asked.isolation, why)
        found = latest.health()
        if found.state == OK and self._turns.late is not None:
            why = Reason("device-hung", "a request that was given up still runs").sentence
            found = replace(found, state=RECOVERING, reason=why)
        return found.plus(self._tally)

    # -- leaving ------------------------------------------------------------------------------

    def _give_up(self, attempt: Attempt[Outputs]) -> str:
        """Stop waiting for a request; if its device does not return, leave that alone."""
        doing = attempt.give_up()
        if doing == RUNNING:
            self._turns.be_late(attempt, self._patience_s, lambda: self._leave(attempt))
        return doing

    @property
    def _patience_s(self) -> float:
        """How long a device may take before it counts as hung."""
        return self._request.policy.watchdog_s or RUN_LIMIT_S

    def _look(self) -> None:
        """Leave a run without a limit alone that is stuck inside a device."""
        if self._is_stuck():
            self._leave(None)

    def _is_stuck(self) -> bool:
        """Tell whether the request under way is inside its device for too long.

        Counted from the first look: time during which nobody looked, perhaps because the whole
        process stood still, says nothing of the device.
        """
        latest, now = self.latest, perf_counter()
        if now - self._looked > STILL_S:
            self._awake = now
        self._looked = now
        inside_s = 0.0 if latest is None else latest.inside_s()
        return min(inside_s, now - self._awake) > self._patience_s + MARGIN_S

    def _leave(self, late: Attempt[Outputs] | None) -> None:
        """Go on without a request that does not return, and without its device."""
        with self._state:
            if self._turns.late is not late or self._owner != os.getpid():
                return
            if late is None and not self._is_stuck():
                return  # another thread has left it, or it came back
            is_on_device = self.latest is not None and self.latest.abandon()
            if is_on_device:
                self._tally.fail(Reason("device-hung", "a request did not return"))
            if not is_on_device or self._request.executor is not None:
                # Stuck while compiling, or on a device of the caller's: there is no other one.
                self._request = replace(self._request, device=CPU, executor=None)
            self._inherited.append(self._variants)
            self._variants = Variants(self._compiler, self._request)
            self._turns.renew()

    def close(self) -> None:
        """Finish what is queued, then release everything; see `gpuedge.Session.close`."""
        self._here()
        with self._state:
            self._is_closing = True  # no new queue comes after this one
            backlog, self._backlog = self._backlog, None
        if backlog is not None:
            backlog.close(self._is_stuck)
        late = self._turns.late
        if late is not None and not late.wait(LEAVE_S):
            self._leave(late)
        turn = self._turns.take_within(LEAVE_S)
        self._is_closed = True
        if turn is None:
            return  # what it holds stays its own; it closes that if it comes back
        try:
            self._variants.close()
            self._instead.close()
        finally:
            turn.release()

    def end(self, seconds: float) -> None:
        """Start no more requests and wait for the one under way: the interpreter ends."""
        if self._owner == os.getpid():
            if self._backlog is not None:
                self._backlog.cancel()
            self._turns.hold(seconds)


def _shapes(arrays: Mapping[str, Array]) -> Shapes:
    return tuple(array.shape for array in arrays.values())


def _no_result(timeout_s: float, doing: str) -> RequestTimeoutError:
    known = {
        RUNNING: "it still runs",
        DONE: "it was done too late",
    }.get(doing, "other runs of this session were not done")
    hint = "the CPU answers the next request if it still runs then" if doing == RUNNING else None
    what = f"There is no result after {timeout_s:g} s."
    return RequestTimeoutError(what, asked_by="timeout_s", known=known, hint=hint)


def _closed() -> ClosedError:
    return ClosedError("The session was closed before this call.")


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _end() -> None:
    """Bring the requests of all threads to an end before drivers and libraries go."""
    until = monotonic() + EXIT_S
    for server in list(_servers):
        server.end(until - monotonic())


def _end_first() -> None:
    """Let `_end` come before what modules registered that were imported since, such as hosts."""
    atexit.unregister(_end)
    atexit.register(_end)
