"""A session's requests: one at a time, from any thread, with time limits, a queue and an end.

One lock holds all of it. One request runs; the others wait for it, those of `run` in their own
threads, those of `run_async` in a queue with one worker. A request that was given up while it ran
is late: while it lasts, the CPU answers the others. If it comes back in time its device is used
again; if not, the device is left alone for good.

Signals may interrupt the main thread anywhere. What ends a request may therefore be done twice, and
what changes more than a request is done with signals held.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

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
from gpuedge.core.times import CANCELLED_S, LEAVE_S, MARGIN_S, REQUESTS_END_S, RUN_LIMIT_S
from gpuedge.executors.resident import Residents
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import Shapes
from gpuedge.runtime import clock
from gpuedge.runtime.health import OK, PENDING, RECOVERING, Counts, Health, Times
from gpuedge.runtime.models import ModelCache
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.queueing import Queued
from gpuedge.runtime.shapes import BesideLate, Compiler
from gpuedge.runtime.strings import CPU
from gpuedge.safety.deadline import DeadlineCall, NoThreadError, started
from gpuedge.safety.future import Answer
from gpuedge.safety.interrupts import held
from gpuedge.safety.monitor import POLL_S, Monitor
from gpuedge.safety.watchdog import LOOK_S, STRETCH, Watch

if TYPE_CHECKING:
    from gpuedge.runtime.compiled import CompiledModel
    from gpuedge.runtime.request import Request

PASSED_NS = 1_000_000
"""How long a request may be passed by others that come while no request runs: handing each turn to
another thread costs more than most small models. That of `sync.Mutex` in Go."""

LOST_NS = 100_000_000
"""How long a request waits before it looks whether those before it are still under way."""

AWAY_NS = int(2 * POLL_S * 1e9)
"""A request that has not looked for its turn for so long is passed by others, and keeps its place:
its thread runs the handler of a signal, which may wait for them."""

IDLE_S = 0.5
"""How long the worker waits for another request before its thread ends."""

MAX_WAITING = 1024
"""Requests that may wait in the queue; who brings one more waits for a place."""

Outputs = dict[str, Array]


class Job:
    """A request while it waits and runs, and what it has for that long."""

    __slots__ = (
        "_request", "_since", "_watch", "is_beside", "is_given_up", "looked_ns", "model", "models",
        "since_ns", "thread",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.is_beside = False  # a late one has the models; the CPU answers
        self.is_given_up = False
        self.thread = 0  # the one that runs it
        self.since_ns = 0  # when it began to wait for its turn
        self.looked_ns = 0  # when it last looked whether that has come
        self.models: ModelCache | None = None
        self._request = request
        self._watch: Watch | None = None
        self._since: float  # of what the watch watches
        self.model: CompiledModel | None = None

    def is_stuck(self) -> bool:
        """Tell whether it is inside its device, or compiling, for too long.

        Counted from the first look: time in which nobody looked says nothing of the device. The
        device's own watchdog comes first, since it ends a run in a better way.
        """
        since = 0.0 if self.model is None else self.model.inside_since()
        if since is None:
            self._watch = None
            return False
        if self._watch is None or since != self._since:
            self._since = since
            self._watch = self._compiling() if self.model is None else self.model.watch(MARGIN_S)
        return self._watch.look()

    def _compiling(self) -> Watch:
        fixed_s, most_s = self._request.policy.watchdog_s, STRETCH * RUN_LIMIT_S
        if fixed_s is not None:
            return Watch(fixed_s)
        if self._request.isolation != INLINE:
            return Watch(most_s)  # each call of the worker has a limit of its own
        return Watch(RUN_LIMIT_S, os.getpid(), most_s=most_s)


class Server:
    """Answers requests, one at a time, from any number of threads.

    Attributes
    ----------
    models : ModelCache
        By shapes.
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
        self._most = request.policy.max_shapes
        self._kept: list[Any] = []  # what must be neither used nor destroyed
        self._is_closed = self._is_closing = False
        self._failure: GpuEdgeError | None = None  # of the last attempt to compile
        self._counts = Counts()  # what no compiled model can count
        self._start()
        _servers.add(self)

    def _start(self) -> None:
        self.latest: CompiledModel | None = None
        self._monitor = Monitor()
        self._lock = self._monitor.lock
        self._running: Job | None = None
        self._next: list[Job] = []  # those that wait for their turn, in the order they came
        self._late: list[Job] = []  # given up, and not back yet
        self._ending: int | None = None  # the thread that ends the interpreter
        self._waiting: deque[Queued] = deque()
        self._worker: threading.Thread | None = None
        self._timer: threading.Thread | None = None
        self.models = ModelCache(self._most)

    def _restart(self) -> None:
        """Start anew in a forked child: threads and locks behind the old parts are not here.

        They are kept, because destroying them would wait for those threads.
        """
        self._owner = os.getpid()
        self._kept.append((self.models, self._waiting, self._running, self._late))
        self._start()

    def check_open(self) -> None:
        """Raise ClosedError (GE-204) if this was closed."""
        if self._is_closed:
            raise _closed()

    def prepare(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Compile for input shapes that are known before the first request."""
        self.latest = model = self._compiler.compile(shapes, self._request)
        self.models.add(shapes, model)
        _end_last()
        known = zip(self._compiler.model.inputs.items(), shapes, strict=True)
        self.models.note(shapes, {name: (kind, shape) for (name, (kind, _)), shape in known})

    # -- answering ----------------------------------------------------------------------------

    def run(
        self,
        arrays: Mapping[str, Array] | None,
        shapes: Shapes,
        timeout_s: float | None = None,
        left_s: float | None = None,
    ) -> Outputs:
        """Answer a request in the time it has, of which `left_s` are left. Raises GpuEdgeError.

        Without arrays the model is only made ready for these shapes.
        """
        if self._owner != os.getpid():
            self._restart()
        job = Job(self._request)
        if timeout_s is None:
            try:
                return self._answer(arrays, shapes, job)
            except BaseException:  # it may have come out of ending the request
                self._end_of(job)
                raise
        until = monotonic() + (timeout_s if left_s is None else left_s)
        if until <= monotonic():
            raise _no_result(timeout_s, "its turn had not come")
        call: DeadlineCall[Outputs] | None = None
        try:
            with held:
                call = DeadlineCall(lambda: self._answer(arrays, shapes, job), "gpuedge-run")
            is_done = call.wait(until - monotonic())
        except NoThreadError as error:
            raise _no_thread(error) from None
        except BaseException:  # of a handler of a signal, such as Ctrl-C
            if call is not None:
                self._give_up(job, call)
            raise
        if is_done and (call.ended or 0.0) <= until:
            return call.result()
        raise _no_result(timeout_s, self._give_up(job, call))

    def _answer(self, arrays: Mapping[str, Array] | None, shapes: Shapes, job: Job) -> Outputs:
        """Answer a request when its turn has come; beside one that is late, on the CPU."""
        try:
            models = self._begin(job)
            if job.is_beside:
                return self._answer_beside(arrays, shapes, job, models)
            model = models.get(shapes)
            if model is None:
                request = replace(self._request, may_tune=False)
                model = self._compile(models, shapes, request)
            job.model = self.latest = model
            if arrays is None:
                model.warm()
                return {}
            if shapes is not models.matched and not isinstance(arrays, Residents):
                known = {} if self._compiler.parameters else arrays
                models.note(shapes, {name: (a.dtype, a.shape) for name, a in known.items()})
            start = clock.now_ns()
            result = model.run(arrays)
            times, spent = self.times, clock.now_ns() - start
            times.latest.append(spent)
            times.first = times.first or spent
            return result
        finally:
            self._end_of(job)

    def _answer_beside(
        self,
        arrays: Mapping[str, Array] | None,
        shapes: Shapes,
        job: Job,
        models: ModelCache,
    ) -> Outputs:
        """Answer a request on the CPU while a late one has the models."""
        signature = BesideLate(shapes)
        model = models.get(signature)
        if model is None:
            models.make_room(signature)
            on_cpu = replace(self._request, device=CPU, executor=None)
            model = self._compiler.compile(shapes, on_cpu)
            with self._lock:
                if not job.is_given_up:
                    models.add(signature, model)
        job.model = model
        if arrays is None:
            return {}
        outputs = model.run(arrays)
        self._counts.on_cpu += 1
        return outputs

    def _compile(self, models: ModelCache, shapes: Shapes, request: Request) -> CompiledModel:
        beside = models.take(lambda signature, _: isinstance(signature, BesideLate))
        for model in beside:  # what they were beside is over
            model.close()
        if self.latest in models.make_room(shapes):
            self.latest = None
        try:
            model = self._compiler.compile(shapes, request)
        except GpuEdgeError as error:
            self._failure = error
            raise
        _end_last()
        self._failure = None
        models.add(shapes, model)
        return model

    # -- one at a time ------------------------------------------------------------------------

    def _begin(self, job: Job) -> ModelCache:
        """Wait until a request may run; return the models that are its own for that long."""
        job.thread = threading.get_ident()
        with self._lock:
            may_pass = not self._next or clock.now_ns() - self._next[0].since_ns < PASSED_NS
            if self._running is None and self._ending is None and may_pass:
                return self._take_turn(job)
            job.since_ns = job.looked_ns = clock.now_ns()
            self._next.append(job)
        return cast("ModelCache", self._monitor.wait_for(lambda: self._next_turn(job)))

    def _next_turn(self, job: Job) -> ModelCache | None:
        """Return the models of a request if its turn has come; None while it has to wait."""
        if self._ending is not None and self._ending != job.thread:
            return None  # a daemon thread, and the interpreter ends
        self.check_open()  # nothing else may ever let it run
        job.looked_ns = now = clock.now_ns()
        if not job.is_given_up:
            self._leave_stuck()
            self._end_lost(job)
            running, before = self._running, self._next[: self._next.index(job)]
            # One of this very thread is over, or is interrupted for as long as this one lasts:
            # those that wait for it wait for this one too.
            is_within = running is not None and running.thread == job.thread
            is_behind = any(
                other.thread != job.thread and now - other.looked_ns < AWAY_NS for other in before
            )
            if not is_within and (running is not None or is_behind):
                return None
        return self._take_turn(job)

    def _end_lost(self, job: Job) -> None:
        """End requests before one whose calls are over: signals came while they were ended."""
        if clock.now_ns() - job.since_ns > LOST_NS:
            for other in (self._running, *self._next):
                if other is not None and other is not job and not _is_under_way(other):
                    self._end_of(other)

    def _take_turn(self, job: Job) -> ModelCache:
        """Run a request, or raise; the one behind it is told by `_end_of` if it does not run."""
        if self._is_closed:
            raise _closed()
        if job.is_given_up:
            raise RequestTimeoutError("The request was given up before its turn came.")
        job.models = self.models
        if self._late and any(self._has_models(late) for late in self._late):
            if self._request.fallback == "error":
                raise DeviceTimeoutError(
                    "The device has not returned from a request that was given up.",
                    asked_by="fallback='error'",
                    hint="fallback='cpu' lets the CPU answer meanwhile",
                    reason="device-hung",
                )
            job.is_beside = True
        self._running = job
        if job in self._next:
            self._next.remove(job)
        return job.models

    def _has_models(self, job: Job) -> bool:
        """Tell whether a request has what others would be answered with."""
        return job.models is self.models and not job.is_beside

    def _end_of(self, job: Job) -> None:
        """Let the next request run; close what this one had if nobody else has that any more."""
        with self._lock:
            if job in self._next:  # refused or interrupted: the one behind it may be next
                self._next.remove(job)
                self._monitor.notify()
            if self._running is job:
                self._running = None
            elif job in self._late:
                self._late.remove(job)
            else:
                return  # it never ran, is over, or was left with its device
            models = job.models
            is_left = not job.is_beside if models is not self.models else self._is_closed
            self._monitor.notify()
        if models is not None and is_left:
            models.close()
        if job.model is not None and job.is_given_up and job.is_beside:
            job.model.close()

    def _give_up(self, job: Job, call: DeadlineCall[Outputs]) -> str:
        """Stop waiting for a request; return what it was doing."""
        with held:
            with self._lock:
                if not call.give_up():
                    return "it ended after the limit, and what came of it was dropped"
                job.is_given_up = True
                self._monitor.notify()
                if self._running is not job:
                    return "its turn had not come"
                self._running = None
                self._late.append(job)
                if job.is_beside:  # nobody else can use what it runs
                    self.models.take(lambda _, model: model is job.model)
            if job.model is not None:
                job.model.cancel()
            if self._has_models(job):
                with suppress(NoThreadError):  # the CPU answers for as long as it lasts
                    DeadlineCall(lambda: self._follow(job, call), "gpuedge-late")
            return "it still runs"

    def _follow(self, job: Job, call: DeadlineCall[Outputs]) -> None:
        """Leave a late request alone once it is hung."""
        while not call.wait(min(LOOK_S, self._request.policy.watchdog_s or LOOK_S)):
            if job.is_stuck():
                with self._lock:
                    self._leave(job)
                return

    def _is_stuck(self) -> bool:
        job = self._running
        return job is not None and job.model is not None and job.is_stuck()

    def _leave_stuck(self) -> None:
        """Leave a run without a time limit alone that is stuck inside its device."""
        job = self._running
        if job is not None and self._is_stuck():
            self._late.append(job)
            self._running = None
            self._leave(job)
            self._monitor.notify()

    def _leave(self, job: Job) -> None:
        """Go on without a request that does not return, and without its device."""
        if job not in self._late or not self._has_models(job):
            return  # it came back, or has nothing that anybody else could use
        is_on_device = job.model is not None and job.model.abandon()
        if is_on_device:
            self._late.remove(job)
            self._kept.append(job)  # what it holds stays its own
            self._counts.fail(Reason("device-hung", "a request did not return"))
        if not is_on_device or self._request.executor is not None:
            # Stuck while compiling, or on a device of the caller's: there is no other one.
            self._request = replace(self._request, device=CPU, executor=None)
        self.models = ModelCache(self._most, self.models.dropped)

    # -- the queue ----------------------------------------------------------------------------

    def submit(
        self, arrays: Mapping[str, Array], shapes: Shapes, timeout_s: float | None
    ) -> Answer[Outputs]:
        """Queue a request and return its future; wait while too many are waiting.

        Raises ClosedError, RequestTimeoutError, and UsageError where this is a callback of one of
        its futures, which cannot wait.
        """
        if self._owner != os.getpid():
            self._restart()
        queued = Queued(lambda left_s: self.run(arrays, shapes, timeout_s, left_s), timeout_s)
        if self._monitor.wait_for(lambda: self._enqueue(queued), queued.left_s) is None:
            raise RequestTimeoutError(
                f"No place among {MAX_WAITING} waiting requests in {queued.timeout_s:g} s.",
                asked_by="timeout_s",
            )
        return queued.future

    def _enqueue(self, queued: Queued) -> bool | None:
        """Queue a request where fewer than the most are waiting; else return None."""
        if self._is_closing:
            raise _closed()
        if len(self._waiting) >= MAX_WAITING:
            self._waiting = deque(e for e in self._waiting if not e.future.cancelled())
        if len(self._waiting) >= MAX_WAITING:
            if threading.current_thread() is self._worker:
                raise UsageError(
                    f"{MAX_WAITING} requests are waiting already.",
                    hint="wait for earlier futures before asking for more",
                )
            return None
        with held:
            self._worker = self._worker or _started(self._work, "gpuedge-session")
            if queued.timeout_s is not None:
                self._timer = self._timer or _started(self._expire, "gpuedge-timeouts")
            self._waiting.append(queued)
            self._monitor.notify()
        return True

    def _work(self) -> None:
        """Answer queued requests, first come, first served, until there are none for a while."""
        while True:
            self._monitor.wait_for(lambda: self._waiting or self._is_closing or None, IDLE_S)
            with self._lock:
                if not self._waiting:
                    self._worker = None
                    self._monitor.notify()
                    return
                queued = self._waiting.popleft()
                self._monitor.notify()
            queued.run()
            del queued  # or its inputs stay until the next request

    def _expire(self) -> None:
        """Fail requests whose time is over while they wait, as long as there are any."""
        while True:
            with self._lock:
                left = [(queued.left_s, queued) for queued in self._waiting]
                late = [queued for left_s, queued in left if left_s is not None and left_s <= 0]
                ends = [left_s for left_s, _ in left if left_s is not None]
                if not ends:
                    self._timer = None
                    return
                if late:
                    self._waiting = deque(queued for queued in self._waiting if queued not in late)
                    self._monitor.notify()
            if not late:
                self._monitor.wait_for(self._is_any_late, min(ends))
            for queued in late:
                queued.fail(
                    RequestTimeoutError(
                        f"The request waited for all of its {queued.timeout_s:g} s.",
                        asked_by="timeout_s",
                        known="requests before it were not done",
                    )
                )

    def _is_any_late(self) -> bool | None:
        ends = [left_s for queued in self._waiting if (left_s := queued.left_s) is not None]
        return not ends or min(ends) <= 0 or None

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

    def shapes(self) -> dict[str, Any]:
        """Return what `gpuedge.Session.profile` says of shapes."""
        return self._compiler.summary(self.models)

    def health(self) -> Health:
        """Return the health of the model, with what the CPU answered beside late requests."""
        latest, asked = self.latest, self._request
        if latest is None and asked.device == CPU:
            return Health(CPU, CPU)
        if latest is None:
            why = "" if self._failure is None else self._failure.what.rstrip(".")
            return Health(PENDING, asked.device, asked.isolation, why)
        health = latest.health()
        if health.state == OK and self._late:
            why = Reason("device-hung", "a request that was given up still runs").sentence
            health = replace(health, state=RECOVERING, reason=why)
        return health.plus(self._counts)

    # -- leaving ------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish what is queued, then release everything; see `gpuedge.Session.close`."""
        if self._owner != os.getpid():
            self._restart()
        with self._lock:
            self._is_closing = True
            self._monitor.notify()
        if threading.current_thread() is not self._worker:
            self._monitor.wait_for(lambda: self._worker is None or self._is_stuck() or None)
        while True:
            with held, self._lock:  # no future stays without an answer
                if not self._waiting:
                    break
                self._waiting.popleft().fail(_closed())
        self._is_idle_in(LEAVE_S)
        with held, self._lock:
            for job in list(self._late):
                self._leave(job)
            self._is_closed = True
            is_free = self._running is None or self._running.models is not self.models
            self._monitor.notify()
        if is_free:  # else the request under way closes them when it comes back
            self.models.close()

    def end(self, until: float) -> None:
        """Start no more requests and wait for those under way: the interpreter ends."""
        if self._owner != os.getpid():
            return
        with self._lock:
            self._is_closing = True
            left, self._waiting = self._waiting, deque()
            self._ending = threading.get_ident()
            self._monitor.notify()
        for queued in left:
            with suppress(BaseException):  # of callbacks
                queued.future.cancel()
        if self._is_idle_in(until - monotonic()):
            for _, model in self.models.items():
                model.keep()
            return
        with self._lock:
            for job in (*self._late, *([self._running] if self._running else [])):
                if job.model is not None:
                    job.model.cancel()
        self._is_idle_in(CANCELLED_S)

    def _is_idle_in(self, seconds: float) -> bool:
        def is_idle() -> bool | None:
            return not (self._running or self._late) or None

        return self._monitor.wait_for(is_idle, seconds) or False


def _is_under_way(job: Job) -> bool:
    """Tell whether the call that answers a request is on the stack of its thread."""
    frame = sys._current_frames().get(job.thread)
    while frame is not None:
        if frame.f_code is Server._answer.__code__ and frame.f_locals["job"] is job:
            return True
        frame = frame.f_back
    return False


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    try:
        return started(work, name)
    except NoThreadError as error:
        raise _no_thread(error) from None


def _no_thread(error: RuntimeError) -> DeviceError:
    return DeviceError(f"No thread can be started for a request: {error}.")


def _no_result(timeout_s: float, doing: str) -> RequestTimeoutError:
    hint = "the CPU answers the next request if it still runs then"
    return RequestTimeoutError(
        f"There is no result after {timeout_s:g} s.",
        asked_by="timeout_s",
        known=doing,
        hint=hint if doing == "it still runs" else None,
    )


def _closed() -> ClosedError:
    return ClosedError("The session was closed before this call.")


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _end_last() -> None:
    """Have `_end` come before what modules registered that were imported since: workers."""
    atexit.unregister(_end)
    atexit.register(_end)


def _end() -> None:
    """Bring the requests of all threads to an end before drivers and libraries go."""
    until = monotonic() + REQUESTS_END_S
    for server in list(_servers):
        server.end(until)
