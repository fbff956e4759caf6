"""A graph under ``auto``: the CPU answers from the first request, a GPU once it has proved faster.

Who answers is `gpuedge.decide.chooser`'s to say. Here are the clock, the devices and the gates that
a GPU passes before a real request reaches it: it is opened, compiled for, warmed up and compared
with the CPU on synthetic inputs, in the background. What was found there lies in `_mail` until the
next request takes it, so that nothing in the background waits for a request.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, cast

from gpuedge.core import debug
from gpuedge.core.errors import ClosedError, GpuEdgeError, InexactError, NotFiniteError
from gpuedge.core.reasons import Reason
from gpuedge.decide.chooser import RECENT, Chooser, Turn
from gpuedge.decide.options import DEFAULT
from gpuedge.executors.base import Executable, Executor
from gpuedge.graph.bound import BoundModel
from gpuedge.graph.ir import Array, Graph
from gpuedge.runtime import clock, segments
from gpuedge.runtime.background import BackgroundJob, Pace
from gpuedge.runtime.compiled import Calibrate, CompiledModel, OnDevice
from gpuedge.runtime.devices import (
    COMPILE_ERRORS,
    OK,
    POOL,
    RECOVERING,
    REFUSED,
    Pool,
    reason_of,
)
from gpuedge.runtime.gates import Gates, Passed
from gpuedge.runtime.health import Health
from gpuedge.runtime.inputs import samples
from gpuedge.runtime.named import NamedModel
from gpuedge.runtime.request import Request
from gpuedge.runtime.routes import Survey, survey
from gpuedge.runtime.segments import Part
from gpuedge.runtime.strings import CPU
from gpuedge.safety.deadline import DeadlineCall
from gpuedge.safety.interrupts import held

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision
    from gpuedge.executors.gpu import GpuExecutor

LOAD_S = 2.0
"""How long ``Policy(decide="load")`` may take before the first request."""

NEVER = 2**62
"""More requests than there will be."""

ASKS_AT = 2
"""The request after which the routes to GPUs are looked for: the first one is not to wait for a
thread."""

OFTEN = 64
"""Requests from which a single operation has a history: there are many, most of them rare."""

log = logging.getLogger("gpuedge")

Mail = tuple[Callable[[], None], OnDevice | None]
"""What a job in the background found: what the next request does with it, and what it compiled."""


class AutoModel(CompiledModel):
    """A graph on the side that is expected to lose least."""

    def _open_first(self) -> None:
        self._is_closed = False
        self._start()
        self._segments.on_cpu()
        debug.say(1, "Runs on cpu: GPUs are looked for after the second request.")
        if self.request.policy.decide == "load":
            self._decide_at_load()

    def _start(self) -> None:
        """Begin with the CPU alone."""
        self._chooser = Chooser(())
        self._chooser.calm = NEVER  # there is nothing to decide until routes are found
        self._sides: dict[str, OnDevice] = {}
        self._mail: deque[Mail] = deque()
        self._survey: Survey | None = None
        self._is_asked = False  # a survey was asked for
        self._away: dict[str, Reason] = {}  # devices that recover from a failure
        self._reasons: dict[str, Reason] = {}  # why a device is not to be used
        self._served: dict[str, int] = {}
        self._fell = ""  # the device that answered when it failed
        self._held: Executor = self._pool.cpu()
        self._on_turn: Turn | None = None
        self._told = ""  # the pick that `GPUEDGE_DEBUG` has shown
        self._save_at = 1 if self._is_session else OFTEN

    # -- looking ------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """Why it runs where it runs now."""
        with self._lock:
            self._take_mail()
            is_missing = self._survey is None  # nothing has run yet, or nothing was found so far
            self._is_asked = self._is_asked or is_missing
        if is_missing:
            self._find_out(Pace())  # may probe; requests go on meanwhile
        with self._lock:
            self._take_mail()
            found = self._survey or Survey(self.request)
            notes = {device: side.not_compared for device, side in self._sides.items()}
            return found.decision(self._chooser, self._reasons, self._served, self._requests, notes)

    @property
    def executor(self) -> Executor:
        """What it runs on now."""
        side = self._sides.get(self._chooser.pick)
        return self._pool.cpu() if side is None else side.executor

    @property
    def held(self) -> Executor:
        """The device that a run under way is on."""
        return self._held

    @property
    def is_usable(self) -> bool:
        """False in a forked child."""
        return self._owner == os.getpid()

    @property
    def is_pooled(self) -> bool:
        """True: devices under ``auto`` are the pool's."""
        return True

    @property
    def parts(self) -> Sequence[Part | Executable]:
        """What runs now: segments, or the whole model on the CPU."""
        side = self._sides.get(self._chooser.pick)
        return [self._segments.on_cpu()] if side is None else side.parts

    @property
    def refusals(self) -> dict[str, str]:
        """Nodes that the device in use cannot run, with the reason."""
        side = self._sides.get(self._chooser.pick)
        return {} if side is None else side.segments.refusals

    def health(self) -> Health:
        """Return how this model fares."""
        pick = self._chooser.pick
        side = self._sides.get(pick)
        state, device, why = (CPU, CPU, "") if side is None else (OK, pick, "")
        if side is None and self._fell:
            reason = self._away.get(self._fell)
            state = "demoted" if reason is None else RECOVERING
            reason = reason or self._reasons.get(self._fell)
            device, why = self._fell, "" if reason is None else reason.sentence
        check = None if side is None else side.check
        return Health(
            state, device, self.isolation, why,
            watchdog_s=None if side is None else segments.watchdog_of(side.parts),
            crosscheck_note="" if check is None else check.note,
            switches=self._chooser.switches, **self._counts.figures(),
        )  # fmt: skip

    # -- answering ----------------------------------------------------------------------------

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs from inputs of exactly the graph's types; see `CompiledModel`."""
        if self._checks != ():
            self._check(inputs)
        with self._lock:
            start = clock.now_ns()
            chooser = self._chooser
            is_calm = chooser.calm > 0 and not (self._mail or self._away)
            is_calm = is_calm and self._owner == os.getpid()
            if is_calm and chooser.pick == CPU:
                outputs = self.run_on_cpu(inputs)
                spent = clock.now_ns() - start
                chooser.note(spent)
                self._counts.on_cpu += 1
                self._counts.times.append(spent)
                if not self._is_asked:
                    self._ask()
                return outputs
            try:
                if is_calm:
                    return self._on_gpu(Turn(chooser.pick, "serve"), inputs, is_calm=True)
                return self._slowly(inputs)
            finally:
                self._at, self._at_work = CPU, None
                self._counts.times.append(clock.now_ns() - start)

    def _slowly(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Answer a request for which there may be something to decide."""
        with held:  # what is decided is decided as a whole
            if self._owner != os.getpid():
                self._restart()
            self._take_mail()
            if self._away:
                self._look_for_lost()
        try:
            return self._answer(inputs)
        finally:
            with held:
                self._look()

    def _answer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        turn = self._on_turn = self._chooser.turn(clock.now_ns())
        if turn.side != CPU:
            return self._on_gpu(turn, inputs)
        start = clock.now_ns()
        try:
            outputs = self.run_on_cpu(inputs)
        except GpuEdgeError as error:
            if turn.kind != "burst":
                raise
            self._tell(CPU, clock.now_ns() - start)
            log.warning("cpu, tried in service: %s", error)
            return self._on_gpu(Turn(self._chooser.pick, "serve"), inputs, is_told=False)
        self._tell(CPU, clock.now_ns() - start)
        self._counts.on_cpu += 1
        return outputs

    def _on_gpu(
        self,
        turn: Turn,
        inputs: Mapping[str, Array],
        *,
        is_calm: bool = False,
        is_told: bool = True,
    ) -> dict[str, Array]:
        """Answer a request on a GPU, and where that fails on the CPU."""
        device, side = turn.side, self._sides[turn.side]
        self._on_turn = turn
        kept = None
        if side.is_closed:
            return self._instead(device, inputs)
        self._held, is_strict = side.executor, self._is_strict
        failure: Reason | None = None
        try:
            outputs, kept, spent = self._ran(side, inputs, is_trial=turn.kind == "trial")
        # the device did nothing wrong, and is kept
        except (NotFiniteError, InexactError, MemoryError) as error:
            debug.say(1, f"{device} does not take this input: {error}")
            return self._by_cpu(inputs)
        except ClosedError:  # another session gave it up in this very moment
            return self._instead(device, inputs)
        except COMPILE_ERRORS as error:
            self._lose(device, reason_of(error))
            if is_strict:  # the next request is the CPU's
                raise
            return self._by_cpu(inputs)
        finally:
            if self._failure is not None:
                failure = self._failed(device)
        if failure is None:
            self._exhausted = 0
            if kept is not None:
                return self._checked(turn, side, kept, outputs, spent)
            self._counts.on_device += 1
            self._tell(device, spent, is_calm=is_calm, is_told=is_told)
        else:
            self._counts.on_cpu += 1
        return outputs

    def _ran(
        self, side: OnDevice, inputs: Mapping[str, Array], *, is_trial: bool
    ) -> tuple[dict[str, Array], dict[str, Array] | None, int]:
        """Run on a device; return outputs, copies of inputs to be compared, and nanoseconds."""
        side.settle(inputs)
        kept = {n: a.copy() for n, a in inputs.items()} if is_trial else side.copies(inputs)
        start = clock.now_ns()
        outputs = self._run_parts(side, inputs if kept is None else kept)
        return outputs, kept, clock.now_ns() - start

    def _failed(self, device: str) -> Reason | None:
        """Go on without a device that failed in this request, if that is too much; return why."""
        failure, is_left = self._taken_failure()
        if failure is not None and is_left:
            self._lose(device, failure)
        return failure

    def _tell(self, device: str, ns: int, *, is_calm: bool = False, is_told: bool = True) -> None:
        if device != CPU:
            self._served[device] = self._served.get(device, 0) + 1
        if is_calm:
            self._chooser.note(ns)
        elif is_told:
            with held:
                self._chooser.served(device, ns, clock.now_ns())

    def _checked(
        self,
        turn: Turn,
        side: OnDevice,
        inputs: Mapping[str, Array],
        outputs: dict[str, Array],
        ns: int,
    ) -> dict[str, Array]:
        """Return a device's outputs where the CPU agrees with them; on trial the CPU's own."""
        answers: list[dict[str, Array]] = []

        def on_cpu(given: Mapping[str, Array]) -> dict[str, Array]:
            answers.append(self.run_on_cpu(given))
            return answers[0]

        said = self._compared(side, inputs, outputs, on_cpu)
        if said is not None:
            try:
                self._drifted(turn.side, said)
            finally:
                self._lose(turn.side, Reason("drifted", said.rstrip(".")))
        else:
            self._tell(turn.side, ns)
        if said is None and turn.kind != "trial":
            self._counts.on_device += 1
            return outputs
        self._counts.on_cpu += 1
        return answers[0] if answers else self.run_on_cpu(inputs)

    def _by_cpu(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = self.run_on_cpu(inputs)
        self._counts.on_cpu += 1
        return outputs

    def _instead(self, device: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Let the CPU answer for a device that was closed elsewhere."""
        fares = self._pool.device_health(device, self.request.isolation)
        self._lose(device, fares.reason or Reason("recovering"))
        return self._by_cpu(inputs)

    # -- losing devices -----------------------------------------------------------------------

    @property
    def _is_strict(self) -> bool:
        """Whether the CPU may not answer for the device: one that has won, and not a mere look."""
        turn = self._on_turn
        is_chosen = turn is not None and turn.side == self._chooser.pick != CPU
        return is_chosen and self.request.fallback == "error"

    def _fail(self, reason: Reason, *, is_final: bool = False) -> None:
        self._counts.fail(reason)
        fares = self._pool.device_health(self._held.device, self.request.isolation)
        fares.fail(reason, cast("GpuExecutor", self._held), is_final=is_final)

    def _lose(self, device: str, reason: Reason) -> None:
        """Go on without a device, for good or until it has recovered."""
        with held:
            if device == self._chooser.pick:
                self._fell = device
            self._reasons[device] = reason
            fares = self._pool.device_health(device, self.request.isolation)
            if reason.code != "out-of-memory" and fares.state in (OK, RECOVERING):
                self._away[device] = fares.reason or reason
            self._drop(device)
            self._chooser.failed(device, clock.now_ns())

    def _drop(self, device: str) -> None:
        """Release what was compiled for a device."""
        with held:
            side = self._sides.pop(device, None)
            if side is not None:
                side.close_all()

    def _look_for_lost(self) -> None:
        """Have devices opened again that have recovered."""
        for device in list(self._away):
            fares = self._pool.device_health(device, self.request.isolation)
            if fares.state == RECOVERING:
                continue
            reason = self._away.pop(device)
            if fares.state == OK:
                self._open_soon(device)
            else:
                self._reasons[device] = fares.reason or reason

    # -- deciding -----------------------------------------------------------------------------

    def _ask(self) -> None:
        """Have the routes to GPUs looked for once the first request was answered."""
        if self._counts.on_cpu >= ASKS_AT:
            with held:
                self._is_asked = True
                self._background.submit(BackgroundJob(self._find_out, owner=self))

    def _ask_again(self, found: Survey) -> None:
        """Look for GPUs once more where there was none, but a driver missed the deadline."""
        if found.again_ns is not None and clock.now_ns() >= found.again_ns:
            found.again_ns = None
            self._background.submit(BackgroundJob(self._find_out, owner=self))

    def _look(self) -> None:
        """Begin what the chooser wants, and what is due."""
        chooser = self._chooser
        device = chooser.wants_open(clock.now_ns())
        if device is not None:
            self._open_soon(device)
        device = chooser.wants_close()
        if device is not None and device in self._sides:
            self._drop(device)
            chooser.closed(device)
        if self._survey is not None and not chooser.candidates:
            self._ask_again(self._survey)
        if chooser.pick != self._told and self._survey is not None:
            self._told = chooser.pick
            debug.say(1, lambda: self.decision.reason)
        if self._survey is not None and self._requests >= self._save_at:
            self._save_at = 2 * self._requests
            self._background.submit(BackgroundJob(self._saving(), owner=self))

    def _take_mail(self) -> None:
        while self._mail:
            with held:
                self._mail.popleft()[0]()

    def _post(self, act: Callable[[], None], side: OnDevice | None = None) -> None:
        """Leave something for the next request to take; called in the background."""
        self._mail.append((act, side))
        if self._is_closed:
            self._drop_mail()

    def _drop_mail(self) -> None:
        with held, suppress(IndexError):
            while True:
                _, side = self._mail.popleft()
                if side is not None:
                    side.close_all()

    def _find_out(self, pace: Pace) -> None:
        """Find the routes to GPUs that may run the graph; in the background."""
        times = sorted(self._counts.times)
        cpu_ns = times[len(times) // 2] if times else None
        found = survey(self.model, self.request, self._pool, cpu_ns, pace.rest)
        self._post(partial(self._found_out, found))

    def _found_out(self, found: Survey) -> None:
        if self._chooser.candidates:
            return
        policy, past = self.request.policy, found.past
        self._survey = found
        chooser = Chooser(
            found.candidates, policy, past_requests=past.requests, cpu_ns=past.cpu_ns
        )  # fmt: skip
        now = clock.now_ns()
        for ns in list(self._counts.times)[-RECENT:]:
            chooser.served(CPU, ns, now)
        chooser.requests = self._requests
        self._chooser = chooser
        device = chooser.at_load()
        if device is not None:
            self._open_soon(device)

    def _saving(self) -> Callable[[Pace], object]:
        """Return what keeps for later launches what is known now."""
        found = self._survey or Survey(self.request)
        keep = found.keeping(self._chooser, self._requests)
        return lambda _: keep()

    @property
    def _requests(self) -> int:
        """Requests of the caller that were answered."""
        return self._counts.on_cpu + self._counts.on_device

    # -- opening ------------------------------------------------------------------------------

    def _open_soon(self, device: str) -> None:
        """Have a device opened in the background."""
        self._chooser.opening(device)
        self._reasons.pop(device, None)
        isolation, is_late = self.request.isolation, threading.Event()

        def late() -> None:
            is_late.set()
            self._pool.suspend(device, isolation)
            self._post(partial(self._is_late, device))

        work = partial(self._open, device, is_late)
        job = BackgroundJob(work, late, partial(self._pool.resume, device, isolation), self)
        if not self._background.submit(job):
            self._chooser.failed(device, clock.now_ns())

    def _is_late(self, device: str) -> None:
        """Take that opening stalled: that says nothing of how fast the device is."""
        self._chooser.late(device, clock.now_ns())
        waited = f"{DEFAULT.retries + 1} times, {self._background.stall_s:g} s each"
        self._reasons[device] = Reason("open-stalled", waited)
        if self._survey is not None:
            self._survey.stall_ns = round(self._background.stall_s * 1e9)

    def _open(self, device: str, is_late: threading.Event, pace: Pace) -> None:
        """Let a device pass the gates; in the background.

        One that comes back late is used all the same, unless it was closed by then: then the next
        attempt is.
        """
        nodes = None if self._survey is None else self._survey.nodes.get(device)
        runs = DEFAULT.warm_runs if self._chooser.warms(device) else 0
        gates = Gates(self.model, self.request, self._pool, device, nodes, runs, self._ranges)
        found = gates.passed(pace)
        if isinstance(found, Passed):
            self._post(partial(self._opened, device, found), found.side)
        elif not is_late.is_set():
            act = self._lose if found.is_lost else self._refuse
            self._post(partial(act, device, found.reason))

    def _refuse(self, device: str, reason: Reason) -> None:
        """Go on without a device for the rest of this launch."""
        if reason.code != REFUSED:
            self._counts.fail(reason)
        self._reasons[device] = reason
        self._chooser.failed(device, clock.now_ns())

    def _opened(self, device: str, found: Passed) -> None:
        """Take a device that passed the gates."""
        self._drop(device)
        self._sides[device] = found.side
        self._reasons.pop(device, None)
        self._chooser.opened(device, found.startup_ns, clock.now_ns(), found.warm_ns)

    # -- deciding before the first request ----------------------------------------------------

    def _decide_at_load(self) -> None:
        """Open and compare what may pay before the first request, as far as time allows."""
        until = monotonic() + LOAD_S
        inputs = samples(self.graph)
        self._is_asked = True
        with suppress(GpuEdgeError):
            for _ in range(3):
                start = clock.now_ns()
                self.run_on_cpu(inputs)
                self._counts.times.append(clock.now_ns() - start)
            if self._by(until, self._find_out):
                device = self._chooser.first()
                if device is not None:
                    self._chooser.opening(device)
                    if self._by(until, partial(self._open, device, threading.Event())):
                        self._try(until, inputs)
        self._counts.forget_requests()
        self._served.clear()

    def _by(self, until: float, work: Callable[[Pace], None]) -> bool:
        """Do a job at once; False if it goes on, and its result is taken later."""
        call = DeadlineCall(lambda: work(Pace()), "gpuedge-job")
        is_done = call.wait(until - monotonic())
        if is_done:
            call.result()
        self._take_mail()
        return is_done

    def _try(self, until: float, inputs: Mapping[str, Array]) -> None:
        """Compare on synthetic inputs."""
        while self._trials() and monotonic() < until:
            self._answer(inputs)
            self._take_mail()

    def _trials(self) -> list[str]:
        return [d for d, c in self._chooser.candidates.items() if c.phase == "trial"]

    # -- leaving ------------------------------------------------------------------------------

    def _restart(self) -> None:
        """Begin anew in a forked child: destroying what is there would wait for dead threads."""
        self._owner = os.getpid()
        self._inherited += [self._sides, self._mail, *self._segments.forget()]
        self._start()

    def keep(self) -> None:
        """Keep on disk what later launches are to know."""
        is_enough = self._is_session or self._requests >= OFTEN
        if self._survey is not None and is_enough and self._owner == os.getpid():
            with held, suppress(Exception):  # a history that cannot be kept is not worth an error
                self._saving()(Pace())

    def _close_sides(self) -> None:
        self._is_closed = True
        self._background.withdraw(self)
        self._drop_mail()
        self.keep()
        for device in list(self._sides):
            self._drop(device)


def compile_model(
    graph: Graph | BoundModel,
    request: Request,
    pool: Pool = POOL,
    *,
    calibrate: Calibrate | None = None,
    is_session: bool = True,
) -> CompiledModel:
    """Compile a model for what was asked for; see `CompiledModel`."""
    kind = AutoModel if request.is_open else NamedModel
    return kind(graph, request, pool, calibrate=calibrate, is_session=is_session)
