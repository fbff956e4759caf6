"""The CPU and every GPU give the same answers and the same refusals, those of ONNX's reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from farm import FARM, environment_of, require

pytestmark = pytest.mark.driver
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
    require(name)
    done = subprocess.run(
        [sys.executable, CHILD, FARM[name].device, str(count)],
        capture_output=True, text=True, timeout=280, check=False, env=environment_of(name),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for what, wrong in json.loads(done.stdout).items():
        assert not wrong, (what, wrong)
