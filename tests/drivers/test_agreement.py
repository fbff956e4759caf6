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


@pytest.mark.parametrize("name", ["vulkan-lavapipe", "gles20-llvmpipe"])
def test_a_device_and_the_cpu_agree(name: str) -> None:
    require(name)
    done = subprocess.run(
        [sys.executable, CHILD, FARM[name].device],
        capture_output=True, text=True, timeout=400, check=False, env=environment_of(name),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for what, wrong in json.loads(done.stdout).items():
        assert not wrong, (what, wrong)
