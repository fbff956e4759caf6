"""Operators of ONNX Runtime's own on every level: as far from its numbers as the bounds of both."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer
from fused_cases import CASES

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("fused_child.py")


PARTS = 8
"""Parts that the cases are tried in: one a day, on one driver."""
TODAY = (daily.of_today(FARM)[daily.turn(2)], daily.turn(PARTS))


@pytest.mark.parametrize(("name", "part"), daily.others_long(
    [(name, part) for name in FARM for part in range(PARTS)], {TODAY}
))  # fmt: skip
def test_what_the_optimiser_of_onnx_runtime_writes(name: str, part: int) -> None:
    cases = [*CASES][part::PARTS]
    found = json.loads(answer(CHILD, name, *cases))
    assert found["level"] == FARM[name].device
    assert {case: times for case, times in found["off"].items() if times > 2} == {}
    assert found["off"].keys() | found["refused"].keys() == {*cases}
    assert all("binds" in why for why in found["refused"].values())
    assert found["off"]
