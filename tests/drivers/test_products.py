"""Products of 8-bit integers: the same bits on every processor and level, those of int64."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import daily
import pytest
from farm import FARM, require
from products_cases import cases
from products_levels import HIDDEN, LEVELS, PROCESSORS, computed, places

pytestmark = pytest.mark.driver


DAYS = 3
"""So many days it takes until a level has computed every case; processors do all of them."""


def check(name: str, folder: Path, first: int, step: int) -> None:
    if name in FARM:
        require(name)
    found = computed(name, folder, first, step)
    wrong = {case: one for case, one in found["cases"].items() if one["wrong"]}
    assert not wrong
    assert list(found["cases"]) == [str(case) for case in islice(cases(), first, None, step)]
    if name in (HIDDEN, PROCESSORS[1]):  # a real processor's mistakes are those of the fake
        assert found["mended"] == 8


@pytest.mark.parametrize("name", places())
def test_the_same_bits_everywhere(name: str, tmp_path: Path) -> None:
    step = DAYS if name in FARM else 1
    check(name, tmp_path, daily.turn(step), step)


@pytest.mark.long
@pytest.mark.parametrize("name", LEVELS)
def test_the_same_bits_on_every_level(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 0, 1)
