"""A graph compiled for an open device, and what every way to such a device starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpuedge.core.reasons import Reason
from gpuedge.executors.base import Executable, Executor, Progress
from gpuedge.graph.ir import Array
from gpuedge.graph.shaped import ShapedModel
from gpuedge.plan.storages import Range
from gpuedge.runtime import segments
from gpuedge.runtime.crosscheck import CrossCheck
from gpuedge.runtime.devices import Pool, PooledDevice
from gpuedge.runtime.health import Counts
from gpuedge.runtime.ranges import Ranges
from gpuedge.runtime.request import Request
from gpuedge.runtime.segments import Part, Segments, close_all, offers_storage
from gpuedge.runtime.strings import CPU
from gpuedge.safety.interrupts import held, rlock

if TYPE_CHECKING:
    from gpuedge.executors.gpu import GpuExecutor

Calibrate = Callable[[], Mapping[str, Range]]
"""Measures the bounds of values (`gpuedge.runtime.ranges`)."""


class PlacedGraph:
    """A graph compiled for one open device, and for the CPU where the device cannot run it.

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
    def is_all_on_cpu(self) -> bool:
        """Whether the device runs nothing of it."""
        return all(part.device == CPU for part in self.parts)

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
    def tuned(self) -> str:
        """Which of its kernels were tuned and by how much; empty if none was."""
        return segments.tuned_of(self.parts)

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
        if check.left > 1 and not self.must_check:
            check.left -= 1
            return None
        check.is_due()
        copied = check.copies(inputs)
        self.must_check = self.must_check or copied is not None
        return copied

    def run_all(self, inputs: Mapping[str, Array]) -> None:
        """Run every part once, as to warm the device up. Raises GpuEdgeError."""
        values: dict[str, Array] = dict(inputs)
        for part in self.parts:
            values |= part.executable.run({n: values[n] for n in part.graph.inputs})

    def close(self) -> None:
        """Release what was compiled; may be called twice."""
        with held:
            parts, self.parts, self.whole = self.parts, [], None
            close_all(parts)

    def close_all(self) -> None:
        """Release that and what its segments have on the CPU, which are nobody else's."""
        self.close()
        self.segments.close()


@dataclass
class Compilation:
    """One graph and where it was asked to run: what choosing a device for it starts from.

    Attributes
    ----------
    model : ShapedModel
    request : Request
    pool : Pool
    calibrate : callable or None
        Measures the bounds of values if they are needed; without it the first inputs do.
    is_session : bool
        Whether this is a session's model: then a share of the requests is repeated on the CPU.
    segments : Segments
        The graph compiled for the CPU, and for the device that was named.
    counts : Counts
    lock : lock
        Held while a request is answered.
    """

    model: ShapedModel
    request: Request
    pool: Pool
    calibrate: Calibrate | None = None
    is_session: bool = True
    segments: Segments = field(init=False)
    counts: Counts = field(default_factory=Counts)
    lock: Any = field(default_factory=rlock)

    def __post_init__(self) -> None:
        self.segments = Segments(self.model, self.request, self.pool.cpu())

    def is_tuned_on(self, executor: Executor) -> bool:
        """Tell whether kernels may be timed before it is compiled for a device, if it has any."""
        if getattr(executor, "caps", None) is None:
            return False
        return self.is_session and self.request.may_tune and self.request.policy.tune != "off"

    def pooled(self, device: str) -> PooledDevice:
        """Return a device of this process, where its driver lives as was asked for."""
        return self.pool.device(device, self.request.isolation)

    def ranges(self, executor: Executor) -> Ranges | None:
        """Return the bounds of values where a device keeps tensors in fixed point."""
        kind = self.request.policy.storage
        if kind != "fixed16" or not offers_storage(executor, kind):
            return None
        known = self.calibrate() if self.calibrate else {}
        return Ranges(self.model.graph, self.pool.cpu(), known)

    def report(self, executor: Executor, reason: Reason, *, is_final: bool = False) -> None:
        """Count a failure of a device; if it is the pool's, no session goes on using it."""
        self.counts.fail(reason)
        if self.request.executor is None:
            device = self.pooled(executor.device)
            device.fail(reason, cast("GpuExecutor", executor), is_final=is_final)


class Assignment(NamedTuple):
    """Who answers a request.

    Attributes
    ----------
    device : str
        Device string; ``cpu`` where `placed` is None.
    placed : PlacedGraph or None
        What runs on the device.
    kind : {"serve", "trial", "burst"}
        As in `gpuedge.decide.chooser`.
    is_strict : bool
        Whether the CPU may not answer for the device.
    tell : callable or None
        What is told of an answer, and how many nanoseconds it took.
    """

    device: str = CPU
    placed: PlacedGraph | None = None
    kind: str = "serve"
    is_strict: bool = False
    tell: Callable[[Assignment, int], None] | None = None
