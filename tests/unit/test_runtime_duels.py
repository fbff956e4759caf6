"""Two roads to one device: the one that was measured is timed directly against the other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from decide_fakes import ms
from flaky import LOST, X, graph
from runtime_fakes import row
from scripted_fakes import ScriptedPool, World

from gpuedge import __version__
from gpuedge.decide.background import Background
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record
from gpuedge.executors.base import Executor
from gpuedge.probing.report import ProbeReport
from gpuedge.runtime.compiled import Compiled, Request

POLICY = Policy(min_speedup=1.0)
FIRST, SECOND = "vulkan:0", "gles31:0"


class TwoRoads(ScriptedPool):
    """A pool whose device is reached by two roads, the second of which takes `other_s`."""

    def __init__(self, world: World, other_s: float) -> None:
        super().__init__(world.clock, 0.01, 0.001)
        self.seconds[SECOND] = other_s
        first = row().replace(device=FIRST, physical="one")
        self._known = ProbeReport(
            (first, first.replace(device=SECOND, backend="gles31")), __version__
        )
        self.scripts: dict[str, list[BaseException | None]] = {}
        self.factors: dict[str, float] = {}

    def _open_gpu(self, name: str, isolation: str) -> Executor:
        made = super()._open_gpu(name, isolation)
        gpu = self.opened[-1]
        gpu.device = name
        gpu._script = self.scripts.get(name, [])
        gpu.factor = np.float32(self.factors.get(name, 1.0))
        return made


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))

    def choose(
        work: object, report: object, policy: Policy, *_: object,
        background: Background, **__: object,
    ) -> Decision:  # fmt: skip
        roads = [
            Evidence(name, prediction=ms(at), source="cached", is_software=False, physical="one")
            for name, at in ((FIRST, 1.0), (SECOND, 1.2))
        ]
        cpu = Evidence("cpu", prediction=ms(10.0), source="cached", is_software=False)
        candidates = tuple(background.added(e) for e in (*roads, cpu))
        return decide(
            Record("auto", policy, candidates, __version__, "cached", background.database,
                   background.conditions, background.previous)
        )  # fmt: skip

    made = World(monkeypatch)
    monkeypatch.setattr("gpuedge.runtime.placing.choose", choose)
    return made


def on_auto(pool: TwoRoads) -> Compiled:
    return Compiled(graph("Abs"), Request("auto", POLICY), pool)


def replays(decision: Decision) -> bool:
    text = decision.to_json()
    return Decision.from_dict(json.loads(text)).replay().to_json() == text


def serves(compiled: Compiled) -> bool:
    return bool((next(iter(compiled.run({"x": X}).values())) == np.abs(X)).all())


def test_road_that_is_faster_in_a_duel_is_taken_and_remembered(world: World) -> None:
    pool = TwoRoads(world, 0.0005)
    compiled = on_auto(pool)
    first, second, _ = compiled.decision.record.candidates
    assert first.runs and second.duel and second.rival == FIRST
    assert compiled.decision.device == compiled.executor.device == SECOND
    assert replays(compiled.decision) and serves(compiled)
    world.epoch += 10_000
    again = on_auto(TwoRoads(world, 0.0005))
    assert again.decision.device == SECOND and replays(again.decision)
    assert again.decision.record.previous == SECOND
    assert again.decision.record.candidates[1].belief is not None


def test_road_that_is_slower_in_a_duel_is_left(world: World) -> None:
    compiled = on_auto(TwoRoads(world, 0.003))
    assert compiled.decision.record.candidates[1].duel
    assert compiled.decision.device == compiled.executor.device == FIRST
    assert replays(compiled.decision) and serves(compiled)


def test_faster_road_whose_numbers_differ_is_left(world: World) -> None:
    pool = TwoRoads(world, 0.0005)
    pool.factors[SECOND] = 1.5
    compiled = on_auto(pool)
    assert compiled.decision.device == compiled.executor.device == FIRST and serves(compiled)


def test_road_that_fails_in_a_duel_is_left_to_recover(world: World) -> None:
    pool = TwoRoads(world, 0.0005)
    pool.scripts[SECOND] = [None, LOST]
    compiled = on_auto(pool)
    assert compiled.decision.device == compiled.executor.device == FIRST and serves(compiled)
    assert pool.opened[1].closed


def test_duel_keeps_to_the_budget_of_the_launch(world: World) -> None:
    pool = TwoRoads(world, 0.2)
    pool.seconds |= {"gpu": 0.2, "cpu": 2.0}
    before = world.clock()
    Compiled(graph("Abs"), Request("auto", Policy(min_speedup=1.0, canary=0.0)), pool)
    assert world.clock() - before <= 2.1e9 + 3 * pool.compile_s * 1e9
