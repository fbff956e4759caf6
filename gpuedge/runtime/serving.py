"""Answering the requests of a session: in turn, in time, to the end of the program."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import (
    ClosedError,
    DeviceTimeoutError,
    RequestTimeoutError,
    UsageError,
)
from gpuedge.executors.watching import RUN_TIMEOUT_S
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import OnnxModel
from gpuedge.kernels.storages import Range
from gpuedge.runtime.attempt import DONE, RUNNING, Attempt
from gpuedge.runtime.backlog import Backlog
from gpuedge.runtime.compiled import Compiled
from gpuedge.runtime.devices import CPU, POOL
from gpuedge.runtime.inputs import check_inputs
from gpuedge.runtime.ranges import measure
from gpuedge.runtime.turns import Turns
from gpuedge.runtime.variants import Shapes, Variants

if TYPE_CHECKING:
    from gpuedge.decide.policy import Policy
    from gpuedge.runtime.placing import Request

LEAVE_S = 10.0
"""How long `Server.close` waits for a request that its caller gave up."""

EXIT_S = 5.0
"""How long the end of the interpreter waits for requests under way, all sessions together."""

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
        try:
            self._feeds = [check_inputs(f, model.inputs) for f in policy.calibration or ()]
        except UsageError as error:
            error.asked_by = "Policy(calibration=...)"
            raise

    def compile(self, shapes: Shapes, request: Request) -> Compiled:
        """Compile the model for these input shapes. Raises GpuEdgeError."""
        graph = self._model.specialise(dict(zip(self._model.inputs, shapes, strict=True)))
        start = time.perf_counter()
        calibrate = self._calibrate if self._feeds else None
        made = Compiled(graph, request, calibrate=calibrate)
        note(self.times, time.perf_counter() - start)
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

    def run(self, arrays: Mapping[str, Array], timeout_s: float | None) -> Outputs:
        """Answer a request in the time it has. Raises GpuEdgeError."""
        self._here()
        if timeout_s is None:
            return self._answer(arrays)
        attempt = Attempt[Outputs](lambda attempt: self._answer(arrays, attempt))
        try:
            if attempt.wait(timeout_s):
                return attempt.result()
        except KeyboardInterrupt:
            self._give_up(attempt)
            raise
        doing = self._give_up(attempt)
        if doing == DONE:
            return attempt.result()
        is_running = doing == RUNNING
        raise RequestTimeoutError(
            f"There is no result after {timeout_s:g} s.",
            asked_by="timeout_s",
            known="it still runs" if is_running else "other runs of this session were not done",
            hint="the CPU answers the next request if it still runs then" if is_running else None,
        )

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
        return backlog.submit(lambda left_s: self.run(arrays, left_s), timeout_s)

    def _answer(
        self, arrays: Mapping[str, Array], attempt: Attempt[Outputs] | None = None
    ) -> Outputs:
        """Answer a request when its turn has come; behind one that is stuck, on the CPU."""
        turn = self._turns.take(attempt)
        if turn is None:
            return self._answer_instead(arrays)
        try:
            self.check_open()
            self.latest = compiled = self._variants.get(_shapes(arrays))
            start = time.perf_counter()
            result = compiled.run(arrays)
            note(self.times, time.perf_counter() - start)
            return result
        finally:
            turn.release()

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
            return self._instead.get(_shapes(arrays)).run(arrays)

    # -- leaving ------------------------------------------------------------------------------

    def _give_up(self, attempt: Attempt[Outputs]) -> str:
        """Stop waiting for a request; if its device does not return, leave that alone."""
        doing = attempt.give_up()
        if doing == RUNNING:
            seconds = self._request.policy.watchdog_s or RUN_TIMEOUT_S
            self._turns.be_late(attempt, seconds, lambda: self._leave(attempt))
        return doing

    def _leave(self, late: Attempt[Outputs]) -> None:
        """Go on without a request that does not return, and without its device."""
        with self._state:
            if self._turns.late is not late or self._owner != os.getpid():
                return
            is_on_device = self.latest is not None and self.latest.abandon()
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
            backlog.close()
        late = self._turns.late
        if late is not None and not late.wait(LEAVE_S):
            self._leave(late)
        turn = self._turns.take()
        self._is_closed = True
        if turn is None:
            return  # given up in this very moment: what it holds stays its own
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


def _closed() -> ClosedError:
    return ClosedError("The session was closed before this call.")


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _end() -> None:
    """Bring the requests of all threads to an end before drivers and libraries go."""
    until = time.monotonic() + EXIT_S
    for server in list(_servers):
        server.end(until - time.monotonic())


def _end_first() -> None:
    """Let `_end` come before what modules registered that were imported since, such as hosts."""
    atexit.unregister(_end)
    atexit.register(_end)
