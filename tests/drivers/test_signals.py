"""Sessions and what handlers of signals raise in the middle of a call.

Whatever comes out of a handler, at whatever bytecode: it comes out of the call as it is, the next
calls are right in every thread, and the device did not fail. Each case is a process of its own,
which ends itself where a call is stuck.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import daily
import pytest
from farm import FARM, HIDDEN, environment_of, require

pytestmark = [pytest.mark.driver, pytest.mark.timeout(600), daily.day(3, of=4)]

CHILD = Path(__file__).with_name("signals_child.py")
CPU, AUTO, VULKAN, GLES31, GLES20 = (
    "cpu", "auto", "vulkan-lavapipe", "gles31-llvmpipe", "gles20-llvmpipe",
)  # fmt: skip

SIDES = [
    *((CPU, what) for what in ("run", "timeout", "async", "add")),
    (AUTO, "run"), (VULKAN, "serve"), (VULKAN, "run"), (VULKAN, "process"), (VULKAN, "add"),
    (GLES31, "run"), (GLES31, "add"), (GLES20, "run"),
]  # fmt: skip
"""Where a call is made, and which: ``process`` is `run` of a session with that isolation, ``serve``
of one under ``auto`` that a GPU answers."""

TODAY = SIDES[daily.turn(2) :: 2]
OTHERS = [side for side in SIDES if side not in TODAY]
"""Ordinary test runs try each side in one of two ways, and in the other way on the next day."""

STEPS = {CPU: 3, AUTO: 3, VULKAN: 15, GLES31: 21, GLES20: 21}
"""Every n-th boundary is tried in ordinary test runs, others on the next days; odd, so that a side
comes to all of them although it has every second day."""

LEAST = 400
"""Boundaries that any of these calls has at least."""

Run = Callable[..., dict[str, int]]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a case; drivers are probed once."""
    base = tmp_path_factory.mktemp("signals")
    paths = [str(CHILD.parents[1] / folder) for folder in ("runtime", "drivers", ".")]

    @cache
    def environment(name: str) -> dict[str, str]:
        environ = {**os.environ, **HIDDEN, "GPUEDGE_CACHE_DIR": str(base / name)}
        environ["GPUEDGE_BACKENDS"] = "vulkan"
        if name in FARM:
            require(name)
            environ |= environment_of(name)
            probing = [sys.executable, "-m", "gpuedge", "probe", "--deadline", "60"]
            subprocess.run(probing, env=environ, check=True, capture_output=True, timeout=120)
        return {**environ, "PYTHONPATH": os.pathsep.join(paths)}

    def case(how: str, what: str, name: str, *numbers: int) -> dict[str, int]:
        device = FARM[name].device if name in FARM else name
        device = AUTO if what == "serve" else device
        command = [sys.executable, str(CHILD), how, what, device, *map(str, numbers)]
        environ = environment(name)
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=500
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        found: dict[str, int] = json.loads(done.stdout)
        return found

    return case


@pytest.mark.parametrize(("name", "what"), TODAY)
def test_a_time_limit_at_a_boundary(name: str, what: str, run: Run) -> None:
    step = STEPS[name]
    first = daily.turn(step)
    found = run("alarm", what, name, step, first)
    assert found["boundaries"] >= LEAST
    assert found["tried"] == -(-(found["boundaries"] - first) // step)


@pytest.mark.parametrize(("name", "what"), [(CPU, "run"), (VULKAN, "run")])
def test_ctrl_c_at_a_boundary(name: str, what: str, run: Run) -> None:
    step = 3 * STEPS[name]
    found = run("ctrl-c", what, name, step, daily.turn(step))
    assert (found["tried"] + 1) * step > found["boundaries"] >= LEAST


@pytest.mark.long
@pytest.mark.parametrize("how", ["alarm", "ctrl-c"])
@pytest.mark.parametrize(("name", "what"), SIDES)
def test_every_boundary(how: str, name: str, what: str, run: Run) -> None:
    found = run(how, what, name, 1, 0)
    assert found["tried"] == found["boundaries"] >= LEAST


@pytest.mark.parametrize(("name", "what"), [*OTHERS, (CPU, "shared")])
def test_signals_of_the_system(name: str, what: str, run: Run) -> None:
    count = 20 if what == "shared" else 100
    assert run("real", what, name, count)["came"] > 0


@pytest.mark.parametrize(
    ("name", "what"),
    daily.some([(CPU, "run"), (CPU, "shared"), (CPU, "timeout"), (CPU, "add"), (AUTO, "run")], 2),
)
def test_signals_that_come_again_at_once(name: str, what: str, run: Run) -> None:
    count = 10 if what == "shared" else 50
    assert run("storm", what, name, count)["came"] == 3 * count


@pytest.mark.long
@pytest.mark.parametrize(("name", "what"), [*SIDES, (CPU, "shared")])
def test_many_signals_of_the_system(name: str, what: str, run: Run) -> None:
    count = 50 if what == "shared" else 500
    assert run("real", what, name, count)["came"] > 0
    assert run("storm", what, name, count)["came"] == 3 * count
