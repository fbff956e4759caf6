"""The speed of a software rasteriser, as `gpuedge.check` measures it: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from farm import environment_of, require

from gpuedge.probing.report import ProbeRow
from gpuedge.runtime import yardstick

pytestmark = pytest.mark.driver

CODE = """
import json, gpuedge
from pathlib import Path
found = gpuedge.check(MODEL)
(one,) = found.devices
maps = Path("/proc/self/maps").read_text()
print(json.dumps({"slowness": dict(one.slowness), "page": str(found),
                  "is_loaded": "libvulkan_lvp" in maps}))
"""


def test_check_measures_a_rasteriser_outside_of_this_process(tmp_path: Path) -> None:
    require("vulkan-lavapipe")
    model = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
    environ = {**environment_of("vulkan-lavapipe"), "GPUEDGE_CACHE_DIR": str(tmp_path)}
    code = CODE.replace("MODEL)", f"{str(model)!r}, shapes={{'image': (1, 1, 8, 8)}})")
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True,
                          text=True, timeout=240, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert sorted(found["slowness"]) == ["conv", "map", "matmul"]
    assert all(0 < v < 10_000 for v in found["slowness"].values())
    assert "could not be measured" not in found["page"]
    assert not found["is_loaded"]


def test_what_does_not_open_is_not_measured() -> None:
    row = ProbeRow(
        "vulkan:0", "vulkan", "ok", "ok", "answered with the right numbers", "llvmpipe",
        identity={"api": "vulkan", "name": "llvmpipe", "os": "linux"}, is_software=True,
        key="/none/lvp_icd.json", fingerprint="f", index=0,
        env={"VK_DRIVER_FILES": "/none/lvp_icd.json"},
    )  # fmt: skip
    assert yardstick.slowness(row) == {}
