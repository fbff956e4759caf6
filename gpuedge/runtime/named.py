"""A graph on the device that was asked for: as strict as the request, and nothing to decide."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from gpuedge.executors.base import Executable, Executor, Progress
from gpuedge.graph.ir import Array
from gpuedge.plan.storages import lacks
from gpuedge.runtime import clock, segments
from gpuedge.runtime.compiled import CompiledModel, OnDevice
from gpuedge.runtime.devices import (
    COMPILE_ERRORS,
    DEMOTED,
    DEVICE_FATAL_ERRORS,
    OK,
    RECOVERING,
    REFUSED,
    reason_of,
)
from gpuedge.runtime.health import Health
from gpuedge.runtime.inputs import samples
from gpuedge.runtime.opening import INLINE, PROCESS
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.routes import named_decision
from gpuedge.runtime.segments import Part
from gpuedge.runtime.strings import CPU
from gpuedge.safety.interrupts import held

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.runtime.devices import PooledDevice

RETURN_S = 20.0
"""How long a request that takes no other device waits for one that is being opened anew."""

log = logging.getLogger("gpuedge")


class NamedModel(CompiledModel):
    """A graph on a named device, on one that the caller opened, or on the CPU.

    While the device recovers from a failure the CPU answers, if the request allows that.
    """

    def _open_first(self) -> None:
        request = self.request
        self.device = request.device
        if self.device != CPU:
            _ = self.graph  # what is wrong with a model is said before a device is looked for
        if request.executor is None and request.device != CPU:
            self.device = self._pool.named(request.device).device
        self._is_away = False  # the device is being opened anew
        self._why: Reason | None = None  # why it is not in use
        self._bounds: Ranges | None = None
        self._executor: Executor = request.executor or self._open(is_first=True)
        self._side: OnDevice | None = None
        self._refuse()
        self._compile(request.progress)
        debug.say(1, lambda: self.decision.reason)

    # -- looking ------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """Why it runs where it runs now: the device was asked for, or failed."""
        state, why = self._state()
        in_use, note = self._executor.device, ""
        if in_use == self.device != CPU and state != OK:
            note = f"Does not run now: {in_use} is {state}: {why}."
        elif self._side is not None and self._side.not_compared:
            said = self._side.not_compared
            note = f"{said[0].upper()}{said[1:]}."
        return named_decision(
            self.request, self._pool, self.device, in_use=in_use, why=self._why, note=note
        )

    @property
    def executor(self) -> Executor:
        """What it runs on now."""
        return self._executor

    @property
    def held(self) -> Executor:
        """The device that a run under way is on."""
        return self._executor

    @property
    def is_usable(self) -> bool:
        """False once the device was closed elsewhere, and in a forked child."""
        return not getattr(self._executor, "closed", False) and self._owner == os.getpid()

    @property
    def is_pooled(self) -> bool:
        """False where the caller opened the device."""
        return self.request.executor is None

    @property
    def isolation(self) -> str:
        """Where the driver of the device lives."""
        given = self.request.executor
        if given is None:
            return self.request.isolation
        found: str = getattr(given, "isolation", INLINE)
        return found

    @property
    def parts(self) -> Sequence[Part | Executable]:
        """What runs now: segments, or the whole model on the CPU."""
        return [self._segments.on_cpu()] if self._side is None else self._side.parts

    def health(self) -> Health:
        """Return how this model fares."""
        side, (state, why) = self._side, self._state()
        check = None if side is None else side.check
        return Health(
            state, self.device, self.isolation, why,
            watchdog_s=None if side is None else segments.watchdog_of(side.parts),
            crosscheck_note="" if check is None else check.note, **self._counts.figures(),
        )  # fmt: skip

    def _state(self) -> tuple[str, str]:
        """Return what `Health.state` says, and why the device is not in use."""
        if self.device == CPU:
            return "cpu", ""
        if self._executor.device == self.device:
            if not self.is_pooled:
                return OK, ""
            state, reason = self._fares.state, self._fares.reason
            return state, "" if state == OK or reason is None else reason.sentence
        why = self._why or Reason("fallback")
        if why.code == REFUSED:
            return CPU, why.sentence
        return (RECOVERING if self._is_away else DEMOTED), self._why.sentence if self._why else ""

    @property
    def _fares(self) -> PooledDevice:
        """How the device fares in this process."""
        return self._pool.device_health(self.device, self.request.isolation)

    # -- opening and compiling ----------------------------------------------------------------

    def _open(self, *, is_first: bool = False) -> Executor:
        """Open the device; where it cannot be used, return the CPU if that is allowed."""
        if self.device == CPU:
            return self._pool.cpu()
        fares, is_lenient = self._fares, self.request.fallback == "cpu"
        if fares.state != OK and is_lenient:
            self._is_away = fares.state == RECOVERING
            self._why = fares.reason or Reason("recovering")
            return self._pool.cpu()
        if fares.state != OK and not fares.wait(RETURN_S):
            raise fares.error()
        try:
            opened = self._pool.executor(self.device, self.request.isolation)
        except DeviceError as error:
            is_gone = isinstance(error, (DeviceLostError, DeviceTimeoutError))
            has_died = self.request.isolation == PROCESS and is_gone
            if (is_first and not has_died) or not is_lenient:
                raise
            self._why, self._is_away = reason_of(error, "open-failed"), False
            log.warning("%s: %s", self.device, self._why.sentence)
            return self._pool.cpu()
        self._why, self._is_away = None, False
        return opened

    def _refuse(self) -> None:
        """Refuse a device that does not compute as the policy asks. Raises KernelLimitError."""
        caps, asked = getattr(self._executor, "caps", None), self.request.policy.arithmetic
        if caps is not None and (why := lacks(caps, asked)):
            raise KernelLimitError(
                f"The device {self.device} does not compute in {asked}.",
                asked_by=f"Policy(arithmetic={asked!r})",
                known=why,
                hint="arithmetic='float32', or device='auto', which goes on in float32 then",
            )

    def _compile(self, progress: Progress | None = None) -> None:
        """Compile for the device in use; where its driver refuses, for the CPU if it may answer."""
        executor = self._executor
        if executor.device == CPU:
            self._segments.refusals.clear()
            self._segments.on_cpu()
            self._side = None
            return
        try:
            self._bounds = self._bounds or self._ranges(executor)
            before, self._side = self._side, None
            self._side = OnDevice(self._segments, executor, ranges=self._bounds, progress=progress)
            if before is not None:
                self._side.check = before.check
        except COMPILE_ERRORS as error:
            reason = reason_of(error, "compile-failed")
            is_fatal = isinstance(error, DEVICE_FATAL_ERRORS)
            if is_fatal:
                self._fail(reason)
            elif isinstance(error, DeviceError):
                self._counts.fail(reason)
            if self.request.fallback == "error":
                raise
            log.warning("%s: %s", executor.device, reason.sentence)
            if isinstance(error, DeviceError) and not is_fatal and reason.code != "compile-failed":
                reason = Reason("compile-failed", reason.sentence)
            self._leave(reason, is_final=not is_fatal)
            return
        if self._is_session and self._side.check is None:
            self._side.check = self._segments.crosscheck(executor)

    def _find_device(self) -> None:
        """Go on after the device was closed elsewhere, came back, or after a fork."""
        with held:
            is_heir, self._owner = self._owner != os.getpid(), os.getpid()
            if is_heir:  # destroying parts would wait for threads not here
                self._inherited += [self._side, self._executor, *self._segments.forget()]
                self._side = None
        if not self.is_pooled:
            return
        was_away = self._is_away
        may_wait = self._is_strict  # the CPU may not answer meanwhile
        if was_away and not is_heir and not may_wait and self._fares.state == RECOVERING:
            return
        try:
            self._executor = self._open()
            self._close_sides()
            self._compile()
        except BaseException as error:
            if not isinstance(error, GpuEdgeError):  # interrupted: the next request begins anew
                with held:
                    self._close_sides()
                    self._side, self._executor, self._is_away = None, self._pool.cpu(), True
            raise
        if self._side is not None:
            self._side.must_check = was_away

    def warm(self) -> None:
        """Run once on synthetic inputs: many drivers compile a kernel when it first runs.

        A failure is left to the next request, which draws the conclusions.
        """
        side = self._side
        if side is None or side.ranges is not None:  # samples would set the bounds of values
            return
        self.request.tell("run", 0, 1)
        with self._lock, suppress(GpuEdgeError):
            values: dict[str, Array] = dict(samples(self.graph))
            for part in side.parts:
                values |= part.executable.run({n: values[n] for n in part.graph.inputs})
        self.request.tell("run", 1, 1)

    # -- answering ----------------------------------------------------------------------------

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs from inputs of exactly the graph's types; see `CompiledModel`."""
        if self._checks != ():
            self._check(inputs)
        with self._lock:
            start = clock.now_ns()
            is_closed = getattr(self._executor, "closed", False)
            if is_closed or self._is_away or self._owner != os.getpid():
                self._find_device()
            try:
                return self._answer(inputs)
            except ClosedError:
                # Another session gave the device up, and closed it for all, in this very moment.
                if self.is_usable or not self.is_pooled:
                    raise
                self._find_device()
                return self._answer(inputs)
            finally:
                self._at, self._at_work = CPU, None
                self._counts.times.append(clock.now_ns() - start)

    def _answer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Answer one request on the device, and where that fails on the CPU."""
        side = self._side
        if side is None:
            outputs = self.run_on_cpu(inputs)
            self._counts.on_cpu += 1
            return outputs
        if side.ranges is not None:
            side.settle(inputs)
        kept, check = None, side.check
        if check is not None:
            if check.left > 1 and not side.must_check:
                check.left -= 1
            else:
                kept = side.copies(inputs)
        failure: Reason | None = None
        try:
            outputs = self._on_device(side, inputs if kept is None else kept)
        finally:
            if self._failure is not None:
                failure = self._failed()
        if failure is not None:
            self._counts.on_cpu += 1
            return outputs
        self._exhausted = 0
        if kept is not None:
            return self._checked(side, kept, outputs)
        self._counts.on_device += 1
        return outputs

    def _checked(
        self, side: OnDevice, inputs: Mapping[str, Array], outputs: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs if the CPU agrees with them; else its own, and leave the device."""
        said = self._compared(side, inputs, outputs)
        if said is None:
            self._counts.on_device += 1
            return outputs
        reason = self._drifted(side.executor.device, said)
        self._counts.on_cpu += 1
        self._leave(reason, is_final=True)
        return self.run_on_cpu(inputs)

    def _on_device(self, side: OnDevice, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run on the device; after a failure on the CPU."""
        if side.whole is None or self._is_timed:
            return self._run_parts(side, inputs)
        self._since, self._at, self._at_work = clock.now_ns() / 1e9, self.device, None
        try:
            return side.whole.run(inputs)
        except DeviceError as error:
            self._at = CPU
            self._note_failure(error)
            return self.run_on_cpu(inputs)

    def _failed(self) -> Reason | None:
        """Leave the device if it failed in this request, and that is too much; return why."""
        failure, is_left = self._taken_failure()
        if failure is not None and is_left:
            self._leave(failure, is_final=failure.code == "out-of-memory")
        return failure

    # -- failing ------------------------------------------------------------------------------

    @property
    def _is_strict(self) -> bool:
        """Whether the CPU may not answer for the device."""
        return self.request.fallback == "error" and self.device != CPU

    def _fail(self, reason: Reason, *, is_final: bool = False) -> None:
        self._counts.fail(reason)
        if self.is_pooled:
            self._fares.fail(reason, cast("GpuExecutor", self._executor), is_final=is_final)

    def _leave(self, reason: Reason, *, is_final: bool) -> None:
        """Let the CPU answer, for good or until the device is in use again."""
        with held:
            self._close_sides()
            self._why = reason
            if not is_final and self.is_pooled:  # perhaps ready: the next request takes it back
                self._why = self._fares.reason or reason
                is_final = self._fares.state == DEMOTED
            else:
                is_final = True
            self._is_away = not is_final
            self._executor = self._pool.cpu()
            self._side = None
        self._segments.on_cpu()

    def _close_sides(self) -> None:
        if self._side is not None:
            self._side.close()

    def keep(self) -> None:
        """Do nothing: there was nothing to decide."""
