"""What there is to decide about one graph: the routes to GPUs that may run it, unopened.

A survey filters the probe report, predicts each route by its device's class
(`gpuedge.decide.speeds`), adds what earlier launches measured, and writes the record that explains
the choice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge import __version__, backends
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.reasons import Reason
from gpuedge.core.text import plain
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.decision_record import DecisionRecord, DeviceCandidate, candidates_of
from gpuedge.decide.history import History, ModelHistory, device_key
from gpuedge.decide.options import DEFAULT
from gpuedge.plan.planner import label
from gpuedge.runtime import clock
from gpuedge.runtime.devices import Pool, reason_of
from gpuedge.runtime.forecast import Forecast
from gpuedge.runtime.opening import INLINE, NOT_CARRIED
from gpuedge.runtime.request import Request
from gpuedge.runtime.segments import not_half
from gpuedge.runtime.strings import CPU

if TYPE_CHECKING:
    from gpuedge.decide.chooser import Chooser
    from gpuedge.graph.ir import Graph
    from gpuedge.graph.shaped import ShapedModel
    from gpuedge.probing.report import ProbeRow

SMALL = 64
"""Elements up to which constants may be sizes, axes and the like, on which latency depends."""

NAMED = 5
"""Operators that a reason names; `gpuedge check` names all."""


@dataclass
class Survey:
    """What is known of the routes for one graph.

    Attributes
    ----------
    candidates : list of DeviceCandidate
        Every device that probing tried, best first; those that may be opened are ``closed``.
    nodes : dict
        By device, the identities of the nodes that it would run, where that is not all of them.
    keys : dict
        By device, its key in the history.
    model : str
        The graph's digest; empty where nothing is kept.
    history : History or None
    past : ModelHistory
        What it held when this launch began.
    stall_ns : int or None
        How long an opening that stalled was waited for.
    again_ns : int or None
        When drivers that missed the deadline of the probe are asked again.
    """

    request: Request
    candidates: list[DeviceCandidate] = field(default_factory=list)
    nodes: dict[str, frozenset[int]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    database: str = ""
    model: str = ""
    history: History | None = None
    past: ModelHistory = field(default_factory=ModelHistory)
    stall_ns: int | None = None
    again_ns: int | None = None

    def decision(
        self,
        chooser: Chooser,
        reasons: Mapping[str, Reason],
        served: Mapping[str, int],
        requests: int,
        notes: Mapping[str, str],
    ) -> Decision:
        """Return the decision of the moment, with all that it rests on.

        `notes` says what more there is to know about devices that are open.
        """
        record = chooser.record(clock.now_ns())
        by_side = {CPU: max(requests - sum(served.values()), 0), **served}
        candidates = []
        for c in record.candidates:
            reason = reasons.get(c.device) if c.phase == "failed" else None
            candidates.append(
                replace(
                    c,
                    code=c.code if reason is None else reason.code,
                    detail=c.detail if reason is None else reason.detail,
                    note="; ".join(filter(None, (c.note, notes.get(c.device)))),
                    waited_ns=(self.stall_ns or 0) if c.phase == "late" else 0,
                    served=by_side.get(c.device, 0),
                )
            )
        return decide(
            replace(
                record,
                policy=self.request.policy,
                candidates=tuple(candidates),
                database=self.database,
                requests=requests,
                previous_requests=self.past.requests,
                isolation=self.request.isolation,
            )
        )

    def keeping(self, chooser: Chooser, requests: int) -> Callable[[], object]:
        """Return what keeps on disk what later launches are to know by now."""
        history = self.history
        if history is None or not requests:
            return lambda: None
        learnt = {self.keys[device]: known for device, known in chooser.learnt().items()}
        return partial(history.keep, self.model, requests, chooser.cpu_ns or None, learnt)


def survey(
    model: ShapedModel,
    request: Request,
    pool: Pool,
    cpu_ns: int | None,
    rest: Callable[[], None],
) -> Survey:
    """Return what is known of the routes for a graph; probes if that was not done yet.

    Parameters
    ----------
    model : ShapedModel
    request : Request
    pool : Pool
    cpu_ns : int, optional
        Latency of the model on the CPU.
    rest : callable
        Called between the steps.
    """
    report = pool.current(request.backends)
    rest()
    database = next((r.database for r in report.tried if r.database), "")
    result = Survey(request, database=database, again_ns=pool.again_ns(request.backends))
    surveyor = _Surveyor(model, request, pool.cpu().kernel, cpu_ns, result)
    for candidate, row in candidates_of(report):
        result.candidates.append(surveyor.looked_at(candidate, row))
        rest()
    return result


@dataclass
class _Surveyor:
    """Looks at one device after another; `kernel` is what the CPU path runs."""

    model: ShapedModel
    request: Request
    kernel: str
    cpu_ns: int | None
    survey: Survey

    @property
    def graph(self) -> Graph:
        """What there is to run."""
        return self.model.graph

    def looked_at(self, candidate: DeviceCandidate, row: ProbeRow) -> DeviceCandidate:
        """Return a candidate with what it comes to here; a route if it may run the graph."""
        policy = self.request.policy
        if candidate.ruled_out(policy):
            return candidate
        if backends.is_executor(row.backend):
            return self._unforeseen(candidate, row)
        try:
            forecast = Forecast(self.graph, row, policy)
            candidate = replace(candidate, note=not_half(policy, forecast.caps, self.graph))
            if policy.max_memory_bytes is not None and not forecast.refused:
                candidate = replace(candidate, memory_bytes=forecast.memory_bytes)
                if candidate.ruled_out(policy):
                    return candidate
            if forecast.refused:
                return self._mixed(candidate, row, forecast)
            predicted, every = sum(filter(None, forecast.gpu_ns)), list(range(len(forecast.cut)))
            return self._routed(candidate, row, predicted, forecast.startup_ns(every))
        except GpuEdgeError as error:
            code = reason_of(error, "compile-failed").code
            return replace(candidate, code=code, detail=_sentence(error))

    def _unforeseen(self, candidate: DeviceCandidate, row: ProbeRow) -> DeviceCandidate:
        """Return a route to another runtime: what that refuses, and how fast it is, it will show.

        Until then it is taken to be as fast as the CPU. Opening it takes what the probe took.
        """
        if self.request.isolation != INLINE:
            return replace(candidate, code="disabled", detail=NOT_CARRIED)
        return self._routed(candidate, row, 0, round((row.seconds or 0.0) * 1e9))

    def _mixed(
        self, candidate: DeviceCandidate, row: ProbeRow, forecast: Forecast
    ) -> DeviceCandidate:
        """Return a route that runs parts of the graph, where that may beat the CPU alone."""
        nodes = [n for n in self.graph.nodes if id(n) in forecast.refused]
        names = sorted({plain(n.op) for n in nodes})
        told = f"{label(nodes[0])}: {forecast.refused[id(nodes[0])]}"
        if len(names) > 1:
            more = ", ..." if len(names) > NAMED else ""
            told += f"; {len(names)} operators cannot run there: {', '.join(names[:NAMED])}{more}"
        candidate = replace(candidate, detail=told)
        taken, total_ns = forecast.mixture(self.cpu_ns)
        if self.request.fallback != "cpu" or len(forecast.cut) == 1 or not taken:
            return replace(candidate, code="unsupported-op")
        chosen = [forecast.cut[i] for i in taken]
        nodes_there = frozenset(id(n) for s in chosen for n in s.graph.nodes)
        self.survey.nodes[candidate.device] = nodes_there
        return self._routed(candidate, row, total_ns, forecast.startup_ns(taken))

    def _routed(
        self, candidate: DeviceCandidate, row: ProbeRow, predicted: int, startup_ns: int
    ) -> DeviceCandidate:
        """Return a route, with what earlier launches measured."""
        survey, device = self.survey, candidate.device
        if survey.history is None:
            survey.history = History()
            policy = self.request.policy
            how = [policy.storage] if policy.rewrites else [policy.storage, "node by node"]
            how += [policy.arithmetic] if policy.arithmetic != "float32" else []
            how += ["tuned"] if policy.tune != "off" else []
            survey.model = digest_of(self.graph, *how, self.kernel)
            survey.past = survey.history.of(survey.model)
        nodes = survey.nodes.get(device)
        parts = "" if nodes is None else ",".join(
            label(n) for n in self.graph.nodes if id(n) in nodes
        )  # fmt: skip
        facts: dict[str, Any] = {"identity": dict(row.identity), "fingerprint": row.fingerprint}
        if row.restrictions:
            facts["restrictions"] = dict(row.restrictions)  # they cost speed
        where = "" if self.request.isolation == INLINE else self.request.isolation
        key = device_key(device, facts, f"{self.kernel} {where} {parts}".rstrip())
        survey.keys[device] = key
        if predicted:
            other = survey.history.residual(key, survey.model)
            predicted = max(round(predicted * math.exp(DEFAULT.shared * other)), 1)
        known = survey.past.devices.get(key)
        candidate = replace(
            candidate, phase="closed", predicted_ns=predicted, startup_ns=startup_ns
        )  # fmt: skip
        if known is None:
            return candidate
        return replace(
            candidate, startup_ns=known.startup_ns or startup_ns, belief=known.belief
        )  # fmt: skip


def named_decision(
    request: Request, pool: Pool, device: str, *, in_use: str, why: Reason | None, note: str,
    tuned: str,
) -> Decision:  # fmt: skip
    """Return the decision for a device that was asked for by name, or opened by the caller.

    Parameters
    ----------
    request : Request
    pool : Pool
    device, in_use : str
        What was asked for, and what answers.
    why : Reason or None
        Why that is another one.
    note : str
        Why the device does not answer although no other may; empty if it does.
    tuned : str
        Which kernels were tuned on it.
    """
    is_probed = request.executor is None and device != CPU
    report = pool.current(request.backends, device) if is_probed else None
    candidates = [] if report is None else [c for c, _ in candidates_of(report)]
    if device not in {CPU, *(c.device for c in candidates)}:
        candidates.insert(0, DeviceCandidate(device))
    if in_use == device:  # whatever probing says by now, it is open
        why = Reason("ok")
    if why is not None:
        candidates = [
            replace(c, code=why.code, detail=why.detail) if c.device == device else c
            for c in candidates
        ]
    candidates = [replace(c, note=tuned) if c.device == device else c for c in candidates]
    candidates.append(DeviceCandidate(CPU, is_software=False))
    record = DecisionRecord(
        device, request.policy, tuple(candidates), __version__, isolation=request.isolation
    )
    decision = decide(record)
    return replace(decision, reason=note) if note else decision


def _sentence(error: GpuEdgeError) -> str:
    return " ".join(error.what.split()).rstrip(".")


def digest_of(graph: Graph, *more: str) -> str:
    """Return a digest of what the latency of a graph depends on.

    Weights count by type and shape only: reading all of a large model takes longer than it runs.
    """
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        digest.update(repr(parts).encode("utf-8", "surrogatepass"))

    for node in graph.nodes:
        attrs = sorted((k, _brief(v)) for k, v in node.attrs.items())
        add(node.domain, node.op, node.inputs, node.outputs, attrs)
    add(graph.inputs, graph.outputs, sorted(graph.opset.items()), more)
    for name, kind in sorted(graph.types.items()):
        add(name, kind.dtype, kind.shape)
    for name, array in sorted(graph.constants.items()):
        add(name, _brief(array))
    return digest.hexdigest()


def _brief(value: object) -> object:
    """Return what tells a constant or attribute from others without reading much of it."""
    if not isinstance(value, np.ndarray):
        return value
    return value.dtype.str, value.shape, value.tobytes() if value.size <= SMALL else b""
