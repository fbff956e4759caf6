"""Models of which the GPU runs only parts, under ``auto``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flaky import X, graph
from runtime_fakes import refuse_operators, row
from scripted_fakes import ScriptedPool, World

from gpuedge.decide.decision import Decision
from gpuedge.decide.policy import Policy
from gpuedge.graph.cost import count
from gpuedge.probing.report import ProbeReport
from gpuedge.runtime.compiled import CompiledModel, Request
from gpuedge.runtime.placing import Mixing, place

POLICY = Policy(min_speedup=1.0)
OPS = ("Neg", "Abs", "Neg", "ThresholdedRelu", "Abs", "Neg")
REPORT = ProbeReport((row(),), "0.1")


@pytest.fixture(autouse=True)
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_operators(monkeypatch, "ThresholdedRelu")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    return World(monkeypatch)


def wanted() -> np.ndarray:
    x = -np.abs(-X)
    return -np.abs(np.where(x > 1, x, 0)).astype(np.float32)


def on_auto(pool: ScriptedPool, policy: Policy = POLICY, fallback: str = "cpu") -> CompiledModel:
    pool.is_by_node = True
    pool._refuses = frozenset({"ThresholdedRelu"})
    return CompiledModel(graph(*OPS), Request("auto", policy, fallback), pool)


def devices(compiled: CompiledModel) -> list[str]:
    return [r.device for r in compiled.rows for _ in r.nodes]


def test_graph_is_cut_where_the_device_has_no_kernel() -> None:
    whole = graph(*OPS)
    mixing = Mixing(whole, REPORT)
    cut = mixing.of("vulkan:0")
    assert cut is not None
    assert [work is not None for _, work in cut.parts] == [True, False, True]
    assert sum(work.launches for work, _ in cut.parts) == count(whole)["launches"]
    assert mixing.memory["vulkan:0"] >= 4 * X.nbytes
    mixing.settle("vulkan:0", ("gpu", "cpu", "cpu"))
    assert mixing.nodes["vulkan:0"] == {id(n) for n in whole.nodes[:3]}
    first = mixing.key("vulkan:0")
    mixing.settle("vulkan:0", ("gpu", "cpu", "gpu"))
    assert first and mixing.key("vulkan:0") != first
    assert Mixing(graph("ThresholdedRelu"), REPORT).of("vulkan:0") is None


def test_mixture_that_is_faster_is_taken_and_shown(world: World) -> None:
    world.predict(60.0, 20.0, alternatives=("gpu", "cpu", "gpu"))
    pool = world.pool(10.0, 1.0)
    compiled = on_auto(pool)
    assert compiled.decision.device == compiled.executor.device == "vulkan:0"
    assert devices(compiled) == ["vulkan:0"] * 3 + ["cpu"] + ["vulkan:0"] * 2
    assert list(compiled.refusals.values()) == ["no kernel for ThresholdedRelu"]
    np.testing.assert_array_equal(next(iter(compiled.run({"x": X}).values())), wanted())
    text = compiled.decision.to_json()
    assert Decision.from_dict(json.loads(text)).replay().to_json() == text
    runs = compiled.decision.record.candidates[0].runs
    warm = [run.ns for run in runs if run.alternative == "gpu" and run.kept]
    assert warm and set(warm) == {15_000_000}  # five nodes at 1 ms, one at 10 ms


def test_only_the_parts_that_pay_are_on_the_gpu(world: World) -> None:
    world.predict(60.0, 30.0, alternatives=("gpu", "cpu", "cpu"))
    compiled = on_auto(world.pool(10.0, 1.0))
    assert devices(compiled) == ["vulkan:0"] * 3 + ["cpu"] * 3
    np.testing.assert_array_equal(next(iter(compiled.run({"x": X}).values())), wanted())


def test_mixture_that_turns_out_slower_is_not_taken(world: World) -> None:
    world.predict(60.0, 20.0, alternatives=("gpu", "cpu", "gpu"))
    compiled = on_auto(world.pool(10.0, 100.0))
    assert compiled.decision.device == compiled.executor.device == "cpu"
    assert devices(compiled) == ["cpu"] * 6
    assert {r.device: r.code for r in compiled.decision.rows}["vulkan:0"] == "measured-slower"


def test_wrong_numbers_of_a_part_rule_the_mixture_out(world: World) -> None:
    world.predict(60.0, 20.0, alternatives=("gpu", "cpu", "gpu"))
    pool = world.pool(10.0, 1.0)
    pool.factor = 1.5
    compiled = on_auto(pool)
    assert compiled.decision.device == "cpu"
    np.testing.assert_array_equal(next(iter(compiled.run({"x": X}).values())), wanted())


def test_mixture_learns_in_service_too(world: World) -> None:
    world.predict(60.0, 20.0, alternatives=("gpu", "cpu", "gpu"))
    pool = world.pool(10.0, 1.0)
    compiled = on_auto(pool)
    pool.seconds["gpu"] = 0.1
    for _ in range(1200):
        compiled.run({"x": X})
        world.clock.spend(0.1)
    assert compiled.executor.device == "cpu" and devices(compiled) == ["cpu"] * 6


def chosen(pool: ScriptedPool, policy: Policy, fallback: str, *ops: str) -> Decision:
    return place(graph(*ops), Request("auto", policy, fallback), pool).decision


def test_no_part_goes_to_the_cpu_where_that_is_forbidden(world: World) -> None:
    pool = world.pool(10.0, 1.0)
    found = chosen(pool, POLICY, "error", *OPS)
    gpu = found.rows[0]
    assert (found.device, gpu.code) == ("cpu", "unsupported-op") and pool.opened == []


@pytest.mark.parametrize("ops", [("Neg", "Abs"), OPS])
def test_device_whose_memory_would_not_do_is_not_opened(world: World, ops: tuple[str]) -> None:
    pool = world.pool(10.0, 1.0)
    found = chosen(pool, Policy(max_memory_bytes=64), "cpu", *ops)
    assert (found.device, found.rows[0].code) == ("cpu", "too-much-memory")
    assert pool.opened == []
    assert found.record.candidates[0].memory_bytes >= 2 * X.nbytes  # type: ignore[operator]
    assert found.replay().to_json() == found.to_json()
    roomy = chosen(pool, Policy(max_memory_bytes=2**30), "cpu", *ops)
    assert roomy.rows[0].code != "too-much-memory" and len(pool.opened) == 1
