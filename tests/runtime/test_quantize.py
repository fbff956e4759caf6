"""gpuedge.quantize: a small network to 8 bits by ONNX Runtime's quantiser, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_models import by_reference, model, value, weight
from planrun import TEXTURES, plan_device, seen_by

import gpuedge
from gpuedge.core.errors import InputError, MissingPackageError, ModelError, ShapeError
from gpuedge.graph.batchnorm import fold
from gpuedge.graph.ir import Array
from gpuedge.graph.parse import raised
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
    theirs = by_reference(small, feed)["y"]
    device = plan_device(TEXTURES)
    with gpuedge.Session(small, device=device, fallback="error") as session:
        got = session.run(feed)["y"]
    assert {"conv2d_map"} <= seen_by(device).variants
    (last,) = (n for n in small.graph.node if n.output[0] == "y")
    (step,) = (float(t.float_data[0] if t.float_data else np.frombuffer(t.raw_data, "f4")[0])
               for t in small.graph.initializer if t.name == last.input[1])  # fmt: skip
    np.testing.assert_array_equal(gpuedge.Session(small, device="cpu").run(feed)["y"], got)
    assert np.abs(got - theirs).max() <= 1.001 * step
    assert np.abs(got - floats).max() <= 12 * step


def normalised(nodes: list[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], *, rank: int = 4,
               last: int = 4, opset: int = 17) -> onnx.ModelProto:  # fmt: skip
    """Return a model with random weights of these shapes, and parameters of channels."""
    held = {n: RNG.normal(0, 0.4, s).astype(np.float32) for n, s in shapes.items()}
    held |= {n: RNG.uniform(0.3, 3, s).astype(np.float32) for n, s in shapes.items()
             if n.startswith("var")}  # fmt: skip
    x = value("x", [2, 4, 6, 6][:rank])
    return model(nodes, [x], [value("y", [2, last, *["?"] * (rank - 2)])],
                 [weight(n, v) for n, v in held.items()], opset=opset)  # fmt: skip


def norm(x: str, y: str, at: int = 1, **attrs: Any) -> onnx.NodeProto:
    names = [x, *(f"{n}{at}" for n in ("scale", "shift", "mean", "var"))]
    return helper.make_node("BatchNormalization", names, [y], name=f"norm{at}", **attrs)


def of_norm(size: int, at: int = 1) -> dict[str, tuple[int, ...]]:
    return {f"{n}{at}": (size,) for n in ("scale", "shift", "mean", "var")}


FOLDED = {
    "conv": normalised(
        [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, group=2),
         norm("c", "y", epsilon=0.2)], {"w": (4, 2, 3, 3), "b": (4,), **of_norm(4)}),
    "conv without bias, raised": normalised(
        [helper.make_node("Conv", ["x", "w"], ["c"]), norm("c", "n"),
         helper.make_node("Relu", ["n"], ["y"])], {"w": (4, 4, 1, 1), **of_norm(4)}, opset=11),
    "transposed": normalised(
        [helper.make_node("ConvTranspose", ["x", "w", "b"], ["c"], strides=[2, 2]),
         norm("c", "y")], {"w": (4, 6, 2, 2), "b": (6,), **of_norm(6)}, last=6),
    "product": normalised(
        [helper.make_node("Gemm", ["x", "w", "b"], ["c"], alpha=0.5, beta=2.0), norm("c", "y")],
        {"w": (4, 5), "b": (5,), **of_norm(5)}, rank=2, last=5),
    "product of rows": normalised(
        [helper.make_node("Gemm", ["x", "w"], ["c"], transB=1), norm("c", "y")],
        {"w": (5, 4), **of_norm(5)}, rank=2, last=5),
    "two, one weight": normalised(
        [helper.make_node("Conv", ["x", "w"], ["c"]), norm("c", "n"),
         helper.make_node("Conv", ["n", "w"], ["d"]), norm("d", "y", 2)],
        {"w": (4, 4, 1, 1), **of_norm(4), **of_norm(4, 2)}),
    "two in a row": normalised(
        [helper.make_node("Conv", ["x", "w"], ["c"]), norm("c", "n"), norm("n", "y", 2)],
        {"w": (4, 4, 1, 1), **of_norm(4), **of_norm(4, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_batch_normalisation_goes_into_the_weights(
    name: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    proto = FOLDED[name]
    before = proto.SerializeToString()
    kind = proto.graph.input[0].type.tensor_type.shape.dim
    feeds = [{"x": RNG.uniform(-1, 1, [d.dim_value for d in kind]).astype(np.float32)}
             for _ in range(2)]  # fmt: skip
    (wanted,) = onnxruntime.InferenceSession(before).run(None, feeds[0])

    folded = raised(proto, 13)
    count = sum(n.op_type == "BatchNormalization" for n in proto.graph.node)
    assert fold(folded) == count
    assert not {t.name for t in folded.graph.initializer} & {"scale1", "var2", "w"}
    (got,) = onnxruntime.InferenceSession(folded.SerializeToString()).run(None, feeds[0])
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)

    with caplog.at_level("INFO"):
        small = gpuedge.quantize(proto, feeds)
    assert proto.SerializeToString() == before
    ops = {n.op_type for n in small.graph.node}
    assert "BatchNormalization" not in ops
    assert "QuantizeLinear" in ops
    assert (*capfd.readouterr(), caplog.records) == ("", "", [])


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Relu", ["x"], ["r"]), norm("r", "y")],
        [helper.make_node("Conv", ["x", "w"], ["c"]), norm("c", "n"),
         helper.make_node("Add", ["n", "c"], ["y"])],
        [helper.make_node("Conv", ["x", "x2"], ["c"]), norm("c", "y"),
         helper.make_node("Identity", ["w"], ["x2"])],
    ],
    ids=["nothing before", "read twice", "computed weights"],
)  # fmt: skip
def test_batch_normalisation_that_cannot_go_stays(nodes: list[onnx.NodeProto]) -> None:
    proto = normalised(nodes, {"w": (4, 4, 1, 1), **of_norm(4)})
    before = list(proto.graph.node)
    assert fold(proto) == 0
    assert list(proto.graph.node) == before


def test_the_quantiser_leaves_logging_as_it_is() -> None:
    """It would set up the root logger, and an application's own set-up would do nothing then."""
    code = """
import logging
import numpy as np, gpuedge, onnx, sys
proto = onnx.load_model_from_string(sys.stdin.buffer.read())
feeds = [{"x": np.ones((2, 4, 6, 6), np.float32)}]
def samples():
    logging.getLogger("app").warning("of the application")
    yield from feeds
gpuedge.quantize(proto, samples())
print(logging.getLogger().handlers, logging.getLogger().filters)
"""
    proto = FOLDED["conv"]
    ran = subprocess.run([sys.executable, "-c", code], input=proto.SerializeToString(),
                         capture_output=True, check=True, timeout=120)  # fmt: skip
    assert (ran.stdout, ran.stderr) == (b"[] []\n", b"of the application\n")


