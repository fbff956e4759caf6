"""Models under ``auto`` of which a GPU runs parts: those that it was measured to run faster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flaky import FlakyPool, X
from runtime_fakes import refuse_operators
from scripted_fakes import ScriptedPool, World

from gpuedge.decide import speeds
from gpuedge.decide.policy import Policy


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


def test_model_of_which_a_gpu_runs_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_operators(monkeypatch, "Sign")
    world.predict(0.001)
    pool: FlakyPool = world.pool(10, 0.1, refuses=("Sign",))
    assert isinstance(pool, ScriptedPool)
    pool.is_by_node = True
    compiled = world.auto(pool, "Abs", "Neg", "Sign", "Neg", "Abs")
    wanted = np.abs(-np.sign(-np.abs(X)))
    for _ in range(300):
        np.testing.assert_array_equal(world.serve(compiled)[0], wanted)
        if compiled.executor.device != "cpu":
            break
    assert [row.device for row in compiled.rows] == [
        "vulkan:0", "vulkan:0", "cpu", "vulkan:0", "vulkan:0"
    ]  # fmt: skip
    assert len(compiled.refusals) == 1
    strict = world.auto(world.pool(10, 0.1, refuses=("Sign",)), "Abs", "Sign", fallback="error")
    world.serve(strict, 20)
    row = next(r for r in strict.decision.rows if r.device == "vulkan:0")
    assert row.code == "unsupported-op" and "operators cannot run" not in row.reason
    refuse_operators(monkeypatch, "Sign", "Abs")
    strict = world.auto(world.pool(10, 0.1, refuses=("Sign", "Abs")), "Sign", "Neg", "Abs",
                        fallback="error")  # fmt: skip
    world.serve(strict, 20)
    row = next(r for r in strict.decision.rows if r.device == "vulkan:0")
    assert row.reason.endswith("; 2 operators cannot run there: Abs, Sign")


PARTS = ("Abs", "Sign", "Neg", "Sign", "Abs", "Sign", "Neg", "Neg")


@pytest.mark.parametrize(
    ("slow", "predicted_ms", "wanted"),
    [
        ({}, (0.1, 0.1), "g.g.g.gg"),
        ({"Neg": 300}, (0.1, 0.1), "g...g..."),  # and no hand-over for it
        ({"Neg": 80}, (0.1, 0.1), "g.g.g.gg"),  # eight of ten milliseconds
        ({"Neg": 95}, (0.1, 0.1), "g...g..."),  # faster, but by less than the margin
        ({}, (0.1, 20), "g.g.g.gg"),  # predicted to be slower, by less than predictions are off
        ({}, (20, 20), "g.g.g.gg"),  # all of them
        ({}, (0.1, 100), "......gg"),  # by more: not tried
    ],
)
def test_parts_go_where_they_were_measured_to_be_faster(
    world: World, monkeypatch: pytest.MonkeyPatch, slow: dict[str, int],
    predicted_ms: tuple[float, float], wanted: str,
) -> None:  # fmt: skip
    refuse_operators(monkeypatch, "Sign")
    pool = world.pool(10, 0.1, refuses=("Sign",))
    pool.is_by_node = True
    pool.times = {("gpu", op): times for op, times in slow.items()}
    two, one = predicted_ms  # by how many nodes a part has
    said = {1: one * 1e6, 2: two * 1e6}
    monkeypatch.setattr(speeds, "predict", lambda work, *_: round(said[work.launches]))
    compiled = world.auto(pool, *PARTS, policy=Policy(monitor=False))
    right = world.serve(compiled)[0]
    for _ in range(300):
        np.testing.assert_array_equal(world.serve(compiled)[0], right)
        if compiled.executor.device != "cpu":
            break
    assert "".join("g" if row.device == "vulkan:0" else "." for row in compiled.rows) == wanted
    assert not compiled.health().failed
