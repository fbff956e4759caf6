"""A compiled graph: the one class that runs it, falls back to the CPU and recovers.

Single operations and whole models take the same way, on a device that was named and under ``auto``:
which device answers is a value beside it (`DeviceChoice`). What a failure means for the device is
decided in `gpuedge.runtime.devices`; here it means that the CPU answers the request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, cast

from gpuedge.core import debug
from gpuedge.core.errors import (
    ClosedError,
    DeviceError,
    DriverError,
    GpuEdgeError,
    InexactError,
    NotFiniteError,
)
from gpuedge.core.reasons import Reason
from gpuedge.core.times import RUN_LIMIT_S
from gpuedge.executors.base import Executable, Executor, PlacementRow, StepTime
from gpuedge.graph.checks import ValueCheck, check_values
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.partition import outputs_of
from gpuedge.graph.shaped import ShapedModel
from gpuedge.plan.storages import is_finite
from gpuedge.runtime import clock, segments
from gpuedge.runtime.auto import ChosenDevice
from gpuedge.runtime.background import BACKGROUND, Background
from gpuedge.runtime.devices import COMPILE_ERRORS, POOL, Pool, reason_of
from gpuedge.runtime.fixed import FixedDevice
from gpuedge.runtime.health import Health
from gpuedge.runtime.inputs import samples
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.placed import (
    Assignment,
    Calibrate,
    Compilation,
    PlacedGraph,
)
from gpuedge.runtime.request import Request
from gpuedge.runtime.segments import Part
from gpuedge.runtime.strings import CPU
from gpuedge.safety.watchdog import STRETCH, Watch, Watchdog

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision
    from gpuedge.executors.gpu import GpuExecutor

EXHAUSTED = 3
"""Requests in a row for which the device's memory did not suffice; then it is left."""

log = logging.getLogger("gpuedge")

Outputs = dict[str, Array]
DeviceChoice = FixedDevice | ChosenDevice
"""Which device answers: the one that was named, or whichever the chooser says."""

DeviceRun = tuple[Outputs | None, Reason | None]
"""What came of a run on a device: outputs, or None where the CPU has to answer the request; and why
the device failed, if it did. Outputs that there are nevertheless rest on what it computed before.
"""


