"""A page about a model: where each of its operators would run, why not elsewhere, and at what cost.

Made of what the planner, the partition and the predictions say; no device is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from statistics import median_low
from typing import TYPE_CHECKING, Any

from gpuedge import __version__
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.reader import OnnxModel
from gpuedge.plan.planner import label
from gpuedge.runtime import check_text, clock, yardstick
from gpuedge.runtime.devices import POOL, Pool
from gpuedge.runtime.forecast import Forecast
from gpuedge.runtime.inputs import samples
from gpuedge.runtime.request import make_request
from gpuedge.runtime.strings import AUTO, CPU, find

if TYPE_CHECKING:
    import os

    import onnx

    from gpuedge.decide.policy import Policy
    from gpuedge.probing.report import ProbeRow
    from gpuedge.runtime.request import Request

SCHEMA = "gpuedge.check/1"

HOST = "host"
"""Where nodes are evaluated while planning."""

RUNS = 3
"""Runs on the CPU that are timed, after a first one that is not."""

PACKAGES = ("onnx", "onnxruntime", "numpy")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node runs if a device is asked for; `why` says why it is not that device.

    `device` is that device, ``cpu``, ``host`` (evaluated while planning), or empty: nowhere.
    """

    device: str
    kernel: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One node: its operator, with the operator set, and types such as ``float32[1,8]``.

    `places` says where it runs, by the device that is asked for.
    """

    name: str
    op: str
    domain: str
    opset: int | None
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """A part of the model that runs on one device: nodes, kernel launches, bytes of its memory.

    `nbytes` are by what they are for; no plan needs less than `most_alive` of ``scratch``, what
    passes hand to each other. `predicted_ns` is what it takes; on the CPU, a share of what the
    whole model was measured to.
    """

    device: str
    nodes: tuple[str, ...]
    launches: int
    nbytes: Mapping[str, int]
    predicted_ns: int
    most_alive: int = 0


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """A model on one device, which runs all that it can.

    Attributes
    ----------
    device, level, name, speeds : str
        Device string, API level, what the device calls itself, the row of public measurements that
        the predictions rest on.
    is_software : bool
    segments : tuple of SegmentCheck
    startup_ns : int or None
        Predicted time of opening the device and compiling; None where it was not predicted.
    auto : tuple of int
        Segments that ``auto`` would leave to this device, by number: those it is predicted to run
        faster than the CPU.
    error : str
        Why the model cannot run there although its nodes can; empty if it can.
    slowness : dict
        Of a software rasteriser: how many times longer than `speeds` says each class of kernels
        (``conv``, ``matmul``, ``map``) took here just now, which the predictions take into account.
        Empty where it was not measured.
    """

    device: str
    level: str
    name: str
    speeds: str
    is_software: bool | None
    segments: tuple[SegmentCheck, ...] = ()
    startup_ns: int | None = None
    auto: tuple[int, ...] = ()
    error: str = ""
    slowness: Mapping[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Device memory that the model takes at its peak, in bytes."""
        return sum(sum(s.nbytes.values()) for s in self.segments)

    @property
    def predicted_ns(self) -> int:
        """Predicted time of one inference, what crosses between host and device included."""
        return sum(s.predicted_ns for s in self.segments)


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """What `gpuedge.check` found.

    Attributes
    ----------
    model : str
        The file, or what else the model came from.
    versions : dict
        Of gpuedge and the packages that read and run models.
    opset : dict
        Operator set versions by domain.
    inputs, outputs : dict
        Name to type, with the shapes that were checked.
    nodes : tuple of NodeCheck
        Every node, in order; those evaluated while planning come first.
    devices : tuple of DeviceCheck
    cpu : dict
        ``kernel``, ``ns`` (median of a few runs on synthetic inputs) and ``error``.
    fallback : str
        ``cpu`` or ``error``: whether nodes may move to the CPU.
    """

    model: str
    versions: Mapping[str, str]
    opset: Mapping[str, int]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    nodes: tuple[NodeCheck, ...]
    devices: tuple[DeviceCheck, ...]
    cpu: Mapping[str, Any]
    fallback: str = "cpu"

    @property
    def is_ok(self) -> bool:
        """Whether every node has a device to run on, of those that `fallback` allows."""
        asked = [d.device for d in self.devices] or [CPU]
        allowed = (HOST, CPU) if self.fallback == "cpu" else (HOST,)
        errors = {d.device: d.error for d in self.devices}
        return any(
            all(n.places[d].device in (d, *allowed) for n in self.nodes)
            and not (errors.get(d) and self.fallback == "error")
            and not (d == CPU and self.cpu["error"])
            for d in asked
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        found = asdict(self)
        for made, device in zip(found["devices"], self.devices, strict=True):
            made |= {"nbytes": device.nbytes, "predicted_ns": device.predicted_ns}
        return {"schema": SCHEMA, "is_ok": self.is_ok, **found}

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        return check_text.as_text(self)


def check(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    device: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    policy: Policy | None = None,
    fallback: str | None = None,
) -> ModelCheck:
    """Say where every operator of a model would run and why not elsewhere, without using a GPU.

    Parameters
    ----------
    model : str, os.PathLike, bytes or onnx.ModelProto
    device : str, optional
        Such as ``vulkan`` or ``cpu``. By default (and with ``auto``) the best device of every level
        that is usable here, side by side; the setting ``GPUEDGE_DEVICE`` counts.
    shapes : mapping of str to sequence of int, optional
        Shapes of inputs, needed where the model leaves them open.
    policy : Policy, optional
        How tensors are to be kept, and whether the graph is rewritten.
    fallback : {"cpu", "error"}, optional
        Whether nodes may move to the CPU. Setting: ``GPUEDGE_FALLBACK``.

    Returns
    -------
    ModelCheck
        Prints as tables: ``print(gpuedge.check("model.onnx"))``.

    Raises
    ------
    ModelError (GE-500), UnsupportedOpError (GE-501)
        The model cannot be read; the latter names all operators that do not exist.
    InputError (GE-203), ShapeError (GE-201)
        A shape is missing or does not fit.
    ConfigError (GE-101), UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        A setting or the device.

    Notes
    -----
    The CPU path is run a few times on synthetic inputs, to time it. Times of GPUs are predicted
    from public measurements of their class (`gpuedge bench` measures). A software rasteriser is as
    fast as the processor of the moment, so a few small kernels are timed on it, in a process of its
    own. Probing is done if it was not yet.
    """
    config.check_environment()
    request = make_request(device, policy, fallback)
    read = OnnxModel.load(model)
    graph = read.specialise(shapes, rewrites=request.policy.rewrites)
    source = model if isinstance(model, str) else getattr(model, "__fspath__", lambda: "")()
    return _Checker(graph, request, POOL).checked(read, source or type(model).__name__)


class _Checker:
    """Collects what is said of one graph."""

    def __init__(self, graph: Graph, request: Request, pool: Pool) -> None:
        self.graph = graph
        self.request = request
        self.pool = pool
        self.places: dict[int, dict[str, Place]] = {id(n): {} for n in graph.nodes}
        cpu = pool.cpu()
        whys = {id(n): cpu.supports(n, graph) for n in graph.nodes}
        self.unknown = {i: why for i, why in whys.items() if why is not None}

    def checked(self, read: OnnxModel, source: str) -> ModelCheck:
        cpu = self._timed()
        for node in self.graph.nodes:
            self._left(node, CPU, "")
        devices = tuple(self._on(row, cpu["ns"]) for row in self._rows())
        return ModelCheck(
            source, versions(), dict(self.graph.opset),
            {n: self._type(n) for n in read.inputs}, {n: self._type(n) for n in read.outputs},
            (*map(self._node, self.graph.folded), *map(self._node, self.graph.nodes)),
            devices, cpu, self.request.fallback,
        )  # fmt: skip

    def _rows(self) -> list[ProbeRow]:
        """Return what was asked for: a device, or the best one of each level."""
        wanted = self.request.device
        if wanted == CPU:
            return []
        if wanted != AUTO:
            return [find(wanted, self.pool.current())]
        best: dict[str, ProbeRow] = {}
        for row in self.pool.current().devices:
            best.setdefault(row.backend, row)
        return list(best.values())

    def _timed(self) -> dict[str, Any]:
        """Return how long the CPU takes for the whole graph, or why it cannot run it."""
        cpu, times = self.pool.cpu(), []
        found: dict[str, Any] = {"kernel": cpu.kernel, "ns": None, "error": ""}
        if self.unknown:
            return {**found, "error": "; ".join(dict.fromkeys(self.unknown.values()))}
        try:
            made = cpu.compile(self.graph)
            feeds = samples(self.graph)
            for _ in range(RUNS + 1):
                start = clock.now_ns()
                made.run(feeds)
                times.append(clock.now_ns() - start)
            made.close()
        except GpuEdgeError as error:
            return {**found, "error": _sentence(error)}
        return {**found, "ns": median_low(times[1:])}

    def _on(self, row: ProbeRow, cpu_ns: int | None) -> DeviceCheck:
        """Return what one device makes of the graph, and note where each node runs then."""
        about = (row.device, row.backend, row.name)
        slowness = yardstick.slowness(row) if row.is_software else {}
        try:
            seen = Forecast(self.graph, row, slowness)
        except GpuEdgeError as error:  # nothing is left of the device
            return self._useless(DeviceCheck(*about, "", row.is_software, error=_sentence(error)))
        found: list[SegmentCheck] = []
        share = self._shares(seen, cpu_ns)
        for segment, ns in zip(seen.cut, share, strict=True):
            nodes = tuple(label(n) for n in segment.graph.nodes)
            if segment.device == CPU:
                found.append(SegmentCheck(CPU, nodes, 0, {}, ns))
                continue
            try:
                made = seen.plan(segment, self.request.policy)
            except GpuEdgeError as error:
                return self._useless(
                    DeviceCheck(*about, seen.speed.id, row.is_software, error=_sentence(error))
                )
            kernels = {n: s.kernel for s in made.steps for n in s.nodes}
            for node in segment.graph.nodes:
                place = Place(row.device, kernels.get(label(node), "view"))
                self.places[id(node)][row.device] = place
            where = seen.arranged(made)
            found.append(
                SegmentCheck(
                    row.device, nodes, len(made.passes), where.memory, ns, where.most_alive
                )
            )
        for node in self.graph.nodes:
            self._left(node, row.device, seen.refused.get(id(node), ""))
        taken, _ = seen.mixture(cpu_ns)
        mine = [i for i, s in enumerate(seen.cut) if s.device != CPU]
        return DeviceCheck(
            *about, seen.speed.id, row.is_software, tuple(found), seen.startup_ns(mine),
            tuple(taken), slowness=slowness,
        )  # fmt: skip

    @staticmethod
    def _shares(seen: Forecast, cpu_ns: int | None) -> list[int]:
        """Return what each segment takes where it runs, the CPU's scaled to what was measured."""
        total = sum(seen.cpu_ns)
        whole = total if cpu_ns is None else cpu_ns
        pairs = zip(seen.gpu_ns, seen.cpu_ns, strict=True)
        return [ns * whole // total if there is None else there for there, ns in pairs]

    def _useless(self, found: DeviceCheck) -> DeviceCheck:
        """Let everything run on the CPU for a device that cannot run the model."""
        for node in self.graph.nodes:
            self.places[id(node)].pop(found.device, None)
            self._left(node, found.device, found.error)
        return found

    def _left(self, node: Node, device: str, why: str) -> None:
        """Note that a node is left to the CPU, unless it has a place."""
        if device in self.places[id(node)]:
            return
        unknown = self.unknown.get(id(node))
        place = Place(CPU, self.pool.cpu().engine, why)
        if unknown is not None:
            place = Place("", "", "; ".join(filter(None, (why, f"{CPU}: {unknown}"))))
        self.places[id(node)][device] = place

    def _node(self, node: Node) -> NodeCheck:
        places = self.places.get(id(node))
        if places is None:
            asked = next(iter(self.places.values()), {CPU: Place(CPU)})
            places = dict.fromkeys(asked, Place(HOST, "folded"))
        return NodeCheck(
            label(node), node.op, node.domain, self.graph.opset.get(node.domain),
            tuple(self._type(n) for n in node.inputs if n),
            tuple(self._type(n) for n in node.outputs if n), places,
        )  # fmt: skip

    def _type(self, value: str) -> str:
        kind = self.graph.types.get(value)
        return "?" if kind is None else str(kind)


def versions() -> dict[str, str]:
    """Return the versions of gpuedge and of the packages that read and run models."""
    found = {"gpuedge": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _sentence(error: GpuEdgeError) -> str:
    return f"[{error.code}] {' '.join(error.what.split())}"
