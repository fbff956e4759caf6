"""Every driver keeps the contract of a device; a process per configuration runs all its checks."""

from __future__ import annotations

import json
from typing import Any

import daily
import device_contract
import farm
import pytest
from contract import GPUS, TEXTURES

pytestmark = pytest.mark.driver

FLOAT, BITS, HALF = "rgba32f", "rgba32ui", "rgba16f"
BYTES = ["rgba8_fixed16", "rgba8_u8", "rgba8_s8"]
PACKED = "rgba8_float"
"""Floats in four bytes: what is left where no float texture can be drawn to."""

DIALECTS = {"gles20": "essl100", "gles30": "essl300", "gles31": "essl310", "vulkan": "spirv",
            "wgpu": "wgsl"}  # fmt: skip
NAMES = {"zink": "zink (llvmpipe", "angle": "SwiftShader", "bare": "llvmpipe", "gl": "llvmpipe",
         "swiftshader": "SwiftShader", "lavapipe": "llvmpipe"}  # fmt: skip
FORMS = {"vulkan": ["group", "map", "raw"], "wgpu": ["group", "map"], "gles31": ["group", "map"]}
GL = ["GL_RENDERER", "GL_VENDOR", "GL_VERSION"]
KNOWN = {"vulkan": ["apiVersion", "driverID"], **dict.fromkeys(farm.LEVELS, GL)}
"""What a driver must tell of itself."""
BUFFERS = ["buffer", "buffer_f16", "buffer_u8", "buffer_s8"]
LIMITS: dict[str, dict[str, Any]] = {
    # every device is at least as able as the specification's minimum (Required Limits)
    "vulkan": {"max_invocations": 128, "max_shared_bytes": 16384},
    # What every WebGPU device must offer (specification, Limits), but for the smaller kind of
    # OpenGL device, which has half the buffers and invocations.
    "wgpu": {
        "max_storage_buffers": 4, "max_invocations": 128, "max_shared_bytes": 16384,
        "max_storage_buffer_bytes": 1 << 27, "max_texture_copies": 8,
        "max_copied_elements": 1 << 22, "max_allocation_bytes": 1 << 27,
    },
}  # fmt: skip
"""Least values."""


def storages(level: str, driver: str) -> list[str]:
    """Return the kinds that a configuration must be found to have."""
    if level == "gles30":
        return [FLOAT, BITS, PACKED, HALF, *BYTES]
    if level == "gles20":
        first = [FLOAT, PACKED, HALF] if driver == "angle" else [PACKED, HALF]
        return [*(first if driver != "bare" else [PACKED]), *BYTES]
    return BUFFERS


def facts(configuration: str) -> dict[str, Any]:
    """Return what a configuration must report."""
    level, _, driver = configuration.partition("-")
    kinds = storages(level, driver)
    wanted: dict[str, Any] = {
        "api": level, "level": level, "dialect": DIALECTS[level], "storages": kinds,
        "forms": FORMS.get(level, ["map"]),
        "is_finite_only": kinds[0] == PACKED, "software": True, "is_software": True,
        "has_suballocation": level in ("gles31", "vulkan"),
        "name": NAMES.get(driver.removeprefix("angle-").removesuffix("-legacy"), driver),
    }  # fmt: skip
    wanted["known"] = KNOWN.get(level, [])
    if level in TEXTURES:
        wanted["max_outputs"] = 1
    if level == "gles30":
        wanted["map_texels"] = 4
    if level == "gles20":
        wanted["max_storage_buffer_bytes"] = 1 << 25
    if driver == "swiftshader-legacy":  # it draws to the first layer, whichever it is told
        wanted |= {"dialect": "essl300_single", "map_texels": 1}
    if level in ("vulkan", "wgpu"):
        wanted |= {"device_type": "CPU", "least": LIMITS[level]}
        wanted["lanes"] = [4] if "swift" in driver else [0] if driver == "gl" else [4, 8, 16]
    if level == "wgpu":
        wanted |= {
            "backend": "OpenGL" if driver == "gl" else "Vulkan", "max_texture_size": None,
            "max_groups": [65535] * 3, "max_texel_buffers": 0, "max_texel_elements": 0,
        }  # fmt: skip
    return wanted


SYNCHRONOUS = (
    "gles20-softpipe",
    "gles30-softpipe",
    "gles31-llvmpipe",
    "gles31-softpipe",
    "wgpu-gl",
)
"""Drivers that compute within the call that launches the work: waiting for it takes no time."""

KEEPING = ("gles20-softpipe", *(f"{level}-zink" for level in farm.LEVELS))
"""Drivers that do not give memory back when a context ends."""

TIMED = {"deadline", "busy"}
EXCEPT = {
    "gles20-angle": TIMED,  # ANGLE may crash where a process ends that it still computes in
    "gles30-angle": TIMED,
    "gles30-swiftshader-legacy": TIMED,  # a loop of many turns takes it minutes
    "gles20-bare": TIMED,  # as gles20-llvmpipe
    "gles30-zink": TIMED,  # as gles31-zink
}
"""Checks that a driver cannot pass, or that another configuration of it does."""

LONG = ("gles20-softpipe", "gles30-softpipe", "gles20-zink", "gles30-angle",
        "gles31-angle", "gles30-swiftshader-legacy")  # fmt: skip
"""Configurations for the long form alone: other drivers of the level take the same paths, and other
levels of the driver the same compiler."""

CONFIGURATIONS = [*farm.FARM, *farm.CONTRACT]
TODAY = daily.of_each([c for c in CONFIGURATIONS if c not in LONG], daily.level)[daily.turn(2) :: 2]
"""One driver of every other level a day."""

OTHERS = [c for c in CONFIGURATIONS if c not in TODAY and c != "null"]


def held(configuration: str, checks: list[str]) -> None:
    """Run checks, and assert that all of them ran and held."""
    request = {
        "checks": checks, "facts": facts(configuration) if configuration != "null" else {},
        "synchronous": configuration in SYNCHRONOUS,
        "keeps_memory": configuration in KEEPING,
    }  # fmt: skip
    printed = farm.answer(device_contract.__file__, configuration, json.dumps(request))
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith('["')]
    failures = "\n".join(
        f"{configuration}: {name}: {failure}" for name, failure, _ in rows if failure
    )
    assert not failures, failures
    assert [row[0] for row in rows] == checks


@pytest.mark.parametrize("configuration", daily.others_long(CONFIGURATIONS, TODAY))
def test_contract(configuration: str) -> None:
    level = configuration.partition("-")[0]
    without = EXCEPT.get(configuration, set())
    checks = [name for name in device_contract.names(level) if name not in without]
    assert len(checks) > (20 if level in GPUS else 5)
    held(configuration, checks)


@pytest.mark.parametrize(
    "configuration", daily.others_long(OTHERS, daily.of_each(OTHERS, daily.level))
)
def test_facts_of_the_others(configuration: str) -> None:
    held(configuration, ["facts"])
