"""Deciding where a graph runs, and deciding again without a device that failed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gpuedge import __version__
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.decide.choose import choose
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record
from gpuedge.executors.base import Work
from gpuedge.graph.cost import count
from gpuedge.kernels.planner import label, plan, why_not
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.strings import AUTO, CPU, caps_of, find

if TYPE_CHECKING:
    from gpuedge.core.reasons import Reason
    from gpuedge.executors.base import Executor
    from gpuedge.graph.ir import Graph
    from gpuedge.probing.report import ProbeReport
    from gpuedge.runtime.devices import Pool


@dataclass(frozen=True)
class Request:
    """Where a graph was asked to run.

    `executor` is given where the caller opened the device; it stays the caller's. `isolation` says
    where the driver of a device from the pool lives (``inline`` or ``process``).
    """

    device: str = AUTO
    policy: Policy = field(default_factory=Policy)
    fallback: str = "cpu"
    executor: Executor | None = None
    isolation: str = INLINE


def place(graph: Graph, request: Request, pool: Pool) -> Decision:
    """Decide where a graph runs.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device asked for by name cannot be used here.
    """
    asked = request.device
    if request.executor is not None:
        return _handed(request.executor.device, request.policy)
    report = _no_report() if asked == CPU else pool.current()
    if asked not in (AUTO, CPU):
        asked = find(asked, report).device
    gpus = "gpuedge" if request.isolation == INLINE else f"gpuedge, {request.isolation}"
    return choose(
        lambda device: _work(graph, device, report),
        report,
        request.policy,
        partial(pool.executor, isolation=request.isolation),
        pool.cpu(),
        asked=asked,
        kernel_of=lambda device: pool.cpu().kernel if device == CPU else gpus,
        store=pool.calibrations(),
        on_hang=partial(pool.forget, isolation=request.isolation),
    )


def _work(graph: Graph, device: str, report: ProbeReport) -> Work:
    work = Work(**count(graph))
    if device == CPU:
        return work
    caps = caps_of(find(device, report))
    for node in graph.nodes:
        why = why_not(node, graph, caps)
        if why is not None:
            raise UnsupportedOpError(f"{label(node)}: {why}")
    return replace(work, launches=len(plan(graph, caps).passes))


def without(decision: Decision, reason: Reason) -> Decision:
    """Decide again as if the chosen device had been ruled out for a reason."""
    failed = decision.device
    candidates = tuple(
        replace(c, code=reason.code, detail=reason.detail, prediction=None)
        if c.device == failed
        else c
        for c in decision.record.candidates
    )
    return decide(replace(decision.record, asked=AUTO, candidates=candidates))


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
