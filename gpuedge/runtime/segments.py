"""The compiled parts of a graph: one per segment, each able to be run on the CPU instead."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from gpuedge.core.errors import DeviceError, UnsupportedOpError
from gpuedge.executors.base import Executable, Executor, PlacementRow
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.partition import partition
from gpuedge.plan.planner import label
from gpuedge.plan.storages import Range, StoragePrecision, offers
from gpuedge.runtime.crosscheck import CrossCheck
from gpuedge.runtime.strings import CPU

if TYPE_CHECKING:
    from gpuedge.core.caps import Caps
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.runtime.request import Request

Rest = Callable[[], None]
"""Called between the steps of compiling."""

MOST_NAMED = 8
"""Nodes that an error names; of more it says how many."""

log = logging.getLogger("gpuedge")


class Part:
    """A compiled segment, and the device string of where it runs."""

    __slots__ = ("device", "executable", "graph")

    def __init__(self, graph: Graph, device: str, executable: Executable) -> None:
        self.graph = graph
        self.device = device
        self.executable = executable

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
    """Cuts a graph into segments and compiles them; `refusals` says what the device cannot run."""

    def __init__(self, graph: Graph, request: Request, cpu: Executor) -> None:
        self._graph = graph
        self._request = request
        self._cpu = cpu
        self.refusals: dict[str, str] = {}
        self._whole: list[Part] = []
        self._stand_ins: dict[tuple[str, ...], Part] = {}

    def build(
        self,
        main: Executor,
        ranges: Mapping[str, Range],
        chosen: frozenset[int] | None = None,
        rest: Rest | None = None,
    ) -> list[Part]:
        """Compile for a device; what it cannot run goes to the CPU if the request allows that.

        `chosen` has the identities of the nodes that it is to run, where that is not all it can;
        `rest` is called between the steps.
        Raises UnsupportedOpError (GE-501), KernelError (GE-3xx) and DeviceError (GE-4xx).
        """
        self.refusals.clear()
        where: dict[int, str] = {}
        for node in self._graph.nodes:
            why = main.supports(node, self._graph)
            if why is not None:
                self.refusals[label(node)] = why
            is_wanted = chosen is None or id(node) in chosen
            where[id(node)] = main.device if why is None and is_wanted else CPU
        if self.refusals and self._request.fallback == "error":
            raise self._refused(main)
        return self._compiled(main, lambda n: where[id(n)], ranges, rest)

    def _refused(self, main: Executor) -> UnsupportedOpError:
        """Return the error that names the nodes which a device cannot run."""
        by_label = {label(n): n.op for n in self._graph.nodes}
        named = [f"{by_label[name]} '{name}'" for name in self.refusals]
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        reasons: dict[str, str] = {}
        for name, why in self.refusals.items():
            reasons.setdefault(why, f"{by_label[name]}: {why}")
        return UnsupportedOpError(
            f"{', '.join(named[:MOST_NAMED])}{more} cannot run on {main.device}.",
            asked_by="fallback='error'",
            known="; ".join(list(reasons.values())[:MOST_NAMED]),
            hint="fallback='cpu' runs such nodes on the CPU",
        )

    def crosscheck(self, main: Executor) -> CrossCheck:
        """Return what compares results of a device with the CPU's, as the policy says."""
        return self._crosscheck(main, self._graph, self._request.policy.crosscheck)

    def differs(
        self,
        main: Executor,
        parts: Iterable[Part],
        inputs: Mapping[str, Array],
        rest: Rest,
    ) -> str | None:
        """Run once, and say what is wrong with what the device makes of it; None if nothing is.

        Segment by segment: what the CPU alone knows lies between them.
        """
        values: dict[str, Array] = dict(inputs)
        for part in parts:
            feed = {name: values[name] for name in part.graph.inputs}
            made = part.executable.run(feed)
            rest()
            if part.device != CPU:
                check = self._crosscheck(main, part.graph, 1.0)
                said = check.compare(feed, made, self.stand_in(part).executable.run)
                rest()
                if said is not None:
                    return said
            values |= made
        return None

    def _crosscheck(self, main: Executor, graph: Graph, share: float) -> CrossCheck:
        policy = self._request.policy
        kept = policy.storage if offers_storage(main, policy.storage) else "float32"
        return CrossCheck(graph, share, self._cpu, storage=kept)

    def on_cpu(self) -> list[Part]:
        """Return the whole graph compiled for the CPU, as where the CPU was chosen; once."""
        if not self._whole:
            for node in self._graph.nodes:
                why = self._cpu.supports(node, self._graph)
                if why is not None:
                    raise UnsupportedOpError(
                        f"Nothing here can run {node.op} '{label(node)}'.", known=f"{CPU}: {why}"
                    )
            self._whole = self._compiled(self._cpu, lambda _: CPU, {})
        return self._whole

    def stand_in(self, part: Part) -> Part:
        """Return a segment compiled for the CPU: itself if it is, else once for all."""
        if part.device == CPU:
            return part
        key = part.graph.outputs
        if key not in self._stand_ins:
            self._stand_ins[key] = Part(part.graph, CPU, self._cpu.compile(part.graph))
        return self._stand_ins[key]

    def forget(self) -> list[object]:
        """Forget what was compiled for the CPU without closing it; return it to be kept."""
        kept: list[object] = [self._whole, self._stand_ins]
        self._whole, self._stand_ins = [], {}
        return kept

    def close(self) -> None:
        """Release what was compiled for the CPU."""
        close_all([*self._whole, *self._stand_ins.values()])
        self.forget()

    def _compiled(
        self,
        main: Executor,
        where: Callable[[Node], str],
        ranges: Mapping[str, Range],
        rest: Rest | None = None,
    ) -> list[Part]:
        parts: list[Part] = []
        try:
            for segment in partition(self._graph, where):
                executor = main if segment.device == main.device else self._cpu
                made = self._one(segment.graph, executor, ranges, rest)
                parts.append(Part(segment.graph, segment.device, made))
        except BaseException:
            close_all(parts)
            raise
        return parts

    def _one(
        self,
        segment: Graph,
        executor: Executor,
        ranges: Mapping[str, Range],
        rest: Rest | None,
    ) -> Executable:
        """Compile a segment, with tensors kept as the policy says where the device offers that."""
        if executor.device == CPU:
            return executor.compile(segment)
        policy = self._request.policy
        options: dict[str, Any] = {}
        if offers_storage(executor, policy.storage):
            options["precision"] = StoragePrecision(policy.storage, ranges)
        if policy.watchdog_s is not None:
            options["watchdog_s"] = policy.watchdog_s
        if rest is not None:
            options["rest"] = rest
        made = cast("GpuExecutor", executor).compile(segment, **options)
        if policy.watchdog_s is not None:
            made.watchdog.fix(policy.watchdog_s)
        return made


