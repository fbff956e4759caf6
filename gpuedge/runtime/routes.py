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
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge import __version__
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.text import plain
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.history import DeviceHistory, History, ModelHistory, device_key
from gpuedge.decide.options import DEFAULT
from gpuedge.decide.record import Evidence, Record, candidates_of
from gpuedge.decide.route import Route
from gpuedge.plan.planner import label
from gpuedge.runtime import clock
from gpuedge.runtime.devices import Pool, reason_of
from gpuedge.runtime.forecast import Forecast
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.request import Request
from gpuedge.runtime.segments import not_half
from gpuedge.runtime.strings import AUTO, CPU

if TYPE_CHECKING:
    from gpuedge.core.reasons import Reason
    from gpuedge.decide.chooser import Chooser
    from gpuedge.graph.bound import BoundModel
    from gpuedge.graph.ir import Graph
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
    evidence : list of Evidence
        Every device that probing tried, best first.
    routes : list of Route
        Those that may be opened.
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
    evidence: list[Evidence] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
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
        cpu = Evidence(
            CPU, is_software=False, latency_ns=chooser.cpu_ns or None,
            at_ns=chooser.at_ns(CPU), served=max(requests - sum(served.values()), 0),
        )  # fmt: skip
        found = [self._now(e, chooser, reasons, served) for e in self.evidence]
        found = [replace(e, note="; ".join(filter(None, (e.note, notes.get(e.device, "")))))
                 for e in found]  # fmt: skip
        return decide(
            Record(
                AUTO, self.request.policy, (*found, cpu), __version__, self.database,
                requests, self.past.requests, self.request.isolation, in_use=chooser.pick,
                held_ns=chooser.held_ns(clock.now_ns()),
            )
        )  # fmt: skip

    def _now(
        self,
        e: Evidence,
        chooser: Chooser,
        reasons: Mapping[str, Reason],
        served: Mapping[str, int],
    ) -> Evidence:
        """Return the evidence about one device with what this launch came to."""
        known, reason = chooser.candidates.get(e.device), reasons.get(e.device)
        if known is None:
            return e
        if reason is not None and known.phase == "failed":
            return replace(e, code=reason.code, detail=reason.detail, phase="failed")
        is_late = known.phase == "late"
        wait_ns = max(known.retry_ns - clock.now_ns(), 0)
        return replace(
            e, phase=known.phase, belief=known.belief, predicted_ns=known.predicted_ns,
            startup_ns=known.startup_ns, at_ns=chooser.at_ns(e.device),
            latency_ns=median_low(known.recent) if known.recent else None,
            served=served.get(e.device, 0), opens_after=chooser.opens_after(e.device),
            retry_ns=wait_ns if is_late else None, waited_ns=self.stall_ns if is_late else None,
        )  # fmt: skip

    def keeping(self, chooser: Chooser, requests: int) -> Callable[[], object]:
        """Return what keeps on disk what later launches are to know by now."""
        history, found = self.history, dict[str, DeviceHistory]()
        if history is None or not requests:
            return lambda: None
        for device, known in chooser.candidates.items():
            if known.belief.windows and known.phase != "failed":
                gpu_ns = max(round(chooser.cpu_ns * math.exp(known.belief.theta)), 1)
                found[self.keys[device]] = DeviceHistory(
                    known.belief, known.startup_ns, gpu_ns, known.predicted_ns
                )
        return partial(history.keep, self.model, requests, chooser.cpu_ns or None, found)


def survey(
    model: BoundModel,
    request: Request,
    pool: Pool,
    cpu_ns: int | None,
    rest: Callable[[], None],
) -> Survey:
    """Return what is known of the routes for a graph; probes if that was not done yet.

    Parameters
    ----------
    model : BoundModel
    request : Request
    pool : Pool
    cpu_ns : int, optional
        Latency of the model on the CPU.
    rest : callable
        Called between the steps.
    """
    report = pool.current()
    rest()
    database = next((r.database for r in report.tried if r.database), "")
    found = Survey(request, database=database, again_ns=pool.again_ns)
    made = _Surveyor(model, request, pool, cpu_ns, found)
    for e, row in candidates_of(report):
        found.evidence.append(made.looked_at(e, row))
        rest()
    return found


