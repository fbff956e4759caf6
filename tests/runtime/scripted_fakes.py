"""A GPU and a CPU that compute rightly and take as long as they are told, on their own clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import FaultyPool, X, graph

from gpuedge.decide import speeds
from gpuedge.decide.policy import Policy
from gpuedge.executors.base import Executable, Executor
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Array, Graph
from gpuedge.runtime.background import Background
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.request import Request

COMPILE_S = 0.01
"""What opening the GPU and compiling for it takes."""


def result(compiled: CompiledModel, x: np.ndarray = X) -> np.ndarray:
    """Return the one result of a model."""
    (found,) = compiled.run({"x": x}).values()
    return found


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


class ScriptedPool(FaultyPool):
    """A pool of one GPU and the CPU; `seconds` may be changed at any time.

    Attributes
    ----------
    seconds : dict
        By ``cpu`` or ``gpu``: what one run takes there, however large it is; one node where
        `is_by_node`.
    spent : dict
        What all runs took.
    factor : float32
        What results of devices that are opened from now on are multiplied by.
    """

    def __init__(self, clock: FakeClock, cpu_s: float, gpu_s: float, **more: Any) -> None:
        super().__init__(**more)
        self.clock = clock
        self.seconds = {"cpu": cpu_s, "gpu": gpu_s}
        self.spent: Counter[str] = Counter(cpu=0, gpu=0)
        self.runs: Counter[str] = Counter(cpu=0, gpu=0)
        self.is_by_node = False
        self.factor = np.float32(1)
        self._scripted_cpu = ScriptedCpu(self)

    def spend(self, alternative: str, nodes: int = 1) -> None:
        """Take the time of one run."""
        seconds = self.seconds[alternative] * (nodes if self.is_by_node else 1)
        self.clock.spend(seconds)
        self.spent[alternative] += seconds  # type: ignore[assignment]
        self.runs[alternative] += 1

    def cpu(self) -> CpuExecutor:
        return self._scripted_cpu

    def _open_gpu(self, name: str, isolation: str) -> Executor:
        made = super()._open_gpu(name, isolation)
        self.devices[-1].factor = self.factor
        self.devices[-1].on_submit = lambda: self.spend("gpu")
        self.clock.spend(COMPILE_S)
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
        self, pool: FaultyPool, *ops: str, policy: Policy | None = None, fallback: str = "cpu"
    ) -> CompiledModel:
        """Return a model under ``auto``."""
        request = Request("auto", policy or Policy(), fallback)
        return CompiledModel(graph(*ops), request, pool, background=self.background)

    def serve(
        self, compiled: CompiledModel, requests: int = 1, x: np.ndarray = X
    ) -> list[np.ndarray]:
        """Ask for so many answers."""
        made = []
        for _ in range(requests):
            made.append(result(compiled, x))
            assert self.background.wait(30)
        return made
