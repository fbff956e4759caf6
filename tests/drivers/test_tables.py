"""Look-up tables larger than a binding give exact results on every level."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import FARM, answer
from table_cases import CASES

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("tables_child.py")


@pytest.mark.parametrize("name", daily.in_turn(FARM))
def test_the_very_elements_from_several_bindings(name: str) -> None:
    found = json.loads(answer(CHILD, name))
    assert found["level"] == FARM[name].device
    assert found["wrong"] == dict.fromkeys(CASES, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mib"), [("wgpu-lavapipe", 200), ("vulkan-lavapipe", 200), ("gles31-llvmpipe", 200)]
)
def test_a_table_that_the_driver_itself_does_not_bind_at_once(name: str, mib: int) -> None:
    found = json.loads(answer(CHILD, name, str(mib)))
    assert found["wrong"] == 0
    assert len(found["parts"]) > 1
    assert max(found["parts"]) <= found["most"] < mib * 2**20 <= sum(found["parts"]) + 4096
