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
LOST = {"-angle": "%", "-swiftshader-legacy": ""}
"""What drivers of OpenGL ES do not compute of NaN and infinity: formulas that hold this text
(docs/devices.md)."""


def is_lost(name: str, formula: str) -> bool:
    lost = [text for ending, text in LOST.items() if name.endswith(ending)]
    return "special" in formula and any(text in formula for text in lost)


@pytest.mark.parametrize("name", daily.in_turn(FARM))
def test_formulas_are_those_of_numpy(name: str) -> None:
    found = json.loads(answer(CHILD, name, timeout=240))
    assert found["level"] == FARM[name].device
    assert len(found["wrong"]) == len(FORMULAS) * (1 if found["is_finite"] else 2)
    held = {k: v for k, v in found["wrong"].items() if not is_lost(name, k)}
    assert not any(held.values()), found["wrong"]
