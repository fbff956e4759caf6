"""Something that can run a segment of a graph: the GPU (planner plus any device), or the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuedge.graph.ir import Array, Graph, Node

Progress = Callable[[str, int, int], None]
"""Called between steps with their kind, how many of them are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a segment costs, as counted from its plan: the input of the cost model.

    `flops` counts floating-point operations per kernel class (``conv``, ``matmul``, ``map``);
    `bytes_moved` is device memory traffic, `bytes_in`/`bytes_out` cross between host and device.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    bytes_moved: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    launches: int = 0


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Where one executed node or fused group ran: node names, device string, kernel variant.

    `storage` names how the device keeps what the row computes (`gpuedge.core.storage`), several
    joined by ``+``; empty where the CPU or the planning host has it.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    device: str
    kernel: str
    storage: str = ""


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a step of a run took: a fused group, an upload, a download, an empty submission.

    Nanoseconds of this process's clock (`time.perf_counter_ns`), from handing the step over until
    it was done. `nbytes` are those of the tensors that it reads and writes.
    """

    row: PlacementRow
    start_ns: int
    ns: int
    nbytes: int


class Executable(Protocol):
    """A compiled segment. `run` may be called any number of times; one call at a time."""

    @property
    def rows(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs; inputs have exactly the graph's types. Raises DeviceError."""

    def timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[StepTime]]:
        """Compute the outputs step by step, waiting for each; return what each took as well.

        More inputs than the graph's may be given. Raises DeviceError.
        """

    def close(self) -> None:
        """Release what it holds; may be called twice."""


class Executor(Protocol):
    """Compiles segments for one device."""

    device: str

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Return None if this executor can run `node`, else one sentence saying why not."""

    def compile(self, segment: Graph) -> Executable:
        """Compile a segment whose nodes are all supported. Raises GpuEdgeError."""

    def close(self) -> None:
        """Release the device; may be called twice."""
