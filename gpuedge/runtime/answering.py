"""Answering requests: on the device there is, on the CPU where that fails or the CPU is better.

What a failure means for the device is decided in `gpuedge.runtime.recovery`; here it means that the
CPU answers the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpuedge.core import debug
from gpuedge.core.errors import DeviceError, DriverError, NotFiniteError
from gpuedge.core.reasons import Reason
from gpuedge.executors.base import Executor
from gpuedge.graph.ir import Array, Graph
from gpuedge.kernels.storages import Range
from gpuedge.runtime import clock
from gpuedge.runtime.assignment import GONE, UNCOMPILED, Assignment, reason_of
from gpuedge.runtime.canary import Canary
from gpuedge.runtime.health import Tally
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.running import Running
from gpuedge.runtime.segments import Builder, Part, close_all, offers_storage
from gpuedge.runtime.strings import AUTO, CPU

if TYPE_CHECKING:
    from gpuedge.decide.trial import Arm
    from gpuedge.runtime.devices import Pool
    from gpuedge.runtime.monitoring import Service
    from gpuedge.runtime.placing import Request

EXHAUSTED = 3
"""Requests in a row for which the device's memory did not do; then it is left."""

log = logging.getLogger("gpuedge")


class Answering:
    """A graph on the device it is assigned to; one call at a time.

    Parameters
    ----------
    graph : Graph
    request : Request
    pool : Pool
    calibrate : callable, optional
        Measures the bounds of values, where they are needed.
    has_canaries : bool
        Whether a share of the requests is repeated on the CPU.
    """

    _assigned: Assignment

    def __init__(
        self,
        graph: Graph,
        request: Request,
        pool: Pool,
        calibrate: Callable[[], Mapping[str, Range]] | None,
        *,
        has_canaries: bool,
    ) -> None:
        self.graph = graph
        self.request = request
        self._pool = pool
        self._builder = Builder(graph, request, pool.cpu())
        self._running = Running(graph, self._builder)
        self._inherited: list[object] = []
        self._tally = Tally()
        self._exhausted = 0
        self._parts: list[Part] = []
        self._calibrate = calibrate
        self._ranges: Ranges | None = None
        self._canary: Canary | None = None
        self._service: Service | None = None
        self._has_canaries, self._must_check = has_canaries, False

    @property
    def _held(self) -> Executor:
        """The device that the parts were compiled for, even while the CPU answers instead."""
        return self._assigned.executor

    @property
    def _is_fixed(self) -> bool:
        """Whether tensors are kept in fixed point, for which their bounds are needed."""
        kind = self.request.policy.storage
        return kind == "fixed16" and offers_storage(self._held, kind)

    def _compile(self) -> None:
        """Compile for the device there is, and for another one where its driver refuses."""
        if self._held.device == CPU:
            self._builder.refusals.clear()
            self._parts = self._builder.on_cpu()
            return
        if self._ranges is None and self._is_fixed:
            found = self._calibrate() if self._calibrate else {}
            self._ranges = Ranges(self.graph, self._pool.cpu(), found)
        try:
            ranges = self._ranges.values if self._ranges else {}
            self._parts = self._builder.build(self._held, ranges, self._assigned.nodes)
        except UNCOMPILED as error:
            reason = reason_of(error, "compile-failed")
            is_gone = isinstance(error, GONE)
            if is_gone:
                self._fail(reason)
            elif isinstance(error, DeviceError):
                self._tally.fail(reason)
            if self.request.fallback == "error":
                raise
            log.warning("%s: %s", self._held.device, reason.sentence)
            self._assigned.leave_uncompiled(reason, is_gone=is_gone)
            self._compile()

    def _find_device(self) -> None:
        """Go on after the device was closed by somebody else, came back, or after a fork."""
        if self._assigned.is_inherited:  # destroying parts would wait for threads not here
            self._inherited += [self._parts, self._held, *self._builder.forget()]
            self._parts = []
        was_away = self._assigned.is_away
        if self._assigned.find():
            self._must_check = was_away and self._held.device != CPU
            self._close_parts()
            self._compile()
            self._compare()

    def _compare(self) -> None:
        """Have results of a device compared from now on; at first the CPU may have been in use."""
        if self._canary is None and self._has_canaries and self._held.device != CPU:
            self._canary = self._builder.canary(self._held)

    def _settle(self, inputs: Mapping[str, Array]) -> None:
        """Compile again where fixed-point tensors cannot hold these inputs."""
        if self._ranges is None or not self._is_fixed or self._ranges.covers(inputs):
            return
        self._ranges.widen(inputs)
        self._close_parts()
        self._compile()

    # -- answering ----------------------------------------------------------------------------

    def _serve(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Answer one request on the arm whose turn it is."""
        service = self._service
        if service is not None and self._assigned.may_hold:
            self._hold_again(service)
        if service is None or self._held.device != service.device:
            return self._answer(inputs)
        arm = service.begin()
        if service.decision is not self._assigned.decision:
            self._assigned.take(service.decision, holds=True)
        start = clock.now_ns()
        try:
            return self._serve_on(arm, inputs, service)
        except Exception as error:  # whatever it is, the request need not have gone there
            if not service.fail(clock.now_ns() - start):
                raise
            log.warning("%s, tried in service: %s", CPU if arm == "cpu" else service.device, error)
        if arm == "gpu":  # which may have been left by now
            return self._on_cpu(inputs, service)
        return self._serve_on("gpu", inputs, service)

    def _serve_on(
        self, arm: Arm, inputs: Mapping[str, Array], service: Service
    ) -> dict[str, Array]:
        return self._answer(inputs, service) if arm == "gpu" else self._on_cpu(inputs, service)

    def _on_cpu(self, inputs: Mapping[str, Array], service: Service) -> dict[str, Array]:
        start = clock.now_ns()
        outputs = self._run_whole(inputs)
        self._note_time(CPU, clock.now_ns() - start, service)
        self._tally.on_cpu += 1
        return outputs

    def _hold_again(self, service: Service) -> None:
        """Watch a device again that was lost while the CPU was in use, once it is ready."""
        if not self._assigned.hold(service.device):
            return
        self._close_parts()
        try:
            self._compile()
        except Exception as error:  # the CPU can do the request without
            log.warning("%s: %s", service.device, error)
            self._leave(Reason("compile-failed"), is_final=True)
        self._must_check = self._held.device != CPU

    def _note_time(self, device: str, ns: int, service: Service | None) -> None:
        self._tally.note_run(device, ns)
        if service is not None:
            service.end("cpu" if device == CPU else "gpu", ns)

    def _answer(
        self, inputs: Mapping[str, Array], service: Service | None = None
    ) -> dict[str, Array]:
        """Answer one request on the device, and where that fails on the CPU."""
        device, ailing = self._held.device, None
        is_cpu = device == CPU
        canary = None if is_cpu else self._canary
        kept = None if canary is None else canary.take(inputs, must=self._must_check)
        if kept is not None:  # the caller's arrays may change before the CPU has read them, too
            self._must_check, inputs = True, kept
        start = clock.now_ns()
        try:
            outputs = self._run(inputs)
        except NotFiniteError:
            if self.request.device != AUTO:
                raise
            debug.say(1, f"an input is not finite, which {device} does not keep: cpu")
            is_cpu = True  # the device does what it can, and is kept
            outputs = self._run_whole(inputs)
        finally:
            spent = clock.now_ns() - start
            if self._running.ailing is not None:
                ailing, self._running.ailing = self._running.ailing, None
                self._part_with(ailing)
        if is_cpu or ailing is not None:
            if service is not None:
                service.give_up()
            self._tally.on_cpu += 1
            self._tally.note_run(CPU, spent)
            return outputs
        self._exhausted = 0
        self._note_time(device, spent, service)
        if canary is not None and kept is not None:
            return self._checked(canary, kept, outputs)
        self._tally.on_device += 1
        return outputs

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._running.parts(self._parts, inputs, self._note)

    def _run_whole(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._running.whole(inputs)

    def _checked(
        self, canary: Canary, inputs: Mapping[str, Array], outputs: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs if the CPU agrees with them; else its own, and leave the device."""
        self._must_check = False
        self._running.at = CPU
        self._tally.canaries += 1
        said = canary.check(inputs, outputs)
        if said is None:
            self._tally.on_device += 1
            return outputs
        self._tally.canaries_failed += 1
        reason = Reason("drifted", said.rstrip("."))
        self._fail(reason, is_final=True)
        if self._is_strict:
            what = f"The results of {self._held.device} drifted from those of the CPU."
            raise DriverError(what, known=said, reason="drifted")
        log.warning("%s: %s", self._held.device, reason.sentence)
        self._tally.on_cpu += 1
        self._leave(reason, is_final=True)
        return self._run_whole(inputs)

    # -- failing ------------------------------------------------------------------------------

    def _fail(self, reason: Reason, *, is_final: bool = False) -> None:
        self._tally.fail(reason)
        self._assigned.fail(reason, is_final=is_final)

    def _note(self, error: DeviceError) -> None:
        """Draw the conclusions of a failure, and raise it where the CPU may not answer."""
        reason = reason_of(error)
        if reason.code == "out-of-memory":
            self._exhausted += 1
            self._tally.fail(reason)
        else:
            self._fail(reason)
        if self._is_strict:
            raise error
        log.warning("%s: %s", self._held.device, reason.sentence)
        self._running.ailing = reason

    @property
    def _is_strict(self) -> bool:
        """Whether the CPU may not answer for a device, which is then the one that was chosen."""
        return self.request.fallback == "error" and self._assigned.decision.device != CPU

    def _part_with(self, reason: Reason) -> None:
        """Leave the device that failed during a request, for a while or for good."""
        if reason.code == "out-of-memory":
            if self._exhausted >= EXHAUSTED:
                self._leave(reason, is_final=True)
            return
        self._close_parts()
        self._assigned.part_with(reason)
        self._compile()

    def _leave(self, reason: Reason, *, is_final: bool) -> None:
        self._close_parts()
        self._assigned.leave(reason, is_final=is_final)
        self._compile()

    def _close_parts(self) -> None:
        parts, self._parts = self._parts, []
        if not self._builder.owns(parts):
            close_all(parts)
