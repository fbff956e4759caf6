"""What runs a segment of a graph: planner plus device, the CPU, or another runtime (a plug-in).

A plug-in names a class after `ExecutorPlugin` under the entry-point group ``gpuedge.executors``.
`gpuedge.executors.plugin` makes an `Executor` of what it opens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuedge.core.driver import Candidate, DeviceInfo
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


class RuntimeExecutable(Protocol):
    """A segment compiled by another runtime."""

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Compute every output of the segment, by name, with its dtype and shape.

        One call at a time, each in a thread of its own. Inputs are for reading only, and only until
        this returns. What it returns is copied before the next call.
        """

    def close(self) -> None:
        """Release what it holds."""


class Runtime(Protocol):
    """An open device of another runtime, which takes whole segments. One call at a time."""

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Return None if the runtime can run `node`, else one sentence saying why not."""

    def compile(self, segment: Graph) -> RuntimeExecutable:
        """Compile a segment whose nodes are all supported. Raises whatever it likes."""

    def close(self) -> None:
        """Release the device."""


class ExecutorPlugin(Protocol):
    """A runtime that other packages bring; made without arguments. Finds devices as a backend does.

    See `gpuedge.backends.base.Backend`: only what `open` returns is another thing.
    """

    name: str
    """The entry point's name: what device strings begin with."""

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List installations that may exist, without loading any: this runs in the application.

        `Candidate.key` tells them apart; `Candidate.fingerprint` changes with their files.
        """

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load the runtime and list its devices; first of all in a disposable process.

        ``Identity.device_type`` is ``"CPU"`` where the runtime computes in this process.
        Raises BackendUnavailableError where it is missing.
        """

    def open(self, info: DeviceInfo, **options: Any) -> Runtime:
        """Open a device; there are no options so far."""
