"""Arrays that stay on a device: right, fused, freed, and not lost with it."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer

CHILD = Path(__file__).with_name("resident_child.py")
QUICK = [name for name, one in FARM.items() if not one.is_slow]


def check(name: str, folder: Path, steps: int = 300) -> None:
    said = answer(CHILD, name, steps, timeout=1500, GPUEDGE_CACHE_DIR=folder)
    found = json.loads(said)
    assert found["device"] == FARM[name].device
    assert len(found["found"]) == 18
    wrong = {check: what for check, what in found["found"].items() if what != "right"}
    assert not wrong


@pytest.mark.driver
@pytest.mark.parametrize("name", [QUICK[daily.turn(len(QUICK))]])
def test_arrays_stay_on_a_device(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.driver
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FARM)
def test_arrays_stay_on_every_device(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 100_000 if name == "vulkan-lavapipe" else 10_000)
