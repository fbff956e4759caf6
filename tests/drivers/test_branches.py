"""Models with an If whose condition planning knows: the branch taken runs on the device."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from branches_child import OPSETS, SHAPES
from farm import FARM, answer

pytestmark = daily.day(1, of=4)

CHILD = Path(__file__).with_name("branches_child.py")


@pytest.mark.driver
@pytest.mark.parametrize("name", ["vulkan-lavapipe", "gles20-llvmpipe"])
def test_the_branch_that_is_taken_runs_on_the_device(name: str) -> None:
    rows = json.loads(answer(CHILD, name))
    assert len(rows) == len(OPSETS) * len(SHAPES) * 2
    for opset, kind, shape, is_same, where in rows:
        assert is_same, (opset, kind, shape)
        assert set(where) == {f"{FARM[name].device}:0", "host"}, (opset, kind, shape)
