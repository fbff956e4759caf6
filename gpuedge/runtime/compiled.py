"""A graph placed, compiled and answering: on the device there is, on the CPU where that fails.

Single operations and whole models take the same way. What a failure means for the device is decided
in `gpuedge.runtime.devices`; here it means that the CPU answers the request.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from gpuedge.core import debug
from gpuedge.core.errors import (
    ClosedError,
    DeviceError,
    DriverError,
    NotFiniteError,
)
from gpuedge.core.reasons import Reason
from gpuedge.executors.base import Executable, Executor, PlacementRow
from gpuedge.graph.ir import Array, Graph
from gpuedge.plan.storages import Range
from gpuedge.runtime import clock, conditions, segments, trying
from gpuedge.runtime.assignment import Assignment
from gpuedge.runtime.crosscheck import CrossCheck
from gpuedge.runtime.devices import COMPILE_ERRORS, DEVICE_FATAL_ERRORS, POOL, Pool, reason_of
from gpuedge.runtime.health import Counts, Health
from gpuedge.runtime.monitoring import Service, weighed
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.request import Request
from gpuedge.runtime.segments import Part, Segments, close_all, offers_storage
from gpuedge.runtime.strings import AUTO, CPU

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision
    from gpuedge.decide.trial import Alternative
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.runtime.trying import TimeBudget

__all__ = ["CompiledModel", "Request"]

EXHAUSTED = 3
"""Requests in a row for which the device's memory did not suffice; then it is left."""

log = logging.getLogger("gpuedge")


