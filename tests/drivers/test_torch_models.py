"""Networks as PyTorch exports them: whole on a device, and right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from daily import others_long
from farm import FARM, answer

CHILD = Path(__file__).with_name("torch_child.py")
FOLDER = Path(__file__).resolve().parents[1] / "models" / "torch"
NAMES = sorted(file.stem for file in FOLDER.glob("*.onnx"))
CONFIGURATIONS = ("vulkan-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe", "gles20-llvmpipe",
                  "wgpu-lavapipe")  # fmt: skip


def test_all_of_them_are_here() -> None:
    assert len(NAMES) == 18
    assert sum(file.stat().st_size for file in FOLDER.glob("*.onnx")) < 3e6


@pytest.mark.driver
@pytest.mark.parametrize("configuration", others_long(CONFIGURATIONS, ["vulkan-lavapipe"]))
def test_networks_run_whole_on_a_device(configuration: str) -> None:
    rows = json.loads(answer(CHILD, configuration, *NAMES))
    assert {row[0] for row in rows} == set(NAMES)
    for name, shape, is_same, worst, places in rows:
        assert is_same, (name, shape)
        assert worst <= 1, (name, shape)
        assert set(places) <= {f"{FARM[configuration].device}:0", "host"}, (name, shape)
