"""Conditions and remainders in formulas: numpy's results on every level."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from expression_child import FORMULAS
from farm import FARM, answer

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("expression_child.py")
DAILY = ("vulkan-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe", "gles20-bare", "wgpu-lavapipe")


def check(name: str) -> None:
    found = json.loads(answer(CHILD, name, timeout=240))
    assert found["level"] == FARM[name].device
    assert len(found["wrong"]) == len(FORMULAS) * (1 if found["is_finite"] else 2)
    assert not any(found["wrong"].values()), found["wrong"]


@pytest.mark.parametrize("name", DAILY)
def test_formulas_are_those_of_numpy(name: str) -> None:
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in FARM if n not in DAILY])
def test_formulas_are_those_of_numpy_elsewhere(name: str) -> None:
    check(name)
