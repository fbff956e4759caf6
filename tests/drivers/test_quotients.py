"""Quantised numbers: quotients at ties are those of an exact division, however a driver divides."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("quotient_child.py")


@pytest.mark.parametrize("name", daily.in_turn(FARM))
def test_codes_do_not_depend_on_how_a_driver_divides(name: str) -> None:
    found = json.loads(answer(CHILD, name, timeout=240))
    assert {what: counts["wrong"] for what, counts in found.items()} == {
        "as it is": 0, "up": 0, "down": 0
    }  # fmt: skip
    assert found["as it is"]["would be"] == 0
    assert min(found["up"]["would be"], found["down"]["would be"]) > 100
