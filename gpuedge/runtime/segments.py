"""The compiled parts of a graph: one per segment, each able to be run on the CPU instead."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gpuedge.core.errors import DeviceError
from gpuedge.core.text import counted
from gpuedge.executors.base import Executable, Executor, PlacementRow, Progress, Work
from gpuedge.graph.checks import checks_of
from gpuedge.graph.expand import operator_of
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.offenders import refusal
from gpuedge.graph.partition import Segment, partition
from gpuedge.graph.shaped import ShapedModel
from gpuedge.opset.call import node_label
from gpuedge.plan.planner import label
from gpuedge.plan.storages import EXACT, Range, StoragePrecision, lacks, offers
from gpuedge.plan.tuned import UNTUNED, Effort, Tunings, label_of
from gpuedge.runtime.crosscheck import CrossCheck
from gpuedge.runtime.strings import CPU

if TYPE_CHECKING:
    from gpuedge.core.caps import Caps
    from gpuedge.decide.policy import Policy
    from gpuedge.decide.speeds import Speeds
    from gpuedge.executors.cpu import CpuExecutor
    from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
    from gpuedge.executors.plugin import PluginExecutor
    from gpuedge.runtime.request import Request
    from gpuedge.runtime.tuner import Tuner

WHOLE = "whole"
"""Key of what computes the whole graph."""

log = logging.getLogger("gpuedge")


class Part:
    """A compiled segment, and the device string of where it runs."""

    __slots__ = ("checks", "device", "executable", "graph")

    def __init__(self, graph: Graph, device: str, executable: Executable) -> None:
        self.graph = graph
        self.device = device
        self.executable = executable
        self.checks = () if device == CPU else checks_of(graph)

    @property
    def rows(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group."""
        return self.executable.rows

    def close(self) -> None:
        """Release what was compiled; may be called twice."""
        try:
            self.executable.close()
        except DeviceError as error:
            log.debug("while closing: %s", error)


def close_all(parts: Iterable[Part]) -> None:
    """Close parts, whatever their drivers say to it."""
    for part in parts:
        part.close()


