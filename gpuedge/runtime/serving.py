"""A session's requests: one at a time, from any thread, with time limits, a queue and an end.

One lock holds all of it. A request has the turn while it runs; the others wait for it. A request
that was given up loses the turn and becomes late: while it lasts, the CPU answers the others. If it
comes back in time its device is used again; if not, the device is left alone for good.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.errors import (
    ClosedError,
    DeviceError,
    DeviceTimeoutError,
    GpuEdgeError,
    InputError,
    RequestTimeoutError,
    UsageError,
)
from gpuedge.core.reasons import Reason
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import OnnxModel
from gpuedge.plan.storages import Range
from gpuedge.runtime import clock
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.health import PENDING, Counts, Health
from gpuedge.runtime.inputs import check_inputs
from gpuedge.runtime.queueing import Queue
from gpuedge.runtime.ranges import measure
from gpuedge.runtime.recovery import OK, RECOVERING
from gpuedge.runtime.strings import CPU
from gpuedge.runtime.trying import TimeBudget
from gpuedge.safety.deadline import Call
from gpuedge.safety.watchdog import LOOK_S, RUN_LIMIT_S, Watch

if TYPE_CHECKING:
    from gpuedge.decide.policy import Policy
    from gpuedge.runtime.placing import Request

LEAVE_S = 5.0
"""How long `Server.close` waits for requests that are under way in other threads."""

EXIT_S = 5.0
"""How long the end of the interpreter waits for requests under way, all sessions together."""

CANCELLED_S = 1.0
"""How long it waits after that for runs on the CPU that were told to stop."""

POLL_S = 0.2
"""How often a request that waits for its turn looks whether the one before it is stuck."""

MARGIN_S = 0.5
"""What a device's own watchdog gets beyond its time: it ends a run in a better way."""

MAX_SHAPES = 8
"""Sets of input shapes kept compiled; the least recently used one is dropped."""

KEPT = 1000
"""Times that are kept for `Session.profile`."""

Outputs = dict[str, Array]
Shapes = tuple[tuple[int, ...], ...]
Models = OrderedDict[Shapes, CompiledModel]


