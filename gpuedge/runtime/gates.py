"""What a device passes under ``auto`` before a real request reaches it.

It is opened, the graph is compiled for it, and runs there on synthetic inputs: until nothing is
cold any more, and once to be compared with the CPU. Requests go on meanwhile; each step is followed
by a rest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.reasons import Reason
from gpuedge.decide.options import DEFAULT
from gpuedge.executors.base import Executor
from gpuedge.runtime import clock
from gpuedge.runtime.background import Pace, StoppedError
from gpuedge.runtime.devices import DEVICE_FATAL_ERRORS, reason_of
from gpuedge.runtime.inputs import samples
from gpuedge.runtime.placed import Compilation, PlacedGraph
from gpuedge.runtime.segments import Segments

if TYPE_CHECKING:
    from gpuedge.executors.gpu import GpuExecutor

log = logging.getLogger("gpuedge")


@dataclass(frozen=True)
class Passed:
    """A device that may serve: what was compiled, and what opening and warm runs took."""

    placed: PlacedGraph
    startup_ns: int
    warm_ns: list[int]


@dataclass(frozen=True)
class Refused:
    """Why a device may not; `is_lost` where it may recover."""

    reason: Reason
    is_lost: bool = False


@dataclass(frozen=True)
class Gates:
    """The way of one graph to one device.

    Parameters
    ----------
    compilation : Compilation
    device : str
    nodes : frozenset of int or None
        Identities of the nodes that the device is to run, where that is not all it can.
    runs : int
        Runs after the cold ones to be timed; 0 where it need not be warmed up.
    """

    compilation: Compilation
    device: str
    nodes: frozenset[int] | None
    runs: int

    def passed(self, pace: Pace) -> Passed | Refused:
        """Open the device, compile and compare. Raises StoppedError where the interpreter ends."""
        this = self.compilation
        state = this.pooled(self.device).state
        if not state.is_ok:
            return Refused(state.reason or Reason("recovering"), is_lost=True)
        executor: Executor | None = None
        placed: PlacedGraph | None = None
        try:
            executor = this.pool.executor(self.device, this.request.isolation)
            pace.rest()
            # Segments of its own: requests go on using what others have.
            own = Segments(this.model, this.request, this.pool.cpu())
            before_ns = pace.worked_ns
            if this.is_tuned_on(executor):
                own.tune(cast("GpuExecutor", executor), self.nodes, pace.rest)
            tuning_ns = pace.worked_ns - before_ns  # which the next start need not pay again
            placed = PlacedGraph(own, executor, self.nodes, this.ranges(executor), pace.rest)
            if placed.is_all_on_cpu:
                return Refused(Reason("unsupported-op", next(iter(own.refusals.values()), "")))
            warm_ns = self._warmed(placed, pace)
            difference = self._compared(placed, pace)
            if difference is None:
                passed, placed = Passed(placed, pace.worked_ns - tuning_ns, warm_ns), None
                return passed
            return self._condemned(executor, difference)
        except StoppedError:
            raise
        except Exception as error:
            return self._refused(executor, error)
        finally:
            if placed is not None:
                placed.close_all()

    def _warmed(self, placed: PlacedGraph, pace: Pace) -> list[int]:
        """Run on synthetic inputs until nothing is cold any more; return what warm runs took."""
        inputs = samples(self.compilation.model.graph)
        placed.settle(inputs)
        cold_ns, warm_ns = list[int](), list[int]()
        while len(warm_ns) < self.runs:
            is_cold = len(cold_ns) < DEFAULT.warm_up and sum(cold_ns) < DEFAULT.warm_up_ns
            start = clock.now_ns()
            placed.run_all(inputs)
            (cold_ns if is_cold else warm_ns).append(max(clock.now_ns() - start, 1))
            pace.rest()
        return warm_ns

    def _compared(self, placed: PlacedGraph, pace: Pace) -> str | None:
        """Return what is wrong with what a device makes of synthetic inputs; None if nothing is."""
        own, difference, note = placed.segments, None, ""
        if own.is_checked:
            inputs = samples(self.compilation.model.graph)
            difference, note = own.differs(placed.executor, placed.parts, inputs, pace.rest)
        placed.check, placed.must_check = own.crosscheck(placed.executor), True
        placed.check.note = placed.check.note or note
        if difference is None and placed.not_compared:
            log.info("%s: %s", self.device, placed.not_compared)
        if placed.ranges is not None:
            placed.ranges.reset()  # samples stand for nothing
        if len(placed.parts) == 1:
            own.close()  # the whole graph has its own way on the CPU
        return difference

    def _condemned(self, executor: Executor, difference: str) -> Refused:
        reason = Reason("drifted", difference.rstrip("."))
        log.warning("%s: %s", self.device, reason.sentence)
        pooled = self.compilation.pooled(self.device)
        pooled.fail(reason, cast("GpuExecutor", executor), is_final=True)
        return Refused(reason)

    def _refused(self, executor: Executor | None, error: Exception) -> Refused:
        """Take that a device did not open or compile, or failed while it warmed up."""
        if isinstance(error, GpuEdgeError):
            reason = reason_of(error, "open-failed" if executor is None else "compile-failed")
        else:
            reason = Reason("run-failed", f"{type(error).__name__}: {error}")
        is_closed = bool(getattr(executor, "closed", False))  # by another session meanwhile
        log.log(logging.INFO if is_closed else logging.WARNING, "%s: %s", self.device,
                reason.sentence)  # fmt: skip
        is_lost = executor is not None and (is_closed or isinstance(error, DEVICE_FATAL_ERRORS))
        if is_lost:
            self.compilation.pooled(self.device).fail(reason, cast("GpuExecutor", executor))
        return Refused(reason, is_lost)