class Segments:
    """Cuts a model into segments and compiles them; `refusals` says what the device cannot run."""

    def __init__(self, model: ShapedModel, request: Request, cpu: CpuExecutor) -> None:
        self.model = model
        self._request = request
        self._cpu = cpu
        self.refusals: dict[str, str] = {}
        self._known: Tunings | None = None  # of the kernels of the device, once it was asked for
        self._on_cpu: dict[object, Executable] = {}  # by inputs and outputs; the whole by WHOLE

    def build(
        self,
        main: Executor,
        ranges: Mapping[str, Range],
        chosen: frozenset[int] | None = None,
        progress: Progress | None = None,
    ) -> list[Part]:
        """Compile for a device; what it cannot run goes to the CPU if the request allows that.

        `chosen` has the identities of the nodes that it is to run, where that is not all it can;
        `progress` is called between the steps.
        Raises UnsupportedOpError (GE-501), KernelError (GE-3xx) and DeviceError (GE-4xx).
        """
        parts: list[Part] = []
        try:
            for segment in self._cut(main, chosen):
                executor = main if segment.device == main.device else self._cpu
                executable = self._compile(segment.graph, executor, ranges, progress)
                parts.append(Part(segment.graph, segment.device, executable))
        except BaseException:
            close_all(parts)
            raise
        return parts

    def tune(
        self,
        main: GpuExecutor,
        chosen: frozenset[int] | None = None,
        progress: Progress | None = None,
        **how: Any,
    ) -> Tuner:
        """Time the kernels of what `build` compiles, as the policy says; `how` is for `Tuner`.

        Raises GpuEdgeError.
        """
        from gpuedge.runtime.tuner import Tuner

        policy = self._request.policy
        tuner = Tuner(
            main, self._cpu, cast("Effort", policy.tune), progress or (lambda *_: None),
            most_bytes=policy.max_memory_bytes, **how,
        )  # fmt: skip
        for segment in self._cut(main, chosen):
            if segment.device != CPU:
                precision = self._precision(main, {})
                tuner.tune(segment.graph, precision, rewrites=policy.rewrites)
        self._known = tuner.known
        return tuner

    def _cut(self, main: Executor, chosen: frozenset[int] | None) -> tuple[Segment, ...]:
        """Return the segments of a device and of the CPU. Raises UnsupportedOpError (GE-501)."""
        graph = self.model.graph
        reasons = {id(n): why for n in graph.nodes if (why := main.supports(n, graph)) is not None}
        self.refusals = {label(n): reasons[id(n)] for n in graph.nodes if id(n) in reasons}
        if reasons and self._request.fallback == "error":
            raise refusal(
                graph, reasons, f"cannot run on {main.device}", asked_by="fallback='error'",
                hint="fallback='cpu' runs such nodes on the CPU",
            )  # fmt: skip
        others = [n for n in graph.nodes if chosen is not None and id(n) not in chosen]
        reasons = {**{id(n): "that is predicted to be faster" for n in others}, **reasons}
        self._log_nodes_on_cpu(main.device, reasons)
        return partition(graph, lambda n: CPU if id(n) in reasons else main.device)

    def _tuned(self, executor: GpuExecutor) -> Tunings:
        """Return what is known of the kernels of a device, where the policy wants that."""
        if self._request.policy.tune == "off":
            return UNTUNED
        if self._known is None:
            from gpuedge.runtime import tunings

            self._known = tunings.kept(executor.impl.info.identity)
        return self._known

    def _log_nodes_on_cpu(self, device: str, reasons: Mapping[int, str]) -> None:
        """Log which nodes run on the CPU, once for all shapes of a session."""
        for node in (n for n in self.model.graph.nodes if id(n) in reasons):
            what = node_label(node.op, node.name, node.outputs)
            line = f"{what} runs on the CPU, not on {device}: {reasons[id(node)]}"
            if line not in self._request.told:
                self._request.told.add(line)
                log.info("%s", line)

    @property
    def is_checked(self) -> bool:
        """Whether results are to be compared with the CPU's."""
        return self._request.policy.crosscheck > 0

    def crosscheck(self, main: Executor) -> CrossCheck:
        """Return what compares results of a device with the CPU's, as the policy says."""
        return self._crosscheck(main, self.model.graph, self._request.policy.crosscheck)

    def differs(
        self,
        main: Executor,
        parts: Iterable[Part],
        inputs: Mapping[str, Array],
        pause: Callable[[], None],
    ) -> tuple[str | None, str]:
        """Run once; return how the device's results differ, and what could not be compared.

        None where they do not, and empty where all was compared. Segment by segment: what the CPU
        alone computes lies between them. `pause` is called between the steps.
        """
        values: dict[str, Array] = dict(inputs)
        note = ""
        for part in parts:
            feed = {name: values[name] for name in part.graph.inputs}
            outputs = part.executable.run(feed)
            pause()
            if part.device != CPU:
                check = self._crosscheck(main, part.graph, 1.0)
                difference = check.compare(feed, outputs, self.stand_in(part).run)
                pause()
                if difference is not None:
                    return difference, ""
                note = note or check.note
            values |= outputs
        return None, note

    def _crosscheck(self, main: Executor, graph: Graph, share: float) -> CrossCheck:
        kept = self._precision(main, {})
        return CrossCheck(graph, share, self._cpu, storage=kept.kind, arithmetic=kept.arithmetic)

    def _precision(self, executor: Executor, ranges: Mapping[str, Range]) -> StoragePrecision:
        """Return how a device keeps and computes tensors: as the policy says where it can."""
        caps: Caps | None = getattr(executor, "caps", None)
        return EXACT if caps is None else precision_of(
            self._request.policy, caps, self.model.graph, ranges
        )  # fmt: skip

    def on_cpu(self) -> Executable:
        """Return the whole model compiled for the CPU, as where the CPU was chosen; once."""
        whole = self._on_cpu.get(WHOLE)
        if whole is None:
            whole = self._on_cpu[WHOLE] = self._cpu.load(self.model)
        return whole

    def stand_in(self, part: Part) -> Executable:
        """Return a segment compiled for the CPU: itself if it is, else once for all."""
        if part.device == CPU:
            return part.executable
        key = part.graph.inputs, part.graph.outputs
        if key not in self._on_cpu:
            self._on_cpu[key] = self._cpu.compile(part.graph)
        return self._on_cpu[key]

    def forget(self) -> list[object]:
        """Forget what was compiled for the CPU without closing it; return it to be kept."""
        kept, self._on_cpu = self._on_cpu, {}
        return [kept]

    def close(self) -> None:
        """Release what was compiled for the CPU."""
        for executable in self._on_cpu.values():
            executable.close()
        self.forget()

    def _compile(
        self,
        segment: Graph,
        executor: Executor,
        ranges: Mapping[str, Range],
        progress: Progress | None,
    ) -> Executable:
        """Compile a segment, as exactly as the policy says where the device offers that."""
        if executor.device == CPU:
            return executor.compile(segment)
        policy = self._request.policy
        if getattr(executor, "caps", None) is None:  # another runtime, which plans for itself
            made = cast("PluginExecutor", executor).compile(segment, progress or (lambda *_: None))
            if policy.watchdog_s is not None:
                made.watchdog.fix(policy.watchdog_s)
            return made
        options: dict[str, Any] = {}
        precision = self._precision(executor, ranges)
        if precision != EXACT:
            options["precision"] = precision
        if policy.watchdog_s is not None:
            options["watchdog_s"] = policy.watchdog_s
        if progress is not None:
            options["progress"] = progress
        if not policy.rewrites:
            options["rewrites"] = False
        if self._request.stays:
            options["stays"] = True
        gpu = cast("GpuExecutor", executor)
        if tuned := self._tuned(gpu):
            options["tuned"] = tuned
        if self.model.kernels:
            options["known"] = self.model.kernels
        executable = gpu.compile(segment, **options)
        if policy.watchdog_s is not None:
            executable.watchdog.fix(policy.watchdog_s)
        dog = getattr(executable, "watchdog", None)
        if dog is not None:
            predict = partial(_predicted_s, segment, executable.executor)
            dog.expect(predict, partial(_compile_s, executable))
        return executable


