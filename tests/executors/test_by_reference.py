"""On the CPU, what ONNX Runtime cannot compute goes to ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuedge
from gpuedge.core.errors import ClosedError, UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel

TRAINING = "ai.onnx.preview.training"


def model_of(
    nodes: list[Any], inputs: dict[str, tuple[int, tuple[int, ...]]], outputs: dict[str, int],
    **domains: int,
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, e, s) for n, (e, s) in inputs.items()],
        [helper.make_tensor_value_info(n, e, None) for n, e in outputs.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 25)]
    imports += [helper.make_opsetid(d.replace("_", "."), v) for d, v in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=12)


def kernels(session: gpuedge.Session) -> dict[str, str]:
    return {op: row.kernel.split()[0] for row in session.placement for op in row.ops}


X = np.array([[1.0, -2.5, 3.14159], [65504.0, 1e-3, -0.0]], np.float32)
TYPES = {
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
}


@pytest.mark.parametrize("element", TYPES)
def test_dtypes_of_ml_dtypes_come_out(element: int) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["n"]),
             helper.make_node("Cast", ["n"], ["y"], to=element, saturate=0)]  # fmt: skip
    model = model_of(nodes, {"x": (TensorProto.FLOAT, X.shape)}, {"y": element})
    with gpuedge.Session(model, device="cpu") as session:
        y = session.run({"x": X})["y"]
        assert kernels(session) == {"Neg": "onnxruntime", "Cast": "onnx.reference"}
    expected = (-X).astype(TYPES[element])
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))


def test_a_chain_in_bfloat16_stays_where_it_is() -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["s"]),
             helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
             helper.make_node("Abs", ["y"], ["z"])]  # fmt: skip
    model = model_of(nodes, {"x": (TensorProto.BFLOAT16, X.shape)}, {"z": TensorProto.FLOAT})
    x = X.astype(ml_dtypes.bfloat16)
    with gpuedge.Session(model, device="cpu") as session:
        z = session.run({"x": x})["z"]
        assert kernels(session) == {
            "Add": "onnx.reference", "Cast": "onnx.reference", "Abs": "onnxruntime",
        }  # fmt: skip
    np.testing.assert_array_equal(z, np.abs((x + x).astype(np.float32)))


def test_an_operator_that_onnx_runtime_does_not_know() -> None:
    node = helper.make_node("Momentum", ["r", "t", "x", "g", "v"], ["y", "w"], domain=TRAINING,
                            alpha=0.9, beta=1.0, norm_coefficient=0.0, mode="standard")  # fmt: skip
    inputs = {"r": (TensorProto.FLOAT, ()), "t": (TensorProto.INT64, ())}
    inputs |= dict.fromkeys("xgv", (TensorProto.FLOAT, (2,)))
    model = model_of([node, helper.make_node("Abs", ["y"], ["z"])], inputs,
                     dict.fromkeys("zw", TensorProto.FLOAT),
                     ai_onnx_preview_training=1)  # fmt: skip
    x, g, v = (np.array(a, np.float32) for a in ([1, -2], [0.5, 0.25], [2, 4]))
    with gpuedge.Session(model, device="cpu") as session:
        got = session.run({"r": np.float32(0.5), "t": np.int64(1), "x": x, "g": g, "v": v})
        assert kernels(session) == {"Momentum": "onnx.reference", "Abs": "onnxruntime"}
    moved = np.float32(0.9) * v + g
    np.testing.assert_allclose(got["w"], moved, rtol=2.0**-22)
    np.testing.assert_allclose(got["z"], np.abs(x - np.float32(0.5) * moved), rtol=2.0**-22)


def test_what_nothing_computes_is_refused_by_name() -> None:
    node = helper.make_node("Gradient", ["x"], ["d"], domain=TRAINING, xs=["x"], y="y")
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"]), node]
    model = model_of(nodes, {"x": (TensorProto.FLOAT, ())}, dict.fromkeys("yd", TensorProto.FLOAT),
                     ai_onnx_preview_training=1)  # fmt: skip
    with pytest.raises(UnsupportedOpError, match="reference evaluator cannot compute Gradient"):
        gpuedge.Session(model, device="cpu").run({"x": np.float32(3)})


def test_a_named_engine_is_not_left() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT4E2M1)
    model = model_of([node], {"x": (TensorProto.FLOAT, (4,))}, {"y": TensorProto.FLOAT4E2M1})
    graph = OnnxModel.load(model).specialise()
    with pytest.raises(UnsupportedOpError, match="ONNX Runtime cannot load"):
        CpuExecutor(engine="onnxruntime").compile(graph)
    executable = CpuExecutor().compile(graph)
    x = np.array([0.4, 6.0, -1.5, 3.3], np.float32)
    got, times = executable.timed({"x": x})
    np.testing.assert_array_equal(got["y"].astype(np.float32), [0.5, 6.0, -1.5, 3.0])
    assert [time.row.kernel for time in times] == ["onnx.reference"]
    executable.close()
    with pytest.raises(ClosedError):
        executable.run({"x": x})


def test_of_nothing_onnx_runtime_is_not_asked() -> None:
    # it leaves memory as it was, or ends the process
    nodes = [helper.make_node("MatMulInteger", ["a", "b"], ["y"])]
    wanted = {"a": (TensorProto.UINT8, (3, 0)), "b": (TensorProto.INT8, (0, 5))}
    with gpuedge.Session(model_of(nodes, wanted, {"y": TensorProto.INT32}), device="cpu") as one:
        feeds = {"a": np.zeros((3, 0), np.uint8), "b": np.zeros((0, 5), np.int8)}
        got = one.run(feeds)["y"]
        assert (got == np.zeros((3, 5))).all() and kernels(one)["MatMulInteger"] != "onnxruntime"
    weights = {"w": (TensorProto.FLOAT, (1, 16, 3)), "r": (TensorProto.FLOAT, (1, 16, 4))}
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)]
    model = model_of(
        nodes, {"x": (TensorProto.FLOAT, (2, 0, 3)), **weights}, {"y": TensorProto.FLOAT}
    )
    with gpuedge.Session(model, device="cpu") as session:
        fed = {name: np.ones(shape, np.float32) for name, (_, shape) in weights.items()}
        assert session.run({"x": np.zeros((2, 0, 3), np.float32), **fed})["y"].shape == (2, 1, 0, 4)
