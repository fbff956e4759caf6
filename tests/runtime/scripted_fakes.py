"""A GPU and a CPU that compute rightly and take as long as they are told, on their own clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flaky import FlakyExecutable, FlakyExecutor, FlakyPool, X, graph, result

from gpuedge.decide import speeds
from gpuedge.decide.policy import Policy
from gpuedge.executors.base import Executable, Executor
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Array, Graph
from gpuedge.runtime.background import Background
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.request import Request


class FakeClock:
    """Integer nanoseconds; moves only when something takes time on it."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


class Timed:
    """An executable whose runs take what `seconds` says."""

    def __init__(self, inner: Executable, spend: Callable[[], None]) -> None:
        self.inner = inner
        self.rows = inner.rows
        self._spend = spend

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute, and spend time on the clock."""
        self._spend()
        return self.inner.run(inputs)

    def close(self) -> None:
        """Close."""
        self.inner.close()


class ScriptedCpu(CpuExecutor):
    """The CPU path of a scripted pool."""

    def __init__(self, pool: ScriptedPool) -> None:
        super().__init__()
        self._pool = pool

    def compile(self, segment: Graph) -> Executable:
        """Compile as ever; runs take the pool's time."""
        return Timed(super().compile(segment), lambda: self._pool.spend("cpu", len(segment.nodes)))


class ScriptedGpu(FlakyExecutor):
    """The GPU of a scripted pool; `factor` is what its results are multiplied by."""

    def __init__(self, pool: ScriptedPool, script: Any = (), **more: Any) -> None:
        super().__init__(script, **more)
        self.factor = pool.factor
        self._pool = pool

    def compile(self, segment: Graph, **_: object) -> Executable:
        """Compile on the CPU; compiling and runs take the pool's time."""
        self._pool.clock.spend(self._pool.compile_s)
        inner = FlakyExecutable(self, CpuExecutor().compile(segment))
        return Timed(inner, lambda: self._pool.spend(self.device, len(segment.nodes)))


class ScriptedPool(FlakyPool):
    """A pool of one GPU and the CPU; `seconds` may be changed at any time.

    Attributes
    ----------
    seconds : dict
        By ``cpu``, ``gpu`` or a device's name: what one run takes there, however large it is; one
        node where `is_by_node`.
    spent : dict
        What all runs took.
    """

    def __init__(self, clock: FakeClock, cpu_s: float, gpu_s: float, **more: Any) -> None:
        super().__init__(**more)
        self.clock = clock
        self.seconds = {"cpu": cpu_s, "gpu": gpu_s}
        self.spent: Counter[str] = Counter(cpu=0, gpu=0)
        self.runs: Counter[str] = Counter(cpu=0, gpu=0)
        self.compile_s = 0.01
        self.is_by_node = False
        self.factor: float = 1.0
        self._made_cpu = ScriptedCpu(self)

    def spend(self, alternative: str, nodes: int) -> None:
        """Take the time of one run."""
        alternative = alternative if alternative in self.seconds else "gpu"
        seconds = self.seconds[alternative] * (nodes if self.is_by_node else 1)
        self.clock.spend(seconds)
        self.spent[alternative] += seconds  # type: ignore[assignment]
        self.runs[alternative] += 1

    def cpu(self) -> CpuExecutor:
        return self._made_cpu

    def _open_gpu(self, name: str, isolation: str) -> Executor:
        script = self.scripts.pop(0) if self.scripts else ()
        made = ScriptedGpu(self, script, refuses=self._refuses)
        self.opened.append(made)
        return made


class World:
    """A clock that the runtime goes by, and a model whose requests a test asks for.

    What is done in the background is done before the next request.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self.clock = FakeClock()
        self.background = Background(share=0.0)
        self._patch = monkeypatch
        monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(cache))
        monkeypatch.setattr("gpuedge.runtime.clock.now_ns", self.clock)
        self.predict(1.0)

    def pool(self, cpu_ms: float, gpu_ms: float, **more: Any) -> ScriptedPool:
        """Return a pool whose alternatives really take this."""
        return ScriptedPool(self.clock, cpu_ms / 1e3, gpu_ms / 1e3, **more)

    def predict(self, gpu_ms: float, startup_ms: float = 10.0) -> None:
        """Let a GPU be predicted to take this."""
        self._patch.setattr(speeds, "predict", lambda *_: round(gpu_ms * 1e6))
        self._patch.setattr(speeds, "startup_ns", lambda *_: round(startup_ms * 1e6))

    def auto(
        self, pool: FlakyPool, *ops: str, policy: Policy | None = None, fallback: str = "cpu"
    ) -> CompiledModel:
        """Return a model under ``auto``; by default exact, so that the device can be told."""
        request = Request("auto", policy or Policy(), fallback)
        return CompiledModel(graph(*(ops or ("Abs",))), request, pool, background=self.background)

    def serve(
        self, compiled: CompiledModel, requests: int = 1, x: np.ndarray = X
    ) -> list[np.ndarray]:
        """Ask for so many answers."""
        made = []
        for _ in range(requests):
            made.append(result(compiled, x))
            assert self.background.wait(30)
        return made