def _predicted_s(graph: Graph, executor: GpuExecutor) -> float:
    """Return what a run is predicted to take, without what drivers compile in the first one."""
    from gpuedge.decide.speeds import predict
    from gpuedge.graph.cost import count

    backend = executor.impl.info.candidate.backend
    return predict(Work(**count(graph)), _speeds(executor), backend) / 1e9


def _compile_s(executable: GpuExecutable) -> float:
    """Return what drivers are predicted to spend on compiling in a first run."""
    return len(executable.plan.passes) * _speeds(executable.executor).compile_ns / 1e9


def _speeds(executor: GpuExecutor) -> Speeds:
    from gpuedge.decide.speeds import class_of, speeds_of

    return speeds_of(class_of(executor.impl.info.identity))


def precision_of(
    policy: Policy, caps: Caps, graph: Graph, ranges: Mapping[str, Range]
) -> StoragePrecision:
    """Return how a device keeps and computes the tensors of a graph under a policy.

    What a graph with integer operators computes is the same everywhere, so it stays as it is.
    """
    is_kept = offers(caps, policy.storage)
    is_float = not lacks(caps, policy.arithmetic) and not has_integers(graph)
    return StoragePrecision(
        policy.storage if is_kept else EXACT.kind, ranges if is_kept else {},
        policy.arithmetic if is_float else EXACT.arithmetic,
    )  # fmt: skip


def not_half(policy: Policy, caps: Caps, graph: Graph) -> str:
    """Return why a device computes in float32 though the policy asks for float16; else empty."""
    if policy.arithmetic == "float32":
        return ""
    why = lacks(caps, policy.arithmetic)
    if not why and has_integers(graph):
        why = "models with integer operators are computed as they are"
    return f"computes in float32: {why}" if why else ""


def has_integers(graph: Graph) -> bool:
    """Tell whether a graph has operators of quantised models."""
    known = map(operator_of, graph.nodes)
    return any(operator is not None and operator.is_quantised for operator in known)


def offers_storage(executor: Executor, storage: str) -> bool:
    """Tell whether a device keeps tensors as a policy asks for."""
    caps: Caps | None = getattr(executor, "caps", None)
    return caps is not None and offers(caps, storage)


def rows_of(graph: Graph, parts: Iterable[Part | Executable]) -> tuple[PlacementRow, ...]:
    """Return a row per executed node or fused group, after those folded while reading."""
    folded = (PlacementRow((label(n),), (n.op,), "host", "folded") for n in graph.folded)
    return (*folded, *(row for part in parts for row in part.rows))


def memory_of(parts: Iterable[Part | Executable]) -> dict[str, int] | None:
    """Return the bytes of device memory that parts take, by what they are for; None for none."""
    nbytes: Counter[str] = Counter()
    for part in parts:
        nbytes.update(getattr(getattr(part, "executable", part), "memory", {}))
    return dict(nbytes) or None


def tuned_of(parts: Iterable[Part]) -> str:
    """Return which kernels of parts were tuned and by how much; empty if none was."""
    plans = (getattr(part.executable, "plan", None) for part in parts)
    choices = {key: c for plan in plans if plan is not None for key, c in plan.choices.items()}
    timed = {key: c.tuned for key, c in choices.items() if c.tuned and c.tuned.effort != "none"}
    told = []
    for key, kernel in timed.items():
        used, label_ = choices[key].variants[0], label_of(key)
        if used != kernel.usual:
            is_best = used == kernel.variant
            how = f"is {kernel.gain:.2f} times as fast by" if is_best else "is computed by"
            told.append(f"{label_} {how} {used}")
    same = len(timed) - len(told)
    told += [f"{counted(same, 'kernel')} stayed as usual"] if same else []
    return f"tuned: {', '.join(told)}" if told else ""


def watchdog_of(parts: Iterable[Part]) -> float | None:
    """Return after how many seconds a run of a part counts as hung; None without a device."""
    dogs = [getattr(part.executable, "watchdog", None) for part in parts]
    return max((dog.limit_s for dog in dogs if dog is not None), default=None)


def has_copies(graph: Graph) -> bool:
    """Tell whether a graph has outputs that no node computes."""
    computed = {name for node in graph.nodes for name in node.outputs}
    return not computed.issuperset(graph.outputs)
