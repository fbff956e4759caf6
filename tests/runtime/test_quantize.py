"""gpuedge.quantize: a small network to 8 bits by ONNX Runtime's quantiser, and what it refuses."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_models import model, value, weight
from planrun import TEXTURES, plan_device, seen_by

import gpuedge
from gpuedge.core.errors import InputError, ModelError, ShapeError, UsageError
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import OnnxModel

RNG = np.random.default_rng(21)


def network(opset: int = 17) -> onnx.ModelProto:
    def drawn(*shape: int) -> Array:
        return RNG.normal(0, 0.3, shape).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1] * 4, group=8),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    held = {"w1": drawn(8, 3, 3, 3), "b1": drawn(8), "w2": drawn(8, 1, 3, 3), "b2": drawn(8),
            "w3": drawn(5, 32), "b3": drawn(5)}  # fmt: skip
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 5])],
                 [weight(n, v) for n, v in held.items()], opset=opset)  # fmt: skip


def images(count: int) -> list[dict[str, Array]]:
    return [{"x": RNG.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("opset", [11, 17])
def test_a_network_from_floats_to_integers(opset: int) -> None:
    proto = network(opset)
    before = proto.SerializeToString()
    small = gpuedge.quantize(proto, iter(images(8)))
    assert proto.SerializeToString() == before
    graph = OnnxModel.load(small).specialise({"x": (1, 3, 8, 8)})
    ops = [n.op for n in graph.nodes]
    assert ops.count("QLinearConv") == 3  # Gemm is one
    assert not {"Conv", "Relu", "Gemm"} & set(ops)

    (feed,) = images(1)
    floats = gpuedge.Session(proto, device="cpu").run(feed)["y"]
    (theirs,) = onnxruntime.InferenceSession(small.SerializeToString()).run(None, feed)
    device = plan_device(TEXTURES)
    with gpuedge.Session(small, device=device, fallback="error") as session:
        got = session.run(feed)["y"]
    assert {"conv2d_map"} <= seen_by(device).variants
    (last,) = (n for n in small.graph.node if n.output[0] == "y")
    (step,) = (float(t.float_data[0] if t.float_data else np.frombuffer(t.raw_data, "f4")[0])
               for t in small.graph.initializer if t.name == last.input[1])  # fmt: skip
    assert np.abs(got - theirs).max() <= 1.001 * step
    assert np.abs(got - floats).max() <= 12 * step


def test_calibration_that_does_not_fit_is_refused() -> None:
    proto = network()
    bad: list[tuple[Any, type[Exception], str]] = [
        ([], InputError, "no calibration data"),
        ([{}], InputError, "sample 0 lacks"),
        ([np.ones(3)], InputError, "no mapping"),
        ([{"x": np.ones((1, 3, 8, 9), np.float32)}], ShapeError, "axis 3"),
        ([images(1)[0] | {"z": np.ones(1)}], InputError, "no input"),
        ([{"x": np.full((1, 3, 8, 8), np.nan)}], InputError, "NaN"),
    ]
    for samples, kind, words in bad:
        with pytest.raises(kind, match=words):
            gpuedge.quantize(proto, samples)
    with pytest.raises(ModelError):
        gpuedge.quantize(b"no model", images(1))


def test_an_absent_quantiser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    with pytest.raises(UsageError, match="pip install --upgrade onnxruntime"):
        gpuedge.quantize(network(), images(1))
