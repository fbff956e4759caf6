"""What a device passes under ``auto`` before a real request reaches it.

It is opened, the graph is compiled for it, and runs there on synthetic inputs: until nothing is
cold any more, and once to be compared with the CPU. Requests go on meanwhile; each step is followed
by a rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.reasons import Reason
from gpuedge.decide.options import DEFAULT
from gpuedge.executors.base import Executor
from gpuedge.graph.bound import BoundModel
from gpuedge.graph.ir import Array
from gpuedge.runtime import clock
from gpuedge.runtime.background import Pace, StoppedError
from gpuedge.runtime.compiled import OnDevice
from gpuedge.runtime.devices import DEVICE_FATAL_ERRORS, OK, Pool, reason_of
from gpuedge.runtime.inputs import samples
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.request import Request
from gpuedge.runtime.segments import Segments

if TYPE_CHECKING:
    from gpuedge.executors.gpu import GpuExecutor

log = logging.getLogger("gpuedge")


@dataclass(frozen=True)
class Passed:
    """A device that may serve: what was compiled, and what opening and warm runs took."""

    side: OnDevice
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
    model : BoundModel
    request : Request
    pool : Pool
    device : str
    nodes : frozenset of int or None
        Identities of the nodes that the device is to run, where that is not all it can.
    runs : int
        Runs after the cold ones to be timed; 0 where it need not be warmed up.
    bounds : callable
        Executor to the bounds of values, where it keeps tensors in fixed point.
    """

    model: BoundModel
    request: Request
    pool: Pool
    device: str
    nodes: frozenset[int] | None
    runs: int
    bounds: Callable[[Executor], Ranges | None]

    def passed(self, pace: Pace) -> Passed | Refused:
        """Open the device, compile and compare. Raises StoppedError where the interpreter ends."""
        fares = self.pool.device_health(self.device, self.request.isolation)
        if fares.state != OK:
            return Refused(fares.reason or Reason("recovering"), is_lost=True)
        executor: Executor | None = None
        side: OnDevice | None = None
        try:
            executor = self.pool.executor(self.device, self.request.isolation)
            pace.rest()
            # Segments of its own: requests go on using what others have.
            own = Segments(self.model, self.request, self.pool.cpu())
            side = OnDevice(own, executor, self.nodes, self.bounds(executor), pace.rest)
            warm_ns = self._warmed(side, pace)
            said = self._compared(side, pace)
            if said is None:
                made, side = Passed(side, pace.worked_ns, warm_ns), None
                return made
            return self._condemned(executor, said)
        except StoppedError:
            raise
        except Exception as error:
            return self._refused(executor, error)
        finally:
            if side is not None:
                side.close_all()

    def _warmed(self, side: OnDevice, pace: Pace) -> list[int]:
        """Run on synthetic inputs until nothing is cold any more; return what warm runs took."""
        inputs = samples(self.model.graph)
        side.settle(inputs)
        cold_ns, warm_ns = list[int](), list[int]()
        while len(warm_ns) < self.runs:
            is_cold = len(cold_ns) < DEFAULT.warm_up and sum(cold_ns) < DEFAULT.warm_up_ns
            start = clock.now_ns()
            values: dict[str, Array] = dict(inputs)
            for part in side.parts:
                values |= part.executable.run({n: values[n] for n in part.graph.inputs})
            (cold_ns if is_cold else warm_ns).append(max(clock.now_ns() - start, 1))
            pace.rest()
        return warm_ns

    def _compared(self, side: OnDevice, pace: Pace) -> str | None:
        """Return what is wrong with what a device makes of synthetic inputs; None if nothing is."""
        own, said, note = side.segments, None, ""
        if own.is_checked:
            inputs = samples(self.model.graph)
            said, note = own.differs(side.executor, side.parts, inputs, pace.rest)
        side.check, side.must_check = own.crosscheck(side.executor), True
        side.check.note = side.check.note or note
        if said is None and side.not_compared:
            log.info("%s: %s", self.device, side.not_compared)
        if side.ranges is not None:
            side.ranges.reset()  # samples stand for nothing
        if len(side.parts) == 1:
            own.close()  # the whole graph has its own way on the CPU
        return said

    def _condemned(self, executor: Executor, said: str) -> Refused:
        reason = Reason("drifted", said.rstrip("."))
        log.warning("%s: %s", self.device, reason.sentence)
        fares = self.pool.device_health(self.device, self.request.isolation)
        fares.fail(reason, cast("GpuExecutor", executor), is_final=True)
        return Refused(reason)

    def _refused(self, executor: Executor | None, error: Exception) -> Refused:
        """Take that a device did not open or compile, or failed while it warmed up."""
        if isinstance(error, GpuEdgeError):
            reason = reason_of(error, "open-failed" if executor is None else "compile-failed")
        else:
            reason = Reason("run-failed", f"{type(error).__name__}: {error}")
        log.warning("%s: %s", self.device, reason.sentence)
        is_closed = bool(getattr(executor, "closed", False))  # by another session meanwhile
        is_lost = executor is not None and (is_closed or isinstance(error, DEVICE_FATAL_ERRORS))
        if is_lost:
            fares = self.pool.device_health(self.device, self.request.isolation)
            fares.fail(reason, cast("GpuExecutor", executor))
        return Refused(reason, is_lost)