def test_calibration_that_does_not_fit_is_refused() -> None:
    proto = network()
    bad: list[tuple[Any, type[Exception], str]] = [
        ([], InputError, "no calibration data"),
        ([{}], InputError, "sample 0 lacks"),
        ([np.ones(3)], InputError, "not the inputs"),
        ([[]], InputError, "not the inputs"),
        ({"x": images(1)[0]["x"]}, InputError, "give a list of samples"),
        ([{"x": np.ones((1, 3, 8, 9), np.float32)}], ShapeError, "axis 3"),
        ([images(1)[0] | {"z": np.ones(1)}], InputError, "no input"),
        ([{"x": np.full((1, 3, 8, 8), np.nan)}], InputError, "NaN"),
        ([{"x": np.ones((0, 3, 8, 8))}], (InputError, ShapeError), "no numbers|axis 0"),
    ]
    for samples, kind, words in bad:
        with pytest.raises(kind, match=words):
            gpuedge.quantize(proto, samples)
    with pytest.raises(ModelError):
        gpuedge.quantize(b"no model", images(1))


def test_calibration_in_order_and_a_model_that_is_quantised_already() -> None:
    proto = network()
    feeds = images(2)
    by_name = gpuedge.quantize(proto, feeds)
    in_order = gpuedge.quantize(proto, [list(one.values()) for one in feeds])
    assert in_order.SerializeToString() == by_name.SerializeToString()
    with pytest.raises(ModelError, match="quantised already"):
        gpuedge.quantize(by_name, feeds)


def test_an_absent_quantiser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'gpuedge\[models\]'"):
        gpuedge.quantize(network(), images(1))


