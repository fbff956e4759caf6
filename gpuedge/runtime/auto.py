"""The device under ``auto``: the CPU from the first request, a GPU once it has proved faster.

`gpuedge.decide.chooser` says who answers. Here are the clock, the devices and the gates that
a GPU passes before a real request reaches it: it is opened, compiled for, warmed up and compared
with the CPU on synthetic inputs, in the background. What is found there is a message to the
next request, so that nothing in the background waits for a request.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from gpuedge.core import debug
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.reasons import Reason
from gpuedge.core.times import LOAD_S
from gpuedge.decide.chooser import RECENT, Chooser, Turn
from gpuedge.decide.options import DEFAULT
from gpuedge.executors.cpu import usable_cores
from gpuedge.graph.ir import Array
from gpuedge.runtime import clock
from gpuedge.runtime.background import Background, BackgroundJob, Pace, hurry
from gpuedge.runtime.devices import REFUSED
from gpuedge.runtime.gates import Gates, Passed
from gpuedge.runtime.health import DEMOTED, ON_CPU, RECOVERING, DeviceState
from gpuedge.runtime.inputs import samples
from gpuedge.runtime.placed import Assignment, Compilation, PlacedGraph
from gpuedge.runtime.routes import Survey, survey
from gpuedge.runtime.strings import CPU
from gpuedge.safety.deadline import DeadlineCall
from gpuedge.safety.interrupts import held

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision

NEVER = 2**62
"""More requests than there will be."""

ASKS_AT = 2
"""The request after which the routes to GPUs are looked for: the first one is not to wait for a
thread."""

OFTEN = 64
"""Requests from which a single operation has a history: there are many, most of them rare."""

log = logging.getLogger("gpuedge")


@dataclass
class _Candidate:
    """What a graph has on a GPU, and how that is."""

    placed: PlacedGraph | None = None
    state: DeviceState = field(default_factory=DeviceState)
    served: int = 0


@dataclass
class _Message:
    """What a job in the background found: what the next request does, and what was compiled."""

    take: Callable[[], None]
    placed: PlacedGraph | None = None


def _note_on(placed: PlacedGraph) -> str:
    return "; ".join(filter(None, (placed.tuned, placed.not_compared)))


class ChosenDevice:
    """Has the side answer that is expected to lose least: the CPU, or a GPU.

    Attributes
    ----------
    chooser : Chooser
        Says which.
    survey : Survey or None
        The routes to GPUs, once they were looked for.
    """

    def __init__(self, compilation: Compilation, background: Background) -> None:
        self._compilation = compilation
        self._request, self._counts = compilation.request, compilation.counts
        self._background = background
        self._inherited: list[object] = []
        self._is_closed, self._is_serving = False, True
        self._on_cpu = Assignment(tell=self._note_answer)
        self._start()
        compilation.segments.on_cpu()
        debug.say(1, "Runs on cpu: GPUs are looked for after the second request.")

    def _start(self) -> None:
        """Begin with the CPU alone."""
        self._owner = os.getpid()
        self.chooser = Chooser(())
        self.chooser.calm = NEVER  # there is nothing to decide until routes are found
        self.survey: Survey | None = None
        self._candidates: defaultdict[str, _Candidate] = defaultdict(_Candidate)
        self._messages: deque[_Message] = deque()
        self._is_asked = False  # a survey was asked for
        self._is_one_recovering = False
        self._failed = ""  # the device that answered when it failed
        self._shown = ""  # the pick that `GPUEDGE_DEBUG` has shown
        self._save_at = 1 if self._compilation.is_session else OFTEN

    # -- looking ------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """Why it runs where it runs now."""
        with self._compilation.lock:
            self._take_messages()
            is_missing = self.survey is None  # nothing has run yet, or nothing was found so far
            self._is_asked = self._is_asked or is_missing
        if is_missing:
            self._look_for_routes(Pace())  # may probe; requests go on meanwhile
        with self._compilation.lock:
            self._take_messages()
            candidates = dict(self._candidates)
            states = {device: c.state for device, c in candidates.items()}
            return (self.survey or Survey(self._request)).decision(
                self.chooser,
                {device: state.reason for device, state in states.items() if state.reason},
                {device: c.served for device, c in candidates.items()},
                self._requests,
                {device: _note_on(c.placed) for device, c in candidates.items() if c.placed},
            )

    @property
    def device(self) -> str:
        """The device that answers, or one that failed when it did and is not back."""
        is_lost = self.placed is None and not self._candidates[self._failed].state.is_ok
        return self._failed if is_lost else self.chooser.pick

    @property
    def placed(self) -> PlacedGraph | None:
        """What runs now on a device; None where the CPU answers."""
        pick = self.chooser.pick
        return None if pick == CPU else self._candidates[pick].placed

    @property
    def state(self) -> DeviceState:
        """How the chosen device is."""
        device = self.device
        if device == CPU:
            return DeviceState(ON_CPU)
        own, pooled = self._candidates[device].state, self._compilation.pooled(device).state
        if not own.is_recovering:
            return own
        return DeviceState(RECOVERING, pooled.reason or own.reason)

    @property
    def switches(self) -> int:
        """How often another device was chosen in service."""
        return self.chooser.switches

    # -- answering ----------------------------------------------------------------------------

    def next(self) -> Assignment:
        """Return who answers the next request."""
        chooser = self.chooser
        is_calm = chooser.calm > 0 and not (self._messages or self._is_one_recovering)
        if is_calm and self._owner == os.getpid():
            if chooser.pick == CPU:
                return self._on_cpu
            turn = Turn(chooser.pick, "serve")
        else:
            is_calm = False
            with held:  # what is decided is decided as a whole
                if self._owner != os.getpid():
                    self._start_anew()
                self._take_messages()
                if self._is_one_recovering:
                    self._look_for_recovered()
            turn = self.chooser.turn(clock.now_ns())
        while turn.side != CPU and (placed := self._placed_on(turn.side)).is_closed:
            self.replace(placed)
            is_calm, turn = False, self.chooser.turn(clock.now_ns())
        return self._assignment(turn, is_calm=is_calm)

    def in_use(self) -> Assignment:
        """Return who answers requests in general."""
        return self._assignment(Turn(self.chooser.pick, "serve"))

    def _placed_on(self, device: str) -> PlacedGraph:
        placed = self._candidates[device].placed
        assert placed is not None
        return placed

    def _assignment(self, turn: Turn, *, is_calm: bool = False) -> Assignment:
        """Return a turn of the chooser with what runs there.

        Strict is only a device that has won, and not one that is merely looked at.
        """
        if turn.side == CPU:
            return Assignment(kind=turn.kind, tell=self._take_answer)
        is_strict = self._request.fallback == "error" and turn.side == self.chooser.pick
        placed = self._placed_on(turn.side)
        tell = self._note_answer if is_calm else self._take_answer
        return Assignment(turn.side, placed, turn.kind, is_strict, tell)

    def _note_answer(self, by: Assignment, ns: int) -> None:
        """Take that a request was answered when there was nothing to decide."""
        self.chooser.note(ns)
        if by.placed is not None:
            self._candidates[by.device].served += 1
        if not self._is_asked and self._counts.on_cpu >= ASKS_AT:
            with held:
                self._is_asked = True
                self._submit(self._look_for_routes)

    def _take_answer(self, by: Assignment, ns: int) -> None:
        """Take that a request was answered, and begin what is due."""
        if by.placed is not None:
            self._candidates[by.device].served += 1
        with held:
            self.chooser.served(by.device, ns, clock.now_ns())
            if self._is_serving:
                self._begin_what_is_due()

    # -- losing devices -----------------------------------------------------------------------

    def leave(self, placed: PlacedGraph, reason: Reason, *, is_final: bool) -> None:
        """Go on without a device, for good or until it has recovered."""
        self._lose(placed.executor.device, reason, is_final=is_final)

    def replace(self, placed: PlacedGraph) -> bool:
        """Go on after another session closed the device."""
        device = placed.executor.device
        state = self._compilation.pooled(device).state
        self._lose(device, state.reason or Reason("recovering"))
        return True

    def _lose(self, device: str, reason: Reason, *, is_final: bool = False) -> None:
        with held:
            if device == self.chooser.pick:
                self._failed = device
            is_gone = is_final or self._compilation.pooled(device).state.health == DEMOTED
            self._is_one_recovering |= not is_gone
            self._candidates[device].state = DeviceState(DEMOTED if is_gone else RECOVERING, reason)
            self._release(device)
            self.chooser.failed(device, clock.now_ns())

    def _release(self, device: str) -> None:
        """Release what was compiled for a device."""
        with held:
            candidate = self._candidates[device]
            placed, candidate.placed = candidate.placed, None
            if placed is not None:
                placed.close_all()

    def _look_for_recovered(self) -> None:
        """Have devices opened again that have recovered."""
        self._is_one_recovering = False
        for device, candidate in list(self._candidates.items()):
            is_opening = self.chooser.candidates[device].phase != "failed"
            if is_opening or not candidate.state.is_recovering:
                continue
            pooled = self._compilation.pooled(device).state
            if pooled.is_ok:
                self._open_soon(device)
            elif pooled.is_recovering:
                self._is_one_recovering = True
            else:
                candidate.state = DeviceState(DEMOTED, pooled.reason or candidate.state.reason)

    # -- deciding -----------------------------------------------------------------------------

    def _begin_what_is_due(self) -> None:
        """Open and close what the chooser wants, look for GPUs again, and save."""
        chooser = self.chooser
        device = chooser.wants_open(clock.now_ns())
        if device is not None:
            self._open_soon(device)
        device = chooser.wants_close()
        if device is not None and self._candidates[device].placed is not None:
            self._release(device)
            chooser.closed(device)
        if self.survey is None:
            return
        again_ns = self.survey.again_ns
        if again_ns is not None and not chooser.candidates and clock.now_ns() >= again_ns:
            self.survey.again_ns = None  # there was none, but a driver missed the deadline
            self._submit(self._look_for_routes)
        if chooser.pick != self._shown:
            self._shown = chooser.pick
            debug.say(1, lambda: self.decision.reason)
        if self._requests >= self._save_at:
            self._save_at = 2 * self._requests
            save = self._saving()
            self._submit(lambda _: save())

    def _submit(self, work: Callable[[Pace], object]) -> None:
        self._background.submit(BackgroundJob(work, owner=self))

    def _take_messages(self) -> None:
        while self._messages:
            with held:
                self._messages.popleft().take()

    def _post(self, take: Callable[[], None], placed: PlacedGraph | None = None) -> None:
        """Leave a message for the next request; called in the background."""
        self._messages.append(_Message(take, placed))
        if self._is_closed:
            self._drop_messages()

    def _drop_messages(self) -> None:
        with held, suppress(IndexError):
            while True:
                placed = self._messages.popleft().placed
                if placed is not None:
                    placed.close_all()

    def _look_for_routes(self, pace: Pace) -> None:
        """Find the routes to GPUs that may run the graph; in the background."""
        times, this = sorted(self._counts.times), self._compilation
        cpu_ns = times[len(times) // 2] if times else None
        routes = survey(this.model, self._request, this.pool, cpu_ns, pace.rest)
        self._post(partial(self._take_survey, routes))

    def _take_survey(self, routes: Survey) -> None:
        """Let a chooser begin that knows the routes."""
        if self.chooser.candidates:
            return
        policy, past = self._request.policy, routes.past
        self.survey = routes
        chooser = Chooser(
            routes.candidates, policy, past_requests=past.requests, cpu_ns=past.cpu_ns
        )  # fmt: skip
        now = clock.now_ns()
        for ns in list(self._counts.times)[-RECENT:]:
            chooser.served(CPU, ns, now)
        chooser.requests = self._requests
        self.chooser = chooser
        device = chooser.at_load()
        if device is not None:
            self._open_soon(device)

    def _saving(self) -> Callable[[], object]:
        """Return what keeps for later launches what is known now."""
        return (self.survey or Survey(self._request)).keeping(self.chooser, self._requests)

    @property
    def _requests(self) -> int:
        """Requests of the caller that were answered."""
        return self._counts.on_cpu + self._counts.on_device

    # -- opening ------------------------------------------------------------------------------

    def _open_soon(self, device: str) -> None:
        """Have a device opened in the background."""
        self.chooser.opening(device)
        pooled, is_late = self._compilation.pooled(device), threading.Event()

        def late() -> None:
            is_late.set()
            pooled.suspend()
            self._post(partial(self._take_delay, device))

        faster = math.exp(-self.chooser.candidates[device].belief.theta)
        job = BackgroundJob(
            partial(self._open, device, is_late), late, pooled.resume, self,
            hurry=hurry(faster, usable_cores()),
        )  # fmt: skip
        if not self._background.submit(job):
            self.chooser.failed(device, clock.now_ns())

    def _take_delay(self, device: str) -> None:
        """Take that opening stalled: that says nothing of how fast the device is."""
        self.chooser.late(device, clock.now_ns())
        waited = f"{DEFAULT.retries + 1} times, {self._background.stall_s:g} s each"
        self._candidates[device].state = DeviceState(DEMOTED, Reason("open-stalled", waited))
        if self.survey is not None:
            self.survey.stall_ns = round(self._background.stall_s * 1e9)

    def _open(self, device: str, is_late: threading.Event, pace: Pace) -> None:
        """Let a device pass the gates; in the background.

        One that comes back late is used all the same, unless it was closed by then: then the next
        attempt is.
        """
        nodes = None if self.survey is None else self.survey.nodes.get(device)
        runs = DEFAULT.warm_runs if self.chooser.warms(device) else 0
        result = Gates(self._compilation, device, nodes, runs).passed(pace)
        if isinstance(result, Passed):
            self._post(partial(self._take_open, device, result), result.placed)
        elif not is_late.is_set():
            act = self._lose if result.is_lost else self._refuse
            self._post(partial(act, device, result.reason))

    def _refuse(self, device: str, reason: Reason) -> None:
        """Go on without a device for the rest of this launch."""
        if reason.code != REFUSED:
            self._counts.fail(reason)
        self._candidates[device].state = DeviceState(DEMOTED, reason)
        self.chooser.failed(device, clock.now_ns())

    def _take_open(self, device: str, passed: Passed) -> None:
        """Use a device that passed the gates."""
        self._release(device)
        candidate = self._candidates[device]
        candidate.placed, candidate.state = passed.placed, DeviceState()
        self.chooser.opened(device, passed.startup_ns, clock.now_ns(), passed.warm_ns)

    # -- deciding before the first request ----------------------------------------------------

    def decide_at_load(self, answer: Callable[[Mapping[str, Array]], object]) -> None:
        """Open and compare what may pay before the first request, as far as time allows."""
        until = monotonic() + LOAD_S
        inputs = samples(self._compilation.model.graph)
        self._is_asked, self._is_serving = True, False
        with suppress(GpuEdgeError):
            for _ in range(3):
                start = clock.now_ns()
                answer(inputs)
                self._counts.times.append(clock.now_ns() - start)
            if self._is_done_by(until, self._look_for_routes):
                device = self.chooser.first()
                if device is not None:
                    self.chooser.opening(device)
                    opening = partial(self._open, device, threading.Event())
                    is_open = self._is_done_by(until, opening)
                    while is_open and self._is_on_trial() and monotonic() < until:
                        answer(inputs)
        self._is_serving = True
        self._counts.forget_requests()
        for candidate in self._candidates.values():
            candidate.served = 0

    def _is_done_by(self, until: float, work: Callable[[Pace], None]) -> bool:
        """Do a job at once; False if it goes on, and its result is taken later."""
        call = DeadlineCall(lambda: work(Pace()), "gpuedge-job")
        is_done = call.wait(until - monotonic())
        if is_done:
            call.result()
        self._take_messages()
        return is_done

    def _is_on_trial(self) -> bool:
        return any(c.phase == "trial" for c in self.chooser.candidates.values())

    # -- leaving ------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        """Begin anew in a forked child: destroying what is there would wait for dead threads."""
        self._inherited += [self._candidates, self._messages, *self._compilation.segments.forget()]
        self._start()

    def keep(self) -> None:
        """Keep on disk what later launches are to know."""
        is_enough = self._compilation.is_session or self._requests >= OFTEN
        if self.survey is not None and is_enough and self._owner == os.getpid():
            with held, suppress(Exception):  # a history that cannot be kept is not worth an error
                self._saving()()

    def close(self) -> None:
        """Release what was compiled for devices."""
        self._is_closed = True
        self._background.withdraw(self)
        self._drop_messages()
        self.keep()
        for device in list(self._candidates):
            self._release(device)
