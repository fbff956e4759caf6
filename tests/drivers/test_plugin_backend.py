"""A backend from another package, found by its entry point, works as a built-in one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import farm
import pytest

pytestmark = pytest.mark.driver

MODULE = '''
from gpuedge.backends import FolderBackend

class Mine(FolderBackend):
    """Vulkan under another name, as a backend of somebody else would be."""

    def __init__(self):
        super().__init__("myapi", "vulkan")

    def candidates(self, environ):
        return [one.replace(backend=self.name) for one in super().candidates(environ)]
'''
PROGRAM = """
import numpy as np, gpuedge
report = gpuedge.probe(deadline_s=60)
(row,) = [r for r in report.devices if r.backend == "myapi"]
x = np.float32([-1, 2, -3, 4])
with gpuedge.open("myapi") as device:
    assert device.name == "myapi:0"
    assert gpuedge.relu(x, device=device).tolist() == [0, 2, 0, 4]
assert gpuedge.elementwise("x * 2.0")(x, device="myapi").tolist() == [-2, 4, -6, 8]
try:
    gpuedge.relu(x, device="myapj")
except gpuedge.UnknownDeviceError as error:
    assert "myapi" in str(error)
print(row.device, row.status)
"""


def test_plug_in_is_probed_opened_and_named(tmp_path: Path) -> None:
    farm.require("vulkan-lavapipe")
    (tmp_path / "mine.py").write_text(MODULE)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gpuedge.backends]\nmyapi = mine:Mine\n")
    environ = {
        **farm.environment_of("vulkan-lavapipe"), "GPUEDGE_BACKENDS": "myapi",
        "GPUEDGE_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, timeout=280, check=False, env=environ, cwd=farm.ROOT,
    )  # fmt: skip
    assert done.stdout.strip() == "myapi:0 ok", done.stderr
