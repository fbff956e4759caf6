"""A GPU and a CPU that compute rightly and take as long as they are told, on their own clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from decide_fakes import FakeClock, ms
from flaky import FlakyExecutable, FlakyExecutor, FlakyPool

from gpuedge import __version__
from gpuedge.decide.choose import Parts
from gpuedge.decide.conditions import UNKNOWN
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.gather import Background
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record
from gpuedge.decide.trial import Alternative
from gpuedge.executors.base import Executable, Executor
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Array, Graph

EPOCH = 1_700_000_000


class Timed:
    """An executable whose runs take what `seconds` says."""

    def __init__(self, inner: Executable, spend: Callable[[], None]) -> None:
        self.inner = inner
        self.work, self.rows = inner.work, inner.rows
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

    def compile(self, segment: Graph) -> Executable:
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
        script = self._scripts.pop(0) if self._scripts else ()
        made = ScriptedGpu(self, script, refuses=self._refuses)
        self.opened.append(made)
        return made


class World:
    """A clock that the runtime goes by, and predictions that a test makes up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.epoch = EPOCH
        self._patch = monkeypatch
        monkeypatch.setattr("gpuedge.runtime.clock.now_ns", self.clock)
        monkeypatch.setattr("gpuedge.runtime.clock.epoch_s", lambda: self.epoch)
        monkeypatch.setattr("gpuedge.runtime.conditions.current", lambda: UNKNOWN)

    def pool(self, cpu_ms: float, gpu_ms: float, **more: Any) -> ScriptedPool:
        """Return a pool whose alternatives really take this."""
        return ScriptedPool(self.clock, cpu_ms / 1e3, gpu_ms / 1e3, **more)

    def predict(
        self, cpu_ms: float, gpu_ms: float, alternatives: tuple[Alternative, ...] = (), **more: Any
    ) -> None:
        """Let both alternatives be predicted to take this; with `alternatives`, for a mixture of
        them."""

        def choose(
            work: object, report: object, policy: Policy, *_: object,
            background: Background, parts: Parts | None = None, **__: object,
        ) -> Decision:  # fmt: skip
            if alternatives and parts is not None:
                cut = parts.of("vulkan:0")
                assert cut is not None and len(cut.parts) == len(alternatives)
                parts.settle("vulkan:0", alternatives)
            gpu = Evidence(
                "vulkan:0", prediction=ms(gpu_ms, 5.0), source="cached", is_software=False, **more
            )
            cpu = Evidence("cpu", prediction=ms(cpu_ms), source="cached", is_software=False)
            candidates = (background.added(gpu), background.added(cpu))
            known = background
            return decide(
                Record("auto", policy, candidates, __version__, "cached", known.database,
                       known.conditions, known.previous)
            )  # fmt: skip

        self._patch.setattr("gpuedge.runtime.placing.choose", choose)
