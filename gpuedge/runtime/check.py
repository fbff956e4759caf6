"""A page about a model: where each of its operators would run, why not elsewhere, and at what cost.

Made of what the planner, the partition and the predictions say; no device is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING, Any

from gpuedge import __version__, backends
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.packed import PackedModel, read_model
from gpuedge.graph.reader import Model
from gpuedge.plan.planner import label
from gpuedge.runtime import check_text, clock, yardstick
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.forecast import Forecast
from gpuedge.runtime.golden import verified
from gpuedge.runtime.inputs import given_shapes, samples
from gpuedge.runtime.request import Request, make_request
from gpuedge.runtime.strings import AUTO, CPU, caps_of
from gpuedge.safety.machine import package_versions

if TYPE_CHECKING:
    import os

    import onnx

    from gpuedge.core.words import DeviceName, Fallback
    from gpuedge.decide.policy import Policy
    from gpuedge.executors.cpu import CpuExecutor
    from gpuedge.probing.report import ProbeRow

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
class PackCheck:
    """What a packed model is, and what came of its golden values.

    Attributes
    ----------
    gpuedge, format, language : str, int and int
        Versions of what packed it, of the file and of its kernels.
    model, sha256 : str
        Name and hash of the model that was packed.
    kernels : int
        Printed kernels in it that can be used here.
    notes : tuple of str
        What of it is not used here, and why.
    golden : dict of str to str
        By device what is wrong with its results, or why they were not compared; empty where they
        are right. Nothing for models without golden values.
    """

    gpuedge: str
    format: int
    language: int
    model: str
    sha256: str
    kernels: int
    notes: tuple[str, ...]
    golden: Mapping[str, str]


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
    pack : PackCheck or None
        Of a packed model, which versions made it and whether its golden values come out right.
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
    pack: PackCheck | None = None

    @property
    def is_ok(self) -> bool:
        """Whether every node has a device to run on, of those that `fallback` allows.

        Of a packed model, whether its golden values come out right as well.
        """
        if self.pack is not None and any(self.pack.golden.values()):
            return False
        asked = {d.device: d.error for d in self.devices} or {CPU: self.cpu["error"]}
        may_move = self.fallback == "cpu"
        allowed = (HOST, CPU) if may_move else (HOST,)
        return any(
            all(n.places[device].device in (device, *allowed) for n in self.nodes)
            and not (error and (device == CPU or not may_move))
            for device, error in asked.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        fields = asdict(self)
        for record, device in zip(fields["devices"], self.devices, strict=True):
            record |= {"nbytes": device.nbytes, "predicted_ns": device.predicted_ns}
        return {"schema": SCHEMA, "is_ok": self.is_ok, **fields}

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        return check_text.as_text(self)


def check(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    device: DeviceName | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    policy: Policy | None = None,
    fallback: Fallback | None = None,
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
    own. Probing is done if it was not yet. The golden values of a packed model are computed on the
    CPU and on each device, whose driver has a process of its own.
    """
    config.check_environment()
    request = make_request(device, policy, fallback)
    opened = read_model(model)
    graph = opened.specialise(given_shapes(shapes, opened), rewrites=request.policy.rewrites)
    checker = _Checker(graph, request.policy, POOL.cpu())
    cpu = checker.on_cpu()
    by_device = [checker.on_device(row, cpu["ns"]) for row in _rows(request)]
    source = model if isinstance(model, str) else getattr(model, "__fspath__", lambda: "")()
    packages = package_versions(PACKAGES).items()
    versions = {"gpuedge": __version__, **{n: now or "not installed" for n, now in packages}}
    return ModelCheck(
        source or type(model).__name__, versions, dict(graph.opset),
        {n: checker.type_of(n) for n in opened.inputs},
        {n: checker.type_of(n) for n in opened.outputs},
        tuple(checker.nodes({CPU: {}} | {d.device: places for d, places in by_device})),
        tuple(d for d, _ in by_device), cpu, request.fallback,
        _packed(opened, graph, request, [d.device for d, _ in by_device if not d.error]),
    )  # fmt: skip


def _packed(
    model: Model, graph: Graph, request: Request, devices: Sequence[str]
) -> PackCheck | None:
    """Return what there is to say of a packed model; None of any other."""
    if not isinstance(model, PackedModel):
        return None
    about = model.about
    return PackCheck(
        about.gpuedge, about.format, about.language, about.model, about.sha256,
        len(model.kernels), model.notes, verified(model, graph, request, devices),
    )  # fmt: skip


def _rows(request: Request) -> list[ProbeRow]:
    """Return what was asked for: a device, or the best one of each level."""
    if request.device == CPU:
        return []
    if request.device != AUTO:
        row = POOL.named(request.device, request.backends)
        if backends.is_executor(row.backend):
            caps_of(row)  # which says that there is nothing to plan
        return [row]
    best: dict[str, ProbeRow] = {}
    for row in POOL.current(request.backends).devices:
        best.setdefault(row.backend, row)
    return [row for row in best.values() if not backends.is_executor(row.backend)]


