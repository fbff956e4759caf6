"""Frames of a camera on every level: bytes moved exactly, and weighed within the bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from farm import FARM, answer

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("frames_child.py")
DAILY = ("vulkan-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe", "gles20-bare", "wgpu-lavapipe")


def check(name: str, folder: Path) -> None:
    found = json.loads(answer(CHILD, name, timeout=240, GPUEDGE_CACHE_DIR=folder))
    assert found["level"] == [FARM[name].device]
    assert found["wrong"] == 0
    assert found["error"] <= 1


@pytest.mark.parametrize("name", DAILY)
def test_frames_are_those_of_numpy(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in FARM if n not in DAILY])
def test_frames_are_those_of_numpy_elsewhere(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
