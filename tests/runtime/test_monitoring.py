"""A session's model in service on two alternatives whose latencies a test scripts and changes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from flaky import LOST, X, graph
from scripted_fakes import ScriptedGpu, ScriptedPool, World

from gpuedge.core.errors import KernelError, OutOfMemoryError
from gpuedge.decide.conditions import Conditions
from gpuedge.decide.decision import Decision
from gpuedge.decide.monitor import BURST, DWELL_S, LONGEST_S
from gpuedge.decide.policy import Policy
from gpuedge.runtime.compiled import CompiledModel, Request

POLICY = Policy(min_speedup=1.0)
PERIOD_S = 0.2
"""Between requests."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    return World(monkeypatch)


def on_auto(pool: ScriptedPool, policy: Policy = POLICY) -> CompiledModel:
    return CompiledModel(graph("Abs"), Request("auto", policy), pool)


def serve(world: World, compiled: CompiledModel, seconds: float) -> list[int]:
    """Answer requests for so long; return when the device in use changed."""
    changed, device = [], compiled.executor.device
    end = world.clock() + round(seconds * 1e9)
    while world.clock() < end:
        out = next(iter(compiled.run({"x": X}).values()))
        np.testing.assert_array_equal(out, np.abs(X))
        if compiled.executor.device != device:
            device = compiled.executor.device
            changed.append(world.clock())
        world.clock.spend(PERIOD_S)
    return changed


def replays(decision: Decision) -> bool:
    text = decision.to_json()
    return Decision.from_dict(json.loads(text)).replay().to_json() == text


def test_gpu_that_becomes_slow_is_left_and_taken_again(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)
    compiled = on_auto(pool)
    assert compiled.executor.device == "vulkan:0"
    assert serve(world, compiled, 900) == []
    pool.seconds["gpu"] = 0.05
    assert len(serve(world, compiled, 900)) == 1
    assert compiled.executor.device == compiled.decision.device == "cpu"
    assert {row.device for row in compiled.rows} == {"cpu"}
    assert "in service" in str(compiled.decision) and replays(compiled.decision)
    health = compiled.health()
    assert (health.state, health.switches) == ("cpu", 1)
    pool.seconds["gpu"] = 0.001
    assert len(serve(world, compiled, 3600)) == 1
    assert compiled.executor.device == compiled.decision.device == "vulkan:0"
    assert {row.device for row in compiled.rows} == {"vulkan:0"}
    assert replays(compiled.decision) and len(pool.opened) == 1


def test_alternatives_that_are_close_are_not_changed(world: World) -> None:
    world.predict(10.0, 5.0)
    pool = world.pool(10.0, 5.0)
    compiled = on_auto(pool)
    assert compiled.executor.device == "vulkan:0"
    pool.seconds["gpu"] = 0.0103  # a little slower: not worth it
    assert serve(world, compiled, 3600) == []


def test_at_most_two_changes_a_minute(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)
    compiled = on_auto(pool)
    changed: list[int] = []
    for round_ in range(40):  # the alternatives change places every 40 s
        pool.seconds["gpu"] = 0.001 if round_ % 2 else 0.1
        changed += serve(world, compiled, 40)
    assert changed
    for i, at in enumerate(changed):
        assert sum(at - 60e9 < other <= at for other in changed[: i + 1]) <= 2


@pytest.mark.parametrize(("cpu_ms", "gpu_ms"), [(10.0, 1.0), (20.0, 1.0)])
def test_looking_at_the_other_alternative_costs_no_more_than_one_percent(
    world: World, cpu_ms: float, gpu_ms: float
) -> None:
    world.predict(cpu_ms, gpu_ms)
    pool = world.pool(cpu_ms, gpu_ms)
    compiled = on_auto(pool, Policy(min_speedup=1.0, crosscheck=0.0))
    assert compiled.executor.device == "vulkan:0"
    before = dict(pool.spent), dict(pool.runs)
    serve(world, compiled, 5400)
    spent = {
        alternative: pool.spent[alternative] - before[0][alternative] for alternative in pool.spent
    }
    runs = {
        alternative: pool.runs[alternative] - before[1][alternative] for alternative in pool.runs
    }
    assert runs["cpu"] and runs["cpu"] % BURST == 0  # bursts, not single requests
    excess = spent["cpu"] - runs["cpu"] * gpu_ms / 1e3
    assert excess <= 0.01 * sum(spent.values())


