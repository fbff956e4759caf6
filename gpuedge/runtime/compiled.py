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
from gpuedge.core.errors import ClosedError, DeviceError, DriverError, NotFiniteError
from gpuedge.core.reasons import Reason
from gpuedge.executors.base import Executor, PlacementRow
from gpuedge.graph.ir import Array, Graph
from gpuedge.kernels.storages import Range
from gpuedge.runtime import segments
from gpuedge.runtime.assignment import GONE, UNCOMPILED, Assignment, reason_of
from gpuedge.runtime.canary import Canary
from gpuedge.runtime.confirming import samples, slower
from gpuedge.runtime.devices import POOL, Pool
from gpuedge.runtime.health import Health, Tally
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.placing import Request
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.segments import Builder, Part, close_all, offers_storage, outputs_of
from gpuedge.runtime.strings import AUTO, CPU

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision
    from gpuedge.executors.gpu import GpuExecutor

__all__ = ["Compiled", "Request"]

EXHAUSTED = 3
"""Requests in a row for which the device's memory did not do; then it is left."""

log = logging.getLogger("gpuedge")


class Compiled:
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
        Whether a share of the requests is repeated on the CPU, as the policy says.
    """

    def __init__(
        self,
        graph: Graph,
        request: Request,
        pool: Pool = POOL,
        *,
        calibrate: Callable[[], Mapping[str, Range]] | None = None,
        has_canaries: bool = True,
    ) -> None:
        self.graph = graph
        self.request = request
        self._pool = pool
        self._lock = threading.RLock()
        self._is_timed = debug.level() >= 2
        self._builder = Builder(graph, request, pool.cpu())
        self._inherited: list[object] = []
        self._at, self._since = CPU, 0.0  # device at work, since when; the CPU between requests
        self._is_left = False  # by `abandon`
        self._tally = Tally()
        self._ailing: Reason | None = None  # what failed during the request under way
        self._exhausted = 0
        self._parts: list[Part] = []
        self._ranges: Ranges | None = None
        self._canary: Canary | None = None
        self._has_canaries, self._must_check = has_canaries, False
        self._assigned = Assignment(graph, request, pool)
        debug.say(1, lambda: self.decision.reason)
        if self._is_fixed:
            self._ranges = Ranges(graph, pool.cpu(), calibrate() if calibrate else {})
        self._compile()
        self._confirm()
        self._tally.forget_requests()
        self._compare()

    # -- placing ------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """Why it runs where it runs now."""
        return self._assigned.shown()

    @property
    def executor(self) -> Executor:
        """What it runs on now."""
        return self._assigned.executor

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
        return segments.rows_of(self.graph, self._parts)

    @property
    def _is_fixed(self) -> bool:
        """Whether tensors are kept in fixed point, for which their bounds are needed."""
        kind = self.request.policy.storage
        return kind == "fixed16" and offers_storage(self.executor, kind)

    def _compile(self) -> None:
        """Compile for the device there is, and for another one where its driver refuses."""
        if self.executor.device == CPU:
            self._builder.refusals.clear()
            self._parts = self._builder.on_cpu()
            return
        try:
            ranges = self._ranges.values if self._ranges else {}
            self._parts = self._builder.build(self.executor, ranges)
        except UNCOMPILED as error:
            reason = reason_of(error, "compile-failed")
            is_gone = isinstance(error, GONE)
            if is_gone:
                self._fail(reason)
            elif isinstance(error, DeviceError):
                self._tally.fail(reason)
            if self.request.fallback == "error":
                raise
            log.warning("%s: %s", self.executor.device, reason.sentence)
            self._assigned.leave_uncompiled(reason, is_gone=is_gone)
            self._compile()

    def _confirm(self) -> None:
        """Leave a GPU that ``auto`` chose by prediction if it turns out not to be worth it."""
        if self.request.device != AUTO or self.executor.device == CPU:
            return
        chosen, inputs = self.executor.device, samples(self.graph)
        self._settle(inputs)
        cpu = self._pool.cpu().compile(self.graph)
        try:
            self._serve(inputs)  # drivers compile at the first run; may also fall back
            least = self.request.policy.min_speedup
            why = slower(lambda: self._serve(inputs), cpu, inputs, least)
        except DeviceError as error:
            self._leave(reason_of(error), is_final=True)
            return
        finally:
            cpu.close()
            if self._ranges is not None:
                self._ranges.reset()  # the samples stand for nothing
        if self.executor.device != chosen:
            self._assigned.is_away = False  # it failed unconfirmed: it is not waited for
        elif why is not None:
            self._leave(Reason("measured-slower", why), is_final=True)
            self._assigned.settle()

    # -- running ------------------------------------------------------------------------------

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
                self._at = CPU
                self._tally.note_time(perf_counter() - start)

    def _find_device(self) -> None:
        """Go on after the device was closed by somebody else, came back, or after a fork."""
        if self._assigned.is_inherited:  # destroying parts would wait for threads not here
            self._inherited += [self._parts, self.executor, *self._builder.forget()]
            self._parts = []
        was_away = self._assigned.is_away
        if self._assigned.find():
            self._must_check = was_away and self.executor.device != CPU
            self._close_parts()
            self._compile()
            self._compare()

    def _compare(self) -> None:
        """Have results of a device compared from now on; at first the CPU may have been in use."""
        if self._canary is None and self._has_canaries and self.executor.device != CPU:
            self._canary = self._builder.canary(self.executor)

    def _settle(self, inputs: Mapping[str, Array]) -> None:
        """Compile again where fixed-point tensors cannot hold these inputs."""
        if self._ranges is None or not self._is_fixed or self._ranges.covers(inputs):
            return
        self._ranges.widen(inputs)
        self._close_parts()
        self._compile()

    def _serve(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Answer one request: on the device, and where that fails on the CPU."""
        is_cpu, ailing = self.executor.device == CPU, None
        canary = None if is_cpu else self._canary
        kept = None if canary is None else canary.take(inputs, must=self._must_check)
        if kept is not None:  # the caller's arrays may change before the CPU has read them, too
            self._must_check, inputs = True, kept
        try:
            outputs = self._run(inputs)
        except NotFiniteError:
            if self.request.device != AUTO:
                raise
            debug.say(1, f"an input is not finite, which {self.executor.device} does not keep: cpu")
            is_cpu = True  # the device does what it can, and is kept
            outputs = self._run_whole(inputs)
        finally:
            if self._ailing is not None:
                ailing, self._ailing = self._ailing, None
                self._part_with(ailing)
        if is_cpu or ailing is not None:
            self._tally.on_cpu += 1
            return outputs
        self._exhausted = 0
        if canary is not None and kept is not None:
            return self._checked(canary, kept, outputs)
        self._tally.on_device += 1
        return outputs

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run segment by segment; after a failure on the CPU, from inputs that are still there.

        Where no result of the device was used yet, the CPU computes the whole graph, as it does
        where it was chosen: the answer is the same to the last bit.
        """
        values: dict[str, Array] = dict(inputs)
        is_mixed = False  # whether the device gave something to it
        for part in self._parts:
            start = perf_counter() if self._is_timed else 0.0
            feed = {name: values[name] for name in part.graph.inputs}
            self._at, self._since = part.device if self._ailing is None else CPU, perf_counter()
            if self._at == CPU:
                values |= self._builder.stand_in(part).run(feed)
            else:
                try:
                    values |= part.executable.run(feed)
                    is_mixed = True
                except DeviceError as error:
                    self._note(error)
                    if not is_mixed:
                        return self._run_whole(inputs)
                    values |= self._builder.stand_in(part).run(feed)
            if self._is_timed:
                debug.say(2, f"{self._at}: {(perf_counter() - start) * 1e6:.0f} us")
        return outputs_of(self.graph, values)

    def _run_whole(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute one request without the device."""
        self._at = CPU
        values: dict[str, Array] = dict(inputs)
        for part in self._builder.on_cpu():
            values |= part.executable.run({name: values[name] for name in part.graph.inputs})
        return outputs_of(self.graph, values)

    # -- failing ------------------------------------------------------------------------------

    def _fail(self, reason: Reason, *, is_final: bool = False) -> None:
        self._tally.fail(reason)
        self._assigned.fail(reason, is_final=is_final)

    def _note(self, error: DeviceError) -> None:
        """Draw the conclusions of a failure, and raise it where the CPU may not answer."""
        self._at = CPU
        reason = reason_of(error)
        if reason.code == "out-of-memory":
            self._exhausted += 1
            self._tally.fail(reason)
        else:
            self._fail(reason)
        if self.request.fallback == "error":
            raise error
        log.warning("%s: %s", self.executor.device, reason.sentence)
        self._ailing = reason

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

    def _checked(
        self, canary: Canary, inputs: Mapping[str, Array], outputs: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs if the CPU agrees with them; else its own, and leave the device."""
        self._must_check = False
        self._at = CPU
        self._tally.canaries += 1
        said = canary.check(inputs, outputs)
        if said is None:
            self._tally.on_device += 1
            return outputs
        self._tally.canaries_failed += 1
        reason = Reason("drifted", said.rstrip("."))
        self._fail(reason, is_final=True)
        if self.request.fallback == "error":
            what = f"The results of {self.executor.device} drifted from those of the CPU."
            raise DriverError(what, known=said, reason="drifted")
        log.warning("%s: %s", self.executor.device, reason.sentence)
        self._tally.on_cpu += 1
        self._leave(reason, is_final=True)
        return self._run_whole(inputs)

    def inside_s(self) -> float:
        """Return how long a run is inside a device by now; 0 where none is, or it was left."""
        since = self._since
        return 0.0 if self._at == CPU or self._is_left else perf_counter() - since

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
        executor = cast("GpuExecutor", self.executor)
        if self._assigned.isolation != INLINE:
            self._assigned.fail(Reason("device-hung", "a request was given up"))
        elif self._assigned.is_pooled:
            self._pool.forget(executor.device)
        executor.is_hung = True
        executor.retire()
        return True

    # -- looking and closing ------------------------------------------------------------------

    def health(self) -> Health:
        """Return how this model fares."""
        canary, (state, why) = self._canary, self._assigned.state()
        note = "" if canary is None else canary.why_off or canary.why_skipped or ""
        return Health(
            state, self._assigned.chosen.device, self._assigned.isolation, why,
            watchdog_s=segments.watchdog_of(self._parts), canary_note=note, **self._tally.figures(),
        )  # fmt: skip

    def _close_parts(self) -> None:
        parts, self._parts = self._parts, []
        if not self._builder.owns(parts):
            close_all(parts)

    def close(self) -> None:
        """Release what was compiled; the device stays open."""
        with self._lock:
            self._close_parts()
            self._builder.close()
            if self._canary is not None:
                self._canary.close()
