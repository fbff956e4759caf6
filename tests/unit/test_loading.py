"""The environment that a driver is loaded under: complete, restored, one driver at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from gpuedge.backends.loading import driver_environment
from gpuedge.core.driver import Candidate


def candidate(backend: str, **env: str) -> Candidate:
    return Candidate(backend, "key", "fingerprint", env)


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", "/more.json")
    monkeypatch.setenv("VK_LOADER_DEBUG", "all")
    monkeypatch.delenv("NODEVICE_SELECT", raising=False)


def test_a_vulkan_driver_is_alone_and_what_the_user_set_is_kept() -> None:
    before = dict(os.environ)
    with driver_environment(candidate("vulkan", VK_DRIVER_FILES="/a.json")):
        assert os.environ["VK_DRIVER_FILES"] == "/a.json"
        assert "VK_ADD_DRIVER_FILES" not in os.environ
        assert os.environ["NODEVICE_SELECT"] == "1"
        assert os.environ["VK_LOADER_DEBUG"] == "all"
    assert dict(os.environ) == before


def test_an_egl_driver_may_run_on_any_vulkan_driver() -> None:
    with driver_environment(candidate("gles20", __EGL_VENDOR_LIBRARY_FILENAMES="/egl.json")):
        assert os.environ["VK_ADD_DRIVER_FILES"] == "/more.json"


def test_a_failure_restores_everything() -> None:
    before = dict(os.environ)
    with (
        pytest.raises(OSError, match="no"),
        driver_environment(candidate("wgpu", VK_DRIVER_FILES="/a.json")),
    ):
        raise OSError("no")
    assert dict(os.environ) == before


def test_two_backends_never_set_it_at_once() -> None:
    seen: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with driver_environment(candidate("vulkan", VK_DRIVER_FILES="/a.json")):
            inside.set()
            leave.wait(10)
            seen.append(os.environ["VK_DRIVER_FILES"])

    def second() -> None:
        with driver_environment(candidate("wgpu", VK_DRIVER_FILES="/b.json")):
            seen.append(os.environ["VK_DRIVER_FILES"])

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    threads[1].join(0.1)  # it must not get in
    assert seen == []
    leave.set()
    for thread in threads:
        thread.join(10)
    assert seen == ["/a.json", "/b.json"]
    assert os.environ.get("VK_DRIVER_FILES") not in ("/a.json", "/b.json")


@pytest.mark.parametrize("backend", ["vulkan", "gles20", "gles31"])
def test_finding_drivers_loads_no_library(backend: str) -> None:
    code = (
        "import sys, os; from gpuedge.backends import load;"
        f"load({backend!r}).candidates(os.environ);"
        "print(sorted({'vulkan', 'numpy', 'cffi', 'ctypes', 'pathlib'} & set(sys.modules)))"
    )
    command = [sys.executable, "-S", "-c", code]  # site-packages load pathlib by themselves
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.stdout == "[]\n", ran.stderr
