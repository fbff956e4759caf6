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
    assert len(wrong) == 27
    assert not any(wrong.values()), wrong
    has_dots = found["level"] in ("vulkan", "wgpu")
    products = {f"{name} product": [0, True] for name in ("wide", "byte", "short")}
    convolutions = {
        name: [0, True]
        for name in ("byte convolution", "long byte convolution", "whole byte convolution",
                     "unsigned weights")
    }  # fmt: skip
    fours = {**products, **convolutions, "network": [0, False]}
    assert found["in_bytes"] == (fours if has_dots else {})
    assert found["kept"] == {**convolutions, "byte product": [0, True]}
