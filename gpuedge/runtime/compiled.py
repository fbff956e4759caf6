"""The road from a graph to numbers: place it, compile its segments, run them, fall back if needed.

Single operations and whole models take it alike. What a failure means for the device is decided in
`gpuedge.runtime.recovery`; here it means that the CPU answers the request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, cast

from gpuedge.core import debug
from gpuedge.core.errors import ClosedError, GpuEdgeError, ModelError
from gpuedge.core.reasons import Reason
from gpuedge.decide.attempts import with_duel
from gpuedge.executors.base import Executor, PlacementRow
from gpuedge.graph.ir import Array, Graph
from gpuedge.kernels.storages import Range
from gpuedge.runtime import clock, conditions, segments
from gpuedge.runtime.answering import Answering
from gpuedge.runtime.assignment import GONE, Assignment, reason_of
from gpuedge.runtime.devices import POOL, Pool
from gpuedge.runtime.health import Health
from gpuedge.runtime.monitoring import Service, weighed
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.placing import Request
from gpuedge.runtime.running import Rival
from gpuedge.runtime.sampling import samples, timed
from gpuedge.runtime.segments import Builder, Part, close_all
from gpuedge.runtime.strings import CPU
from gpuedge.runtime.trying import Purse, Tried

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision
    from gpuedge.executors.gpu import GpuExecutor

__all__ = ["Compiled", "Request"]

log = logging.getLogger("gpuedge")


class Compiled(Answering):
    """A graph placed and compiled for the types of its inputs; one call at a time.

    Parameters
    ----------
    graph : Graph
    request : Request
    pool : Pool
    calibrate : callable, optional
        Measures the bounds of values (`gpuedge.runtime.ranges`) if they are needed; without it the
        first inputs do.
    has_canaries : bool
        Whether this is a session's model: then a share of the requests is repeated on the CPU, as
        the policy says, it is watched in service, and measurements are kept for later launches.
    purse : Purse, optional
        What this launch may still spend on measuring; by default all that the policy allows.
    """

    def __init__(
        self,
        graph: Graph,
        request: Request,
        pool: Pool = POOL,
        *,
        calibrate: Callable[[], Mapping[str, Range]] | None = None,
        has_canaries: bool = True,
        purse: Purse | None = None,
    ) -> None:
        super().__init__(graph, request, pool, calibrate, has_canaries=has_canaries)
        self._lock = threading.RLock()
        self._assigned = Assignment(
            graph, request, pool, purse, self._time_cpu if has_canaries else None
        )
        if not self._try():
            self._compile()
        self._duel()
        debug.say(1, lambda: self.decision.reason)
        self._tally.forget_requests()
        self._compare()
        self._watch()

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
    def is_usable(self) -> bool:
        """False once its device was closed by somebody else, and in a forked child."""
        return self._assigned.is_usable

    @property
    def refusals(self) -> dict[str, str]:
        """Nodes that the device could not run, with the reason."""
        return self._builder.refusals

    @property
    def rows(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group, after those folded while reading."""
        is_idle = self._held.device != CPU == self._assigned.decision.device
        return segments.rows_of(self.graph, self._builder.on_cpu() if is_idle else self._parts)

    def health(self) -> Health:
        """Return how this model fares."""
        canary, (state, why) = self._canary, self._assigned.state()
        note = "" if canary is None else canary.why_off or canary.why_skipped or ""
        service = self._service
        return Health(
            state, self._assigned.chosen.device, self._assigned.isolation, why,
            watchdog_s=segments.watchdog_of(self._parts), canary_note=note,
            switches=0 if service is None else service.switches,
            conditions={} if service is None else conditions.current().to_dict(),
            **self._tally.figures(),
        )  # fmt: skip

    # -- trying -------------------------------------------------------------------------------

    def _try(self) -> bool:
        """Time what ``auto`` thinks of on the model itself; tell whether that left it compiled."""
        is_compiled = False
        while (trial := Tried.begin(self._assigned)) is not None:
            self._close_parts()
            is_compiled = False
            if self._held.device != trial.device:
                continue  # it did not open, and was ruled out
            start = clock.now_ns()
            self._compile()
            is_compiled = True
            if self._held.device == trial.device:
                trial.started(clock.now_ns() - start)
                self._time(trial)
        return is_compiled

    def _time(self, trial: Tried) -> None:
        """Time the device that is open against the CPU, and go on with what is better."""
        inputs = samples(self.graph)
        self._settle(inputs)
        try:
            self._builder.on_cpu()  # compiled before its first run is timed
            is_done = trial.run(lambda: self._sample(inputs), lambda: self._run_whole(inputs))
            if self._held.device == trial.device:
                if is_done:
                    self._conclude(trial, inputs)
                else:
                    self._leave(Reason("out-of-memory"), is_final=True)
        except GpuEdgeError as error:  # the CPU's too: what cannot be compared is not taken
            if self._held.device == trial.device:
                self._leave(reason_of(error), is_final=True)
        finally:
            if self._ranges is not None:
                self._ranges.reset()  # the samples stand for nothing
        if self._held.device != trial.device:
            self._assigned.is_away = False  # it failed unconfirmed: it is not waited for

    def _sample(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Run once for a trial; None if the device failed and the CPU answered."""
        before = self._tally.failed
        made = self._serve(inputs)
        return made if self._tally.failed == before else None

    def _conclude(self, trial: Tried, inputs: Mapping[str, Array]) -> None:
        """Decide with the runs of a trial; a device whose numbers differ does not win."""
        decision = trial.metered(
            trial.decided(), lambda: self._run(inputs), lambda: self._run_whole(inputs)
        )
        holds = self._has_canaries and trial.is_worth_holding(decision)
        if trial.outputs and (holds or decision.device == trial.device):
            wrong = self._differs(inputs)
            if wrong is not None:
                reason = Reason("drifted", wrong.rstrip("."))
                self._fail(reason, is_final=True)
                log.warning("%s: %s", trial.device, reason.sentence)
                self._leave(reason, is_final=True)
                return
        trial.keep(decision)
        is_other = decision.device not in (trial.device, CPU) or (
            decision.device == CPU and not holds
        )
        if is_other:
            self._close_parts()
        self._assigned.take(decision, holds=holds)
        if is_other:
            self._compile()

    def _duel(self) -> None:
        """Time another road to the device that was taken against it, where that may be better."""
        assigned, tries = self._assigned, self._assigned.tries
        is_fixed = self._ranges is not None  # whose bounds are not known yet
        attempt = None if tries is None or is_fixed else tries.duel(assigned.decision)
        if attempt is None or tries is None or self._held.device != attempt.rival:
            return
        inputs, before = samples(self.graph), assigned.decision
        builder = Builder(self.graph, self.request, self._pool.cpu())
        other, parts = None, list[Part]()
        try:
            other, nodes = assigned.rival(attempt.device)
            start = clock.now_ns()
            parts = builder.build(other, {}, nodes)
            startup_ns = assigned.opened_ns(other) + clock.now_ns() - start
            tries.run(attempt, {"cpu": lambda: self._must(inputs), "gpu": Rival(parts, inputs)})
            decision = with_duel(before, attempt, startup_ns)
            is_better = decision.device == attempt.device and self._held.device == attempt.rival
            if is_better and builder.differs(other, parts, inputs) is None:
                self._close_parts()
                assigned.take(decision)
                self._compile()
                tries.keep_rival(decision, attempt.device)
            elif decision.device == before.device == self._held.device:
                assigned.take(decision)
        except GpuEdgeError as error:
            log.info("%s: not timed against %s: %s", attempt.device, attempt.rival, error)
            if isinstance(error, GONE) and other is not None and self._held.device != other.device:
                assigned.fail_rival(other, reason_of(error))
        finally:
            close_all(parts)
            builder.close()

    def _must(self, inputs: Mapping[str, Array]) -> None:
        """Run once on the device; an error if that failed, and something else answered."""
        if self._sample(inputs) is None:
            raise ModelError("The device failed while another one was timed against it.")

    def _differs(self, inputs: Mapping[str, Array]) -> str | None:
        """Return what is wrong with what the device computes; None if nothing is."""
        if self.request.policy.canary <= 0:
            return None
        return self._builder.differs(self._held, self._parts, inputs)

    def _time_cpu(self, seconds: float) -> list[int]:
        """Time the graph on the CPU for about so long; return the warm runs in nanoseconds."""
        inputs = samples(self.graph)
        try:
            return timed(lambda: self._run_whole(inputs), seconds)
        except GpuEdgeError as error:
            log.debug("the CPU path cannot be timed: %s", error)
            return []

    def _watch(self) -> None:
        """Watch in service a device that ``auto`` has opened, if the policy says so."""
        policy = self.request.policy
        if not (self._has_canaries and self.request.is_open and policy.monitor):
            return
        device = self._held.device
        if device == CPU or policy.prefer == "energy":
            return
        decision = self._assigned.decision
        known = weighed(decision, device)
        if known is not None:
            self._service = Service(decision, device, known)

    # -- running and closing ------------------------------------------------------------------

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
            start = perf_counter()
            if self._assigned.is_away or not self.is_usable:
                self._find_device()
            try:
                self._settle(inputs)
                return self._serve(inputs)
            except ClosedError:
                # Another session gave the device up, and closed it for all, in this very moment.
                if self.is_usable or not self._assigned.is_pooled:
                    raise
                self._find_device()
                return self._serve(inputs)
            finally:
                self._running.at = CPU
                self._tally.note_time(perf_counter() - start)

    def inside_s(self) -> float:
        """Return how long a run is inside a device by now; 0 where none is, or it was left."""
        return self._running.inside_s()

    def abandon(self) -> bool:
        """Leave the device alone if a run of another thread is inside it, which may never return.

        Nothing waits for that thread, and nothing of a device in this process is closed. This
        object must not be used any more; a new one for the same request goes to another device.

        Returns
        -------
        bool
            False if no run is inside a device: what takes so long is the CPU.
        """
        if self._running.at == CPU or self._running.is_left:
            return False
        self._running.is_left = True
        executor = cast("GpuExecutor", self._held)
        if self._assigned.isolation != INLINE:
            self._assigned.fail(Reason("device-hung", "a request was given up"))
        elif self._assigned.is_pooled:
            self._pool.forget(executor.device)
        executor.is_hung = True
        executor.retire()
        return True

    def close(self) -> None:
        """Release what was compiled; the device stays open."""
        with self._lock:
            self._close_parts()
            self._builder.close()
            if self._canary is not None:
                self._canary.close()