def test_policy_may_switch_watching_off(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)
    compiled = on_auto(pool, Policy(min_speedup=1.0, monitor=False, crosscheck=0.0))
    before = pool.runs["cpu"]
    pool.seconds["gpu"] = 0.1
    assert serve(world, compiled, 900) == []
    assert pool.runs["cpu"] == before and compiled.health().conditions == {}


def test_single_operations_and_named_devices_are_not_watched(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)
    operation = CompiledModel(graph("Abs"), Request("auto", POLICY), pool, is_session=False)
    named = CompiledModel(graph("Abs"), Request("vulkan", Policy(crosscheck=0.0)), pool)
    pool.seconds["gpu"] = 0.1
    before = pool.runs["cpu"]
    assert serve(world, operation, 300) == serve(world, named, 300) == []
    assert pool.runs["cpu"] == before


def test_gpu_that_may_yet_win_is_held_ready(world: World) -> None:
    world.predict(10.0, 10.0)
    pool = world.pool(10.0, 9.9)
    compiled = on_auto(pool, Policy(min_speedup=1.1))
    assert compiled.decision.device == compiled.executor.device == "cpu"
    assert {row.device for row in compiled.rows} == {"cpu"}
    pool.seconds["gpu"] = 0.001
    assert len(serve(world, compiled, 3600)) == 1
    assert compiled.executor.device == compiled.decision.device == "vulkan:0"
    assert replays(compiled.decision)


@pytest.mark.parametrize("fallback", ["cpu", "error"])
def test_held_gpu_that_fails_is_let_go(world: World, fallback: str) -> None:
    world.predict(10.0, 10.0)
    pool = world.pool(10.0, 9.9)
    request = Request("auto", Policy(min_speedup=1.1), fallback)
    compiled = CompiledModel(graph("Abs"), request, pool)
    assert compiled.executor.device == "cpu"
    gpu = pool.opened[0]
    assert isinstance(gpu, ScriptedGpu)
    gpu._script = [None, LOST]
    assert serve(world, compiled, 900) == []
    health = compiled.health()
    assert (health.state, health.failed) == ("cpu", 1)
    assert compiled.decision.predicted is not None  # nothing is held against the CPU
    runs = gpu.runs
    serve(world, compiled, 900)
    assert gpu.runs == runs


def test_gpu_in_use_that_fails_comes_back_and_is_watched_on(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)
    compiled = on_auto(pool)
    gpu = pool.opened[0]
    gpu._script = [LOST]
    serve(world, compiled, 1)
    end = world.clock() + 3600 * 10**9
    while len(pool.opened) < 2 or compiled.health().state != "ok":
        serve(world, compiled, 0.2)
        assert world.clock() < end
        pool.device_health("vulkan:0").wait(5)
    pool.seconds["gpu"] = 0.1
    assert len(serve(world, compiled, 900)) == 1
    assert compiled.executor.device == "cpu"


def failing(pool: ScriptedPool, alternative: str, error: BaseException) -> list[int]:
    """Let every run on an alternative fail; return a list that gets the time of each one."""
    spend, failed = pool.spend, list[int]()

    def fail(name: str, nodes: int) -> None:
        spend(name, nodes)
        if (name == "cpu") == (alternative == "cpu"):
            failed.append(pool.clock())
            raise error

    pool.spend = fail  # type: ignore[method-assign]
    return failed


@pytest.mark.parametrize(
    "error", [OutOfMemoryError("No memory."), MemoryError("cpu"), KernelError("A kernel.")]
)
def test_cpu_that_fails_in_a_burst_fails_no_request(world: World, error: Exception) -> None:
    world.predict(10.0, 9.0)
    pool = world.pool(10.0, 9.0)
    compiled = on_auto(pool, Policy(min_speedup=1.0, crosscheck=0.0))
    assert compiled.executor.device == "vulkan:0"
    failed = failing(pool, "cpu", error)
    assert serve(world, compiled, 1500) == []  # every answer is compared there
    assert 2 <= len(failed) <= 5
    assert all(b - a >= LONGEST_S * 1e9 for a, b in pairwise(failed))
    assert compiled.health().state == "ok"


def test_cpu_that_does_not_compile_in_a_burst_fails_no_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.predict(10.0, 9.0)
    compiled = on_auto(world.pool(10.0, 9.0), Policy(min_speedup=1.0, crosscheck=0.0))
    asked = []

    def refuse() -> None:
        asked.append(world.clock())
        raise MemoryError

    monkeypatch.setattr(compiled._segments, "on_cpu", refuse)
    assert serve(world, compiled, 400) == [] and asked
    assert compiled.executor.device == "vulkan:0"


