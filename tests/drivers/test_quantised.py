"""Quantised operators give the same bits on every level, those of the numpy reference."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("quantised_child.py")


@pytest.mark.parametrize("name", daily.in_turn(FARM))
def test_the_very_bits(name: str) -> None:
    found = json.loads(answer(CHILD, name))
    wrong = found["wrong"]
    assert found["level"] == FARM[name].device
    assert len(wrong) == 22
    assert not any(wrong.values()), wrong
    has_dots = found["level"] in ("vulkan", "wgpu")
    products = {f"{name} product": [0, True] for name in ("wide", "byte", "short")}
    assert found["in_bytes"] == ({**products, "network": [0, False]} if has_dots else {})
