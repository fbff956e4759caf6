"""Products of 8-bit integers: the same bits on every processor and level, those of int64."""

from __future__ import annotations

from pathlib import Path

import daily
import pytest
from farm import FARM, require
from products_cases import cases
from products_levels import HIDDEN, LEVELS, PROCESSORS, computed, places

pytestmark = [pytest.mark.driver, daily.day(3, of=4)]
HERE = [name for name in places() if name not in LEVELS]
"""Processors, those that this one can pass for."""


@pytest.mark.parametrize("name", [*daily.some(HERE), *daily.in_turn(LEVELS)])
def test_the_same_bits_everywhere(name: str, tmp_path: Path) -> None:
    if name in FARM:
        require(name)
    found = computed(name, tmp_path)
    wrong = {case: one for case, one in found["cases"].items() if one["wrong"]}
    assert not wrong
    assert list(found["cases"]) == [str(case) for case in cases()]
    if name in (HIDDEN, PROCESSORS[1]):  # a real processor's mistakes are those of the fake
        assert found["mended"] == 8
