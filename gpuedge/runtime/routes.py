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
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge import __version__
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.identity import Identity
from gpuedge.decide import speeds
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.history import DeviceHistory, History, ModelHistory, device_key
from gpuedge.decide.options import DEFAULT
from gpuedge.decide.record import Evidence, Record, candidates_of
from gpuedge.decide.route import Route
from gpuedge.decide.segments import mixture
from gpuedge.executors.base import Work
from gpuedge.graph.cost import count
from gpuedge.graph.partition import Segment, partition
from gpuedge.plan.arrange import arrange
from gpuedge.plan.planner import label, plan, why_not
from gpuedge.runtime import clock
from gpuedge.runtime.opening import INLINE
from gpuedge.runtime.request import Request
from gpuedge.runtime.strings import AUTO, CPU, caps_of

if TYPE_CHECKING:
    from gpuedge.core.caps import Caps
    from gpuedge.core.reasons import Reason
    from gpuedge.decide.chooser import Chooser
    from gpuedge.graph.ir import Graph
    from gpuedge.probing.report import ProbeRow
    from gpuedge.runtime.devices import Pool

SMALL = 64
"""Elements up to which constants may be sizes, axes and the like, on which latency depends."""

CPU_RATES = (10.0, 10.0, 2_000.0)
"""Operations and bytes per nanosecond of a middling processor, and nanoseconds of each node: how
the CPU's time is spread over the segments of a model. Their sum is measured."""


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

    def decision(
        self,
        chooser: Chooser,
        reasons: Mapping[str, Reason],
        served: Mapping[str, int],
        requests: int,
    ) -> Decision:
        """Return the decision of the moment, with all that it rests on."""
        cpu_ns = chooser.cpu_ns or None
        cpu = Evidence(
            CPU, is_software=False, cpu_ns=cpu_ns, source="measured" if cpu_ns else "",
            at_ns=chooser.at_ns(CPU),
            served=max(requests - sum(served.values()), 0),
        )  # fmt: skip
        found = [self._now(e, chooser, reasons, served) for e in self.evidence]
        return decide(
            Record(
                AUTO, self.request.policy, (*found, cpu), __version__, self.database,
                requests, self.past.requests, self.request.isolation, in_use=chooser.pick,
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
        gpu_ns = median_low(known.recent) if known.recent else None
        source = "measured" if gpu_ns else "earlier" if known.belief.windows else "predicted"
        is_late = known.phase == "late"
        wait_ns = max(known.retry_ns - clock.now_ns(), 0)
        return replace(
            e, phase=known.phase, belief=known.belief, predicted_ns=known.predicted_ns,
            startup_ns=known.startup_ns, gpu_ns=gpu_ns, source=source,
            at_ns=chooser.at_ns(e.device),
            cpu_ns=chooser.cpu_ns or None, served=served.get(e.device, 0),
            opens_after=chooser.opens_after(e.device), retry_ns=wait_ns if is_late else None,
            waited_ns=self.stall_ns if is_late else None,
        )  # fmt: skip

    def outcome(self, chooser: Chooser, requests: int) -> ModelHistory:
        """Return what later launches are to know."""
        now, found = clock.epoch_s(), dict[str, DeviceHistory]()
        predicted = {r.device: r.predicted_ns for r in self.routes}
        for device, known in chooser.candidates.items():
            if known.belief.windows and known.phase != "failed" and device in self.keys:
                gpu_ns = round(chooser.cpu_ns * math.exp(known.belief.theta))
                found[self.keys[device]] = DeviceHistory(
                    known.belief, known.startup_ns, max(gpu_ns, 1), predicted[device], now
                )
        return ModelHistory((requests,), chooser.cpu_ns or None, found)

    def keep(self, outcome: ModelHistory) -> None:
        """Keep that on disk."""
        if self.history is not None and self.model and outcome.requests[-1]:
            self.history.keep(self.model, outcome)


def survey(
    graph: Graph,
    request: Request,
    pool: Pool,
    cpu_ns: int | None,
    rest: Callable[[], None],
) -> Survey:
    """Return what is known of the routes for a graph; probes if that was not done yet.

    Parameters
    ----------
    graph : Graph
    request : Request
    pool : Pool
    cpu_ns : int, optional
        Latency of the graph on the CPU.
    rest : callable
        Called between the steps.
    """
    report = pool.current()
    rest()
    found = Survey(request, database=next((r.database for r in report.tried if r.database), ""))
    made = _Surveyor(graph, request, pool, cpu_ns, found)
    for e, row in candidates_of(report):
        found.evidence.append(made.looked_at(e, row))
        rest()
    return found


class _Surveyor:
    """Looks at one device after another."""

    def __init__(
        self, graph: Graph, request: Request, pool: Pool, cpu_ns: int | None, found: Survey
    ) -> None:
        self._graph = graph
        self._request = request
        self._kernel = pool.cpu().kernel
        self._cpu_ns = cpu_ns
        self._found = found
        self._work: Work | None = None

    def looked_at(self, e: Evidence, row: ProbeRow) -> Evidence:
        """Return the evidence about a device; add a route to it if it may run the graph."""
        policy, device = self._request.policy, e.device
        if e.code != "ok" or (e.is_software and not policy.allow_software):
            return e
        try:
            caps = caps_of(row)
            refused = self._refused(caps)
            nbytes = self._memory(device, caps, is_whole=not refused)
            e = replace(e, memory_bytes=nbytes)
            if policy.max_memory_bytes is not None and (nbytes or 0) > policy.max_memory_bytes:
                return e
            identity = Identity.from_dict(dict(row.identity))
            speed = speeds.speeds_of(speeds.class_of(identity))
            if refused:
                return self._mixed(e, row, speed, refused)
            self._work = self._work or Work(**count(self._graph))
            predicted = speeds.predict(self._work, speed, row.backend)
            return self._routed(e, row, predicted, speeds.startup_ns(self._work, speed))
        except GpuEdgeError as error:
            return replace(e, code="compile-failed", detail=_sentence(error))

    def _refused(self, caps: Caps) -> dict[int, str]:
        """Return why nodes cannot run there, by their identity."""
        graph = self._graph
        whys = {id(n): (n, why_not(n, graph, caps)) for n in graph.nodes}
        return {i: f"{label(node)}: {why}" for i, (node, why) in whys.items() if why is not None}

    def _memory(self, device: str, caps: Caps, *, is_whole: bool) -> int | None:
        """Return the bytes of device memory that the plan takes, where the policy bounds them."""
        if self._request.policy.max_memory_bytes is None or not is_whole:
            return None
        made = plan(self._graph, caps)
        where = arrange(made, caps.offset_alignment, has_suballocation=caps.has_suballocation)
        return sum(home.nbytes for home in where.buffers.values())

    def _mixed(
        self, e: Evidence, row: ProbeRow, speed: speeds.Speeds, refused: Mapping[int, str]
    ) -> Evidence:
        """Add a route that runs parts of the graph, where that may beat the CPU alone."""
        e = replace(e, detail=next(iter(refused.values())))
        cut = partition(self._graph, lambda n: CPU if id(n) in refused else e.device)
        works = [Work(**count(segment.graph)) for segment in cut]
        pairs = [
            (work, work if segment.device == e.device else None)
            for segment, work in zip(cut, works, strict=True)
        ]
        made = None
        if self._request.fallback == "cpu" and len(cut) > 1:
            made = mixture(
                pairs, lambda w: speeds.predict(w, speed, row.backend), _on_cpu, self._cpu_ns
            )
        if made is None:
            return replace(e, code="unsupported-op")
        chosen = [s for s, side in zip(cut, made.sides, strict=True) if side == "gpu"]
        self._found.nodes[e.device] = frozenset(id(n) for s in chosen for n in s.graph.nodes)
        return self._routed(e, row, made.total_ns, _startup(chosen, speed))

    def _routed(self, e: Evidence, row: ProbeRow, predicted: int, startup_ns: int) -> Evidence:
        """Add a route, with what earlier launches measured."""
        found, device = self._found, e.device
        if found.history is None:
            found.history = History()
            found.model = digest_of(self._graph, self._request.policy.storage, self._kernel)
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
        return replace(
            e, predicted_ns=predicted, startup_ns=startup_ns, phase="closed", source="predicted"
        )


def _startup(cut: list[Segment], speed: speeds.Speeds) -> int:
    works = [Work(**count(segment.graph)) for segment in cut]
    opening = speeds.startup_ns(Work(), speed)
    return opening + sum(speeds.startup_ns(w, speed) - opening for w in works)


def _on_cpu(work: Work) -> int:
    operations, moved, each = CPU_RATES
    spent = sum(work.flops.values()) / operations + work.bytes_moved / moved
    return round(spent + work.launches * each) + 1


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
        detail = f"{why.detail}" if why.detail else ""
        found = [replace(e, code=why.code, detail=detail) if e.device == device else e
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
