"""Quantised operators give the same bits on every level, those of the numpy reference."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("quantised_child.py")
DAILY = ("vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "gles30-llvmpipe",
         "gles20-bare", "wgpu-lavapipe")  # fmt: skip


def check(name: str, days: int) -> None:
    """Compare today's share of the cases, of so many."""
    found = json.loads(answer(CHILD, name, daily.turn(days), days))
    wrong = found["wrong"]
    assert found["level"] == FARM[name].device
    assert len(wrong) == 22 // days
    assert not any(wrong.values()), wrong
    has_dots = found["level"] in ("vulkan", "wgpu")
    products = {f"{name} product": [0, True] for name in ("wide", "byte", "short")}
    assert found["in_bytes"] == ({**products, "network": [0, False]} if has_dots else {})


@pytest.mark.parametrize("name", DAILY)
def test_the_very_bits(name: str) -> None:
    check(name, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", FARM)
def test_the_very_bits_everywhere(name: str) -> None:
    check(name, 1)
