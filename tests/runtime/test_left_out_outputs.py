"""Outputs without a name, which ONNX Runtime crashes on, and what zeros are quantised to."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model, value, weight
from planrun import plan_device

import gpuedge

X = np.arange(6, dtype=np.float32)

SPLITS: dict[str, tuple[list[str], int]] = {
    "inside": (["a", "", "b"], 13), "at the end": (["a", "b", ""], 13),
    "counted": (["a", "", "b"], 18),
}  # fmt: skip

CHILD = """
import sys, numpy as np, gpuedge
feeds = {"x": np.arange(6, dtype=np.float32).reshape(eval(sys.argv[2]))}
with gpuedge.Session(sys.stdin.buffer.read(), device=sys.argv[1]) as session:
    print({name: found.ravel().tolist() for name, found in session.run(feeds).items()})
"""


def answer(proto: onnx.ModelProto, device: str, shape: tuple[int, ...]) -> str:
    """Return what a process of its own answers: a crash must not take the tests down."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, device, repr(shape)], input=proto.SerializeToString(),
        capture_output=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.decode().strip()


@pytest.mark.parametrize("name", SPLITS)
def test_parts_that_nobody_asks_for(name: str) -> None:
    names, opset = SPLITS[name]
    more = {"num_outputs": 3} if opset == 18 else {}
    node = helper.make_node("Split", ["x"], names, axis=0, **more)
    outputs = [value(n, [2]) for n in names if n]
    parts = dict(zip(names, X.reshape(3, 2).tolist(), strict=True))
    wanted = {n: part for n, part in parts.items() if n}
    assert answer(model([node], [value("x", [6])], outputs, opset=opset), "cpu", (6,)) == str(
        wanted
    )


@pytest.mark.parametrize("opset", [7, 9])
def test_statistics_that_nobody_asks_for(opset: int) -> None:
    ones = np.ones(2, np.float32)
    node = helper.make_node(
        "BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "", "", "", ""], epsilon=0.0
    )
    held = [weight(n, ones * k) for n, k in zip("sbmv", (2, 3, 1, 4), strict=True)]
    proto = model([node], [value("x", [1, 2, 3])], [value("y", [1, 2, 3])], held, opset=opset)
    assert answer(proto, "cpu", (1, 2, 3)) == str({"y": ((X - 1) / 2 * 2 + 3).tolist()})


@pytest.mark.parametrize("device", ["cpu", "plan"])
@pytest.mark.parametrize(
    "x", [np.zeros(6, np.float32), X - 2, X + 1, -X - 1], ids=["zeros", "both", "above", "below"]
)
def test_numbers_are_quantised_by_their_range(device: str, x: np.ndarray) -> None:
    """The reference is ONNX Runtime's text: the scale of a range of nothing is 1."""
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    outputs = [
        value("y", [6], TensorProto.UINT8),
        value("s", []),
        value("z", [], TensorProto.UINT8),
    ]
    proto = model([node], [value("x", [6])], outputs)
    low, high = np.float32(min(0, x.min())), np.float32(max(0, x.max()))
    scale = np.float32(1) if low == high else (high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    wanted = np.clip(np.rint(x / scale) + zero, 0, 255)
    with gpuedge.Session(proto, device=plan_device() if device == "plan" else "cpu") as session:
        found = session.run([x])
    assert (found["s"], found["z"]) == (scale, zero)
    np.testing.assert_array_equal(found["y"], wanted)


@pytest.mark.parametrize("extent", [-1, 2**31, 2**63, 2**70, -(2**70)])
def test_shapes_to_warm_up_for_that_no_tensor_has(extent: int) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    proto = model([node], [value("x", ["n"])], [value("y", ["n"])])
    with (
        gpuedge.Session(proto, device="cpu") as session,
        pytest.raises(gpuedge.GpuEdgeError, match="extent") as caught,
    ):
        session.warm_up({"x": (extent,)})
    assert caught.value.code == "GE-201"
