"""What OpenGL ES drivers are found to have where they tell less, more or nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import farm
import pytest
from gles_child import Check, run
from test_device_contract import BITS, BYTES, HALF, PACKED, storages

pytestmark = pytest.mark.driver


def test_powers_are_tried_not_believed() -> None:
    run("gles20-llvmpipe", "powers")


@pytest.mark.parametrize(
    ("configuration", "level", "code"),
    [
        ("gles20-llvmpipe", "gles30", "no-context"),
        ("gles30-llvmpipe", "gles31", "no-context"),
        ("gles30-swiftshader-legacy", "gles31", "no-context"),
    ],
)
def test_absent_levels(configuration: str, level: str, code: str) -> None:
    check: Check = ("absent", {"wanted": level, "code": code})
    run(configuration, check)


def test_formats_are_tried_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Mesa goes on completing framebuffers of some formats whose extension is hidden.
    monkeypatch.setitem(farm.EVERY, "gles30-hidden", farm.EXTRA["gles30-bare"])
    kinds = [BITS, PACKED, HALF, *BYTES]
    run("gles30-hidden", ("caps", {"storages": kinds, "is_finite_only": False}))


def test_format_that_rounds_in_branches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Newer contexts give ESSL 1.00 float textures; llvmpipe fetches from them with 16 bits there.
    for driver, alike in (("llvmpipe", "llvmpipe"), ("softpipe", "angle")):
        newer = {"MESA_GLES_VERSION_OVERRIDE": "3.1", "GALLIUM_DRIVER": driver}
        one = farm.Configuration("gles20", {farm.EGL: "mesa"}, newer)
        monkeypatch.setitem(farm.EVERY, "gles20-newer", one)
        run("gles20-newer", ("caps", {"storages": storages("gles20", alike)}))


def test_angle_without_vulkan_driver_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = farm.Configuration("gles20", {farm.LIBRARY: "angle"}, {farm.VULKAN: farm.NONE})
    monkeypatch.setitem(farm.EVERY, "gles20-hidden", hidden)
    run("gles20-hidden", ("absent", {"wanted": "gles20", "code": "no-device"}))


def test_empty_shell_of_a_library(tmp_path: Path) -> None:
    shell = tmp_path / "libEGL.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(shell), "-xc", "-"]
    subprocess.run(command, input=b"int nothing;", check=True)
    run("gles20-llvmpipe", ("shell", {"path": str(shell)}))
