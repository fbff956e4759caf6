"""Quantised operators give the same bits on every level, those of the numpy reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from farm import FARM, environment_of, require

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("quantised_child.py")
DAILY = ("vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "gles30-llvmpipe",
         "gles20-bare", "wgpu-lavapipe")  # fmt: skip


def check(name: str, folder: Path) -> None:
    require(name)
    environ = {**environment_of(name), "GPUEDGE_CACHE_DIR": str(folder)}
    command = [sys.executable, str(CHILD), FARM[name].device]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    wrong = found["wrong"]
    assert found["level"] == FARM[name].device
    assert len(wrong) == 20
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("name", DAILY)
def test_the_very_bits(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in FARM if n not in DAILY])
def test_the_very_bits_elsewhere(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