class Times:
    """The first and the latest of some times, in nanoseconds."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.latest: deque[int] = deque(maxlen=KEPT)

    def note(self, ns: int) -> None:
        """Add a time."""
        if self.first is None:
            self.first = ns
        self.latest.append(ns)

    def summary(self) -> dict[str, Any]:
        """Return count, first, median and 90th percentile in seconds."""
        ordered = [ns / 1e9 for ns in sorted(self.latest)]
        return {
            "count": len(ordered),
            "first_s": None if self.first is None else self.first / 1e9,
            "p50_s": ordered[len(ordered) // 2] if ordered else None,
            "p90_s": ordered[int(len(ordered) * 0.9)] if ordered else None,
        }


class Compiler:
    """Compiles one model for shapes of its inputs; knows what calibrates it.

    Attributes
    ----------
    times : Times
        What compiling took.

    Raises
    ------
    UsageError (GE-2xx)
        Inputs of calibration that do not fit the model.
    """

    def __init__(self, model: OnnxModel, policy: Policy) -> None:
        self.times = Times()
        self.model = model
        self._ranges: dict[str, Range] | None = None
        self._budget = TimeBudget(policy.calibration_s)  # of all shapes together
        try:
            self._feeds = [check_inputs(f, model.inputs) for f in policy.calibration or ()]
        except UsageError as error:
            error.asked_by = "Policy(calibration=...)"
            raise

    def compile(self, shapes: Shapes, request: Request) -> CompiledModel:
        """Compile the model for these input shapes. Raises GpuEdgeError."""
        graph = self.model.specialise(dict(zip(self.model.inputs, shapes, strict=True)))
        start = clock.now_ns()
        calibrate = self._calibrate if self._feeds else None
        made = CompiledModel(graph, request, calibrate=calibrate, budget=self._budget)
        self.times.note(clock.now_ns() - start)
        _end_first()
        return made

    def _calibrate(self) -> dict[str, Range]:
        """Return the bounds that the calibration inputs give, whatever their shapes."""
        if self._ranges is None:
            feeds = self._feeds
            graphs = (self.model.specialise({n: a.shape for n, a in f.items()}) for f in feeds)
            self._ranges = measure(zip(graphs, feeds, strict=True), POOL.cpu())
        return self._ranges


class Turn:
    """The right to run, which one request has at a time."""

    __slots__ = ("is_given_up", "model", "models", "request")

    def __init__(self) -> None:
        self.is_given_up = False
        self.request: Request | None = None
        self.models: Models | None = None
        self.model: CompiledModel | None = None


class Server:
    """Answers requests, one at a time, from any number of threads.

    Parameters
    ----------
    compiler : Compiler
    request : Request

    Attributes
    ----------
    latest : CompiledModel or None
        What answered the last request; while a late one lasts, what that one has.
    times : Times
        What requests took.
    """

    def __init__(self, compiler: Compiler, request: Request) -> None:
        self.times = Times()
        self._compiler = compiler
        self._request = request
        self._owner = os.getpid()
        self._kept: list[Any] = []  # what must be neither used nor destroyed
        self._is_closed = self._is_closing = False
        self._failure: GpuEdgeError | None = None  # of the last attempt to compile
        self._counts = Counts()  # what no compiled model can count
        self._start()
        _servers.add(self)

    def _start(self) -> None:
        self.latest: CompiledModel | None = None
        self._changed = threading.Condition(threading.Lock())
        self._turn: Turn | None = None
        self._late: list[Turn] = []  # given up, and not back yet
        self._ending: int | None = None  # the thread that ends the interpreter
        self._queue: Queue | None = None
        self._models: Models = OrderedDict()
        self._on_cpu: Models = OrderedDict()  # what answers while a late request has the others
        self._types: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...] = ()
        self._shapes: Shapes | None = None  # of the arrays that `match` knows
        self._watch, self._watched = Watch(0.0), 0.0

    def _here(self) -> None:
        """Start anew in a forked child: threads and locks behind the old parts are not here.

        They are kept, because destroying them would wait for those threads.
        """
        self._owner = os.getpid()
        self._kept.append((self._models, self._on_cpu, self._queue, self._turn, self._late))
        self._start()

    def check_open(self) -> None:
        """Raise ClosedError (GE-204) if this was closed."""
        if self._is_closed:
            raise _closed()

    def prepare(self, shapes: Shapes) -> None:
        """Compile for input shapes that are known before the first request."""
        self.latest = self._models[shapes] = self._compiler.compile(shapes, self._request)

    # -- answering ----------------------------------------------------------------------------

    def match(self, inputs: Any) -> Shapes | None:
        """Return the shapes of inputs that need no check: arrays of just the types run last."""
        if type(inputs) is not dict or len(inputs) != len(self._types):
            return None
        for name, dtype, shape in self._types:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
        return self._shapes

    def run(
        self,
        arrays: Mapping[str, Array],
        shapes: Shapes,
        timeout_s: float | None = None,
        left_s: float | None = None,
    ) -> Outputs:
        """Answer a request in the time it has, of which `left_s` are left. Raises GpuEdgeError."""
        if self._owner != os.getpid():
            self._here()
        if timeout_s is None:
            return self._answer(arrays, shapes, Turn())
        until = monotonic() + (timeout_s if left_s is None else left_s)
        if until <= monotonic():
            raise _no_result(timeout_s, "other runs of this session were not done")
        turn = Turn()
        try:
            call = Call(lambda: self._answer(arrays, shapes, turn), "gpuedge-run")
        except RuntimeError as error:
            raise DeviceError(
                f"No thread can be started for a run with timeout_s: {error}."
            ) from None
        try:
            is_done = call.wait(until - monotonic())
        except BaseException:  # Ctrl-C, or what the handler of another signal raised
            self._give_up(turn, call)
            raise
        if is_done and (call.ended or 0.0) <= until:
            return call.result()
        raise _no_result(timeout_s, self._give_up(turn, call))

    def submit(
        self, arrays: Mapping[str, Array], shapes: Shapes, timeout_s: float | None
    ) -> Future[Outputs]:
        """Queue a request. Raises ClosedError, UsageError, RequestTimeoutError."""
        if self._owner != os.getpid():
            self._here()
        with self._changed:
            if self._is_closing:
                raise _closed()
            if self._queue is None:
                self._queue = Queue(self._changed)
                weakref.finalize(self, self._queue.cancel).atexit = False
            queue = self._queue
        return queue.submit(lambda left_s: self.run(arrays, shapes, timeout_s, left_s), timeout_s)

    def _answer(self, arrays: Mapping[str, Array], shapes: Shapes, turn: Turn) -> Outputs:
        """Answer a request when its turn has come; beside one that is late, on the CPU."""
        try:
            models = self._take(turn)
            model = models.get(shapes)
            if model is None:
                model = self._compile(turn, models, shapes)
            elif len(models) > 1:
                models.move_to_end(shapes)
            turn.model = model
            if models is not self._models:
                result = model.run(arrays)
                self._counts.on_cpu += 1
                return result
            if shapes is not self._shapes:
                self._types = tuple((name, a.dtype, a.shape) for name, a in arrays.items())
                self._shapes = shapes
            self.latest = model
            start = clock.now_ns()
            result = model.run(arrays)
            self.times.note(clock.now_ns() - start)
            return result
        finally:
            self._release(turn)

    def _compile(self, turn: Turn, models: Models, shapes: Shapes) -> CompiledModel:
        is_main, request = models is self._models, turn.request or self._request
        try:
            made = self._compiler.compile(shapes, request)
        except GpuEdgeError as error:
            if is_main:
                self._failure = error
            raise
        if is_main:
            self._failure = None
        models[shapes] = made
        if len(models) > MAX_SHAPES:
            models.popitem(last=False)[1].close()
        return made

    # -- turns --------------------------------------------------------------------------------

    def _take(self, turn: Turn) -> Models:
        """Wait for the turn of a request; return the models that are its own for that long."""
        with self._changed:
            while self._turn is not None or self._ending is not None:
                if self._ending is not None and self._ending != threading.get_ident():
                    self._changed.wait()  # a daemon thread, and the interpreter ends
                elif self._turn is None or turn.is_given_up:
                    break
                elif not self._changed.wait(POLL_S):
                    self._leave_stuck()
            if self._is_closed:
                raise _closed()
            if turn.is_given_up:
                raise RequestTimeoutError("The request was given up before its turn came.")
            turn.models, turn.request = self._models, self._request
            if self._late and any(late.models is self._models for late in self._late):
                if self._request.fallback == "error":
                    raise _hung()
                turn.models = self._on_cpu
                turn.request = replace(self._request, device=CPU, executor=None)
            self._turn = turn
            return turn.models

    def _release(self, turn: Turn) -> None:
        """End a turn; close what it had if nobody else has that any more."""
        with self._changed:
            if self._turn is turn:
                self._turn = None
            elif turn in self._late:
                self._late.remove(turn)
            else:
                return  # it never had the turn, or was left with its device
            models = turn.models
            is_dropped = models is not self._models and models is not self._on_cpu
            self._changed.notify_all()
        if models is not None and (is_dropped or self._is_closed):
            _close_models(models)

    def _give_up(self, turn: Turn, call: Call[Outputs]) -> str:
        """Stop waiting for a request; return what it was doing."""
        with self._changed:
            if not call.give_up():
                return "it was done too late"
            turn.is_given_up = True
            self._changed.notify_all()
            if self._turn is not turn:
                return "other runs of this session were not done"
            self._turn = None
            self._late.append(turn)
            if turn.models is self._on_cpu:
                self._on_cpu = OrderedDict()
        if turn.model is not None:
            turn.model.cancel()
        if turn.models is self._models:
            with suppress(RuntimeError):  # without a thread the CPU answers for as long as it lasts
                Call(lambda: self._follow(turn, call), "gpuedge-late")
        return "it still runs"

    def _follow(self, turn: Turn, call: Call[Outputs]) -> None:
        """Leave a late request alone once it is hung."""
        watch = Watch(self._patience_s)
        while not call.wait(min(LOOK_S, watch.limit_s)):
            if watch.look():
                with self._changed:
                    self._leave(turn)
                return

    @property
    def _patience_s(self) -> float:
        """How long a device may take before it counts as hung."""
        return self._request.policy.watchdog_s or RUN_LIMIT_S

    def _is_stuck(self) -> bool:
        """Tell whether the request under way is inside its device for too long.

        Counted from the first look: time in which nobody looked says nothing of the device.
        """
        model = None if self._turn is None else self._turn.model
        since = None if model is None else model.inside_since()
        if since is None:
            self._watched = 0.0
            return False
        if since != self._watched:
            self._watched = since
            self._watch.restart(self._patience_s + MARGIN_S)
        return self._watch.look()

    def _leave_stuck(self) -> None:
        """Leave a run without a time limit alone that is stuck inside its device."""
        turn = self._turn
        if turn is not None and self._is_stuck():
            self._late.append(turn)
            self._turn = None
            self._leave(turn)
            self._changed.notify_all()

    def _leave(self, turn: Turn) -> None:
        """Go on without a request that does not return, and without its device."""
        if turn not in self._late or turn.models is not self._models:
            return  # it came back, or has nothing that anybody else could use
        is_on_device = turn.model is not None and turn.model.abandon()
        if is_on_device:
            self._late.remove(turn)
            self._kept.append(turn)  # what it holds stays its own
            self._counts.fail(Reason("device-hung", "a request did not return"))
        if not is_on_device or self._request.executor is not None:
            # Stuck while compiling, or on a device of the caller's: there is no other one.
            self._request = replace(self._request, device=CPU, executor=None)
        self._models = OrderedDict()

    # -- looking ------------------------------------------------------------------------------

    def decided(self) -> CompiledModel:
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
        """Return how the model fares, with what the CPU answered beside late requests."""
        latest, asked = self.latest, self._request
        if latest is None and asked.device == CPU:
            return Health(CPU, CPU)
        if latest is None:
            why = "" if self._failure is None else self._failure.what.rstrip(".")
            return Health(PENDING, asked.device, asked.isolation, why)
        found = latest.health()
        if found.state == OK and self._late:
            why = Reason("device-hung", "a request that was given up still runs").sentence
            found = replace(found, state=RECOVERING, reason=why)
        return found.plus(self._counts)

    # -- leaving ------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish what is queued, then release everything; see `gpuedge.Session.close`."""
        if self._owner != os.getpid():
            self._here()
        with self._changed:
            self._is_closing = True  # no new queue comes after this one
            queue, self._queue = self._queue, None
        if queue is not None:
            queue.close(self._is_stuck)
        until = monotonic() + LEAVE_S
        with self._changed:
            while (self._turn or self._late) and (left_s := until - monotonic()) > 0:
                self._changed.wait(left_s)
            for turn in list(self._late):
                self._leave(turn)
            self._is_closed = True
            busy = None if self._turn is None else self._turn.models
            free = [models for models in (self._models, self._on_cpu) if models is not busy]
            self._changed.notify_all()
        for models in free:  # the request under way closes what it has when it comes back
            _close_models(models)

    def end(self, until: float) -> None:
        """Start no more requests and wait for those under way: the interpreter ends."""
        if self._owner != os.getpid():
            return
        if self._queue is not None:
            self._queue.cancel()
        with self._changed:
            self._ending = threading.get_ident()
            if self._is_idle_by(until):
                return
            for turn in (*self._late, *([self._turn] if self._turn else [])):
                if turn.model is not None:
                    turn.model.cancel()
            self._is_idle_by(monotonic() + CANCELLED_S)

    def _is_idle_by(self, until: float) -> bool:
        while (self._turn or self._late) and (left_s := until - monotonic()) > 0:
            self._changed.wait(left_s)
        return not (self._turn or self._late)


def _close_models(models: Models) -> None:
    while models:
        models.popitem()[1].close()


def shapes_of(arrays: Mapping[str, Array]) -> Shapes:
    """Return the shapes of checked inputs, in the model's order."""
    return tuple(array.shape for array in arrays.values())


def _no_result(timeout_s: float, doing: str) -> RequestTimeoutError:
    hint = "the CPU answers the next request if it still runs then"
    return RequestTimeoutError(
        f"There is no result after {timeout_s:g} s.",
        asked_by="timeout_s",
        known=doing,
        hint=hint if doing == "it still runs" else None,
    )


def _hung() -> DeviceTimeoutError:
    return DeviceTimeoutError(
        "The device has not returned from a request that was given up.",
        asked_by="fallback='error'",
        hint="fallback='cpu' lets the CPU answer meanwhile",
        reason="device-hung",
    )


def _closed() -> ClosedError:
    return ClosedError("The session was closed before this call.")


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _end() -> None:
    """Bring the requests of all threads to an end before drivers and libraries go."""
    until = monotonic() + EXIT_S
    for server in list(_servers):
        server.end(until)


def _end_first() -> None:
    """Let `_end` come before what modules registered that were imported since, such as workers."""
    atexit.unregister(_end)
    atexit.register(_end)
