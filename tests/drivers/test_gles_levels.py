"""What each driver configuration is found to have, and its kernels against numpy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import farm
import pytest
from gles_child import GLES, Check, need, run

pytestmark = pytest.mark.driver

FLOAT, BITS, HALF = "rgba32f", "rgba32ui", "rgba16f"
BYTES = ("rgba8_float", "rgba8_fixed16", "rgba8_u8", "rgba8_s8")
ES3 = [FLOAT, BITS, "rgba8_float", HALF, *BYTES[1:]]
ES2_FLOAT = [FLOAT, "rgba8_float", HALF, *BYTES[1:]]
ES2_HALF = ["rgba8_float", HALF, *BYTES[1:]]

STORAGES = {
    "gles20-llvmpipe": ES2_HALF,
    "gles20-softpipe": ES2_HALF,
    "gles20-zink": ES2_HALF,
    "gles20-angle": ES2_FLOAT,
    "gles20-bare": list(BYTES),
    "gles30-llvmpipe": ES3,
    "gles30-softpipe": ES3,
    "gles30-zink": ES3,
    "gles30-angle": ES3,
    "gles30-swiftshader-legacy": ES3,
}
NAMES = {"llvmpipe": "llvmpipe", "softpipe": "softpipe", "zink": "zink (llvmpipe"}
DIALECTS = {"gles20": "essl100", "gles30": "essl300", "gles31": "essl310"}


LONG = ("gles30-swiftshader-legacy", "gles20-softpipe", "gles30-softpipe", "gles20-zink",
        "gles31-zink", "gles30-angle", "gles31-angle")  # fmt: skip
"""Configurations whose kernels the long form compares: other drivers of the level take the same
paths, and other levels of the driver the same compiler."""


def facts(configuration: str) -> Check:
    """What a configuration must report."""
    level, _, driver = configuration.partition("-")
    storages = STORAGES.get(configuration, ["buffer", "buffer_f16"])
    wanted: dict[str, object] = {
        "level": level,
        "dialect": DIALECTS[level],
        "storages": storages,
        "forms": ["group", "map"] if level == "gles31" else ["map"],
        "is_finite_only": storages[0] == "rgba8_float",
        "has_suballocation": level == "gles31",
        "software": True,
        "renderer": NAMES.get(driver, "SwiftShader" if driver != "bare" else "llvmpipe"),
    }
    if level != "gles31":
        wanted["max_outputs"] = 1
    if level == "gles30":
        wanted["map_texels"] = 4
    if driver == "swiftshader-legacy":  # it draws to the first layer, whichever it is told
        wanted |= {"dialect": "essl300_single", "map_texels": 1}
    if level == "gles20":
        wanted["max_storage_buffer_bytes"] = 1 << 25
    return "caps", wanted


def numbers(level: str) -> list[str | Check]:
    """The checks of kernels on every storage kind that a level must pass."""
    found: list[str | Check] = ["storages", "chain", "reuse", "parts", "special", "refusals"]
    return [*found, "mixed" if level != "gles31" else "groups"]


@pytest.mark.parametrize("configuration", [c for c in GLES if c not in LONG])
def test_facts_and_numbers(configuration: str) -> None:
    need(configuration)
    run(configuration, facts(configuration), *numbers(configuration[:6]))


def test_powers_are_tried_not_believed() -> None:
    need("gles20-llvmpipe")
    run("gles20-llvmpipe", "powers")


@pytest.mark.parametrize("configuration", LONG)
def test_facts(configuration: str) -> None:
    need(configuration)
    run(configuration, facts(configuration))


@pytest.mark.long
@pytest.mark.parametrize("configuration", LONG)
def test_numbers(configuration: str) -> None:
    need(configuration)
    run(configuration, *numbers(configuration[:6]))


@pytest.mark.parametrize(
    ("configuration", "level", "code"),
    [
        ("gles20-llvmpipe", "gles30", "no-context"),
        ("gles30-llvmpipe", "gles31", "no-context"),
        ("gles30-swiftshader-legacy", "gles31", "no-context"),
    ],
)
def test_absent_levels(configuration: str, level: str, code: str) -> None:
    need(configuration)
    check: Check = ("absent", {"wanted": level, "code": code})
    run(configuration, check)


def test_formats_are_tried_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Mesa goes on completing framebuffers of some formats whose extension is hidden.
    need("gles30-llvmpipe")
    monkeypatch.setitem(farm.FARM, "gles30-hidden", farm.EXTRA["gles30-bare"])
    kinds = [BITS, "rgba8_float", HALF, *BYTES[1:]]
    run("gles30-hidden", ("caps", {"storages": kinds, "is_finite_only": False}))


def test_format_that_rounds_in_branches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Newer contexts give ESSL 1.00 float textures; llvmpipe fetches from them with 16 bits there.
    need("gles20-llvmpipe")
    for driver, storages in (("llvmpipe", ES2_HALF), ("softpipe", ES2_FLOAT)):
        newer = {"MESA_GLES_VERSION_OVERRIDE": "3.1", "GALLIUM_DRIVER": driver}
        one = farm.Configuration("gles20", {farm.EGL: "mesa"}, newer)
        monkeypatch.setitem(farm.FARM, "gles20-newer", one)
        run("gles20-newer", ("caps", {"storages": storages}))


def test_angle_without_vulkan_driver_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    need("gles20-angle")
    hidden = farm.Configuration("gles20", {farm.LIBRARY: "angle"}, {farm.VULKAN: farm.NONE})
    monkeypatch.setitem(farm.FARM, "gles20-hidden", hidden)
    run("gles20-hidden", ("absent", {"wanted": "gles20", "code": "no-device"}))


def test_empty_shell_of_a_library(tmp_path: Path) -> None:
    shell = tmp_path / "libEGL.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(shell), "-xc", "-"]
    subprocess.run(command, input=b"int nothing;", check=True)
    need("gles20-llvmpipe")
    run("gles20-llvmpipe", ("shell", {"path": str(shell)}))
