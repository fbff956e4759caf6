"""A device's life, and its manners towards the application that shares the process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gles_child import GLES, need, run

pytestmark = pytest.mark.driver

EXACT = ("gles20-llvmpipe", "gles30-llvmpipe", "gles31-llvmpipe")
OTHERS = tuple(c for c in GLES if c not in EXACT and c != "gles20-bare")


@pytest.mark.parametrize("configuration", EXACT)
def test_life(configuration: str) -> None:
    need(configuration)
    printed = run(
        configuration, ("cycles", {"count": 50}), "objects", "manners", "two", "threads", "lost",
        "reset", "memory", "other", "fork",
    )  # fmt: skip
    assert printed == ""


@pytest.mark.parametrize("check", ["latecomer", "terminated", "unwaited"])
@pytest.mark.parametrize("configuration", EXACT)
def test_sharing_a_process(configuration: str, check: str) -> None:
    need(configuration)
    assert run(configuration, check) == ""


@pytest.mark.parametrize("configuration", EXACT[:2])
def test_application_with_a_desktop_context(configuration: str) -> None:
    need(configuration)
    run(configuration, ("manners", {"desktop": True}))


@pytest.mark.parametrize("configuration", OTHERS)
def test_life_on_other_drivers(configuration: str) -> None:
    need(configuration)
    run(configuration, ("cycles", {"count": 12}), "manners", "two", "threads", "latecomer")


# llvmpipe of Mesa 22.3 runs compute shaders within the call that launches them.
@pytest.mark.parametrize("configuration", [*EXACT[:2], "gles31-zink", "gles31-angle"])
def test_waiting_has_an_end(configuration: str) -> None:
    need(configuration)
    run(configuration, "deadline", "busy")


def test_importing_the_backends_loads_no_library() -> None:
    code = (
        "import sys, os\n"
        "from gpuedge.backends.gles import Gles20Backend, Gles31Backend\n"
        "Gles20Backend().candidates(os.environ); Gles31Backend().candidates(os.environ)\n"
        "print(sorted({'moderngl', 'numpy', 'ctypes', 'pathlib'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "[]\n", ran.stderr
