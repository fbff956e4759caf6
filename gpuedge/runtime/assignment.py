"""Which device a graph is assigned to: the one decided on, or another while that recovers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from gpuedge.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError
from gpuedge.core.reasons import Reason
from gpuedge.executors.base import Executor
from gpuedge.runtime.devices import DEMOTED, FAILURES, OK, RECOVERING, reason_of
from gpuedge.runtime.opening import INLINE, PROCESS
from gpuedge.runtime.placing import place, without
from gpuedge.runtime.request import Request
from gpuedge.runtime.strings import AUTO, CPU

if TYPE_CHECKING:
    from gpuedge.decide.attempts import Attempt
    from gpuedge.decide.decision import Decision
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.graph.ir import Graph
    from gpuedge.runtime.devices import Pool, PooledDevice
    from gpuedge.runtime.trying import TimeBudget, TrialRunner

RETURN_S = 20.0
"""How long a request that takes no other device waits for one that is being opened anew."""

log = logging.getLogger("gpuedge")


class Assignment:
    """The device that a graph runs on, and the way back to the one it was decided for.

    Attributes
    ----------
    decision : Decision
        What holds now.
    chosen : Decision
        What was decided while nothing had failed.
    executor : Executor
        The device of `decision`, open; while that says ``cpu``, perhaps one that is held ready.
    trials : TrialRunner or None
        What may be measured; None where the choice is not ours.
    owner : int
        The process that opened the device; another one is a forked child.
    is_away : bool
        True while the device of `chosen` is being opened anew.
    may_hold : bool
        True while one that was held ready is, or was closed elsewhere; see `hold`.
    """

    def __init__(
        self,
        graph: Graph,
        request: Request,
        pool: Pool,
        budget: TimeBudget | None = None,
        time_cpu: Callable[[float], Sequence[int]] | None = None,
    ) -> None:
        self._request = request
        self._pool = pool
        self.owner = os.getpid()
        self.is_away = self.may_hold = False
        placed = place(graph, request, pool, budget, time_cpu)
        self.decision: Decision = placed.decision
        self.trials: TrialRunner | None = placed.trials
        self._nodes = placed.nodes
        self.chosen = self.decision
        self.executor: Executor = request.executor or self._first()

    def _first(self) -> Executor:
        """Open what was decided; of what is to be tried first, `attempt` does."""
        if self.trials is not None and self.trials.next(self.decision) is not None:
            return self._pool.cpu()
        return self._open(is_first=True)

    def attempt(self) -> Attempt | None:
        """Open the device of the next trial; None if there is none, or its device is away.

        Until the trial is over `decision` is as if that device had been chosen. Where the device
        does not open, it is decided again without it, and `executor` is another one.
        """
        found = None if self.trials is None else self.trials.next(self.decision)
        if found is not None:
            self.decision = replace(self.decision, device=found.device)
            self.executor = self._open(is_first=True)
        return found

    @property
    def nodes(self) -> frozenset[int] | None:
        """Identities of the nodes that the device is to run; None for all that it can."""
        return self._nodes.get(self.executor.device)

    def opened_ns(self) -> int:
        """Return how long opening the device in use took."""
        return self.device_health.opened_ns

    def take(self, decision: Decision, *, holds: bool = False) -> None:
        """Go on with another decision, from which there is no way back.

        With `holds` the device that is open stays so, although the decision says ``cpu``.
        """
        self.decision = self.chosen = decision
        self.is_away = False
        if not holds and self.executor.device != decision.device:
            self.executor = self._open(is_first=True)
            self.chosen = self.decision

    @property
    def is_pooled(self) -> bool:
        """False where the caller opened the device."""
        return self._request.executor is None

    @property
    def is_usable(self) -> bool:
        """False once the device was closed elsewhere, and in a forked child."""
        return not getattr(self.executor, "closed", False) and self.owner == os.getpid()

    @property
    def is_inherited(self) -> bool:
        """True in a forked child."""
        return self.owner != os.getpid()

    @property
    def device_health(self) -> PooledDevice:
        """How the device in use fares."""
        return self._pool.device_health(self.executor.device, self._request.isolation)

    @property
    def isolation(self) -> str:
        """Where the driver of the chosen device lives."""
        if self.is_pooled:
            return self._request.isolation
        found: str = getattr(self._request.executor, "isolation", INLINE)
        return found

    def state(self) -> tuple[str, str]:
        """Return what `Health.state` says, and why the device chosen is not in use."""
        chosen = self.chosen.device
        if chosen == CPU:
            return "cpu", ""
        if self.executor.device == chosen:
            return self._fares()
        why = next((r.reason for r in self.decision.rows if r.device == chosen), "")
        return ("recovering" if self.is_away else "demoted"), why

    def _fares(self) -> tuple[str, str]:
        """Return the state and the reason of the device chosen while no other was taken.

        Where none may be taken (``fallback="error"``) it may have failed all the same.
        """
        if not self.is_pooled:
            return OK, ""
        device_health = self.device_health
        state, reason = device_health.state, device_health.reason
        return state, "" if state == OK or reason is None else reason.sentence

    def shown(self) -> Decision:
        """Return `decision`, saying what becomes of a device that failed and has no substitute."""
        if self.executor.device in (CPU, self.decision.device) and self.decision.device != CPU:
            state, why = self._fares()
            if state != OK:
                text = f"Does not run now: {self.decision.device} is {state}: {why}."
                return replace(self.decision, reason=text)
        return self.decision

    def fail(self, reason: Reason, *, is_final: bool = False) -> None:
        """Report that the device failed; at once, so that nothing else starts on it."""
        if self.is_pooled:
            self.device_health.fail(reason, cast("GpuExecutor", self.executor), is_final=is_final)

    def leave(self, reason: Reason, *, is_final: bool) -> None:
        """Take another device, for good or for as long as the state of the one that failed says.

        When that is ready again, `find` takes it back.
        """
        if not is_final and self.is_pooled:
            device_health = self.device_health  # by now perhaps ready: then `find` takes it back
            reason, is_final = device_health.reason or reason, device_health.state == DEMOTED
        else:
            is_final = True
        if self.decision.device == CPU:  # it was only held, while the CPU answered
            self.may_hold = not is_final
            self.executor = self._pool.cpu()
            return
        self.is_away = not is_final and self.executor.device == self.chosen.device
        if reason.code in FAILURES:
            reason = Reason(reason.code, reason.sentence)
        self.decision = without(self.decision, reason)
        self.executor = self._open()

    def hold(self, device: str) -> bool:
        """Hold a device ready again if it can be used by now; true if everything is to be compiled.

        The CPU is in use, and stays that.
        """
        isolation = self._request.isolation
        device_health = self._pool.device_health(device, isolation)
        if device_health.state == RECOVERING:
            return False
        self.may_hold = False
        if device_health.state != OK or self.decision.device != CPU:
            return False
        try:
            self.executor = self._pool.executor(device, isolation)
        except DeviceError as error:
            log.warning("%s: %s", device, reason_of(error, "open-failed").sentence)
            return False
        return True

    def find(self) -> bool:
        """Go on after a fork, after others closed the device, or when it may be ready again.

        True if everything has to be compiled anew.
        """
        is_heir, self.owner = self.is_inherited, os.getpid()
        if not self.is_pooled:
            return False
        if self.decision.device == CPU != self.executor.device and not is_heir:
            self.may_hold = True
        if self.is_away:
            device_health = self._pool.device_health(self.chosen.device, self._request.isolation)
            if device_health.state == RECOVERING and self.is_usable:
                return False
            if device_health.state == OK:
                self.decision = self.chosen
            elif device_health.state != RECOVERING:
                self.decision = without(self.chosen, device_health.reason or Reason("failed-often"))
            self.is_away = device_health.state == RECOVERING
        self.executor = self._open()
        return True

    def _open(self, *, is_first: bool = False) -> Executor:
        """Open what the decision says; what cannot be used is decided again, if that is allowed."""
        pool, isolation = self._pool, self._request.isolation
        while (device := self.decision.device) != CPU:
            device_health = pool.device_health(device, isolation)
            if device_health.state != OK and not self._awaits(device_health):
                if device == self.chosen.device:
                    self.is_away = device_health.state == RECOVERING
                self.decision = without(self.decision, device_health.reason or Reason("recovering"))
                continue
            try:
                return pool.executor(device, isolation)
            except DeviceError as error:
                is_gone = isinstance(error, (DeviceLostError, DeviceTimeoutError))
                died = isolation == PROCESS and is_gone
                is_strict = (is_first and not died) or self._request.fallback == "error"
                if is_strict and self._request.device != AUTO:
                    raise
                reason = reason_of(error, "open-failed")
                log.warning("%s: %s", device, reason.sentence)
                self.decision = without(self.decision, reason)
        return pool.cpu()

    def _awaits(self, device_health: PooledDevice) -> bool:
        """Wait for a device that is being opened anew, where no other may be taken."""
        if self._request.fallback != "error" or self._request.device == AUTO:
            return False
        if not device_health.wait(RETURN_S):
            raise device_health.error()
        return True
