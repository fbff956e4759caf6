"""What a model on a named device and one under ``auto`` share: running parts, failing, closing.

Single operations and whole models take the same way. What a failure means for the device is decided
in `gpuedge.runtime.devices`; here it means that the CPU answers the request.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from gpuedge.core import debug
from gpuedge.core.errors import DeviceError, DriverError, NotFiniteError
from gpuedge.core.reasons import Reason
from gpuedge.executors.base import Executable, Executor, PlacementRow, Progress, StepTime
from gpuedge.graph.bound import BoundModel
from gpuedge.graph.checks import ValueCheck, check_values
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.partition import outputs_of
from gpuedge.plan.storages import Range, is_finite
from gpuedge.runtime import clock, segments
from gpuedge.runtime.background import BACKGROUND, Background
from gpuedge.runtime.crosscheck import CrossCheck
from gpuedge.runtime.devices import POOL, Pool, reason_of
from gpuedge.runtime.health import Counts, Health
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.request import Request
from gpuedge.runtime.segments import Part, Segments, close_all, offers_storage
from gpuedge.runtime.strings import CPU
from gpuedge.safety.interrupts import held, rlock
from gpuedge.safety.watchdog import RUN_LIMIT_S, STRETCH, Watch, Watchdog

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision
    from gpuedge.executors.gpu import GpuExecutor

Calibrate = Callable[[], Mapping[str, Range]]
"""Measures the bounds of values (`gpuedge.runtime.ranges`)."""

EXHAUSTED = 3
"""Requests in a row for which the device's memory did not suffice; then it is left."""

log = logging.getLogger("gpuedge")


