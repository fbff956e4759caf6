"""Frames of a camera on every level: bytes moved exactly, and weighed within the bound."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("frames_child.py")


@pytest.mark.parametrize("name", daily.in_turn(FARM))
def test_frames_are_those_of_numpy(name: str, tmp_path: Path) -> None:
    both = json.loads(answer(CHILD, name, timeout=240, GPUEDGE_CACHE_DIR=tmp_path))
    for found, nbytes in zip(both, (24 * 32 * 3, 23 * 29 * 3), strict=True):
        assert found["level"] == [FARM[name].device]
        assert (found["wrong"], found["differing"]) == (0, 0)
        assert found["error"] <= 1
        assert found["uploaded"] == -(-nbytes // 4) * 4