def offers_storage(executor: Executor, storage: str) -> bool:
    """Tell whether a device keeps tensors as a policy asks for."""
    caps: Caps | None = getattr(executor, "caps", None)
    return caps is not None and offers(caps, storage)


def rows_of(graph: Graph, parts: Iterable[Part]) -> tuple[PlacementRow, ...]:
    """Return a row per executed node or fused group, after those folded while reading."""
    folded = (PlacementRow((label(n),), (n.op,), "host", "folded") for n in graph.folded)
    return (*folded, *(row for part in parts for row in part.rows))


def watchdog_of(parts: Iterable[Part]) -> float | None:
    """Return after how many seconds a run of a part counts as hung; None without a device."""
    dogs = [getattr(part.executable, "watchdog", None) for part in parts]
    return max((dog.limit_s for dog in dogs if dog is not None), default=None)


def has_copies(graph: Graph) -> bool:
    """Tell whether a graph has outputs that no node computes."""
    made = {name for node in graph.nodes for name in node.outputs}
    return not made.issuperset(graph.outputs)


def outputs_of(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return a graph's outputs; what no node computes is copied: results are the caller's."""
    found: dict[str, Array] = {}
    for name in graph.outputs:
        array = values[name] if name in values else graph.constants[name]
        is_given = name not in values or name in graph.inputs
        found[name] = array.copy() if is_given else array
    return found