class CompiledModel:
    """A graph placed and compiled for the types of its inputs; one call at a time.

    Parameters
    ----------
    graph : Graph
    request : Request
    pool : Pool
    calibrate : callable, optional
        Measures the bounds of values (`gpuedge.runtime.ranges`) if they are needed; without it the
        first inputs do.
    is_session : bool
        Whether this is a session's model: then a share of the requests is repeated on the CPU, as
        the policy says, it is watched in service, and measurements are kept for later launches.
    budget : TimeBudget, optional
        What this launch may still spend on measuring; by default all that the policy allows.
    """

    def __init__(
        self,
        graph: Graph,
        request: Request,
        pool: Pool = POOL,
        *,
        calibrate: Callable[[], Mapping[str, Range]] | None = None,
        is_session: bool = True,
        budget: TimeBudget | None = None,
    ) -> None:
        self.graph = graph
        self.request = request
        self._pool = pool
        self._lock = threading.RLock()
        self._segments = Segments(graph, request, pool.cpu())
        self._counts = Counts()
        self._calibrate = calibrate
        self._is_session = is_session
        self._inherited: list[object] = []
        self._parts: list[Part] = []
        self._ranges: Ranges | None = None
        self._crosscheck: CrossCheck | None = None
        self._must_check = False  # the device came back: compare its first result
        self._service: Service | None = None
        self._exhausted = 0
        self._at = CPU  # the device at work; the CPU between requests
        self._since = 0.0
        self._at_work: Executable | None = None
        self._is_left = False
        self._failure: Reason | None = None  # of the device, during the request under way
        self._is_timed = debug.level() >= 2
        self._has_copies = segments.has_copies(graph)
        self._assigned = Assignment(
            graph, request, pool, budget, trying.cpu_timer(self) if is_session else None
        )
        if not trying.run_trials(self):
            self.compile()
        debug.say(1, lambda: self.decision.reason)
        self._counts.forget_requests()
        self._start_crosscheck()
        self._start_service()

    # -- looking ------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """Why it runs where it runs now."""
        service = self._service
        if service is not None and service.decision is self._assigned.decision:
            return service.shown()
        return self._assigned.shown()

    @property
    def executor(self) -> Executor:
        """What it runs on now."""
        is_idle = self._assigned.decision.device == CPU
        return self._pool.cpu() if is_idle else self._assigned.executor

    @property
    def held(self) -> Executor:
        """The device that the parts were compiled for, even while the CPU answers instead."""
        return self._assigned.executor

    @property
    def is_usable(self) -> bool:
        """False once its device was closed elsewhere, and in a forked child."""
        return self._assigned.is_usable

    @property
    def refusals(self) -> dict[str, str]:
        """Nodes that the device could not run, with the reason."""
        return self._segments.refusals

    @property
    def rows(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group, after those folded while reading."""
        is_idle = self.held.device != CPU == self._assigned.decision.device
        return segments.rows_of(self.graph, self._segments.on_cpu() if is_idle else self._parts)

    def health(self) -> Health:
        """Return how this model fares."""
        check, (state, why) = self._crosscheck, self._assigned.state()
        note = "" if check is None else check.note
        service = self._service
        return Health(
            state, self._assigned.chosen.device, self._assigned.isolation, why,
            watchdog_s=segments.watchdog_of(self._parts), crosscheck_note=note,
            switches=0 if service is None else service.switches,
            conditions={} if service is None else conditions.current().to_dict(),
            **self._counts.figures(),
        )  # fmt: skip

    # -- compiling ----------------------------------------------------------------------------

    def compile(self) -> None:
        """Compile for the device there is, and for another one where its driver refuses."""
        held = self.held
        if held.device == CPU:
            self._segments.refusals.clear()
            self._parts = self._segments.on_cpu()
            return
        if self._ranges is None and self._is_fixed:
            found = self._calibrate() if self._calibrate else {}
            self._ranges = Ranges(self.graph, self._pool.cpu(), found)
        try:
            ranges = self._ranges.values if self._ranges else {}
            self._parts = self._segments.build(held, ranges, self._assigned.nodes)
        except COMPILE_ERRORS as error:
            reason = reason_of(error, "compile-failed")
            is_fatal = isinstance(error, DEVICE_FATAL_ERRORS)
            if is_fatal:
                self.fail(reason)
            elif isinstance(error, DeviceError):
                self._counts.fail(reason)
            if self.request.fallback == "error":
                raise
            log.warning("%s: %s", held.device, reason.sentence)
            if not is_fatal and reason.code != "compile-failed":
                reason = Reason("compile-failed", reason.sentence)
            self._assigned.leave(reason, is_final=not is_fatal)
            self.compile()

    @property
    def _is_fixed(self) -> bool:
        """Whether tensors are kept in fixed point, for which their bounds are needed."""
        kind = self.request.policy.storage
        return kind == "fixed16" and offers_storage(self.held, kind)

    def _start_crosscheck(self) -> None:
        """Have results of a device compared from now on; at first the CPU may have been in use."""
        if self._crosscheck is None and self._is_session and self.held.device != CPU:
            self._crosscheck = self._segments.crosscheck(self.held)

    def _start_service(self) -> None:
        """Watch in service a device that ``auto`` has opened, if the policy says so."""
        policy, device = self.request.policy, self.held.device
        is_wanted = self._is_session and self.request.is_open and policy.monitor
        if not is_wanted or device == CPU or policy.prefer == "energy":
            return
        decision = self._assigned.decision
        known = weighed(decision, device)
        if known is not None:
            self._service = Service(decision, device, known)

    def find_device(self) -> None:
        """Go on after the device was closed elsewhere, came back, or after a fork."""
        if self._assigned.is_inherited:  # destroying parts would wait for threads not here
            self._inherited += [self._parts, self.held, *self._segments.forget()]
            self._parts = []
        was_away = self._assigned.is_away
        if self._assigned.find():
            self._must_check = was_away and self.held.device != CPU
            self.close_parts()
            self.compile()
            self._start_crosscheck()

    def settle(self, inputs: Mapping[str, Array]) -> None:
        """Compile again where fixed-point tensors cannot hold these inputs."""
        if self._ranges is None or not self._is_fixed or self._ranges.covers(inputs):
            return
        self._ranges.widen(inputs)
        self.close_parts()
        self.compile()

    # -- answering ----------------------------------------------------------------------------

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs from inputs of exactly the graph's types.

        Raises
        ------
        DeviceError (GE-4xx)
            The device failed and the request forbids the CPU.
        NotFiniteError (GE-205)
            An input holds NaN or infinity, which the device named does not keep.
        """
        with self._lock:
            start = clock.now_ns()
            assigned = self._assigned
            is_closed = getattr(assigned.executor, "closed", False)
            if is_closed or assigned.is_away or assigned.owner != os.getpid():
                self.find_device()
            try:
                if self._ranges is not None:
                    self.settle(inputs)
                return self.answer(inputs) if self._service is None else self._serve(inputs)
            except ClosedError:
                # Another session gave the device up, and closed it for all, in this very moment.
                if self.is_usable or not self._assigned.is_pooled:
                    raise
                self.find_device()
                return self._serve(inputs)
            finally:
                self._at, self._at_work = CPU, None
                self._counts.times.append(clock.now_ns() - start)

    def _serve(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Answer one request on the alternative whose turn it is."""
        service = self._service
        if service is None:
            return self.answer(inputs)
        if self._assigned.may_hold:
            self._hold_again(service)
        if self.held.device != service.device:
            return self.answer(inputs)
        alternative = service.begin()
        if service.decision is not self._assigned.decision:
            self._assigned.take(service.decision, holds=True)
        start = clock.now_ns()
        try:
            return self._serve_on(alternative, inputs, service)
        except Exception as error:  # whatever it is, the request need not have gone there
            if not service.fail(clock.now_ns() - start):
                raise
            log.warning(
                "%s, tried in service: %s", CPU if alternative == "cpu" else service.device, error
            )
        # The device may have been left by now.
        return self._serve_on("cpu" if alternative == "gpu" else "gpu", inputs, service)

    def _serve_on(
        self, alternative: Alternative, inputs: Mapping[str, Array], service: Service
    ) -> dict[str, Array]:
        if alternative == "gpu":
            return self.answer(inputs, service)
        start = clock.now_ns()
        outputs = self.run_on_cpu(inputs)
        self._count(CPU, clock.now_ns() - start, service)
        return outputs

    def _hold_again(self, service: Service) -> None:
        """Watch a device again that was lost while the CPU was in use, once it is ready."""
        if not self._assigned.hold(service.device):
            return
        self.close_parts()
        try:
            self.compile()
        except Exception as error:  # the CPU can do the request without
            log.warning("%s: %s", service.device, error)
            self.leave(Reason("compile-failed"))
        self._must_check = self.held.device != CPU

    def answer(
        self, inputs: Mapping[str, Array], service: Service | None = None
    ) -> dict[str, Array]:
        """Answer one request on the device, and where that fails on the CPU."""
        device, check = self._assigned.executor.device, self._crosscheck
        is_cpu, kept = device == CPU, None
        if check is not None and not is_cpu:
            if check.left > 1 and not self._must_check:
                check.left -= 1
            else:
                kept = self._copies(check, inputs)
                inputs = inputs if kept is None else kept
        start = clock.now_ns()
        failure: Reason | None = None
        try:
            outputs = self.run_parts(inputs)
        except NotFiniteError:
            if self.request.device != AUTO:
                raise
            debug.say(1, f"an input is not finite, which {device} does not keep: cpu")
            is_cpu = True  # the device does what it can, and is kept
            outputs = self.run_on_cpu(inputs)
        finally:
            spent = clock.now_ns() - start
            failure, self._failure = self._failure, None
            is_full = failure is not None and failure.code == "out-of-memory"
            if failure is not None and (not is_full or self._exhausted >= EXHAUSTED):
                self.leave(failure, is_final=is_full)
        if is_cpu or failure is not None:
            if service is not None:
                service.give_up()
            self._count(CPU, spent)
            return outputs
        self._exhausted = 0
        if check is not None and kept is not None:
            return self._checked(check, kept, outputs, spent, service)
        if service is None:
            self._counts.on_device += 1
        else:
            self._count(device, spent, service)
        return outputs

    def _copies(self, check: CrossCheck, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return copies of inputs to be compared, which may change before the CPU has read them."""
        if not check.is_due() and not self._must_check:
            return None
        kept = check.copies(inputs)
        self._must_check = self._must_check or kept is not None
        return kept

    def _count(self, device: str, ns: int, service: Service | None = None) -> None:
        """Count a request that was answered, and how long that took."""
        counts = self._counts
        if device == CPU:
            counts.on_cpu += 1
        else:
            counts.on_device += 1
        if service is not None:
            service.end("cpu" if device == CPU else "gpu", ns)

    def run_parts(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run segment by segment; after a failure on the CPU, from inputs that are still there.

        Where no result of the device was used yet, the CPU computes the whole graph, as it does
        where it was chosen: the answer is the same to the last bit.
        """
        values: dict[str, Array] = dict(inputs)
        is_mixed = False  # whether the device gave something to it
        is_whole = len(self._parts) == 1
        for part in self._parts:
            start = clock.now_ns() if self._is_timed else 0
            feed = inputs if is_whole else {n: values[n] for n in part.graph.inputs}
            if part.device == CPU or self._failure is not None:
                values |= self._run_part_on_cpu(part, feed)
            else:
                self._since, self._at, self._at_work = clock.now_ns() / 1e9, part.device, None
                try:
                    values |= part.executable.run(feed)
                    is_mixed = True
                except DeviceError as error:
                    self._at = CPU
                    self._note_failure(error)
                    if not is_mixed:
                        return self.run_on_cpu(inputs)
                    values |= self._run_part_on_cpu(part, feed)
            if self._is_timed:
                debug.say(2, f"{self._at}: {(clock.now_ns() - start) / 1e3:.0f} us")
        if self._has_copies:
            return segments.outputs_of(self.graph, values)
        return {name: values[name] for name in self.graph.outputs}

    def _run_part_on_cpu(self, part: Part, feed: Mapping[str, Array]) -> dict[str, Array]:
        stand_in = part.executable if part.device == CPU else self._segments.stand_in(part)
        self._at, self._at_work = CPU, stand_in
        return stand_in.run(feed)

    def run_on_cpu(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute one request without the device."""
        values: dict[str, Array] = dict(inputs)
        for part in self._segments.on_cpu():
            feed = {name: values[name] for name in part.graph.inputs}
            values |= self._run_part_on_cpu(part, feed)
        return segments.outputs_of(self.graph, values)

    def _checked(
        self, check: CrossCheck, inputs: Mapping[str, Array], outputs: dict[str, Array],
        ns: int, service: Service | None,
    ) -> dict[str, Array]:  # fmt: skip
        """Return the outputs if the CPU agrees with them; else its own, and leave the device."""
        self._must_check = False
        self._at = CPU
        counts = self._counts
        counts.crosschecks += 1
        said = check.compare(inputs, outputs)
        if said is None:
            self._count(self.held.device, ns, service)
            return outputs
        counts.crosschecks_failed += 1
        reason = Reason("drifted", said.rstrip("."))
        self.fail(reason, is_final=True)
        if self._is_strict:
            what = f"The results of {self.held.device} drifted from those of the CPU."
            raise DriverError(what, known=said, reason="drifted")
        log.warning("%s: %s", self.held.device, reason.sentence)
        counts.on_cpu += 1
        self.leave(reason)
        return self.run_on_cpu(inputs)

    # -- failing ------------------------------------------------------------------------------

    def fail(self, reason: Reason, *, is_final: bool = False) -> None:
        """Count a failure of the device, and report it: no session of this process uses it now."""
        self._counts.fail(reason)
        self._assigned.fail(reason, is_final=is_final)

    def _note_failure(self, error: DeviceError) -> None:
        """Draw the conclusions of a failure, and raise it where the CPU may not answer."""
        reason = reason_of(error)
        if reason.code == "out-of-memory":
            self._exhausted += 1
            self._counts.fail(reason)
        else:
            self.fail(reason)
        if self._is_strict:
            raise error
        log.warning("%s: %s", self.held.device, reason.sentence)
        self._failure = reason

    @property
    def failures(self) -> int:
        """How often the device failed so far."""
        return self._counts.failed

    @property
    def _is_strict(self) -> bool:
        """Whether the CPU may not answer for a device, which is then the one that was chosen."""
        return self.request.fallback == "error" and self._assigned.decision.device != CPU

    def leave(self, reason: Reason, *, is_final: bool = True) -> None:
        """Go on with another device or the CPU, for good or until this one is in use again."""
        self.close_parts()
        self._assigned.leave(reason, is_final=is_final)
        self.compile()

    # -- stopping and closing -------------------------------------------------------------------

    def inside_since(self) -> float | None:
        """Return when the run under way entered its device; None where none is inside one."""
        return None if self._at == CPU or self._is_left else self._since

    def cancel(self) -> None:
        """End a run of another thread early, if it is one of the CPU; its result is not wanted."""
        stop = getattr(self._at_work, "cancel", None)
        if stop is not None:
            stop()

    def abandon(self) -> bool:
        """Leave the device alone if a run of another thread is inside it, which may never return.

        Nothing waits for that thread, and nothing of a device in this process is closed. This
        object must not be used any more; a new one for the same request goes to another device.

        Returns
        -------
        bool
            False if no run is inside a device: what takes so long is the CPU.
        """
        if self._at == CPU or self._is_left:
            return False
        self._is_left = True
        executor = cast("GpuExecutor", self.held)
        if self._assigned.isolation != INLINE:
            self._assigned.fail(Reason("device-hung", "a request was given up"))
        elif self._assigned.is_pooled:
            self._pool.abandon(executor.device)
        executor.is_hung = True
        executor.retire()
        return True

    def close_parts(self) -> None:
        """Release what was compiled for the device."""
        parts, self._parts = self._parts, []
        if not self._segments.owns(parts):
            close_all(parts)

    def close(self) -> None:
        """Release what was compiled; the device stays open."""
        with self._lock:
            self.close_parts()
            self._segments.close()
            if self._crosscheck is not None:
                self._crosscheck.close()

    # -- trials (gpuedge.runtime.trying) --------------------------------------------------------

    @property
    def assigned(self) -> Assignment:
        """The device this runs on, and what is still to be measured."""
        return self._assigned

    @property
    def is_session(self) -> bool:
        """Whether this is a session's model."""
        return self._is_session

    def differs(self, inputs: Mapping[str, Array]) -> str | None:
        """Return what is wrong with what the device computes; None if nothing is."""
        if self.request.policy.crosscheck <= 0:
            return None
        return self._segments.differs(self.held, self._parts, inputs)

    def reset_ranges(self) -> None:
        """Forget the bounds of values that samples showed: they stand for nothing."""
        if self._ranges is not None:
            self._ranges.reset()

    def prepare_cpu(self) -> Sequence[Part]:
        """Compile for the CPU, before its first run is timed."""
        return self._segments.on_cpu()
