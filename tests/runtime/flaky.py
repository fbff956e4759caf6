"""A GPU that computes rightly, on the CPU in truth, and fails exactly when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from runtime_fakes import SOON, FakePool

from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    OutOfMemoryError,
)
from gpuedge.decide.policy import Policy
from gpuedge.executors.base import Executable, Executor, PlacementRow
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, Node, TensorType
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import RetryLimits
from gpuedge.runtime.request import Request

TRACE = np.float32(1 + 2**-20)
"""What the flaky device multiplies its results by, so that they can be told from the CPU's."""

Script = Sequence[BaseException | None]
"""What each run of a device raises, in order (None: it works); afterwards all work."""


class FlakyExecutor:
    """Implements what `GpuExecutor` is to the runtime.

    Attributes
    ----------
    script : list
        What its next runs raise, or None.
    runs : int
        Segments that were begun on it, over all executables.
    executables : list of FlakyExecutable
        What was compiled on it.
    """

    isolation = "inline"

    def __init__(self, script: Script, *, refuses: frozenset[str] = frozenset()) -> None:
        self.device = "vulkan:0"
        self.closed = self.released = self.is_hung = False
        self.runs = 0
        self.executables: list[FlakyExecutable] = []
        self.factor = TRACE
        self.closing = threading.Event()
        self.closing.set()
        self.script = list(script)
        self._refuses = refuses
        self._cpu = CpuExecutor()

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Refuse the operators that were named, so that graphs have several segments."""
        return f"no kernel for {node.op}" if node.op in self._refuses else None

    def compile(self, segment: Graph, **_: object) -> Executable:
        """Compile on the CPU."""
        return FlakyExecutable(self, self._cpu.compile(segment))

    def step(self) -> None:
        """Begin a run, or fail."""
        self.runs += 1
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error

    def retire(self) -> None:
        """Let nothing start any more."""
        self.closed = True

    def close(self) -> None:
        """Close, as soon as `closing` is set."""
        self.closed = True
        self.closing.wait(10)
        self.released = True


class FlakyExecutable:
    """A segment on a flaky device."""

    def __init__(self, executor: FlakyExecutor, inner: Executable) -> None:
        self.executor = executor
        executor.executables.append(self)
        self.rows = tuple(
            PlacementRow(r.nodes, r.ops, executor.device, "flaky") for r in inner.rows
        )
        self.is_closed = False
        self._inner = inner

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute, or fail."""
        assert not self.is_closed
        self.executor.step()
        made = self._inner.run(inputs)
        return {name: value * self.executor.factor for name, value in made.items()}

    def close(self) -> None:
        """Close."""
        self.is_closed = True
        self._inner.close()


class FlakyPool(FakePool):
    """A pool whose GPU follows one script per opening; the last one repeats.

    Attributes
    ----------
    opened : list of FlakyExecutor
        Every device that was opened, in order.
    """

    def __init__(
        self,
        *scripts: Script,
        refuses: Sequence[str] = (),
        limits: RetryLimits = SOON,
        opening: Sequence[BaseException | None] = (),
    ) -> None:
        super().__init__(limits=limits)
        self.opened: list[FlakyExecutor] = []
        self.scripts = list(scripts)
        self._refuses = frozenset(refuses)
        self._opening_errors = list(opening)

    def _open_gpu(self, name: str, isolation: str) -> Executor:
        error = self._opening_errors.pop(0) if self._opening_errors else None
        if error is not None:
            raise error
        script = self.scripts.pop(0) if self.scripts else ()
        made = FlakyExecutor(script, refuses=self._refuses)
        made.isolation = isolation
        self.opened.append(made)
        return made  # type: ignore[return-value]


X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 12)
LOST = DeviceLostError("The device was lost.")
HUNG = DeviceTimeoutError("Work did not finish.")
EXHAUSTED = OutOfMemoryError("No memory.")
REFUSED = DriverError("The driver refused.")
DIED = DeviceLostError("The worker ended with SIGSEGV.", reason="worker-died")
PLAIN = Policy(crosscheck=0.0)
NEVER = RetryLimits(pauses_s=(60.0,))
"""So patient that nothing comes back within a test."""


def graph(*ops: str) -> Graph:
    builder = GraphBuilder()
    value = builder.input("x", TensorType("float32", (2, 12)))
    for op in ops:
        value = builder.add(op, [value])
    builder.output(value)
    return builder.build()


CHAIN = ("Neg", "Abs", "Neg", "Abs", "Neg")
"""Exact, so that the trace of the device stays visible.

With Abs refused: three segments on the device and two on the CPU between them.
"""


def made(
    pool: FlakyPool, *ops: str, fallback: str = "cpu", policy: Policy = PLAIN
) -> CompiledModel:
    return CompiledModel(graph(*(ops or ("Exp",))), Request("vulkan", policy, fallback), pool)


def result(compiled: CompiledModel, x: np.ndarray = X) -> np.ndarray:
    return next(iter(compiled.run({"x": x}).values()))


def cpu(*ops: str, x: np.ndarray = X) -> np.ndarray:
    return result(CompiledModel(graph(*(ops or ("Exp",))), Request("cpu"), FlakyPool()), x)


def until(holds: Callable[[], bool]) -> None:
    """Wait for what a thread brings about."""
    end = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)
