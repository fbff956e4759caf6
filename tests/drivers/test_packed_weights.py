"""Weights of few bits give exact results on every level, and take as few bytes as they have."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer
from packed_cases import CASES

pytestmark = [pytest.mark.driver, daily.day(3, of=4)]
CHILD = Path(__file__).with_name("weights_child.py")


@pytest.mark.parametrize("name", daily.in_turn(FARM))
def test_the_very_numbers_in_few_bytes(name: str) -> None:
    found = json.loads(answer(CHILD, name))
    assert found["level"] == FARM[name].device
    assert found["wrong"] == dict.fromkeys(CASES, 0)
    held = found["held"]
    # codes; scales, with zero points where these differ, as float32
    assert held["int4 64x37 5 rows block 32 {'turned': True}"] == 32 * 40 + 2 * 40 * 4
    assert held["uint4 64x48 1 rows block 16 {'zeros': True}"] == 32 * 48 + 2 * 4 * 48 * 4
    assert held["int8 72x48 33 rows block 16 {}"] == 80 * 48 + 5 * 48 * 4
    assert held["nbits 4 256 none"] == 256 * 40 + 2 * 40 * 4 + 40 * 4
    assert held["rows int4 4 False"] == 60 * 24 + 60 * 3 * 4
    assert held["Gather INT4"] == 40 * 33 + 40 * 4
    assert held["Gather FLOAT8E5M2"] == 40 * 65 + 40 * 4 + 256 * 4
    assert held["Transpose INT4"] == 34 * 40 + 40 * 4
