"""Deciding where a graph runs, and deciding again without a device that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gpuedge import __version__
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.decide.background import Background
from gpuedge.decide.choose import choose
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.gather import facts_of
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record
from gpuedge.decide.store import calibration_key
from gpuedge.executors.base import Work
from gpuedge.graph.cost import count
from gpuedge.kernels.costs import planned
from gpuedge.kernels.planner import label, plan, why_not
from gpuedge.runtime import clock, conditions, meters
from gpuedge.runtime.mixing import Mixing, memory_of
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.sampling import digest_of
from gpuedge.runtime.strings import AUTO, CPU, caps_of, find
from gpuedge.runtime.trying import TRIAL_SHARE, Past, Purse, Tries

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

    @property
    def is_open(self) -> bool:
        """Whether the choice is ours."""
        return self.executor is None and self.device == AUTO


@dataclass(frozen=True)
class Placed:
    """A decision, and what may be measured so that it gets surer; None where it is not ours."""

    decision: Decision
    tries: Tries | None = None
    nodes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By device, the identities of the nodes that it runs, where that is not all of them."""


def place(
    graph: Graph,
    request: Request,
    pool: Pool,
    purse: Purse | None = None,
    time_cpu: Callable[[float], Sequence[int]] | None = None,
) -> Placed:
    """Decide where a graph runs, by prediction and by what earlier launches measured.

    Parameters
    ----------
    graph : Graph
    request : Request
    pool : Pool
    purse : Purse, optional
        What this launch may still spend on measuring; by default all that the policy allows.
    time_cpu : callable, optional
        Times the graph on the CPU (`gpuedge.decide.choose.choose`). Only with it what is measured
        is kept for later launches, and taken from earlier ones.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device asked for by name cannot be used here.
    """
    asked = request.device
    if request.executor is not None:
        return Placed(_handed(request.executor.device, request.policy))
    report = _no_report() if asked == CPU else pool.current()
    if asked not in (AUTO, CPU):
        asked = find(asked, report).device
    return _Placing(graph, request, pool, report).placed(asked, purse, time_cpu)


class _Placing:
    """What deciding about one graph needs to know of it and of the machine."""

    def __init__(self, graph: Graph, request: Request, pool: Pool, report: ProbeReport) -> None:
        self._graph = graph
        self._request = request
        self._pool = pool
        self._report = report
        self._mixing = Mixing(graph, report)

    def placed(
        self, asked: str, purse: Purse | None, time_cpu: Callable[[float], Sequence[int]] | None
    ) -> Placed:
        policy, pool = self._request.policy, self._pool
        purse = purse or Purse(policy.calibration_s)
        is_kept = time_cpu is not None and asked == AUTO and self._has_candidates()
        past = self._past() if is_kept else None
        decision = choose(
            self._work,
            self._report,
            policy,
            partial(pool.executor, isolation=self._request.isolation),
            pool.cpu(),
            asked=asked,
            kernel_of=self._kernel_of,
            store=pool.calibrations(),
            on_hang=partial(pool.leave, isolation=self._request.isolation),
            on_back=partial(pool.take_back, isolation=self._request.isolation),
            background=self._background(past),
            budget_s=min(purse.left_s, policy.calibration_s) * (1 - TRIAL_SHARE),
            on_spent=purse.spend,
            time_cpu=time_cpu,
            clock=clock.now_ns,
            parts=self._mixing if self._request.fallback == "cpu" else None,
        )
        meter = meters.find() if past is not None and policy.prefer == "energy" else None
        tries = Tries(policy, purse, past, meter, self._type_of) if asked == AUTO else None
        return Placed(decision, tries, self._mixing.nodes)

    def _has_candidates(self) -> bool:
        """Whether a GPU comes into question at all: else nothing is read and nothing is kept."""
        is_any = self._request.policy.allow_software
        return any(is_any or not row.is_software for row in self._report.devices)

    def _past(self) -> Past:
        policy, graph = self._request.policy, self._graph
        return Past(
            self._pool.visits(),
            lambda: digest_of(graph, policy.storage, self._kernel_of(CPU)),
            self._key_of,
            policy.percentile,
        )

    def _background(self, past: Past | None) -> Background:
        database = next((r.database for r in self._report.tried if r.database), "")
        if past is None:
            return Background(database, memory_of=self._mixing.memory.get)
        return Background(
            database, conditions.current(), past.previous, past.visit_of, past.coin_of,
            self._mixing.memory.get,
        )  # fmt: skip

    def _kernel_of(self, device: str) -> str:
        if device == CPU:
            return self._pool.cpu().kernel
        isolation = self._request.isolation
        return "gpuedge" if isolation == INLINE else f"gpuedge, {isolation}"

    def _type_of(self, device: str) -> str | None:
        kind = find(device, self._report).identity.get("device_type")
        return kind if isinstance(kind, str) else None

    def _key_of(self, device: str) -> str:
        row = find(device, self._report)
        kernel = f"{self._kernel_of(device)} {self._mixing.key(device)}".rstrip()
        return calibration_key(device, facts_of(row), kernel)

    def _work(self, device: str) -> Work:
        """Count what the graph costs on a device, without opening it; notes the memory it takes."""
        graph = self._graph
        if device == CPU:
            return Work(**count(graph))
        caps = caps_of(find(device, self._report))
        for node in graph.nodes:
            why = why_not(node, graph, caps)
            if why is not None:
                raise UnsupportedOpError(f"{label(node)}: {why}")
        made = plan(graph, caps)
        if self._request.policy.max_memory_bytes is not None:
            self._mixing.memory[device] = memory_of(made, caps)
        return Work(**planned(graph, made))


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
