"""A device's life, and its manners towards the application that shares the process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gles_child import GLES, need, run

pytestmark = pytest.mark.driver

EXACT = ("gles20-llvmpipe", "gles30-llvmpipe", "gles31-llvmpipe")
OTHERS = ("gles20-angle", "gles31-zink", "gles31-softpipe")
"""Each other driver once; `LONG` has their other levels, which take the same paths."""
LONG = tuple(c for c in GLES if c not in (*EXACT, *OTHERS, "gles20-bare"))


@pytest.mark.parametrize("configuration", EXACT)
def test_life(configuration: str) -> None:
    need(configuration)
    printed = run(
        configuration, ("cycles", {"count": 50}), "objects", "manners", "two", "threads", "lost",
        "reset", "memory", "other", "fork",
    )  # fmt: skip
    assert printed == ""


@pytest.mark.parametrize("configuration", EXACT)
def test_sharing_a_process(configuration: str) -> None:
    need(configuration)
    assert run(configuration, "latecomer", "unwaited", "terminated") == ""


@pytest.mark.parametrize("tells_more", [True, False])
def test_application_that_used_egl_first(tells_more: bool) -> None:
    need("gles30-llvmpipe")
    run("gles30-llvmpipe", ("earlier_user", {"tells_more": tells_more}))


def test_application_with_a_desktop_context() -> None:
    need("gles30-llvmpipe")
    run("gles30-llvmpipe", ("manners", {"desktop": True}))


@pytest.mark.parametrize(
    "configuration", [*OTHERS, *(pytest.param(c, marks=pytest.mark.long) for c in LONG)]
)
def test_life_on_other_drivers(configuration: str) -> None:
    need(configuration)
    run(configuration, ("cycles", {"count": 8}), "manners", "two", "threads", "latecomer")


# llvmpipe of Mesa 22.3 runs compute shaders within the call that launches them.
@pytest.mark.parametrize(
    "configuration",
    [
        *EXACT[:2],  # fences of EGL and of OpenGL
        *(pytest.param(c, marks=pytest.mark.long) for c in ("gles31-zink", "gles31-angle")),
    ],
)
def test_waiting_has_an_end(configuration: str) -> None:
    need(configuration)
    run(configuration, "deadline", "busy")


def test_importing_the_backends_loads_no_library() -> None:
    code = (
        "import sys, os\n"
        "from gpuedge.backends import load\n"
        "load('gles20').candidates(os.environ); load('gles31').candidates(os.environ)\n"
        "print(sorted({'moderngl', 'numpy', 'ctypes', 'pathlib'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.stdout == "[]\n", ran.stderr