class _Checker:
    """Tells of one graph what becomes of it on the CPU and on devices."""

    def __init__(self, graph: Graph, policy: Policy, cpu: CpuExecutor) -> None:
        self.graph = graph
        self.policy = policy
        self.cpu = cpu
        whys = {id(n): cpu.supports(n, graph) for n in graph.nodes}
        self.unknown = {i: why for i, why in whys.items() if why is not None}

    def on_cpu(self) -> dict[str, Any]:
        """Return how long the CPU takes for the whole graph, or why it cannot run it."""
        told: dict[str, Any] = {"kernel": self.cpu.kernel, "ns": None, "error": ""}
        if self.unknown:
            return {**told, "error": "; ".join(dict.fromkeys(self.unknown.values()))}
        times = []
        try:
            with closing(self.cpu.compile(self.graph)) as executable:
                feeds = samples(self.graph)
                for _ in range(RUNS + 1):
                    start = clock.now_ns()
                    executable.run(feeds)
                    times.append(clock.now_ns() - start)
        except GpuEdgeError as error:
            return {**told, "error": _sentence(error)}
        return {**told, "ns": median_low(times[1:])}

    def on_device(self, row: ProbeRow, cpu_ns: int | None) -> tuple[DeviceCheck, dict[int, Place]]:
        """Return what one device makes of the graph, and where each node runs then."""
        device = DeviceCheck(row.device, row.backend, row.name, "", row.is_software)
        slowness = yardstick.slowness(row) if row.is_software else {}
        try:
            forecast = Forecast(self.graph, row, self.policy, slowness)
            kernels = dict(_kernels(forecast))
        except GpuEdgeError as error:  # nothing is left of the device, or it cannot run a segment
            device = replace(device, error=_sentence(error))
            return device, {id(n): self.left(n, device.error) for n in self.graph.nodes}
        refused = forecast.refused
        places = {
            id(n): self.left(n, refused[id(n)]) if id(n) in refused
            else Place(row.device, kernels[id(n)])
            for n in self.graph.nodes
        }  # fmt: skip
        ours = [i for i, segment in enumerate(forecast.cut) if segment.device != CPU]
        return replace(
            device, speeds=forecast.speed.id, slowness=slowness,
            segments=tuple(_segments(forecast, cpu_ns)), startup_ns=forecast.startup_ns(ours),
            auto=tuple(forecast.mixture(cpu_ns)[0]),
        ), places  # fmt: skip

    def left(self, node: Node, why: str = "") -> Place:
        """Return the place of a node that is left to the CPU."""
        unknown = self.unknown.get(id(node))
        if unknown is None:
            return Place(CPU, self.cpu.engine, why)
        return Place("", "", "; ".join(filter(None, (why, f"{CPU}: {unknown}"))))

    def nodes(self, by_device: Mapping[str, Mapping[int, Place]]) -> Iterator[NodeCheck]:
        """Yield every node with its places; those evaluated while planning come first."""
        for node in self.graph.folded:
            yield self._node(node, dict.fromkeys(by_device, Place(HOST, "folded")))
        for node in self.graph.nodes:
            places = {d: known.get(id(node)) or self.left(node) for d, known in by_device.items()}
            yield self._node(node, places)

    def _node(self, node: Node, places: Mapping[str, Place]) -> NodeCheck:
        return NodeCheck(
            label(node), node.op, node.domain, self.graph.opset.get(node.domain),
            tuple(self.type_of(n) for n in node.inputs if n),
            tuple(self.type_of(n) for n in node.outputs if n), places,
        )  # fmt: skip

    def type_of(self, value: str) -> str:
        """Return the type of a value as text, ``?`` where it is not known before running."""
        return str(self.graph.types.get(value) or "?")


def _kernels(forecast: Forecast) -> Iterator[tuple[int, str]]:
    """Yield the nodes that a device runs, by their identity, with their kernels."""
    for segment, plan in zip(forecast.cut, forecast.plans, strict=True):
        if plan is not None:
            kernels = {name: step.kernel for step in plan.steps for name in step.nodes}
            yield from ((id(n), kernels.get(label(n), "view")) for n in segment.graph.nodes)


def _segments(forecast: Forecast, cpu_ns: int | None) -> Iterator[SegmentCheck]:
    """Yield the segments, with what each takes."""
    for segment, ns, plan, arranged in zip(
        forecast.cut, forecast.segments_ns(cpu_ns), forecast.plans, forecast.arrangements,
        strict=True,
    ):  # fmt: skip
        nodes = tuple(map(label, segment.graph.nodes))
        if plan is None or arranged is None:
            yield SegmentCheck(CPU, nodes, 0, {}, ns)
        else:
            launches, most = len(plan.passes), arranged.most_alive
            yield SegmentCheck(segment.device, nodes, launches, arranged.memory, ns, most)


def _sentence(error: GpuEdgeError) -> str:
    return f"[{error.code}] {' '.join(error.what.split())}"
