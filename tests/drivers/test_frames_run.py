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
    found = json.loads(answer(CHILD, name, timeout=240, GPUEDGE_CACHE_DIR=tmp_path))
    assert found["level"] == [FARM[name].device]
    assert found["wrong"] == 0
    assert found["error"] <= 1