class CompiledModel:
    """A graph compiled for the types of its inputs; one call at a time.

    Parameters
    ----------
    graph : Graph or ShapedModel
    request : Request
    pool : Pool
    calibrate : callable, optional
        Measures the bounds of values if they are needed; without it the first inputs do.
    is_session : bool
        Whether this is a session's model: then a share of the requests is repeated on the CPU, as
        the policy says.
    background : Background
        What opens devices under ``auto``.

    Attributes
    ----------
    choice : DeviceChoice
        Which device answers.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device named cannot be used here.
    """

    def __init__(
        self,
        graph: Graph | ShapedModel,
        request: Request,
        pool: Pool = POOL,
        *,
        calibrate: Calibrate | None = None,
        is_session: bool = True,
        background: Background = BACKGROUND,
    ) -> None:
        self.model = graph if isinstance(graph, ShapedModel) else ShapedModel(lambda: graph)
        self.request = request
        self._pool = pool
        this = Compilation(self.model, request, pool, calibrate, is_session)
        self._compilation, self._counts, self._lock = this, this.counts, this.lock
        self._segments = this.segments
        self._exhausted = 0
        self._inside: tuple[Executor, float] | None = None  # the device at work, and since when
        self._at_work: Executable | None = None  # of the CPU
        self._is_abandoned = False
        self._is_timed = debug.level() >= 2
        self._checks: tuple[ValueCheck, ...] | None = None
        self.choice: DeviceChoice
        if request.is_open:
            self.choice = chosen = ChosenDevice(this, background)
            if request.policy.decide == "load":
                chosen.decide_at_load(self._answer)
        else:
            self.choice = FixedDevice(this)

    # -- looking ------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """What it computes, made when it is first asked for."""
        return self.model.graph

    @property
    def decision(self) -> Decision:
        """Why it runs where it runs now."""
        return self.choice.decision

    @property
    def executor(self) -> Executor:
        """What it runs on now."""
        placed = self.choice.placed
        return self._pool.cpu() if placed is None else placed.executor

    @property
    def parts(self) -> Sequence[Part | Executable]:
        """What runs now: segments, or the whole model on the CPU."""
        placed = self.choice.placed
        return [self._segments.on_cpu()] if placed is None else placed.parts

    @property
    def rows(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group, after those folded while reading."""
        return segments.rows_of(self.graph, self.parts)

    @property
    def memory(self) -> dict[str, int] | None:
        """Bytes of device memory by what they are for; None where the CPU runs everything."""
        return segments.memory_of(self.parts)

    @property
    def refusals(self) -> dict[str, str]:
        """Nodes that the device in use cannot run, with the reason."""
        placed = self.choice.placed
        return {} if placed is None else placed.segments.refusals

    def health(self) -> Health:
        """Return the health of this model; a snapshot."""
        placed, state = self.choice.placed, self.choice.state
        check = None if placed is None else placed.check
        return Health(
            state.health, self.choice.device, self.request.isolation, state.sentence,
            watchdog_s=None if placed is None else segments.watchdog_of(placed.parts),
            crosscheck_note="" if check is None else check.note,
            switches=self.choice.switches, **self._counts.figures(),
        )  # fmt: skip

    # -- answering ----------------------------------------------------------------------------

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        """Compute the outputs from inputs of exactly the graph's types.

        Raises
        ------
        DeviceError (GE-4xx)
            The device failed and the request forbids the CPU.
        NotFiniteError (GE-205)
            An input holds NaN or infinity, which the device named does not keep.
        InputError (GE-203)
            An input holds an index that leads nowhere, or a divisor of 0.
        """
        if self._checks != ():
            self._check(inputs)
        with self._lock:
            start = clock.now_ns()
            try:
                return self._answer(inputs)
            finally:
                self._inside = self._at_work = None
                self._counts.times.append(clock.now_ns() - start)

    def run_on_cpu(self, inputs: Mapping[str, Array]) -> Outputs:
        """Compute one request without the device."""
        self._inside, self._at_work = None, self._segments.on_cpu()
        return self._at_work.run(inputs)

    def _check(self, inputs: Mapping[str, Array]) -> None:
        """Refuse values that no device can compute with. Raises InputError."""
        if self._checks is None:
            self._checks = self.model.checks
        check_values(self._checks, inputs)

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        """Answer a request on the device that is to do so; this is where one goes to the CPU."""
        by = self.choice.next()
        placed, tell = by.placed, by.tell
        if placed is not None and (outputs := self._on_device(by, placed, inputs)) is not None:
            return outputs
        start = 0 if tell is None else clock.now_ns()
        try:
            outputs = self.run_on_cpu(inputs)
        except GpuEdgeError as error:
            if by.kind != "burst" or placed is not None or tell is None:
                raise
            tell(by, clock.now_ns() - start)
            log.warning("cpu, tried in service: %s", error)
            by = self.choice.in_use()  # the CPU was only looked at
            outputs = None if by.placed is None else self._on_device(by, by.placed, inputs)
            if outputs is None:
                raise
            return outputs
        self._counts.on_cpu += 1
        if tell is not None and placed is None:
            tell(by, clock.now_ns() - start)
        return outputs

    def _on_device(
        self, by: Assignment, placed: PlacedGraph, inputs: Mapping[str, Array]
    ) -> Outputs | None:
        """Answer a request on a device; None where the CPU has to."""
        try:
            if placed.ranges is not None and not self._is_settled(by, placed, inputs):
                return None
            copied = _copy(inputs) if by.kind == "trial" else placed.copies(inputs)
            given = inputs if copied is None else copied
            start = clock.now_ns()
            if placed.whole is None or self._is_timed:
                outputs, failure = self._run_parts(by, placed, given)
            else:
                self._at_work, self._inside = None, (placed.executor, start / 1e9)
                outputs, failure = self._run_whole(by, placed, placed.whole, given)
            spent = clock.now_ns() - start if by.tell is not None else 0
        except (NotFiniteError, InexactError, MemoryError) as error:
            if not self.request.is_open:
                raise
            debug.say(1, f"{by.device} does not take this input: {error}")
            return None  # the device did nothing wrong, and is kept
        except ClosedError:  # another session gave it up in this very moment
            if not self.choice.replace(placed):
                raise
            return self._answer(inputs)
        if failure is not None:
            if failure.code != "out-of-memory" or self._exhausted >= EXHAUSTED:
                self._leave(placed, failure)
            outputs = None if by.kind == "trial" else outputs
            self._counts.on_cpu += outputs is not None
            return outputs
        self._exhausted = 0
        if copied is not None and outputs is not None:
            return self._compared(by, placed, copied, outputs, spent)
        self._counts.on_device += 1
        if by.tell is not None:
            by.tell(by, spent)
        return outputs

    def _is_settled(self, by: Assignment, placed: PlacedGraph, inputs: Mapping[str, Array]) -> bool:
        """Compile again where these inputs make it necessary; False where that fails."""
        try:
            placed.settle(inputs)
        except COMPILE_ERRORS as error:
            self._leave(placed, reason_of(error))
            if by.is_strict:
                raise
            return False
        return True

    def _run_whole(
        self, by: Assignment, placed: PlacedGraph, whole: Executable, inputs: Mapping[str, Array]
    ) -> DeviceRun:
        """Run a graph of which the device computes all."""
        try:
            return whole.run(inputs), None
        except DeviceError as error:
            self._inside = None
            return None, self._failed(by, placed, error)

    def _run_parts(
        self, by: Assignment, placed: PlacedGraph, inputs: Mapping[str, Array]
    ) -> DeviceRun:
        """Run part by part; after a failure on the CPU, from values that are still there.

        Where no result of the device was used yet, the CPU is to compute the whole graph, as it
        does where it was chosen: the answer is the same to the last bit.
        """
        values: Outputs = dict(inputs)
        failure: Reason | None = None
        is_mixed = False  # whether a result of the device is among the values
        is_whole = len(placed.parts) == 1
        for part in placed.parts:
            start = clock.now_ns() if self._is_timed else 0
            feed = inputs if is_whole else {n: values[n] for n in part.graph.inputs}
            is_inside = part.device != CPU and failure is None
            if is_inside:
                if not is_whole:
                    check_values(part.checks, feed)
                self._at_work, self._inside = None, (placed.executor, clock.now_ns() / 1e9)
                try:
                    values |= part.executable.run(feed)
                    is_mixed = True
                except NotFiniteError as error:
                    self._check_not_own(by, part, inputs, error)
                    is_inside = False
                except DeviceError as error:
                    failure, is_inside = self._failed(by, placed, error), False
                    if not is_mixed:
                        return None, failure
                finally:
                    self._inside = None
            if not is_inside:
                self._at_work = stand_in = placed.segments.stand_in(part)
                values |= stand_in.run(feed)
            if self._is_timed:
                where = part.device if is_inside else CPU
                debug.say(2, f"{where}: {(clock.now_ns() - start) / 1e3:.0f} us")
        if placed.has_copies:
            return outputs_of(self.graph, values), failure
        return {name: values[name] for name in self.graph.outputs}, failure

    def _check_not_own(
        self, by: Assignment, part: Part, inputs: Mapping[str, Array], error: NotFiniteError
    ) -> None:
        """Raise `error` if values that a device does not take are the caller's, or it is strict.

        Otherwise the CPU computes this segment; the device did nothing wrong.
        """
        own = [inputs[name] for name in part.graph.inputs if name in inputs]
        if by.is_strict or not all(map(is_finite, own)):
            raise error
        debug.say(1, f"the CPU computes a segment of {part.device}: {error.what}")

    def _compared(
        self, by: Assignment, placed: PlacedGraph, inputs: Outputs, outputs: Outputs, spent: int
    ) -> Outputs | None:
        """Return a device's outputs where the CPU agrees with them, on trial the CPU's own.

        None where the CPU has yet to compute its own. Raises DriverError where they differ and the
        CPU may not answer.
        """
        of_cpu: list[Outputs] = []

        def on_cpu(given: Mapping[str, Array]) -> Outputs:
            of_cpu.append(self.run_on_cpu(given))
            return of_cpu[0]

        placed.must_check = False
        if placed.check is not None:
            difference = placed.check.compare(inputs, outputs, on_cpu)
            self._counts.compared(difference, placed.check.note)
            if difference is not None:
                self._drifted(by, placed, difference)
                self._counts.on_cpu += 1
                return of_cpu[0]
        if by.tell is not None:
            by.tell(by, spent)
        if by.kind != "trial":
            self._counts.on_device += 1
            return outputs
        self._counts.on_cpu += len(of_cpu)
        return of_cpu[0] if of_cpu else None

    def warm(self) -> None:
        """Make ready what answers the first request.

        A device runs once on synthetic inputs: many drivers compile a kernel when it first runs.
        A failure is left to the next request, which handles it.
        """
        placed = self.choice.placed
        if placed is None:
            self._segments.on_cpu()
            return
        if placed.ranges is not None:  # samples would set the bounds of values
            return
        self.request.tell("run", 0, 1)
        with self._lock, suppress(GpuEdgeError):
            placed.run_all(samples(self.graph))
        self.request.tell("run", 1, 1)

    def timed(self, inputs: Mapping[str, Array]) -> list[StepTime]:
        """Run what runs now step by step, and return what each took. Raises DeviceError."""
        values, steps = dict(inputs), list[StepTime]()
        with self._lock:
            by = self.choice.in_use()
            for part in self.parts:
                executable = part.executable if isinstance(part, Part) else part
                try:
                    outputs, times = executable.timed(values)
                except NotFiniteError as error:
                    if not isinstance(part, Part):
                        raise
                    self._check_not_own(by, part, inputs, error)
                    outputs, times = self._segments.stand_in(part).timed(values)
                values |= outputs
                steps += times
        return steps

    # -- failing ------------------------------------------------------------------------------

    def _failed(self, by: Assignment, placed: PlacedGraph, error: DeviceError) -> Reason:
        """Count and report a failure, and raise it where the CPU may not answer."""
        executor, reason = placed.executor, reason_of(error)
        if reason.code == "out-of-memory":
            self._exhausted += 1
            self._counts.fail(reason)
        else:
            self._compilation.report(executor, reason)
        if by.is_strict:
            raise error
        log.warning("%s: %s", executor.device, reason.sentence)
        return reason

    def _leave(self, placed: PlacedGraph, reason: Reason) -> None:
        """Go on without a device that failed."""
        self.choice.leave(placed, reason, is_final=reason.code == "out-of-memory")

    def _drifted(self, by: Assignment, placed: PlacedGraph, difference: str) -> None:
        """Condemn a device whose results differ; raise where the CPU may not answer instead."""
        reason = Reason("drifted", difference.rstrip("."))
        self._compilation.report(placed.executor, reason, is_final=True)
        if by.is_strict:
            what = f"The results of {by.device} drifted from those of the CPU."
            raise DriverError(what, known=difference, reason="drifted")
        log.warning("%s: %s", by.device, reason.sentence)
        self.choice.leave(placed, reason, is_final=True)

    # -- stopping and closing -------------------------------------------------------------------

    def inside_since(self) -> float | None:
        """Return when the run under way entered its device; None where none is inside one."""
        inside = self._inside
        return None if inside is None or self._is_abandoned else inside[1]

    def watch(self, more_s: float) -> Watch:
        """Return what finds out whether the run under way is stuck inside its device.

        The device's own watchdog ends a run in a better way, so this has at least its patience, and
        `more_s`.
        """
        fixed_s, inside, placed = self.request.policy.watchdog_s, self._inside, self.choice.placed
        if fixed_s is not None:
            return Watch(fixed_s + more_s)
        if inside is not None:
            executor = cast("GpuExecutor", inside[0])
        elif placed is not None:
            executor = cast("GpuExecutor", placed.executor)
        else:  # the CPU is at work, and comes back
            return Watch(inf)
        dog = executor.at_work or Watchdog()
        limit_s = max(RUN_LIMIT_S, dog.patience_s)
        most_s = max(STRETCH * RUN_LIMIT_S, dog.most_s)
        return Watch(
            limit_s + more_s, executor.driver_pid, most_s=most_s + more_s,
            progress=executor.progress,
        )  # fmt: skip

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
        inside = self._inside
        if inside is None or self._is_abandoned:
            return False
        self._is_abandoned = True
        executor = cast("GpuExecutor", inside[0])
        if self.request.isolation != INLINE:
            self._compilation.report(executor, Reason("device-hung", "a request was given up"))
        elif self.request.executor is None:
            self._compilation.pooled(executor.device).abandon()
        executor.is_hung = True
        executor.retire()
        return True

    def keep(self) -> None:
        """Keep on disk what later launches are to know."""
        self.choice.keep()

    def close(self) -> None:
        """Release what was compiled; the device stays open."""
        with self._lock:
            self.choice.close()
            self._segments.close()


def _copy(inputs: Mapping[str, Array]) -> Outputs:
    return {name: array.copy() for name, array in inputs.items()}
