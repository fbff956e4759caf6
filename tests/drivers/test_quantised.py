"""Quantised operators give the same bits on every level, those of the numpy reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from farm import FARM, answer

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("quantised_child.py")
DAILY = ("vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "gles30-llvmpipe",
         "gles20-bare", "wgpu-lavapipe")  # fmt: skip


def check(name: str) -> None:
    found = json.loads(answer(CHILD, name))
    wrong = found["wrong"]
    assert found["level"] == FARM[name].device
    assert len(wrong) == 20
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("name", DAILY)
def test_the_very_bits(name: str) -> None:
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in FARM if n not in DAILY])
def test_the_very_bits_elsewhere(name: str) -> None:
    check(name)
