"""How far it is from a public function to the device, once everything is compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from farm import environment_of, require

import gpuedge

CHILD = Path(__file__).with_name("way_child.py")

MOST_CALLS = {
    "cpu": {"session": 18, "bound": 34, "conv2d": 14},
    "vulkan": {"session": 48, "bound": 50, "conv2d": 70},
    "gles": {"session": 83, "bound": 64, "conv2d": 116},
}


def ways(device: str, environ: Mapping[str, str]) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, str(CHILD), device],
        env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def check(found: Mapping[str, list[str]], most_calls: Mapping[str, int]) -> None:
    for name, files in found.items():
        assert len(files) <= most_calls[name], (name, files)


@pytest.mark.timeout(300)
@pytest.mark.driver
@pytest.mark.parametrize("name", ["vulkan-lavapipe", "gles20-llvmpipe"])
def test_warm_calls_take_few_steps_on_their_way_to_a_gpu(name: str, tmp_path: Path) -> None:
    require(name)
    environ = {**environment_of(name), "GPUEDGE_CACHE_DIR": str(tmp_path)}
    device, backend = name.partition("-")[0], "gles" if name.startswith("gles") else "vulkan"
    found = ways(device, environ)
    check(found, MOST_CALLS[backend])
    assert all(any(f.startswith(f"backends/{backend}/") for f in w) for w in found.values())


def test_warm_calls_take_few_steps_on_their_way_to_the_cpu() -> None:
    found = ways("cpu", {})
    check(found, MOST_CALLS["cpu"])
    assert all("executors/cpu.py" in files for files in found.values())


def test_the_short_way_checks_what_may_change() -> None:
    """Arrays of another kind, other settings and weights that are no numbers take the long way."""
    image, weights = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)
    for _ in range(3):
        wanted = gpuedge.conv2d(image, weights, padding=1, device="cpu")
    np.testing.assert_array_equal(gpuedge.conv2d(image, weights, padding=1, device="cpu"), wanted)
    assert gpuedge.conv2d(image, weights, padding=0, device="cpu").shape == (1, 1, 2, 2)
    assert gpuedge.conv2d(image, weights, padding=True + 0, device="cpu").shape == (1, 1, 4, 4)
    turned = np.asfortranarray(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
    straight = np.ascontiguousarray(turned)
    np.testing.assert_array_equal(
        gpuedge.conv2d(turned, weights, padding=1, device="cpu"),
        gpuedge.conv2d(straight, weights, padding=1, device="cpu"),
    )
    half = gpuedge.conv2d(image.astype(np.float16), weights.astype(np.float16), device="cpu")
    assert half.dtype == np.float16
    bad = weights.copy()
    bad[0, 0, 0, 0] = np.nan
    with pytest.raises(gpuedge.GpuEdgeError, match="NaN"):
        gpuedge.conv2d(image, bad, padding=1, device="cpu")
    with pytest.raises(gpuedge.GpuEdgeError), gpuedge.config(device="vulkan:9"):
        gpuedge.add(image, image)
    np.testing.assert_array_equal(gpuedge.add(image, image), image + image)
    with pytest.raises(gpuedge.GpuEdgeError), gpuedge.config(device="vulkan:9"):
        gpuedge.add(image, image)
