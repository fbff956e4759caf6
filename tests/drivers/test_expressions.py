"""Conditions and remainders in formulas: numpy's results on every level."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from expression_child import FORMULAS
from farm import FARM, answer

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("expression_child.py")
LOSING = {name for name in FARM if name.endswith(("-angle", "-swiftshader-legacy"))}
"""Drivers of OpenGL ES that are known to lose NaN and infinity (docs/devices.md)."""


@pytest.mark.parametrize("name", daily.in_turn(FARM))
def test_formulas_are_those_of_numpy(name: str) -> None:
    found = json.loads(answer(CHILD, name, timeout=240))
    assert found["level"] == FARM[name].device
    assert len(found["wrong"]) == len(FORMULAS) * (1 if found["is_finite"] else 2)
    held = {k: v for k, v in found["wrong"].items() if not (name in LOSING and "special" in k)}
    assert not any(held.values()), found["wrong"]
