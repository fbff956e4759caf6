"""Deciding on a real driver: what is truly faster is taken, whatever was predicted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import daily
import pytest
from farm import environment_of, require

pytestmark = [pytest.mark.driver, pytest.mark.timeout(300)]

CHILD = Path(__file__).with_name("decision_child.py")
NAME = "vulkan-lavapipe"
GPU = "vulkan:0"

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decision")


@pytest.fixture
def forget(cache: Path) -> Callable[[], None]:
    """Forget what earlier processes measured."""
    return lambda: (cache / "launches.json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def run(cache: Path) -> Run:
    """Serve the model in a process of its own; what one finds out, the next one knows."""
    require(NAME)
    environ = {**environment_of(NAME), "GPUEDGE_CACHE_DIR": str(cache)}
    probing = [sys.executable, "-m", "gpuedge", "probe", "--deadline", "60"]
    subprocess.run(probing, env=environ, check=True, capture_output=True, timeout=280)

    def load(milliseconds: float, kind: str, seconds: float = 60.0) -> dict[str, Any]:
        command = [sys.executable, str(CHILD), str(milliseconds), kind, str(seconds)]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=280
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["replays"] and found["apart"] < 1e-4
        return found

    return load


@daily.day(0, of=3)
def test_driver_that_is_truly_faster_is_taken_and_remembered(run: Run) -> None:
    first = run(250.0, "whole")
    assert first["device"] == GPU, first["said"]
    assert first["served"] > 4 and set(first["places"]) == {GPU}
    assert first["health"]["state"] == "ok" and first["health"]["crosschecks_failed"] == 0
    second = run(250.0, "whole")
    assert second["device"] == GPU and second["windows"] >= 1
    assert second["served"] <= first["served"]


@daily.day(1, of=3)
def test_driver_that_is_truly_slower_is_left(run: Run, forget: Callable[[], None]) -> None:
    forget()
    found = run(-50.0, "whole", 5.0)
    assert found["device"] == "cpu", found["said"]
    assert found["codes"][GPU] not in ("selected", "not-best")


@daily.day(2, of=3)
def test_parts_that_a_driver_runs_faster_go_there(run: Run, forget: Callable[[], None]) -> None:
    found = run(250.0, "mixed")
    assert found["device"] == GPU, found["said"]
    assert found["places"] == [GPU, GPU, "cpu"]
    forget()
    assert run(-50.0, "mixed", 5.0)["device"] == "cpu"
