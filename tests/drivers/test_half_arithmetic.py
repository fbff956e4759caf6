"""Arithmetic in float16 on real drivers; a refusal, or float32 with a reason, elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import daily
import pytest
from farm import FARM, cache, environment_of, require

from gpuedge.plan.library import variants

pytestmark = [pytest.mark.driver, daily.day(0, of=4)]
CHILD = Path(__file__).with_name("half_child.py")
OFFER = ("vulkan-lavapipe", "wgpu-lavapipe")
LACK = ("vulkan-swiftshader", "gles31-llvmpipe", "wgpu-swiftshader")

ASKING = """
import sys
import numpy as np
import gpuedge
x = np.ones((3, 5), np.float32)
policy = gpuedge.Policy(arithmetic="float16", allow_software=True, decide="load")
gpuedge.probe(deadline_s=60.0)
try:
    gpuedge.add(x, x, device=gpuedge.open(sys.argv[1], policy=policy))
    print("computed")
except gpuedge.GpuEdgeError as error:
    print(error)
with gpuedge.Session(sys.argv[2], device="auto", policy=policy) as session:
    session.run({"x": x})
    print("explained:", session.explain())
"""


def run(name: str, *command: str) -> str:
    require(name)
    environ = {**environment_of(name), "GPUEDGE_CACHE_DIR": str(cache(name)), "COLUMNS": "400"}
    done = subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True,
                          timeout=280, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def check(name: str, seeds: int) -> None:
    found = json.loads(run(name, str(CHILD), str(seeds), FARM[name].device))
    sums = ("conv2d", "dwconv2d", "conv_transpose2d", "matmul")
    unused = {"conv2d_px4", "matmul_map", "matmul_rows", "matmul_tile"}
    served = [
        v for v in variants()
        if v.op in sums and not v.transforms and "map_texels" not in v.needs  # fragments only
    ]  # fmt: skip
    # lavapipe has subgroups of eight: some kernels have one for them at all their shapes
    shared = [v for v in served if v.has_lanes]
    if name.endswith("-lavapipe"):
        instead = [(v.op, v.when) for v in shared]
        unused |= {v.id for v in served if not v.has_lanes and (v.op, v.when) in instead}
    else:
        unused |= {v.id for v in shared}
    summing = {v.in_half().id for v in served if v.id not in unused}
    assert set(found["kernels"]) >= summing | {
        "elementwise_map_f16", "reduce_map_f16",
    }  # fmt: skip
    assert found["wrong"] == found["networks"] == []
    assert found["other"] == []  # every rounding is the one to nearest


def test_known_answers_and_networks() -> None:
    """On one of the two each day."""
    check(OFFER[daily.turn(len(OFFER))], 10)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OFFER)
def test_many_networks(name: str) -> None:
    check(name, 300)


@pytest.mark.parametrize("name", daily.in_turn(LACK))
def test_a_device_without_it_is_refused_and_auto_says_so(name: str, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 5]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "relu.onnx")
    device = FARM[name].device
    said = run(name, "-c", ASKING, device, str(tmp_path / "relu.onnx"))
    refused, _, explained = said.partition("explained:")
    why = f"the {device} level offers no float16 arithmetic on this device"
    assert "GE-303" in refused and why in refused and "Policy(arithmetic='float16')" in refused
    assert f"computes in float32: {why}" in " ".join(explained.split())
