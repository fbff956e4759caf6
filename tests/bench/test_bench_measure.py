"""How runs are timed: blocks in turn, cold runs marked, every graph, on a clock that is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gpuedge
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.bench import measure, trace
from gpuedge.bench.graphs import GRAPHS, inputs_of
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import NoUsableDeviceError
from gpuedge.device import Device
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.cost import count

NAMES = ("relu-4k", "mlp-64-128-64-10")
MS = 1_000_000


class Clock:
    """A clock that the executors move: so long for a run of the CPU, of the GPU."""

    def __init__(self, cpu_ns: int, gpu_ns: int) -> None:
        self.now, self.took = 0, {"cpu": cpu_ns, "null:0": gpu_ns}

    def __call__(self) -> int:
        self.now += 10
        return self.now


@contextmanager
def devices(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[None]:
    """Make the null device and the CPU what `gpuedge.open` opens; their runs move the clock."""
    backend = NullBackend()
    info = backend.enumerate(backend.candidates({})[0])[0]
    gpu = GpuExecutor(NullDevice(info, VULKAN_MINIMUM, {}, None), "null:0")
    cpu = gpuedge.open("cpu").executor
    monkeypatch.setattr(measure, "GRAPHS", {name: GRAPHS[name] for name in NAMES})

    def compiling(executor: Any) -> Any:
        compile_ = executor.compile

        def timed(graph: Any) -> Any:
            made = compile_(graph)

            def run(inputs: Any) -> None:
                clock.now += clock.took[executor.device]

            made.run = run
            return made

        monkeypatch.setattr(executor, "compile", timed, raising=False)
        return executor

    found = {"null": compiling(gpu), "cpu": compiling(cpu)}
    monkeypatch.setattr(gpuedge, "open", lambda name: Device(found[name], "for a test"))
    try:
        yield
    finally:
        gpu.close()


def test_windows_are_blocks_in_turn_with_their_cold_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1 * MS, 2 * MS)
    with devices(monkeypatch, clock):
        made = measure.measure("null", rounds=2, clock=clock)
    assert [one.graph for one in made.series] == [*NAMES] and made.level == "vulkan"
    # blocks of 8 ms: 7 runs of the CPU, twice 3 of the GPU, after cold ones: the first of each
    # block, on the GPU the first eight in all
    first, second = made.series[0].windows
    assert first.sides == "c" + "C" * 7 + "g" * 8 + "G" * 6 + "c" + "C" * 7
    assert second.sides == "c" + "C" * 7 + "g" + "G" * 6 + "c" + "C" * 7
    assert set(first.warm("C")) == {1 * MS + 10} and set(first.warm("G")) == {2 * MS + 10}
    assert trace.parsed(trace.dumped(made), "what was measured") == made


def test_a_slow_graph_is_run_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(40 * MS, 90 * MS)
    with devices(monkeypatch, clock):
        made = measure.measure("null", rounds=1, clock=clock)
    # cold until 150 ms are over: two runs
    assert made.series[0].windows[0].sides == "cC" + "gg" + "GG" + "cC"


def test_the_cpu_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        devices(monkeypatch, Clock(1, 1)),
        pytest.raises(NoUsableDeviceError, match="is not a GPU"),
    ):
        measure.measure("cpu")


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_the_same_every_time(name: str) -> None:
    one, other = GRAPHS[name](), GRAPHS[name]()
    assert count(one) == count(other) and count(one)["launches"] > 0
    assert all((v == other.constants[k]).all() for k, v in one.constants.items())
    for key, value in inputs_of(one).items():
        assert (value == inputs_of(other)[key]).all() and value.dtype == "float32"
