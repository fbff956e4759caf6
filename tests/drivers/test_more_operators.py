"""Operators on real drivers against float64 numpy; integers bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer

pytestmark = [pytest.mark.driver, daily.day(1, of=4)]
CHILD = Path(__file__).with_name("more_operators_child.py")

CASES = 62


@pytest.mark.parametrize("name", daily.others_long(FARM, daily.of_today(FARM)[daily.turn(2) :: 2]))
def test_single_nodes(name: str) -> None:
    rows = json.loads(answer(CHILD, name, timeout=480))
    assert len(rows) == CASES
    assert [row for row in rows if "unsupported" in row] == []
    assert [row for row in rows if not all(o != "shape" and o <= 0 for o in row["over"])] == []
    assert all("cpu" not in place for row in rows for place in row["on"])