def test_error_of_a_held_gpu_that_is_no_device_error_fails_no_request(world: World) -> None:
    world.predict(10.0, 10.0)
    pool = world.pool(10.0, 9.9)
    compiled = on_auto(pool, Policy(min_speedup=1.1))
    assert compiled.executor.device == "cpu"
    failed = failing(pool, "gpu", KernelError("A kernel."))
    assert serve(world, compiled, 1500) == []
    assert 2 <= len(failed) <= 5


def test_error_outside_of_a_burst_is_raised(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)
    compiled = on_auto(pool)
    failing(pool, "gpu", KernelError("A kernel."))
    with pytest.raises(KernelError):
        compiled.run({"x": X})


@pytest.mark.parametrize("fallback", ["cpu", "error"])
def test_held_gpu_that_failed_once_is_watched_again(world: World, fallback: str) -> None:
    world.predict(10.0, 10.0)
    pool = world.pool(10.0, 9.9)
    compiled = CompiledModel(graph("Abs"), Request("auto", Policy(min_speedup=1.1), fallback), pool)
    assert compiled.executor.device == "cpu"
    gpu = pool.opened[0]
    gpu._script = [None, LOST]
    end = world.clock() + 3600 * 10**9
    while not compiled.health().failed:
        serve(world, compiled, 1)
        assert world.clock() < end
    assert pool.device_health("vulkan:0").wait(5)
    pool.seconds["gpu"] = 0.001
    assert len(serve(world, compiled, 3600)) == 1
    assert compiled.executor.device == compiled.decision.device == "vulkan:0"
    assert len(pool.opened) == 2 and replays(compiled.decision)


def test_held_gpu_that_others_closed_is_watched_again(world: World) -> None:
    world.predict(10.0, 10.0)
    pool = world.pool(10.0, 9.9)
    compiled = on_auto(pool, Policy(min_speedup=1.1))
    assert compiled.executor.device == "cpu"
    pool.close()
    pool.seconds["gpu"] = 0.001
    assert len(serve(world, compiled, 3600)) == 1
    assert compiled.executor.device == "vulkan:0"


def test_burst_ends_early_where_the_other_alternative_became_very_slow(world: World) -> None:
    world.predict(10.0, 9.0)
    pool = world.pool(10.0, 9.0)
    compiled = on_auto(pool, Policy(min_speedup=1.0, crosscheck=0.0))
    assert serve(world, compiled, 60) == []
    pool.seconds["cpu"] = 5.0
    before = pool.runs["cpu"]
    serve(world, compiled, 1200)
    assert pool.runs["cpu"] == before + 1


def test_change_that_the_rules_refuse_does_not_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)
    compiled = on_auto(pool)
    watched = compiled._service
    assert watched is not None
    asked: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(watched, "_decided", lambda device: asked.append(world.clock()))
        pool.seconds["gpu"] = 0.05
        assert serve(world, compiled, 300) == []
    assert len(asked) >= 3 and all(b - a >= DWELL_S * 1e9 for a, b in pairwise(asked))
    assert compiled.health().switches == 0
    assert len(serve(world, compiled, 60)) == 1  # as sure as for a first one


def test_wrong_numbers_in_a_burst_are_not_answered(world: World) -> None:
    world.predict(10.0, 10.0)
    pool = world.pool(10.0, 9.9)
    compiled = on_auto(pool, Policy(min_speedup=1.1, crosscheck=1.0))
    gpu = pool.opened[0]
    gpu.factor = 2.0
    serve(world, compiled, 600)  # every answer is compared there
    assert compiled.health().crosschecks_failed == 1
    assert compiled.health().state == "cpu"


def test_health_says_what_the_machine_is_like(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = Conditions(load_milli=900, is_on_battery=True, battery_percent=30, thermal="throttling")
    monkeypatch.setattr("gpuedge.runtime.conditions.current", lambda: hot)
    world.predict(10.0, 1.0)
    compiled = on_auto(world.pool(10.0, 1.0))
    health = compiled.health()
    assert health.conditions["thermal"] == "throttling"
    assert "load 90 %, on battery, battery at 30 %, thermal state throttling" in str(health)
    assert "thermal state throttling" in str(compiled.decision)
