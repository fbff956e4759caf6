"""What a device passes under ``auto`` before a real request reaches it.

It is opened, the graph is compiled for it, and runs there on synthetic inputs: until nothing is
cold any more, and once to be compared with the CPU. Of a graph of which it runs parts, it keeps
those that it was measured to run faster. Requests go on meanwhile; each step is followed by a rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, cast

from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.reasons import Reason
from gpuedge.decide import speeds
from gpuedge.decide.options import DEFAULT
from gpuedge.executors.base import Executable, Executor
from gpuedge.graph.bound import BoundModel
from gpuedge.graph.ir import Array
from gpuedge.runtime import clock
from gpuedge.runtime.background import Pace, StoppedError
from gpuedge.runtime.compiled import OnDevice
from gpuedge.runtime.devices import DEVICE_FATAL_ERRORS, OK, Pool, reason_of
from gpuedge.runtime.inputs import samples
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.request import Request
from gpuedge.runtime.segments import Part, Segments
from gpuedge.runtime.strings import CPU

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
        Identities of the nodes that the device is to try, where it cannot run all of them.
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
            side = self._compiled(executor, self.nodes, pace)
            faster = None if self.nodes is None else self._faster(side, pace)
            if faster != self.nodes:
                side.close_all()
                side = self._compiled(executor, faster, pace)
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

    def _compiled(self, executor: Executor, nodes: frozenset[int] | None, pace: Pace) -> OnDevice:
        # Segments of its own: requests go on using what others have.
        own = Segments(self.model, self.request, self.pool.cpu())
        return OnDevice(own, executor, nodes, self.bounds(executor), pace.rest)

    def _faster(self, side: OnDevice, pace: Pace) -> frozenset[int]:
        """Return the nodes of the segments that the device was measured to run faster.

        What is handed over counts for the device, which has to be faster by the margin of the
        policy: what two segments on the CPU save as one, no run of theirs shows. The best segment
        is kept in any case: whether that beats the CPU alone is for requests to show.
        """
        values: dict[str, Array] = samples(self.model.graph)
        side.settle(values)
        parts = [part for part in side.parts if part.device != CPU]
        here_ns, there_ns = list[int](), list[int]()
        for part in side.parts:
            feed = {name: values[name] for name in part.graph.inputs}
            values |= part.executable.run(feed)
            pace.rest()
            if part in parts:
                here, there = self._medians(side.segments.stand_in(part), part, feed, pace)
                here_ns.append(here)
                there_ns.append(round(there * self.request.policy.min_speedup))
        kept, _ = speeds.mixture(here_ns, there_ns, least=1)
        return frozenset(id(node) for i in kept for node in parts[i].graph.nodes)

    def _medians(
        self, here: Executable, part: Part, feed: Mapping[str, Array], pace: Pace
    ) -> tuple[int, int]:
        """Return the median nanoseconds of some runs on each side, which take turns."""
        found: list[tuple[int, int]] = []
        while len(found) < DEFAULT.segment_runs:
            pair = []
            for one in (here, part.executable):
                start = clock.now_ns()
                one.run(feed)
                pair.append(clock.now_ns() - start)
                pace.rest()
            found.append((pair[0], pair[1]))
            if len(found) > 1 and sum(map(sum, found)) > DEFAULT.segment_ns:
                break
        return median_low(here for here, _ in found), median_low(there for _, there in found)

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
        own, said = side.segments, None
        if self.request.policy.crosscheck > 0:
            said = own.differs(side.executor, side.parts, samples(self.model.graph), pace.rest)
        side.check, side.must_check = own.crosscheck(side.executor), True
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
