"""The device that was asked for by name, that the caller opened, or the CPU: nothing to decide."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, cast

from gpuedge.core import debug
from gpuedge.core.errors import (
    ClosedError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    GpuEdgeError,
    KernelLimitError,
)
from gpuedge.core.reasons import Reason
from gpuedge.core.times import RETURN_S
from gpuedge.executors.base import Executor, Progress
from gpuedge.plan.storages import lacks
from gpuedge.runtime.devices import COMPILE_ERRORS, DEVICE_FATAL_ERRORS, REFUSED, reason_of
from gpuedge.runtime.health import DEMOTED, ON_CPU, RECOVERING, DeviceState
from gpuedge.runtime.opening import PROCESS
from gpuedge.runtime.placed import Assignment, Compilation, PlacedGraph
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.routes import named_decision
from gpuedge.runtime.strings import CPU
from gpuedge.safety.interrupts import held

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision
    from gpuedge.executors.gpu import GpuExecutor

log = logging.getLogger("gpuedge")


class FixedDevice:
    """Has one device answer, and while that recovers from a failure the CPU, if it may.

    Attributes
    ----------
    device : str
        The one that was asked for, whatever runs now.
    placed : PlacedGraph or None
        What runs now on the device; None where the CPU answers.
    switches : int
        How often another device was chosen in service.

    Raises
    ------
    NoUsableDeviceError (GE-103), KernelLimitError (GE-303), DeviceError (GE-4xx)
    """

    switches = 0

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._request = request = compilation.request
        self.device = request.device
        if self.device != CPU:
            _ = compilation.model.graph  # what is wrong with a model is said before any device
        if self._is_pooled and self.device != CPU:
            self.device = compilation.pool.named(self.device, request.backends).device
        self._may_fall_back = request.fallback == "cpu" or self.device == CPU
        self._owner = os.getpid()
        self._inherited: list[object] = []
        self._is_away = False  # it is being opened anew
        self._why: Reason | None = None  # why it is not in use
        self._bounds: Ranges | None = None
        self._set_placed(None)
        executor = request.executor or self._open(is_first=True)
        if executor is not None:
            self._check_arithmetic(executor)
        self._compile(executor, request.progress, is_first=True)
        debug.say(1, lambda: self.decision.reason)

    @property
    def _is_pooled(self) -> bool:
        """False where the caller opened the device."""
        return self._request.executor is None

    # -- looking ------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """Why it runs where it runs now: the device was asked for, or failed."""
        state, placed, note = self.state, self.placed, ""
        in_use = CPU if placed is None and self._may_fall_back else self.device
        if in_use == self.device != CPU and not state.is_ok:
            note = f"Does not run now: {in_use} is {state.health}: {state.sentence}."
        elif placed is not None and placed.not_compared:
            note = f"{placed.not_compared[0].upper()}{placed.not_compared[1:]}."
        return named_decision(
            self._request, self._compilation.pool, self.device,
            in_use=in_use, why=self._why, note=note, tuned="" if placed is None else placed.tuned,
        )  # fmt: skip

    @property
    def state(self) -> DeviceState:
        """How the device is."""
        if self.device == CPU:
            return DeviceState(ON_CPU)
        if self.placed is not None or not self._may_fall_back:
            return self._compilation.pooled(self.device).state if self._is_pooled else DeviceState()
        if self._why is not None and self._why.code == REFUSED:
            return DeviceState(ON_CPU, self._why)
        return DeviceState(RECOVERING if self._is_away else DEMOTED, self._why)

    # -- opening and compiling ----------------------------------------------------------------

    def _set_placed(self, placed: PlacedGraph | None) -> None:
        self.placed = placed
        self._assignment = Assignment(
            CPU if placed is None else self.device, placed, is_strict=not self._may_fall_back
        )

    def _open(self, *, is_first: bool = False) -> Executor | None:
        """Open the device; return None where it cannot be used and the CPU may answer."""
        if self.device == CPU:
            return None
        pooled = self._compilation.pooled(self.device)
        state, isolation = pooled.state, self._request.isolation
        if not state.is_ok and self._may_fall_back:
            self._is_away, self._why = state.is_recovering, state.reason or Reason("recovering")
            return None
        if not state.is_ok and not pooled.wait(RETURN_S):
            raise pooled.error()
        try:
            executor = self._compilation.pool.executor(self.device, isolation)
        except DeviceError as error:
            is_gone = isinstance(error, (DeviceLostError, DeviceTimeoutError))
            has_died = isolation == PROCESS and is_gone
            if (is_first and not has_died) or not self._may_fall_back:
                raise
            self._why, self._is_away = reason_of(error, "open-failed"), False
            log.warning("%s: %s", self.device, self._why.sentence)
            return None
        self._why, self._is_away = None, False
        return executor

    def _check_arithmetic(self, executor: Executor) -> None:
        """Refuse a device that does not compute as the policy asks. Raises KernelLimitError."""
        caps, asked = getattr(executor, "caps", None), self._request.policy.arithmetic
        if caps is not None:
            why = lacks(caps, asked)
        else:
            is_free = executor.device == CPU or asked == "float32"
            why = "" if is_free else "an executor of a plug-in computes as its runtime does"
        if why:
            raise KernelLimitError(
                f"The device {self.device} does not compute in {asked}.",
                asked_by=f"Policy(arithmetic={asked!r})",
                known=why,
                hint="arithmetic='float32', or device='auto', which goes on in float32 then",
            )

    def _compile(
        self, executor: Executor | None, progress: Progress | None = None, *, is_first: bool = False
    ) -> None:
        """Compile for a device; where its driver refuses, for the CPU if it may answer."""
        this, before = self._compilation, self.placed
        self._set_placed(None)
        if executor is None or executor.device == CPU:
            this.segments.on_cpu()
            return
        try:
            if is_first and this.is_tuned_on(executor):
                this.segments.tune(cast("GpuExecutor", executor), progress=progress)
            self._bounds = self._bounds or this.ranges(executor)
            placed = PlacedGraph(this.segments, executor, ranges=self._bounds, progress=progress)
        except ClosedError:  # another session gave it up in this very moment
            if not (self._is_pooled and getattr(executor, "closed", False)):
                raise
            return self._compile(self._open(), progress, is_first=is_first)
        except COMPILE_ERRORS as error:
            reason = reason_of(error, "compile-failed")
            is_fatal = isinstance(error, DEVICE_FATAL_ERRORS)
            if is_fatal:
                this.report(executor, reason)
            elif isinstance(error, DeviceError):
                this.counts.fail(reason)
            if self._request.fallback == "error":
                raise
            log.warning("%s: %s", executor.device, reason.sentence)
            if isinstance(error, DeviceError) and not is_fatal and reason.code != "compile-failed":
                reason = Reason("compile-failed", reason.sentence)
            self._leave(reason, is_final=not is_fatal)
            return
        if before is not None:
            placed.check = before.check
        if this.is_session and placed.check is None:
            placed.check = this.segments.crosscheck(executor)
        self._set_placed(placed)

    def _find_device(self) -> None:
        """Go on after the device was closed elsewhere, came back, or after a fork."""
        with held:
            is_forked, self._owner = self._owner != os.getpid(), os.getpid()
            if is_forked:  # destroying parts would wait for threads that are not here
                self._inherited += [self.placed, *self._compilation.segments.forget()]
                if self._is_pooled or self._may_fall_back:
                    self._set_placed(None)
        if not self._is_pooled:
            return
        state, was_away = self._compilation.pooled(self.device).state, self._is_away
        if was_away and not is_forked and self._may_fall_back and state.is_recovering:
            return
        try:
            executor = self._open()
            self.close()
            self._compile(executor)
        except BaseException as error:
            with held:
                self._is_away = True  # the next request begins anew
                if not isinstance(error, GpuEdgeError):  # interrupted
                    self.close()
                    self._set_placed(None)
            raise
        if self.placed is not None:
            self.placed.must_check = was_away

    # -- answering ----------------------------------------------------------------------------

    def next(self) -> Assignment:
        """Return who answers the next request. Raises DeviceError where nobody may."""
        placed = self.placed
        is_closed = placed is not None and getattr(placed.executor, "closed", False)
        if is_closed or self._is_away or self._owner != os.getpid():
            self._find_device()
        return self._assignment

    def in_use(self) -> Assignment:
        """Return who answers requests in general."""
        return self._assignment

    def leave(self, placed: PlacedGraph, reason: Reason, *, is_final: bool) -> None:
        """Let the CPU answer if it may, for good or until the device is in use again."""
        if self._may_fall_back:
            self._leave(reason, is_final=is_final)

    def replace(self, placed: PlacedGraph) -> bool:
        """Go on after another session closed the device; False where that is not what happened."""
        if not (placed.is_closed and self._is_pooled):
            return False
        self._find_device()
        return True

    def _leave(self, reason: Reason, *, is_final: bool) -> None:
        with held:
            self.close()
            self._why, self._is_away = reason, False
            if not is_final and self._is_pooled:  # perhaps ready: the next request takes it back
                state = self._compilation.pooled(self.device).state
                self._why, self._is_away = state.reason or reason, state.health != DEMOTED
            self._set_placed(None)
        self._compilation.segments.on_cpu()

    # -- leaving ------------------------------------------------------------------------------

    def keep(self) -> None:
        """Do nothing: there was nothing to decide."""

    def close(self) -> None:
        """Release what was compiled for the device."""
        if self.placed is not None:
            self.placed.close()