def linear(opset: int = 17) -> onnx.ModelProto:
    """Return a Gemm as PyTorch writes Linear, a MatMul, and a product of two inputs' kind."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    held = {"w1": RNG.normal(0, 0.1, (96, 64)), "b1": RNG.normal(0, 1, 96),
            "w2": RNG.normal(0, 0.1, (96, 40))}  # fmt: skip
    return model(nodes, [value("x", ["N", 64])], [value("y", ["N", 40])],
                 [weight(n, v.astype(np.float32)) for n, v in held.items()],
                 opset=opset)  # fmt: skip


@pytest.mark.parametrize(("weights", "bits"), [("int4", 4), ("int8", 8)])
def test_weights_alone(weights: str, bits: int) -> None:
    proto = linear()
    before = proto.SerializeToString()
    small = gpuedge.quantize(proto, weights=weights)
    assert proto.SerializeToString() == before
    assert [n.op_type for n in small.graph.node] == ["MatMulNBits", "Add", "Relu", "MatMulNBits"]
    assert len(small.SerializeToString()) < len(before) * (bits + 2) / 32

    x = RNG.normal(0, 1, (5, 64)).astype(np.float32)
    exact = gpuedge.Session(proto, device="cpu").run({"x": x})["y"]
    held = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    # a weight moves by at most 2 / 2**bits of the largest of its block; what the second product
    # is given has moved as much
    first = np.abs(x) @ _steps(held["w1"].T, bits)
    hidden = np.maximum(x @ held["w1"].T + held["b1"], 0)
    bound = (hidden + first) @ _steps(held["w2"], bits) + first @ np.abs(held["w2"]) + 1e-5
    device = plan_device(TEXTURES)
    with gpuedge.Session(small, device=device, fallback="error") as session:
        got = session.run({"x": x})["y"]
    assert f"matmul_packed{bits}_map" in seen_by(device).variants
    assert (np.abs(got - exact) <= bound).all()
    assert np.abs(got - exact).max() > 1e-4  # it is quantised
    theirs = gpuedge.Session(small, device="cpu").run({"x": x})["y"]
    assert np.allclose(got, theirs, rtol=0, atol=1e-5)


def _steps(w: Array, bits: int, block: int = 32) -> Array:
    """Return how far weights (rows, columns) may move."""
    most = np.abs(w.reshape(-1, block, w.shape[1])).max(1)
    return np.repeat(most, block, 0) * 2 / 2**bits


def test_weights_of_few_bits_are_refused_where_they_do_not_fit() -> None:
    for how in ({"weights": "int3"}, {"weights": "int4", "block_size": 24}):
        with pytest.raises(gpuedge.UsageError, match="int4, int8"):
            gpuedge.quantize(linear(), **how)
    with pytest.raises(gpuedge.UsageError, match="with calibration data"):
        gpuedge.quantize(linear(), [{"x": np.ones((1, 64))}], weights="int4")
    with pytest.raises(ModelError, match="no weights to quantise"):
        gpuedge.quantize(model([helper.make_node("Relu", ["x"], ["y"])], [value("x", [3])],
                               [value("y", [3])]), weights="int4")  # fmt: skip
    small = gpuedge.quantize(linear(), weights="int4")
    for weights in ("int4", "int8"):
        with pytest.raises(ModelError, match="no weights to quantise") as told:
            gpuedge.quantize(small, weights=weights)
        assert told.value.code == "GE-500"
        assert "MatMulNBits already" in str(told.value.known)


def test_the_quantiser_leaves_the_log_alone() -> None:
    code = (
        "import logging, onnx, sys, gpuedge; sys.path.insert(0, 'tests');"
        "sys.path.insert(0, 'tests/runtime'); from test_quantize import linear;"
        "gpuedge.quantize(linear(), weights='int4'); print(logging.getLogger().handlers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def product() -> onnx.ModelProto:
    w = RNG.normal(0, 1, (64, 6)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["x"], ["exact"], keepdims=0),
        helper.make_node("Sub", ["x", "x"], ["nothing"]),
    ]
    outputs = [value("y", ["N", 6]), value("exact", []), value("nothing", ["N", 64])]
    return model(nodes, [value("x", ["N", 64])], outputs, [weight("w", w)])


def test_errors_are_those_of_all_samples_together(tmp_path: Any) -> None:
    """Against the definition, on a model whose weights were quantised to 4 bits by hand."""
    floats, other = product(), onnx.ModelProto()
    other.CopyFrom(floats)
    w = onnx.numpy_helper.to_array(floats.graph.initializer[0])
    coarse = np.round(w * 2) / 2
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(coarse, "w"))
    feeds = [{"x": RNG.normal(0, k, (3, 64)).astype(np.float32)} for k in (1, 5)]
    report = gpuedge.quantization_error(floats, other, iter(feeds))
    x = np.concatenate([f["x"] for f in feeds]).astype(np.float64)
    right = x @ w.astype(np.float64)
    off = x @ coarse.astype(np.float64) - right
    assert report.samples == 2
    got = report.outputs["y"]
    assert got.largest == pytest.approx(np.abs(off).max() / np.abs(right).max(), rel=1e-4)
    assert got.rms == pytest.approx(np.sqrt((off**2).mean() / (right**2).mean()), rel=1e-4)
    assert (report.outputs["exact"].largest, report.outputs["exact"].rms) == (0, 0)
    assert report.outputs["nothing"].largest is report.outputs["nothing"].rms is None
    assert gpuedge.quantization_error(floats, floats, feeds).outputs["y"].rms == 0


@pytest.mark.parametrize("samples", [5, "xy", [], {"x": 1}])
def test_errors_need_samples(samples: Any) -> None:
    with pytest.raises(InputError):
        gpuedge.quantization_error(product(), product(), samples)
    with pytest.raises(InputError):
        gpuedge.quantize(product(), samples)


def test_errors_need_the_same_outputs() -> None:
    other = product()
    del other.graph.output[1]
    with pytest.raises(ModelError, match="different outputs"):
        gpuedge.quantization_error(product(), other, [{"x": np.ones((1, 64), np.float32)}])
