"""The conformance cases on every configuration of the driver farm, as a device farm runs them.

One run of the command for each configuration, in processes with that configuration's environment.
Each day one driver of each level runs its share of the cases; `make conformance`, a part of `make
release-check`, runs every case on every configuration.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import daily
import pytest
from farm import EXTRA, FARM, cache, environment_of, require

from gpuedge.conformance.catalogue import everything, shard_of
from gpuedge.conformance.results import Results, only
from gpuedge.conformance.storing import KEEPERS
from gpuedge.plan.library import variants

pytestmark = pytest.mark.driver

CONFIGURATIONS = FARM | EXTRA

DAILY = (
    "vulkan-lavapipe", "vulkan-swiftshader", "gles20-llvmpipe", "gles30-llvmpipe",
    "gles31-llvmpipe", "gles30-softpipe", "gles31-zink", "gles20-angle", "gles20-bare",
    "gles30-swiftshader-legacy", "wgpu-lavapipe", "wgpu-gl",
)  # fmt: skip
"""Every level, driver and way of keeping numbers."""

TODAY = daily.of_each(DAILY, daily.level)[daily.turn(2) :: 2]
"""One driver of every other level a day."""

SHARES = 49
"""So many shares do the cases have: no multiple of the number of levels, or of drivers of a level,
so that in time every driver runs every share."""


LEAST = 0.5
"""So much of a share every configuration has to pass; the others may need what it lacks. The least
able one, `gles20-bare`, can run 74 % of all cases and 53 % of the share that suits it least."""

DRIVERS = {"softpipe": "softpipe", "zink": "zink (llvmpipe", "angle": "ANGLE (Google, Vulkan",
           "legacy": "Google SwiftShader", "swiftshader": "SwiftShader Device"}  # fmt: skip
"""What a driver calls itself, by the end of the configuration's name; the others are llvmpipe."""


def run(name: str, shard: tuple[int, int], folder: Path) -> Results:
    """Run a configuration's cases and return their rows."""
    require(name)
    environ = {
        **environment_of(name),
        "GPUEDGE_CACHE_DIR": str(cache(name)),
        "XDG_RUNTIME_DIR": str(folder),
    }
    rows, log = folder / "rows.jsonl", folder / "log"
    command = [sys.executable, "-m", "gpuedge", "conformance", "run", "--device",
               CONFIGURATIONS[name].device, "--shard", f"{shard[0]}/{shard[1]}",
               "--jobs", "1", "--jsonl", str(rows), "-q"]  # fmt: skip
    with log.open("wb") as file:
        subprocess.run(command, env=environ, stdout=file, stderr=file, check=False, timeout=1700)
    assert rows.exists(), f"{name} did not run:\n{log.read_text(errors='replace')[-3000:]}"
    return only(str(rows))


def check(name: str, shard: tuple[int, int], found: Results) -> None:
    """Every case was run on that very driver, and is right unless it cannot apply."""
    wanted = {s.id for s in everything("smoke") if shard_of(s.id, shard[1]) == shard[0]}
    assert set(found.rows) == wanted
    caps: dict[str, Any] = found.header["caps"]
    wrong = [row for row in found.rows.values() if row["status"] not in ("passed", "skipped")]
    assert not wrong, "\n".join(f"{r['id']}: {r['status']}: {r.get('reason')}" for r in wrong)
    for row in found.rows.values():
        if row["status"] == "skipped":
            lacks_storage = not KEEPERS[row["storage"]].is_among(caps["storages"])
            assert lacks_storage or is_lacking(row["variant"], caps), row
    assert found.counts()["passed"] >= LEAST * len(wanted)
    check_driver(name, found)


def is_lacking(name: str, caps: dict[str, Any]) -> bool:
    """Tell whether a device lacks what a kernel variant needs, whatever the shape."""
    (variant,) = (one for one in variants() if one.id == name)
    lanes = variant.local[0] * variant.local[1] * variant.local[2]
    return (
        variant.form not in caps["forms"]
        or any((caps[need] or 0) < least for need, least in variant.needs.items())
        or (variant.has_lanes and caps["subgroup_lanes"] != lanes)
    )


def check_driver(name: str, found: Results) -> None:
    """The device is the one that the configuration names."""
    caps, identity = found.header["caps"], found.header["identity"]
    assert caps["level"] == CONFIGURATIONS[name].device
    assert caps["is_software"] is True
    driver = name.rpartition("-")[2]
    assert DRIVERS.get(driver, "llvmpipe") in identity["name"]
    assert driver != "angle" or "SwiftShader" in identity["name"]
    storages = {"gles20-bare": "rgba8_float", "gles30-bare": "rgba32ui"}
    assert caps["storages"][0] == storages.get(name, caps["storages"][0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", daily.others_long(DAILY, TODAY))
def test_a_share_of_the_cases(name: str, tmp_path: Path) -> None:
    levels = list(dict.fromkeys(map(daily.level, DAILY)))
    first = daily.turn(SHARES) * len(levels) + levels.index(daily.level(name))
    shard = 1 + first % SHARES, SHARES
    check(name, shard, run(name, shard, tmp_path))
