"""The road from a graph to numbers: place it, compile its segments, run them, fall back if needed.

Single operations and whole models take it alike.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, cast

import numpy as np

from gpuedge import __version__
from gpuedge.core import debug
from gpuedge.core.errors import (
    DeviceError,
    DeviceLostError,
    GpuEdgeError,
    KernelError,
    NotFiniteError,
    UnsupportedOpError,
)
from gpuedge.core.reasons import Reason
from gpuedge.decide.choose import choose
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.interleave import compare
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record
from gpuedge.executors.base import Executable, Executor, PlacementRow, Work
from gpuedge.graph.cost import count
from gpuedge.graph.ir import Array, Graph, Node, TensorType
from gpuedge.graph.partition import partition
from gpuedge.kernels.planner import label, plan, why_not
from gpuedge.kernels.storages import Keeping, Range, offers
from gpuedge.runtime.devices import AUTO, CPU, POOL, Pool, caps_of, find
from gpuedge.runtime.ranges import Ranges

if TYPE_CHECKING:
    from gpuedge.core.caps import Caps
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.probing.report import ProbeReport

CONFIRM_S = 0.25
"""Time for measuring a GPU that was chosen by prediction against the CPU path."""

log = logging.getLogger("gpuedge")


@dataclass(frozen=True)
class Request:
    """Where a graph was asked to run.

    `executor` is given where the caller opened the device; it stays the caller's.
    """

    device: str = AUTO
    policy: Policy = field(default_factory=Policy)
    fallback: str = "cpu"
    executor: Executor | None = None


class Compiled:
    """A graph placed and compiled for the types of its inputs; one call at a time.

    `calibrate` measures the bounds of values (`gpuedge.runtime.ranges`) if they are needed; without
    it the first inputs do.
    """

    def __init__(
        self,
        graph: Graph,
        request: Request,
        pool: Pool = POOL,
        *,
        calibrate: Callable[[], Mapping[str, Range]] | None = None,
    ) -> None:
        self.graph = graph
        self.request = request
        self._pool = pool
        self._lock = threading.RLock()
        self._is_timed = debug.level() >= 2
        self.refusals: dict[str, str] = {}
        self._inherited: list[tuple[Graph, Executable]] = []
        self._owner = os.getpid()
        self._at = CPU  # device of the segment that ran last
        self.decision: Decision = self._decide()
        debug.say(1, lambda: self.decision.reason)
        self.executor: Executor = self._open()
        self._parts: list[tuple[Graph, Executable]] = []
        self._spare: list[tuple[Graph, Executable]] = []  # all on the CPU, for single requests
        self._ranges: Ranges | None = None
        if self._is_fixed:
            self._ranges = Ranges(graph, pool.cpu(), calibrate() if calibrate else {})
        self._compile()
        self._confirm()

    # -- placing ------------------------------------------------------------------------------

    def _decide(self) -> Decision:
        asked = self.request.device
        if self.request.executor is not None:
            return _handed(self.request.executor.device, self.request.policy)
        if asked == CPU:
            report: ProbeReport = _no_report()
        else:
            report = self._pool.report()
            asked = asked if asked == AUTO else find(asked, report).device
        return choose(
            lambda device: self._work(device, report),
            report,
            self.request.policy,
            self._pool.executor,
            self._pool.cpu(),
            asked=asked,
            kernel_of=lambda device: self._pool.cpu().kernel if device == CPU else "gpuedge",
            store=self._pool.calibrations(),
            on_hang=self._pool.forget,
        )

    def _work(self, device: str, report: ProbeReport) -> Work:
        work = Work(**count(self.graph))
        if device == CPU:
            return work
        caps = caps_of(find(device, report))
        for node in self.graph.nodes:
            why = why_not(node, self.graph, caps)
            if why is not None:
                raise UnsupportedOpError(f"{label(node)}: {why}")
        return replace(work, launches=len(plan(self.graph, caps).passes))

    def _open(self) -> Executor:
        if self.request.executor is not None:
            return self.request.executor
        return self._reopen()

    def _reopen(self) -> Executor:
        """Open what the decision says; what cannot be opened in ``auto`` is decided again."""
        try:
            return self._pool.executor(self.decision.device)
        except DeviceError as error:
            if self.decision.record.asked != AUTO:
                raise
            self._demote("open-failed", error)
            return self._reopen()

    def _compile(self) -> None:
        self.refusals.clear()
        try:
            self._build_segments()
        except (DeviceError, KernelError, UnsupportedOpError) as error:
            if self.executor.device == CPU or self.request.fallback == "error":
                self._drop_lost(error)
                raise
            self._give_up("compile-failed", error)

    def _build_segments(self) -> None:
        main, cpu = self.executor, self._pool.cpu()
        where: dict[int, str] = {}
        for node in self.graph.nodes:
            why = main.supports(node, self.graph)
            where[id(node)] = main.device if why is None else self._elsewhere(node, why)
        for segment in partition(self.graph, lambda n: where[id(n)]):
            executor = main if segment.device == main.device else cpu
            self._parts.append((segment.graph, self._compiled(segment.graph, executor)))

    def _compiled(self, segment: Graph, executor: Executor) -> Executable:
        """Compile a segment, with tensors kept as the policy says where the device offers that."""
        kind = self.request.policy.storage
        if not _offers(executor, kind):
            return executor.compile(segment)
        keeping = Keeping(kind, self._ranges.values if self._ranges else {})
        return cast("GpuExecutor", executor).compile(segment, keeping)

    @property
    def _is_fixed(self) -> bool:
        """Whether tensors are kept in fixed point, for which their bounds are needed."""
        kind = self.request.policy.storage
        return kind == "fixed16" and _offers(self.executor, kind)

    def _confirm(self) -> None:
        """Time a GPU that ``auto`` chose by prediction against the CPU, on this model.

        A prediction may be wrong by more than it claims; a promise never to be slower than the CPU
        path cannot rest on one. Bounded by `CONFIRM_S` beyond one run of each.
        """
        if self.request.device != AUTO or self.executor.device == CPU:
            return
        inputs = {name: _sample(self.graph.types[name]) for name in self.graph.inputs}
        self._settle(inputs)
        cpu = self._pool.cpu().compile(self.graph)
        try:
            self.run(inputs)  # drivers compile at the first run; may also fall back
            if self.executor.device == CPU:
                return
            found = compare(lambda: self._run(inputs), lambda: cpu.run(inputs), CONFIRM_S)
        except DeviceError as error:
            self._give_up("run-failed", error)
            return
        finally:
            cpu.close()
            if self._ranges is not None:
                self._ranges.reset()  # the samples stand for nothing
        gpu_ns, cpu_ns = median(found.a_ns), median(found.b_ns)
        if gpu_ns * self.request.policy.min_speedup > cpu_ns:
            slow = f"{gpu_ns / 1e3:.0f} us against {cpu_ns / 1e3:.0f} us"
            self._give_up("measured-slower", None, slow)

    def _give_up(self, code: str, error: GpuEdgeError | None, detail: str = "") -> None:
        """Leave the device that was chosen, and compile for whatever is decided then."""
        self._demote(code, error, detail)
        self._close_parts()
        self.executor = self._reopen()
        self._compile()

    def _elsewhere(self, node: Node, why: str) -> str:
        """Return the device for a node the chosen one cannot run."""
        self.refusals[label(node)] = why
        known = f"{self.executor.device}: {why}"
        if self.executor.device == CPU:
            raise UnsupportedOpError(
                f"Nothing here can run {node.op} '{label(node)}'.", known=known
            )
        if self.request.fallback == "error":
            raise UnsupportedOpError(
                f"{node.op} '{label(node)}' cannot run on {self.executor.device}.",
                asked_by="fallback='error'",
                known=known,
                hint="fallback='cpu' runs such nodes on the CPU",
            )
        return CPU

    # -- running ------------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group, after those folded while reading."""
        folded = tuple(
            PlacementRow((label(n),), (n.op,), "host", "folded") for n in self.graph.folded
        )
        return folded + tuple(row for _, part in self._parts for row in part.rows)

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
            if not self.is_usable and self.request.executor is None:
                # Another session gave up this device and closed it for all, or this is a forked
                # child, where destroying the parts would wait for threads that are not here.
                self._inherited, self._parts, self._spare = [*self._parts, *self._spare], [], []
                self._owner = os.getpid()
                self.executor = self._reopen()
                self._compile()
            self._settle(inputs)
            return self._run_or_fall_back(inputs)

    def _settle(self, inputs: Mapping[str, Array]) -> None:
        """Compile again where fixed-point tensors cannot hold these inputs."""
        if self._ranges is None or not self._is_fixed or self._ranges.covers(inputs):
            return
        self._ranges.widen(inputs)
        self._close_parts()
        self._compile()

    def _run_or_fall_back(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return self._run(inputs)
        except NotFiniteError:
            if self.request.device != AUTO:
                raise
            return self._run_on_cpu(inputs)  # the device does what it can, and is kept
        except DeviceError as error:
            if self._at == CPU or self.request.fallback == "error":
                self._drop_lost(error)
                raise
            failed = self.executor
            self._give_up("run-failed", error)
            if self.request.executor is None:
                self._pool.drop(failed)
            return self._run_or_fall_back(inputs)

    def _drop_lost(self, error: GpuEdgeError) -> None:
        """Close a device that is gone for good, so that the next call opens it anew."""
        if isinstance(error, DeviceLostError) and self.request.executor is None:
            self._pool.drop(self.executor)

    def _run_on_cpu(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute one request without the device."""
        if not self._spare:
            self._spare = [(self.graph, self._pool.cpu().compile(self.graph))]
        debug.say(1, f"an input is not finite, which {self.executor.device} does not keep: cpu")
        return self._spare[0][1].run(inputs)

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        values: dict[str, Array] = dict(inputs)
        for graph, part in self._parts:
            start = time.perf_counter()
            self._at = part.rows[0].device if part.rows else CPU
            values |= part.run({name: values[name] for name in graph.inputs})
            if self._is_timed:
                took = (time.perf_counter() - start) * 1e6
                debug.say(2, f"{self._at}: {took:.0f} us")
        return {name: self._value(name, values) for name in self.graph.outputs}

    def _value(self, name: str, values: Mapping[str, Array]) -> Array:
        """Return an output; what no node computes is copied, so that results are the caller's."""
        made = values.get(name)
        if made is None:
            made = self.graph.constants[name]
        elif name not in self.graph.inputs:
            return made
        return np.array(made)

    def _demote(self, code: str, error: GpuEdgeError | None, why: str = "") -> None:
        """Decide again without the device chosen, and say so once."""
        reason = Reason(code, error.what.rstrip(".") if error is not None else why)
        if error is not None:
            log.warning("%s: %s", self.decision.device, reason.sentence)
        record = self.decision.record
        failed = self.decision.device
        self.decision = decide(
            replace(
                record,
                asked=AUTO,
                candidates=tuple(
                    replace(c, code=reason.code, detail=reason.detail, prediction=None)
                    if c.device == failed
                    else c
                    for c in record.candidates
                ),
            )
        )

    def _close_parts(self) -> None:
        parts, self._parts = self._parts, []
        self._close_all(parts)

    @staticmethod
    def _close_all(parts: Sequence[tuple[Graph, Executable]]) -> None:
        for _, part in parts:
            try:
                part.close()
            except DeviceError as error:
                log.debug("while closing: %s", error)

    @property
    def is_usable(self) -> bool:
        """False once its device was closed by somebody else, and in a forked child."""
        return not getattr(self.executor, "closed", False) and self._owner == os.getpid()

    def close(self) -> None:
        """Release what was compiled; the device stays open."""
        with self._lock:
            self._close_parts()
            self._close_all(self._spare)
            self._spare = []


def _offers(executor: Executor, storage: str) -> bool:
    caps: Caps | None = getattr(executor, "caps", None)
    return caps is not None and offers(caps, storage)


def _sample(kind: TensorType) -> Array:
    """Return an input of a type: values whose timing is that of ordinary data."""
    if np.dtype(kind.dtype).kind == "f":
        count = int(np.prod(kind.shape))
        return np.linspace(-1, 1, count).reshape(kind.shape).astype(kind.dtype)
    return np.zeros(kind.shape, kind.dtype)


def _no_report() -> ProbeReport:
    """Return a report of nothing: naming the CPU probes nothing."""
    from gpuedge.probing.report import ProbeReport

    return ProbeReport((), __version__)


def _handed(device: str, policy: Policy) -> Decision:
    """Return the decision for a device the caller opened."""
    candidates = [Evidence(CPU, is_software=False)]
    if device != CPU:
        candidates.insert(0, Evidence(device))
    why = "not needed: the caller opened the device"
    return decide(Record(device, policy, tuple(candidates), __version__, why))
