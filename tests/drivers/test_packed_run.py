"""Packed models on real drivers, in processes that cannot import the onnx package."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import daily
import numpy as np
import pytest
from farm import answer

pytestmark = daily.day(1, of=4)

CHILD = Path(__file__).with_name("packed_child.py")
LEVELS = [
    "vulkan-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe", "gles20-llvmpipe", "wgpu-lavapipe"
]  # fmt: skip


@pytest.mark.driver
@pytest.mark.parametrize(
    ("name", "packages"), daily.some(product(LEVELS, ["onnx", "onnx,onnxruntime,ml_dtypes"]), 5)
)
def test_a_device_runs_a_packed_model_without_onnx(
    name: str, packages: str, tmp_path: Path
) -> None:
    path = tmp_path / "digits.gpuedge"
    made = json.loads(answer(CHILD, name, "pack", path))
    assert made["kernels"][0] > 3
    own = tmp_path / "cache"  # without printed kernels
    told = json.loads(answer(CHILD, name, "run", path, packages, GPUEDGE_CACHE_DIR=own))
    assert told["onnx"] == []
    assert told["prints"] == []  # all kernels were in the file
    assert told["engine"] == ["numpy" if "onnxruntime" in packages else "onnxruntime"]
    (device,) = set(told["devices"]) - {"host"}
    assert device != "cpu"
    assert (told["on_device"], told["crosschecks"], told["failed"]) == (1, 1, 0)
    np.testing.assert_array_equal(told["found"], made["wanted"])  # as of the ONNX file, to the bit
    # softmax of sums over 160 products: the session's own cross-check has the tight bounds
    np.testing.assert_allclose(told["cpu"], told["found"], rtol=1e-4)
    assert told["golden"] == {"cpu": "", device: ""}
    assert told["is_ok"]


@pytest.mark.driver
def test_wrong_kernels_in_a_packed_model_are_found_out(tmp_path: Path) -> None:
    name, path = "gles31-llvmpipe", tmp_path / "digits.gpuedge"
    made = json.loads(answer(CHILD, name, "pack", path))
    told = json.loads(answer(CHILD, name, "forged", path, GPUEDGE_CACHE_DIR=tmp_path / "cache"))
    assert told["changed"]
    assert not told["is_ok"]
    assert told["golden"]["cpu"] == ""
    (wrong,) = (said for device, said in told["golden"].items() if device != "cpu")
    assert "differ" in wrong
    assert "GOLDEN VALUES NOT CONFIRMED" in told["told"]
    assert told["crosschecks_failed"] == 1  # of a session's first request, which the CPU answers
    np.testing.assert_allclose(told["found"], made["wanted"], rtol=1e-4)
