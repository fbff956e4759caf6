"""Real drivers in a process of their own: the same results as inline, and nothing loaded here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import daily
import farm
import numpy as np
import pytest

from gpuedge.backends.base import DeviceInfo
from gpuedge.device import Device
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.isolation import open_isolated

CHILD = Path(__file__).with_name("isolation_child.py")
LEVELS = ("vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "wgpu-lavapipe",
          "gles30-llvmpipe", "gles20-llvmpipe")  # fmt: skip


@pytest.mark.parametrize("name", daily.in_turn(LEVELS))
def test_a_driver_gives_the_same_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    conf = farm.FARM[name]
    farm.require(name)
    environ = {**farm.environment_of(name), "GPUEDGE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(CHILD)], env=environ, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["device"].startswith(conf.device)
    assert found["findings"] == []
    assert found["cases"] >= 5
    assert found["is_same"]
    assert found["counts"][0] == found["counts"][1]
    assert found["counts"][0]["submits"] == 3 * found["cases"]
    assert found["lost"] == "worker-died: SIGKILL before the next call began"
    assert found["loaded"] == []
    assert found["loaded_inline"] != []  # what is looked for would be found


SCALE = """#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer First { float a[]; };
layout(std430, binding = 1) writeonly buffer Out { float c[]; };
layout(push_constant) uniform Args { int n; float alpha; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) { c[i] = alpha * a[i] + 1.0; }
}
"""


def test_kernels_that_users_bring_run_in_a_host(vulkan_info: DeviceInfo) -> None:
    executor = GpuExecutor(open_isolated(vulkan_info, deadline_s=60.0), "vulkan:0")
    with Device(executor, "by the test") as device:
        kernel = device.kernel(SCALE, inputs=["a"], outputs={"c": ("a.shape", "float32")})
        for size in (5, 64, 100_000, 4_190_000):
            a = np.arange(size, dtype=np.float32)
            out = kernel(a=a, n=size, alpha=0.5)
            assert np.array_equal(out, a * np.float32(0.5) + 1)
        kernel.close()
