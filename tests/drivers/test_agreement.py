"""The CPU and every GPU give the same answers and the same refusals, those of ONNX's reference."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import answer

pytestmark = [pytest.mark.driver, daily.day(3, of=4)]
CHILD = Path(__file__).with_name("agreement_child.py")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vulkan-lavapipe", 40), ("gles20-llvmpipe", 20),
        *(pytest.param(name, 150, marks=pytest.mark.long)
          for name in ("vulkan-lavapipe", "gles20-llvmpipe")),
    ],
)  # fmt: skip
def test_a_device_and_the_cpu_agree(name: str, count: int) -> None:
    """`count` random nodes that resample, which take most of the time."""
    for what, wrong in json.loads(answer(CHILD, name, count)).items():
        assert not wrong, (what, wrong)