class OnDevice:
    """A graph compiled for one open device.

    Parameters
    ----------
    parts_of : Segments
    executor : Executor
    nodes : frozenset of int, optional
        Identities of the nodes that the device is to run, where that is not all it can.
    ranges : Ranges, optional
        Bounds of values, where tensors are kept in fixed point.
    progress : callable, optional
        Called between the steps of compiling.

    Attributes
    ----------
    segments : Segments
    parts : list of Part
    whole : Executable or None
        The only one of them, where it gives every output.
    has_copies : bool
        Whether there are outputs that no node computes.
    check : CrossCheck or None
        Compares a share of the results with the CPU's.
    must_check : bool
        Whether the next result is compared in any case.
    """

    def __init__(
        self,
        parts_of: Segments,
        executor: Executor,
        nodes: frozenset[int] | None = None,
        ranges: Ranges | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.segments = parts_of
        self.executor = executor
        self.ranges = ranges
        self.check: CrossCheck | None = None
        self.must_check = False
        self._nodes = nodes
        self.has_copies = segments.has_copies(parts_of.model.graph)
        self.parts: list[Part] = []
        self.whole: Executable | None = None
        self._build(progress)

    def _build(self, progress: Progress | None = None) -> None:
        ranges = self.ranges.values if self.ranges else {}
        self.parts = self.segments.build(self.executor, ranges, self._nodes, progress)
        is_whole = len(self.parts) == 1 and not self.has_copies
        self.whole = self.parts[0].executable if is_whole else None

    @property
    def is_closed(self) -> bool:
        """Whether its device was closed, or left by another session."""
        return bool(getattr(self.executor, "closed", False))

    def settle(self, inputs: Mapping[str, Array]) -> None:
        """Compile again where fixed-point tensors cannot hold these inputs."""
        if self.ranges is None or (self.parts and self.ranges.covers(inputs)):
            return  # no parts: the last time was interrupted
        self.ranges.widen(inputs)
        self.close()
        self._build()

    @property
    def not_compared(self) -> str:
        """What of its results is not compared with the CPU's though it should be, and why."""
        note = "" if self.check is None else self.check.note
        is_wanted = self.segments.is_checked
        return f"not compared with the CPU: {note}" if note and is_wanted else ""

    def copies(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Count a request; return copies of inputs whose result is to be compared, else None.

        The caller may change them before the CPU has read them.
        """
        check = self.check
        if check is None:
            return None
        if not check.is_due() and not self.must_check:
            return None
        kept = check.copies(inputs)
        self.must_check = self.must_check or kept is not None
        return kept

    def close(self) -> None:
        """Release what was compiled; may be called twice."""
        with held:
            parts, self.parts, self.whole = self.parts, [], None
            close_all(parts)

    def close_all(self) -> None:
        """Release that and what its segments have on the CPU, which are nobody else's."""
        self.close()
        self.segments.close()


class CompiledModel(ABC):
    """A graph compiled for the types of its inputs; one call at a time.

    Parameters
    ----------
    graph : Graph or BoundModel
    request : Request
    pool : Pool
    calibrate : callable, optional
        Measures the bounds of values if they are needed; without it the first inputs do.
    is_session : bool
        Whether this is a session's model: then a share of the requests is repeated on the CPU, as
        the policy says.
    background : Background
        What opens devices under ``auto``.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device named cannot be used here.
    """

    def __init__(
        self,
        graph: Graph | BoundModel,
        request: Request,
        pool: Pool = POOL,
        *,
        calibrate: Calibrate | None = None,
        is_session: bool = True,
        background: Background = BACKGROUND,
    ) -> None:
        self.model = graph if isinstance(graph, BoundModel) else BoundModel(lambda: graph)
        self.request = request
        self._pool = pool
        self._background = background
        self._lock = rlock()
        self._segments = Segments(self.model, request, pool.cpu())
        self._counts = Counts()
        self._calibrate = calibrate
        self._is_session = is_session
        self._inherited: list[object] = []
        self._owner = os.getpid()
        self._exhausted = 0
        self._at = CPU  # the device at work; the CPU between requests
        self._since = 0.0
        self._at_work: Executable | None = None
        self._is_left = False
        self._failure: Reason | None = None  # of the device, during the request under way
        self._is_timed = debug.level() >= 2
        self._checks: tuple[ValueCheck, ...] | None = None

        self._open_first()

    @abstractmethod
    def _open_first(self) -> None:
        """Compile for what answers the first request."""

    # -- looking ------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """What it computes, made when it is first asked for."""
        return self.model.graph

    @property
    @abstractmethod
    def decision(self) -> Decision:
        """Why it runs where it runs now."""

    @property
    @abstractmethod
    def executor(self) -> Executor:
        """What it runs on now."""

    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """False once it has to be made anew: its device was closed, or the process forked off."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Part | Executable]:
        """What runs now: segments, or the whole model on the CPU."""

    @property
    def rows(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group, after those folded while reading."""
        return segments.rows_of(self.graph, self.parts)

    @property
    def memory(self) -> dict[str, int] | None:
        """Bytes of device memory by what they are for; None where the CPU runs everything."""
        return segments.memory_of(self.parts)

    @abstractmethod
    def health(self) -> Health:
        """Return how this model fares."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
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

    def warm(self) -> None:
        """Make ready what answers the first request."""
        self._segments.on_cpu()

    def timed(self, inputs: Mapping[str, Array]) -> list[StepTime]:
        """Run what runs now step by step, and return what each took. Raises DeviceError."""
        values, found = dict(inputs), list[StepTime]()
        with self._lock:
            for part in self.parts:
                one = part.executable if isinstance(part, Part) else part
                try:
                    made, times = one.timed(values)
                except NotFiniteError as error:
                    if not isinstance(part, Part):
                        raise
                    made, times = self._instead_of(part, inputs, error).timed(values)
                values |= made
                found += times
        return found

    @property
    def refusals(self) -> dict[str, str]:
        """Nodes that the device could not run, with the reason."""
        return self._segments.refusals

    # -- compiling ----------------------------------------------------------------------------

    def _ranges(self, executor: Executor) -> Ranges | None:
        """Return the bounds of values where a device keeps tensors in fixed point."""
        kind = self.request.policy.storage
        if kind != "fixed16" or not offers_storage(executor, kind):
            return None
        return Ranges(self.graph, self._pool.cpu(), self._calibrate() if self._calibrate else {})

    # -- running ------------------------------------------------------------------------------

    def _check(self, inputs: Mapping[str, Array]) -> None:
        """Refuse values that no device can do with, whichever is to answer. Raises InputError."""
        if self._checks is None:
            self._checks = self.model.checks
        check_values(self._checks, inputs)

    def run_on_cpu(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute one request without the device."""
        return self._run_one_on_cpu(self._segments.on_cpu(), inputs)

    def _run_one_on_cpu(self, one: Executable, feed: Mapping[str, Array]) -> dict[str, Array]:
        self._at, self._at_work = CPU, one
        return one.run(feed)

    def _run_parts(self, side: OnDevice, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run segment by segment; after a failure on the CPU, from inputs that are still there.

        Where no result of the device was used yet, the CPU computes the whole graph, as it does
        where it was chosen: the answer is the same to the last bit.
        """
        values: dict[str, Array] = dict(inputs)
        is_mixed = False  # whether the device gave something to it
        is_whole = len(side.parts) == 1
        for part in side.parts:
            start = clock.now_ns() if self._is_timed else 0
            feed = inputs if is_whole else {n: values[n] for n in part.graph.inputs}
            if part.device == CPU or self._failure is not None:
                values |= self._run_one_on_cpu(side.segments.stand_in(part), feed)
            else:
                if not is_whole:
                    check_values(part.checks, feed)
                self._since, self._at, self._at_work = clock.now_ns() / 1e9, part.device, None
                try:
                    values |= part.executable.run(feed)
                    is_mixed = True
                except NotFiniteError as error:
                    self._at = CPU
                    values |= self._run_one_on_cpu(self._instead_of(part, inputs, error), feed)
                except DeviceError as error:
                    self._at = CPU
                    self._note_failure(error)
                    if not is_mixed:
                        return self.run_on_cpu(inputs)
                    values |= self._run_one_on_cpu(side.segments.stand_in(part), feed)
            if self._is_timed:
                debug.say(2, f"{self._at}: {(clock.now_ns() - start) / 1e3:.0f} us")
        if side.has_copies:
            return outputs_of(self.graph, values)
        return {name: values[name] for name in self.graph.outputs}

    def _instead_of(
        self, part: Part, inputs: Mapping[str, Array], error: NotFiniteError
    ) -> Executable:
        """Return what computes a segment on the CPU that the device does not take values of.

        The device did nothing wrong. Raises `error` where these are the caller's own, or the CPU
        may not answer.
        """
        own = [inputs[name] for name in part.graph.inputs if name in inputs]
        if self._is_strict or not all(is_finite(array) for array in own):
            raise error
        debug.say(1, f"the CPU computes a segment of {part.device}: {error.what}")
        return self._segments.stand_in(part)

    def _compared(
        self,
        side: OnDevice,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        on_cpu: Callable[[Mapping[str, Array]], Mapping[str, Array]] | None = None,
    ) -> str | None:
        """Return what is wrong with a device's outputs, None if nothing is; count it."""
        side.must_check = False
        self._at = CPU
        if side.check is None:
            return None
        self._counts.crosschecks += 1
        said = side.check.compare(inputs, outputs, on_cpu or self.run_on_cpu)
        if said is not None:
            self._counts.crosschecks_failed += 1
        elif side.check.note:
            self._counts.crosschecks_not_compared += 1
        return said

    # -- failing ------------------------------------------------------------------------------

    @abstractmethod
    def _fail(self, reason: Reason, *, is_final: bool = False) -> None:
        """Count a failure of the device, and report it: no session of this process uses it now."""

    @property
    def _is_strict(self) -> bool:
        """Whether the CPU may not answer for the device."""
        return False

    @property
    @abstractmethod
    def held(self) -> Executor:
        """The device that a run under way is on."""

    def _note_failure(self, error: DeviceError) -> None:
        """Draw the conclusions of a failure, and raise it where the CPU may not answer."""
        reason = reason_of(error)
        if reason.code == "out-of-memory":
            self._exhausted += 1
            self._counts.fail(reason)
        else:
            self._fail(reason)
        if self._is_strict:
            raise error
        log.warning("%s: %s", self.held.device, reason.sentence)
        self._failure = reason

    def _taken_failure(self) -> tuple[Reason | None, bool]:
        """Return why the device failed in this request, and whether it is to be left now."""
        failure, self._failure = self._failure, None
        if failure is None:
            return None, False
        return failure, failure.code != "out-of-memory" or self._exhausted >= EXHAUSTED

    def _drifted(self, device: str, said: str) -> Reason:
        """Condemn a device whose results differ; raises where the CPU may not answer instead."""
        reason = Reason("drifted", said.rstrip("."))
        self._fail(reason, is_final=True)
        if self._is_strict:
            what = f"The results of {device} drifted from those of the CPU."
            raise DriverError(what, known=said, reason="drifted")
        log.warning("%s: %s", device, reason.sentence)
        return reason

    # -- stopping and closing -------------------------------------------------------------------

    @property
    @abstractmethod
    def is_pooled(self) -> bool:
        """False where the caller opened the device."""

    @property
    def isolation(self) -> str:
        """Where the driver of the device lives."""
        return self.request.isolation

    def inside_since(self) -> float | None:
        """Return when the run under way entered its device; None where none is inside one."""
        return None if self._at == CPU or self._is_left else self._since

    def watch(self, more_s: float) -> Watch:
        """Return what finds out whether the run under way is stuck inside its device.

        The device's own watchdog ends a run in a better way, so this has at least its patience, and
        `more_s`.
        """
        fixed_s = self.request.policy.watchdog_s
        if fixed_s is not None:
            return Watch(fixed_s + more_s)
        executor = cast("GpuExecutor", self.held)
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
        if self._at == CPU or self._is_left:
            return False
        self._is_left = True
        executor = cast("GpuExecutor", self.held)
        if self.isolation != INLINE:
            self._fail(Reason("device-hung", "a request was given up"))
        elif self.is_pooled:
            self._pool.abandon(executor.device)
        executor.is_hung = True
        executor.retire()
        return True

    @abstractmethod
    def _close_sides(self) -> None:
        """Release what was compiled for devices."""

    @abstractmethod
    def keep(self) -> None:
        """Keep on disk what later launches are to know."""

    def close(self) -> None:
        """Release what was compiled; the device stays open."""
        with self._lock:
            self._close_sides()
            self._segments.close()
