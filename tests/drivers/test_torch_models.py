"""Networks as PyTorch exports them: whole on a device, and right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from daily import others_long, some
from farm import FARM, answer

CHILD = Path(__file__).with_name("torch_child.py")
FOLDER = Path(__file__).resolve().parents[1] / "models" / "torch"
NAMES = sorted(file.stem for file in FOLDER.glob("*.onnx"))
PARTS = 3
CONFIGURATIONS = ("vulkan-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe", "gles20-llvmpipe",
                  "wgpu-lavapipe")  # fmt: skip


def test_all_of_them_are_here() -> None:
    assert len(NAMES) == 18
    assert sum(file.stat().st_size for file in FOLDER.glob("*.onnx")) < 3e6


@pytest.mark.driver
@pytest.mark.parametrize("part", some(range(PARTS), PARTS))
@pytest.mark.parametrize("configuration", others_long(CONFIGURATIONS, ["vulkan-lavapipe"]))
def test_networks_run_whole_on_a_device(configuration: str, part: int) -> None:
    names = NAMES[part::PARTS]
    rows = json.loads(answer(CHILD, configuration, *names))
    assert {row[0] for row in rows} == set(names)
    for name, shape, is_same, worst, places in rows:
        assert is_same, (name, shape)
        assert worst <= 1, (name, shape)
        assert set(places) <= {f"{FARM[configuration].device}:0", "host"}, (name, shape)
