"""Trials of a GPU against the CPU path, on alternatives whose latencies a test scripts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flaky import LOST, X, graph, result
from scripted_fakes import EPOCH, ScriptedPool, World

from gpuedge.core.errors import InputError
from gpuedge.decide.decision import Decision
from gpuedge.decide.policy import Policy
from gpuedge.decide.store import APART_S
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.runtime.compiled import CompiledModel, Request
from gpuedge.runtime.trying import TimeBudget, digest_of, samples

POLICY = Policy(min_speedup=1.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    return World(monkeypatch)


def on_auto(pool: ScriptedPool, policy: Policy = POLICY, **more: object) -> CompiledModel:
    return CompiledModel(graph("Abs"), Request("auto", policy), pool, **more)  # type: ignore[arg-type]


def code(compiled: CompiledModel) -> str:
    return next(r.code for r in compiled.decision.rows if r.device == "vulkan:0")


def gpu_runs(decision: Decision) -> int:
    return len(decision.record.candidates[0].runs)


def replays(decision: Decision) -> bool:
    text = decision.to_json()
    return Decision.from_dict(json.loads(text)).replay().to_json() == text


@pytest.mark.parametrize("predicted_ms", [1.0, 8.0, 30.0])
def test_gpu_that_is_clearly_faster_is_taken_whatever_was_predicted(
    world: World, predicted_ms: float
) -> None:
    world.predict(10.0, predicted_ms)
    compiled = on_auto(world.pool(10.0, 1.0))
    assert compiled.decision.device == compiled.executor.device == "vulkan:0"
    assert "measured" in compiled.decision.reason
    assert gpu_runs(compiled.decision) > 8 and replays(compiled.decision)
    np.testing.assert_array_equal(result(compiled), np.abs(X))


@pytest.mark.parametrize("predicted_ms", [0.1, 8.0, 20.0])
def test_cpu_that_is_clearly_faster_is_kept_whatever_was_predicted(
    world: World, predicted_ms: float
) -> None:
    world.predict(10.0, predicted_ms)
    pool = world.pool(10.0, 60.0)
    compiled = on_auto(pool)
    assert compiled.decision.device == compiled.executor.device == "cpu"
    assert code(compiled) == "measured-slower" and replays(compiled.decision)
    before = pool.runs["gpu"]
    result(compiled)
    assert pool.runs["gpu"] == before  # and it is not held ready either: that is settled


def test_gpu_that_is_surely_slower_is_not_even_opened(world: World) -> None:
    world.predict(1.0, 1000.0, draw=None)
    pool = world.pool(1.0, 0.1)
    compiled = on_auto(pool)
    assert compiled.decision.device == "cpu" and pool.opened == []


def test_gpu_that_is_surely_slower_is_tried_where_the_draw_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.predict(1.0, 1000.0)
    monkeypatch.setattr("gpuedge.runtime.trying.draw", lambda *_: 0)
    compiled = on_auto(world.pool(1.0, 0.1))
    assert gpu_runs(compiled.decision) > 0


def test_gpu_whose_numbers_differ_never_wins(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 0.1)
    pool.factor = 1.01
    compiled = on_auto(pool)
    assert compiled.decision.device == compiled.executor.device == "cpu"
    assert code(compiled) == "drifted"
    assert pool.device_health("vulkan:0").state == "demoted"  # for other models of this process too
    np.testing.assert_array_equal(result(compiled), np.abs(X))
    again = on_auto(pool)
    assert again.decision.device == "cpu" and len(pool.opened) == 1


def test_numbers_are_not_compared_where_crosschecks_are_switched_off(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 0.1)
    pool.factor = 1.01
    assert on_auto(pool, Policy(crosscheck=0.0)).decision.device == "vulkan:0"


def test_gpu_that_fails_in_its_trial_is_left_and_not_waited_for(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 0.1)
    pool._scripts = [[None, None, LOST]]
    compiled = on_auto(pool)
    assert compiled.decision.device == "cpu" and compiled.health().state == "demoted"
    assert code(compiled) in ("recovering", "device-lost")
    np.testing.assert_array_equal(result(compiled), np.abs(X))


@pytest.mark.parametrize("cpu_ms", [2.0, 120.0, 700.0])
def test_trial_keeps_to_the_budget_of_the_launch(world: World, cpu_ms: float) -> None:
    world.predict(cpu_ms, cpu_ms)
    pool = world.pool(cpu_ms, cpu_ms)
    before = world.clock()
    compiled = on_auto(pool, Policy(min_speedup=1.0, crosscheck=0.0))
    assert gpu_runs(compiled.decision) > 0
    assert world.clock() - before - pool.compile_s * 1e9 <= 2.0e9


def test_shapes_of_one_session_share_a_budget(world: World) -> None:
    world.predict(50.0, 50.0)
    pool, budget = world.pool(50.0, 50.0), TimeBudget(2.0)
    before = world.clock()
    for ops in (("Exp",), ("Neg",), ("Abs",), ("Relu",)):
        policy = Policy(min_speedup=1.0, crosscheck=0.0)
        CompiledModel(graph(*ops), Request("auto", policy), pool, budget=budget)
    assert world.clock() - before <= 2.0e9 + 4 * pool.compile_s * 1e9
    assert budget.left_s < 1.0


def test_operation_is_only_timed_where_a_gpu_is_about_to_be_taken(world: World) -> None:
    world.predict(10.0, 12.0)
    pool = world.pool(10.0, 1.0)
    assert on_auto(pool, is_session=False).decision.device == "cpu" and pool.opened == []
    world.predict(10.0, 1.0)
    compiled = on_auto(pool, is_session=False)
    assert compiled.decision.device == "vulkan:0" and gpu_runs(compiled.decision) > 0
    assert not pool.past_launches().path.exists()


# -- later launches -------------------------------------------------------------------------------


def test_later_launches_add_windows_until_little_is_at_stake(world: World) -> None:
    world.predict(10.0, 10.0)
    first = on_auto(world.pool(10.0, 9.3))
    assert gpu_runs(first.decision) > 0
    soon = on_auto(world.pool(10.0, 9.3))
    assert gpu_runs(soon.decision) == 0  # a moment later the same window would be seen again
    assert soon.decision.record.candidates[0].belief is not None
    windows = []
    for launch in range(1, 14):
        world.epoch = EPOCH + launch * (APART_S + 1)
        found = on_auto(world.pool(10.0, 9.3))
        assert replays(found.decision)
        row = found.decision.rows[0]
        assert row.belief is not None
        windows.append(row.belief.windows)
    assert windows[:3] == [2, 3, 4] and max(windows) <= 10 and windows[-1] == windows[-2]


def test_what_is_settled_is_taken_without_another_trial(world: World) -> None:
    world.predict(10.0, 5.0)
    assert on_auto(world.pool(10.0, 0.5)).decision.device == "vulkan:0"
    world.epoch += 10 * APART_S
    pool = world.pool(10.0, 0.5)
    compiled = on_auto(pool)
    assert compiled.decision.device == "vulkan:0" and gpu_runs(compiled.decision) == 0
    assert pool.runs == {"cpu": 0, "gpu": 0}
    assert compiled.decision.record.previous == "vulkan:0"


def test_belief_about_another_graph_or_storage_is_not_taken(world: World) -> None:
    assert digest_of(graph("Exp")) != digest_of(graph("Neg"))
    assert digest_of(graph("Exp"), "float32") != digest_of(graph("Exp"), "float16")
    assert digest_of(graph("Exp")) == digest_of(graph("Exp"))


def test_start_up_is_what_opening_and_compiling_took(world: World) -> None:
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)
    pool.compile_s = 0.4
    compiled = on_auto(pool)
    assert compiled.decision.record.candidates[0].startup_ns == 400_000_000


def test_inputs_that_the_cpu_refuses_leave_the_choice_to_the_cpu(world: World) -> None:
    types = {
        "x": TensorType("float32", (4,)),
        "i": TensorType("int64", (2,)),
        "y": TensorType("float32", (2,)),
    }
    whole = Graph((Node("Gather", ("x", "i"), ("y",), name="pick"),), ("x", "i"), ("y",), types)
    assert set(samples(whole)) == {"x", "i"}
    world.predict(10.0, 1.0)
    pool = world.pool(10.0, 1.0)

    def refuse(alternative: str, nodes: int) -> None:
        raise InputError("No such element.")

    pool.spend = refuse  # type: ignore[method-assign]
    compiled = CompiledModel(graph("Abs"), Request("auto", POLICY), pool)
    assert compiled.decision.device == "cpu"
    assert X.shape == (2, 12)


@pytest.mark.parametrize(
    ("gpu_ms", "device"), [(40.0, "vulkan:0"), (80.0, "vulkan:0"), (300.0, "cpu")]
)
def test_deadline_that_the_cpu_misses_decides_on_what_was_measured(
    world: World, gpu_ms: float, device: str
) -> None:
    world.predict(100.0, 45.0)
    policy = Policy(min_speedup=5.0, deadline_s=0.05, percentile=50)
    compiled = on_auto(world.pool(100.0, gpu_ms), policy)
    assert compiled.decision.device == device  # the one that meets it, else the fastest
    assert gpu_runs(compiled.decision) > 0 and replays(compiled.decision)
