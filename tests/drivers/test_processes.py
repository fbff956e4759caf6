"""Sessions in programs: many threads, forks, pools of processes, and every way to end.

Each scenario is a process of its own with a real driver. Whatever it does, it ends in time, with
the right status, and says nothing on stderr that is not its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import daily
import pytest
from farm import FARM, environment_of, require

pytestmark = [pytest.mark.driver, pytest.mark.timeout(300), daily.day(0, of=4)]

CHILD = Path(__file__).with_name("processes_child.py")
ENDS_S = 60.0
"""More than any scenario needs on a busy machine; one that hangs needs forever."""

VULKAN, GLES = "vulkan-lavapipe", "gles31-llvmpipe"
QUIET = ("left_open", "futures", "daemon", "thread", "exit_in_thread", "expired", "handler")

FORKING = [
    *((VULKAN, "inline", what) for what in ("fork", "threads", "fork_auto", "pools")),
    *((VULKAN, "process", what) for what in ("threads", "fork")),
    *((GLES, "inline", what) for what in ("fork", "threads")),  # else it is not in the parent
]

Run = Callable[[str, str, str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a scenario; drivers are probed once."""
    base = tmp_path_factory.mktemp("processes")

    @cache
    def environment(name: str) -> dict[str, str]:
        require(name)
        environ = {**environment_of(name), "GPUEDGE_CACHE_DIR": str(base / name)}
        # Pools end their workers in the middle of runs: that is not to count against the driver.
        environ["GPUEDGE_PIN"] = f"{FARM[name].device}=always"
        probing = [sys.executable, "-m", "gpuedge", "probe", "--deadline", "60"]
        subprocess.run(probing, env=environ, check=True, capture_output=True, timeout=280)
        return environ

    def scenario(name: str, what: str, isolation: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(CHILD), what, FARM[name].device, isolation]
        environ = environment(name)
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=ENDS_S
        )
        assert done.stdout == "ok\n", done.stderr
        return done

    return scenario


CASES = [
    *((VULKAN, "inline", what) for what in QUIET),
    *((VULKAN, "process", what) for what in ("left_open", "thread", "exit_in_thread")),
    (GLES, "inline", "futures"),
]


@pytest.mark.parametrize(("name", "isolation", "what"), daily.some(CASES))
def test_a_program_ends_without_a_word(name: str, isolation: str, what: str, run: Run) -> None:
    done = run(name, what, isolation)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_the_status_of_a_program_is_its_own(isolation: str, run: Run) -> None:
    done = run(VULKAN, "exit_code", isolation)
    assert (done.returncode, done.stderr) == (5, "")


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_an_error_of_a_program_is_all_that_is_said(isolation: str, run: Run) -> None:
    done = run(VULKAN, "exception", isolation)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("RuntimeError: on purpose\n")
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize(
    ("what", "isolation"),
    [("interrupt", "inline"), ("interrupt", "process"), ("interrupt_wait", "inline")],
)
def test_ctrl_c_is_passed_on_and_the_session_still_works(
    what: str, isolation: str, run: Run
) -> None:
    done = run(VULKAN, what, isolation)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize(("name", "isolation", "what"), daily.some(FORKING))
def test_threads_forks_and_pools(name: str, isolation: str, what: str, run: Run) -> None:
    done = run(name, what, isolation)
    assert (done.returncode, done.stderr) == (0, "")