class _Surveyor:
    """Looks at one device after another."""

    def __init__(
        self, model: BoundModel, request: Request, pool: Pool, cpu_ns: int | None, found: Survey
    ) -> None:
        self._model = model
        self._request = request
        self._kernel = pool.cpu().kernel
        self._cpu_ns = cpu_ns
        self._found = found

    @property
    def _graph(self) -> Graph:
        return self._model.graph

    def looked_at(self, e: Evidence, row: ProbeRow) -> Evidence:
        """Return the evidence about a device; add a route to it if it may run the graph."""
        policy = self._request.policy
        if e.code != "ok" or (e.is_software and not policy.allow_software):
            return e
        try:
            seen = Forecast(self._graph, row)
            e = replace(e, note=not_half(policy, seen.caps, self._graph))
            if policy.max_memory_bytes is not None and not seen.refused:
                plans = [seen.plan(segment, policy) for segment in seen.cut]
                nbytes = sum(sum(seen.arranged(made).memory.values()) for made in plans)
                e = replace(e, memory_bytes=nbytes)
                if nbytes > policy.max_memory_bytes:
                    return e
            if seen.refused:
                return self._mixed(e, row, seen)
            predicted = sum(filter(None, seen.gpu_ns))
            return self._routed(e, row, predicted, seen.startup_ns(list(range(len(seen.cut)))))
        except GpuEdgeError as error:
            return replace(e, code=reason_of(error, "compile-failed").code, detail=_sentence(error))

    def _mixed(self, e: Evidence, row: ProbeRow, seen: Forecast) -> Evidence:
        """Add a route that runs parts of the graph, where that may beat the CPU alone."""
        nodes = [n for n in self._graph.nodes if id(n) in seen.refused]
        names = sorted({plain(n.op) for n in nodes})
        told = f"{label(nodes[0])}: {seen.refused[id(nodes[0])]}"
        if len(names) > 1:
            more = ", ..." if len(names) > NAMED else ""
            told += f"; {len(names)} operators cannot run there: {', '.join(names[:NAMED])}{more}"
        e = replace(e, detail=told)
        taken, total_ns = seen.mixture(self._cpu_ns)
        if self._request.fallback != "cpu" or len(seen.cut) == 1 or not taken:
            return replace(e, code="unsupported-op")
        chosen = [seen.cut[i] for i in taken]
        self._found.nodes[e.device] = frozenset(id(n) for s in chosen for n in s.graph.nodes)
        return self._routed(e, row, total_ns, seen.startup_ns(taken))

    def _routed(self, e: Evidence, row: ProbeRow, predicted: int, startup_ns: int) -> Evidence:
        """Add a route, with what earlier launches measured."""
        found, device = self._found, e.device
        if found.history is None:
            found.history = History()
            policy = self._request.policy
            how = [policy.storage] if policy.rewrites else [policy.storage, "node by node"]
            how += [policy.arithmetic] if policy.arithmetic != "float32" else []
            found.model = digest_of(self._graph, *how, self._kernel)
            found.past = found.history.of(found.model)
        nodes = found.nodes.get(device)
        parts = "" if nodes is None else ",".join(
            label(n) for n in self._graph.nodes if id(n) in nodes
        )  # fmt: skip
        facts: dict[str, Any] = {"identity": dict(row.identity), "fingerprint": row.fingerprint}
        if row.restrictions:
            facts["restrictions"] = dict(row.restrictions)  # they cost speed
        where = "" if self._request.isolation == INLINE else self._request.isolation
        key = device_key(device, facts, f"{self._kernel} {where} {parts}".rstrip())
        found.keys[device] = key
        known = found.past.devices.get(key, DeviceHistory())
        other = found.history.residual(key, found.model)
        predicted = max(round(predicted * math.exp(DEFAULT.shared * other)), 1)
        startup_ns = known.startup_ns or startup_ns
        belief = known.belief if known.belief is not None and known.belief.windows else None
        found.routes.append(Route(device, predicted, startup_ns, belief, e.is_demoted))
        return replace(e, predicted_ns=predicted, startup_ns=startup_ns, phase="closed")


def named_decision(
    request: Request, pool: Pool, device: str, *, in_use: str, why: Reason | None, note: str
) -> Decision:
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
    """
    cpu = Evidence(CPU, is_software=False)
    if request.executor is not None and device != CPU:
        found = [Evidence(device)]
    elif device == CPU:
        found = []
    else:
        found = [e for e, _ in candidates_of(pool.current())]
    if in_use != device and why is not None:
        found = [replace(e, code=why.code, detail=why.detail) if e.device == device else e
                 for e in found]  # fmt: skip
    elif in_use == device:  # whatever probing says by now, it is open
        found = [replace(e, code="ok", detail="") if e.device == device else e for e in found]
    made = decide(
        Record(
            device, request.policy, (*found, cpu), __version__, isolation=request.isolation,
            falls_back=in_use != device,
        )
    )  # fmt: skip
    return replace(made, reason=note) if note else made


def _sentence(error: GpuEdgeError) -> str:
    return " ".join(error.what.split()).rstrip(".")


def digest_of(graph: Graph, *more: str) -> str:
    """Return a digest of what the latency of a graph depends on.

    Weights count by type and shape only: reading all of a large model takes longer than it runs.
    """
    made = hashlib.sha256()

    def add(*parts: object) -> None:
        made.update(repr(parts).encode("utf-8", "surrogatepass"))

    for node in graph.nodes:
        attrs = sorted((k, _brief(v)) for k, v in node.attrs.items())
        add(node.domain, node.op, node.inputs, node.outputs, attrs)
    add(graph.inputs, graph.outputs, sorted(graph.opset.items()), more)
    for name, kind in sorted(graph.types.items()):
        add(name, kind.dtype, kind.shape)
    for name, array in sorted(graph.constants.items()):
        add(name, _brief(array))
    return made.hexdigest()


def _brief(value: object) -> object:
    """Return what tells a constant or attribute from others without reading much of it."""
    if not isinstance(value, np.ndarray):
        return value
    return value.dtype.str, value.shape, value.tobytes() if value.size <= SMALL else b""
