"""The ONNX backend interface, on the CPU and against a session that stands in for a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import daily
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import gpuedge
from gpuedge import onnx_backend
from gpuedge.core.errors import DeviceError, InputError, UnknownDeviceError, UnsupportedOpError
from gpuedge.executors.base import PlacementRow

F32 = TensorProto.FLOAT


def model(extent: Any = 3) -> onnx.ModelProto:
    """y = relu(a - b) and d = a + b."""
    graph = helper.make_graph(
        [helper.make_node("Sub", ["a", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"]),
         helper.make_node("Add", ["a", "b"], ["d"])],
        "g",
        [helper.make_tensor_value_info(n, F32, [extent]) for n in "ab"],
        [helper.make_tensor_value_info(n, F32, [extent]) for n in "yd"],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


A, B = np.array([1, 2, 3], np.float32), np.array([3, 2, 1], np.float32)


def check(outputs: Any) -> None:
    assert isinstance(outputs, tuple)
    np.testing.assert_array_equal(outputs[0], [0, 0, 2])
    np.testing.assert_array_equal(outputs[1], [4, 4, 4])


@pytest.mark.parametrize("device", ["CPU", "cpu", "Cpu:0"])
def test_inputs_by_position_and_by_name(device: str) -> None:
    if device.endswith(":0"):
        assert onnx_backend.parse_device(device) == "cpu:0"
        return
    ready = onnx_backend.prepare(model(), device)
    check(ready.run([A, B]))
    check(ready.run((A, B)))
    check(ready.run({"b": B, "a": A}))
    assert [row.device for row in ready.placement] == ["cpu"] * 3
    check(onnx_backend.run_model(model("N"), [A, B], device))


def test_too_few_inputs() -> None:
    with pytest.raises(InputError, match="takes 2 inputs, but 1 are given") as caught:
        onnx_backend.prepare(model()).run([A])
    assert "a, b" in str(caught.value)


def test_run_node() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    np.testing.assert_array_equal(onnx_backend.run_node(relu, [A - B])[0], [0, 0, 2])
    np.testing.assert_array_equal(onnx_backend.run_node(relu, A - B)[0], [0, 0, 2])
    split = helper.make_node("Split", ["x"], ["p", "q"], num_outputs=2)
    p, q = onnx_backend.run_node(split, {"x": A})
    np.testing.assert_array_equal(p, [1, 2])
    np.testing.assert_array_equal(q, [3])
    clip = helper.make_node("Clip", ["x", "", "hi"], ["y"])
    found = onnx_backend.run_node(clip, [A, np.array(2, np.float32)])[0]
    np.testing.assert_array_equal(found, [1, 2, 2])


def test_run_node_of_an_older_operator_set() -> None:
    flat = helper.make_node("Softmax", ["x"], ["y"])
    x = np.zeros((2, 3, 4), np.float32)
    assert onnx_backend.run_node(flat, [x])[0].flat[0] == pytest.approx(1 / 4)
    assert onnx_backend.run_node(flat, [x], opset_version=11)[0].flat[0] == pytest.approx(1 / 12)
    with pytest.raises(UnsupportedOpError, match="no operator Gelu in operator set 11"):
        onnx_backend.run_node(helper.make_node("Gelu", ["x"], ["y"]), [x], opset_version=11)


@pytest.mark.parametrize("device", ["CUDA", "", "cpu0", "vulkan:x", "gpu", "CPU:0:1"])
def test_unknown_devices(device: str) -> None:
    assert not onnx_backend.supports_device(device)
    with pytest.raises(UnknownDeviceError, match="GE-102"):
        onnx_backend.prepare(model(), device)


def test_compatible_means_readable() -> None:
    assert onnx_backend.is_compatible(model())
    broken = model()
    broken.graph.node[0].op_type = "Subtract"
    assert not onnx_backend.is_compatible(broken)


# --- a named GPU is strict -----------------------------------------------------------------------


class FakeSession:
    """Runs on `row_device` once it knows its shapes, as a session on a GPU would."""

    row_device = "vulkan:0"
    error: Exception | None = None
    run_error: Exception | None = None
    asked: dict[str, Any]
    open_shapes = False

    def __init__(self, model: Any, **options: Any) -> None:
        type(self).asked = options
        if self.error:
            raise self.error
        self.inputs, self.outputs = {"a": None, "b": None}, {"y": None, "d": None}
        self.placement: tuple[PlacementRow, ...] = ()
        if not self.open_shapes:
            self._place()

    def _place(self) -> None:
        self.placement = (
            PlacementRow(("n0",), ("Shape",), "host", "folded"),
            PlacementRow(("n1", "n2"), ("Sub", "Relu"), self.row_device, "map"),
        )

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self._place()
        if self.run_error:
            raise self.run_error
        a, b = feeds["a"], feeds["b"]
        return {"d": a + b, "y": np.maximum(a - b, 0)}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    made = type("Made", (FakeSession,), {})
    monkeypatch.setattr(gpuedge, "Session", made, raising=False)
    return made


@pytest.mark.parametrize("device", ["VULKAN", "Vulkan:1", "gles31", "GLES30", "GLES20", "WGPU"])
def test_a_named_gpu_is_asked_for_without_fallback(device: str, fake: type[FakeSession]) -> None:
    ready = onnx_backend.prepare(model(), device)
    rules = gpuedge.Policy(crosscheck=0.0)  # what it is tested with is better than that
    assert fake.asked == {"device": device.lower(), "policy": rules, "fallback": "error"}
    check(ready.run([A, B]))
    assert [row.device for row in ready.placement] == ["host", "vulkan:0"]


def test_what_a_named_gpu_cannot_run_is_not_supposed_to_be(fake: type[FakeSession]) -> None:
    fake.error = UnsupportedOpError("Loop 'n1' cannot run on vulkan:0.")
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="Loop 'n1'"):
        onnx_backend.prepare(model(), "VULKAN")


@pytest.mark.parametrize("open_shapes", [False, True])
def test_a_node_on_the_cpu_is_never_accepted_from_a_named_gpu(
    open_shapes: bool, fake: type[FakeSession]
) -> None:
    fake.row_device, fake.open_shapes = "cpu", open_shapes
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="Sub, Relu would run on the CPU"):
        onnx_backend.prepare(model(), "VULKAN").run([A, B])
    check(onnx_backend.prepare(model(), "AUTO").run([A, B]))


def test_operators_refused_while_running_and_other_errors(fake: type[FakeSession]) -> None:
    fake.run_error = UnsupportedOpError("Conv 'c' cannot run.")
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="Conv 'c'"):
        onnx_backend.prepare(model(), "VULKAN").run([A, B])
    fake.run_error = DeviceError("The driver gave up.")
    with pytest.raises(DeviceError, match="gave up"):
        onnx_backend.prepare(model(), "VULKAN").run([A, B])


def test_supported_devices_are_those_that_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Report:
        def to_dict(self) -> dict[str, Any]:
            return {"tried": [{"device": "vulkan:0", "status": "ok"},
                              {"device": "vulkan:1", "status": "crashed"},
                              {"device": "gles31", "status": "absent"}]}  # fmt: skip

    monkeypatch.setattr(gpuedge, "probe", lambda backends: Report(), raising=False)
    supported = ["CPU", "AUTO", "VULKAN", "vulkan:0", "VULKAN:1", "VULKAN:7", "GLES31", "WGPU"]
    assert [onnx_backend.supports_device(d) for d in supported] == [
        True, True, True, True, False, False, False, False]  # fmt: skip


# --- ONNX's own cases ----------------------------------------------------------------------------

CASES = ("test_relu_cpu", "test_conv_with_strides_padding_cpu", "test_gemm_all_attributes_cpu",
         "test_softmax_axis_1_cpu", "test_averagepool_2d_ceil_cpu", "test_concat_3d_axis_1_cpu",
         "test_reshape_negative_dim_cpu", "test_lstm_defaults_cpu", "test_if_cpu",
         "test_convtranspose_pads_cpu", "test_batchnorm_epsilon_cpu")  # fmt: skip

SCRIPT = """
import json, sys, unittest
import onnx.backend.test
from gpuedge.onnx_backend import GpuEdgeBackend
case = onnx.backend.test.BackendTest(GpuEdgeBackend, "t").test_cases["OnnxBackendNodeModelTest"]
result = unittest.TestSuite(case(name) for name in sys.argv[1:]).run(unittest.TestResult())
print(json.dumps({"run": result.testsRun, "skipped": len(result.skipped),
                  "wrong": [text for _, text in result.errors + result.failures]}))
"""


@pytest.mark.parametrize("part", daily.some(range(3), 3))
def test_cases_of_onnx(part: int) -> None:
    cases = CASES[part::3]
    # In a process of its own: ONNX collects its cases once per process, with warnings.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *cases],
        capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"run": len(cases), "skipped": 0, "wrong": []}
