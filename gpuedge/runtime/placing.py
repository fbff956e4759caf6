"""Deciding where a graph runs, and deciding again without a device that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gpuedge import __version__
from gpuedge.core.errors import GpuEdgeError, UnsupportedOpError
from gpuedge.decide.choose import choose
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.gather import Background, facts_of
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record
from gpuedge.decide.segments import Mixed
from gpuedge.decide.store import calibration_key
from gpuedge.executors.base import Work
from gpuedge.graph.cost import count
from gpuedge.graph.partition import Segment, partition
from gpuedge.plan.arrange import arrange
from gpuedge.plan.costs import planned
from gpuedge.plan.planner import label, plan, why_not
from gpuedge.runtime import clock, conditions, meters
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.request import Request
from gpuedge.runtime.strings import AUTO, CPU, caps_of, find
from gpuedge.runtime.trying import TRIAL_SHARE, LaunchHistory, TimeBudget, TrialRunner, digest_of

if TYPE_CHECKING:
    from gpuedge.core.caps import Caps
    from gpuedge.core.reasons import Reason
    from gpuedge.decide.trial import Alternative
    from gpuedge.graph.ir import Graph
    from gpuedge.plan.plan import Plan
    from gpuedge.probing.report import ProbeReport
    from gpuedge.runtime.devices import Pool


@dataclass(frozen=True)
class Placed:
    """A decision, and what may be measured so that it gets surer; None where it is not ours."""

    decision: Decision
    trials: TrialRunner | None = None
    nodes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By device, the identities of the nodes that it runs, where that is not all of them."""


def place(
    graph: Graph,
    request: Request,
    pool: Pool,
    budget: TimeBudget | None = None,
    time_cpu: Callable[[float], Sequence[int]] | None = None,
) -> Placed:
    """Decide where a graph runs, by prediction and by what earlier launches measured.

    Parameters
    ----------
    graph : Graph
    request : Request
    pool : Pool
    budget : TimeBudget, optional
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
    return _Placing(graph, request, pool, report).placed(asked, budget, time_cpu)


class _Placing:
    """What deciding about one graph needs to know of it and of the machine."""

    def __init__(self, graph: Graph, request: Request, pool: Pool, report: ProbeReport) -> None:
        self._graph = graph
        self._request = request
        self._pool = pool
        self._report = report
        self._mixing = Mixing(graph, report)

    def placed(
        self,
        asked: str,
        budget: TimeBudget | None,
        time_cpu: Callable[[float], Sequence[int]] | None,
    ) -> Placed:
        policy, pool = self._request.policy, self._pool
        budget = budget or TimeBudget(policy.calibration_s)
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
            on_hang=partial(pool.suspend, isolation=self._request.isolation),
            on_back=partial(pool.resume, isolation=self._request.isolation),
            background=self._background(past),
            budget_s=min(budget.left_s, policy.calibration_s) * (1 - TRIAL_SHARE),
            on_spent=budget.spend,
            time_cpu=time_cpu,
            clock=clock.now_ns,
            parts=self._mixing if self._request.fallback == "cpu" else None,
        )
        meter = meters.find() if past is not None and policy.prefer == "energy" else None
        trials = TrialRunner(policy, budget, past, meter, self._type_of) if asked == AUTO else None
        return Placed(decision, trials, self._mixing.nodes)

    def _has_candidates(self) -> bool:
        """Whether a GPU comes into question at all: else nothing is read and nothing is kept."""
        is_any = self._request.policy.allow_software
        return any(is_any or not row.is_software for row in self._report.devices)

    def _past(self) -> LaunchHistory:
        policy, graph = self._request.policy, self._graph
        return LaunchHistory(
            self._pool.past_launches(),
            lambda: digest_of(graph, policy.storage, self._kernel_of(CPU)),
            self._key_of,
            policy.percentile,
        )

    def _background(self, past: LaunchHistory | None) -> Background:
        database = next((r.database for r in self._report.tried if r.database), "")
        if past is None:
            return Background(database, memory_of=self._mixing.memory.get)
        return Background(
            database, conditions.current(), past.previous, past.launch_of, past.draw_of,
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


class Mixing:
    """Cuts one graph for the devices of a report (`gpuedge.decide.choose.Parts`).

    Parameters
    ----------
    graph : Graph
    report : ProbeReport

    Attributes
    ----------
    nodes : dict
        By device, the identities of the nodes that it would run, where that is not all of them.
    memory : dict
        By device, the bytes of its memory that all parts it can run would take.
    """

    def __init__(self, graph: Graph, report: ProbeReport) -> None:
        self.nodes: dict[str, frozenset[int]] = {}
        self.memory: dict[str, int] = {}
        self._graph = graph
        self._report = report
        self._segments: dict[str, tuple[Segment, ...]] = {}

    def of(self, device: str) -> Mixed | None:
        """Return what each segment costs on either side; None where the graph cannot be cut."""
        caps = caps_of(find(device, self._report))
        graph = self._graph
        where = {
            id(n): device if why_not(n, graph, caps) is None else CPU for n in graph.nodes
        }  # fmt: skip
        cut = partition(graph, lambda node: where[id(node)])
        if len(cut) < 2:
            return None
        self._segments[device] = cut
        parts, nbytes = [], 0
        for segment in cut:
            made = _plan(segment, caps) if segment.device == device else None
            work = None if made is None else Work(**planned(segment.graph, made))
            nbytes += 0 if made is None else memory_of(made, caps)
            parts.append((Work(**count(segment.graph)), work))
        self.memory[device] = nbytes
        return Mixed(tuple(parts))

    def settle(self, device: str, alternatives: tuple[Alternative, ...]) -> None:
        """Take where each segment would run."""
        self.nodes[device] = frozenset(
            id(node)
            for segment, alternative in zip(self._segments[device], alternatives, strict=True)
            if alternative == "gpu"
            for node in segment.graph.nodes
        )

    def key(self, device: str) -> str:
        """Return what tells this mixture from others; empty where a device runs everything."""
        kept = self.nodes.get(device)
        if kept is None:
            return ""
        return ", ".join(label(n) for n in self._graph.nodes if id(n) in kept)


def memory_of(made: Plan, caps: Caps) -> int:
    """Return the bytes of device memory that a plan takes: the sum of its buffers."""
    where = arrange(made, caps.offset_alignment, has_suballocation=caps.has_suballocation)
    return sum(home.nbytes for home in where.buffers.values())


def _plan(segment: Segment, caps: Caps) -> Plan | None:
    try:
        return plan(segment.graph, caps)
    except GpuEdgeError:  # more than the device offers, together
        return None
