"""Folding: what is known while planning is computed then, and nothing else changes."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_models import F32, I64, model, value, weight

from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.graph.reader import OnnxModel


def flattening() -> onnx.ModelProto:
    """What exporters write for ``x.view(x.size(0), -1)``."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Constant", [], ["zero"], value=weight("", np.array(0))),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["r", "to"], ["y"]),
        helper.make_node("Size", ["r"], ["unused"]),
    ]
    weights = [weight("axes", np.array([0])), weight("rest", np.array([-1])),
               weight("spare", np.ones(9, np.float32))]  # fmt: skip
    return model(nodes, [value("x", ["N", 3, 4, 4])], [value("y", ["N", None])], weights)


def run(graph: Graph, feeds: dict[str, Any]) -> dict[str, Any]:
    return CpuExecutor(threads=1).compile(graph).run(feeds)


def by_ort(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, feeds))


def test_shape_arithmetic_is_folded() -> None:
    proto = flattening()
    graph = OnnxModel.load(proto).specialise({"x": (2, 3, 4, 4)})
    assert [n.op for n in graph.nodes] == ["Relu", "Reshape"]
    assert [n.op for n in graph.folded] == ["Shape", "Constant", "Gather", "Unsqueeze", "Concat"]
    assert set(graph.constants) == {"to"}
    assert graph.shape("y") == (2, 48)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], by_ort(proto, {"x": x})[0])


def test_resizing_to_half_the_input() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=2),
        helper.make_node("Div", ["s", "two"], ["half"]),
        helper.make_node("Shape", ["x"], ["head"], end=2),
        helper.make_node("Concat", ["head", "half"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    proto = model(nodes, [value("x", [1, 2, "H", "W"])], [value("y", [1, 2, None, None])],
                  [weight("two", np.array([2]))])  # fmt: skip
    graph = OnnxModel.load(proto).specialise({"x": (1, 2, 6, 8)})
    assert [n.op for n in graph.nodes] == ["Resize"]
    assert graph.shape("y") == (1, 2, 3, 4)
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], by_ort(proto, {"x": x})[0])


def test_random_operators_are_not_folded() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], shape=[3]),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    graph = OnnxModel.load(model(nodes, [value("x", [3])], [value("y", [3])])).specialise()
    assert [n.op for n in graph.nodes] == ["RandomNormal", "Add"]
    compiled = CpuExecutor(threads=1).compile(graph)
    a, b = (compiled.run({"x": np.zeros(3, np.float32)})["y"] for _ in range(2))
    assert not np.array_equal(a, b)


def test_large_results_are_not_folded() -> None:
    nodes = [
        helper.make_node("Expand", ["one", "size"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"]),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    size = np.array([(64 << 20) // 4 + 1])
    weights = [weight("one", np.ones(1, np.float32)), weight("size", size)]
    proto = model(nodes, [value("x", [1])], [value("y", None)], weights)
    graph = OnnxModel.load(proto).specialise()
    assert [n.op for n in graph.nodes] == ["Expand", "ReduceSum", "Add"]
    assert not graph.folded


def test_everything_constant() -> None:
    node = helper.make_node("Add", ["a", "a"], ["y"])
    proto = model([node], [value("x", [1])], [value("y", [2])], [weight("a", np.ones(2, "f"))])
    graph = OnnxModel.load(proto).specialise()
    assert not graph.nodes
    found = run(graph, {"x": np.zeros(1, np.float32)})["y"]
    np.testing.assert_array_equal(found, [2, 2])
    assert found.flags.writeable


def conditional() -> onnx.ModelProto:
    """If with a branch that reads a weight and a value from outside."""

    def branch(op: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["r", "w"], [f"{op}_out"])
        return helper.make_graph([node], op, [], [value(f"{op}_out", ["N"])])

    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Sub")),
    ]
    weights = [weight("w", np.full(1, 5, np.float32))]
    inputs = [value("x", ["N"]), value("c", [], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", ["N"])], weights)


def test_subgraphs_keep_what_they_read() -> None:
    proto = conditional()
    graph = OnnxModel.load(proto).specialise({"x": (3,), "c": ()})
    assert [n.op for n in graph.nodes] == ["Relu", "If"]
    assert set(graph.constants) == {"w"}
    assert graph.shape("y") == (3,)
    for c in (True, False):
        feeds = {"x": np.array([-1, 2, 3], np.float32), "c": np.array(c)}
        np.testing.assert_array_equal(run(graph, feeds)["y"], by_ort(proto, feeds)[0])


def test_unknown_shapes_stay_unknown_and_still_run() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Neg", ["at"], ["y"])]
    proto = model(nodes, [value("x", [4])], [value("y", None, I64)])
    graph = OnnxModel.load(proto).specialise()
    assert "at" not in graph.types
    found = run(graph, {"x": np.array([0, 1, 0, 2], np.float32)})["y"]
    np.testing.assert_array_equal(found, [[-1, -3]])


def test_declared_shapes_are_believed_where_inference_ends() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["at"]),
             helper.make_node("Cast", ["at"], ["f"], to=F32),
             helper.make_node("Relu", ["f"], ["y"])]  # fmt: skip
    proto = model(nodes, [value("x", ["N"])], [value("y", [1, "N"])])
    proto.graph.value_info.append(value("f", [1, "N"]))
    graph = OnnxModel.load(proto).specialise({"x": (4,)})
    assert graph.types["f"] == graph.types["y"] == TensorType("float32", (1, 4))


def test_model_local_functions_are_expanded() -> None:
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], imports
    )
    proto = model(
        [helper.make_node("Twice", ["x"], ["y"], domain="mine")],
        [value("x", [2])], [value("y", [2])],
        imports=[helper.make_opsetid("mine", 1)], functions=[function],
    )  # fmt: skip
    graph = OnnxModel.load(proto).specialise()
    assert [n.op for n in graph.nodes] == ["Add"]
    np.testing.assert_array_equal(run(graph, {"x": np.ones(2, np.float32)})["y"], [2, 2])


def test_the_given_model_is_not_modified() -> None:
    proto = flattening()
    before = proto.SerializeToString()
    OnnxModel.load(proto).specialise({"x": (1, 3, 4, 4)})
    assert proto.SerializeToString() == before


def test_specialise_is_pure() -> None:
    read = OnnxModel.load(flattening())
    first = read.specialise({"x": (2, 3, 4, 4)})
    read.specialise({"x": (5, 3, 4, 4)})
    again = read.specialise({"x": (2, 3, 4, 4)})
    assert (again.nodes, again.types, list(again.constants)) == (
        first.nodes, first.types, list(first.constants))  # fmt: skip


@pytest.mark.parametrize("opset", range(10, 26))
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("channels", [None, 3])
def test_dequantised_weights_are_folded_at_every_operator_set(
    opset: int, dtype: type[np.generic], channels: int | None
) -> None:
    """ONNX's reference evaluator has no DequantizeLinear before operator set 19."""
    if channels and opset < 13:
        return  # one scale for each channel came with 13
    attrs = {"axis": 1} if channels else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], **attrs),
        helper.make_node("Mul", ["x", "w"], ["y"]),
    ]
    q = np.array([[0, 3, 127], [1, 2, 90]]).astype(dtype)
    scale = np.array([0.5, 0.25, 2.0] if channels else 0.5, np.float32)
    point = 0 if dtype is np.int32 else 3  # of int32 there is none
    zero = np.full(scale.shape, point).astype(dtype)
    held = [weight("q", q), weight("scale", scale), weight("zero", zero)]
    proto = model(nodes, [value("x", [2, 3])], [value("y", [2, 3])], held, opset=opset)
    proto.ir_version = 13
    graph = OnnxModel.load(proto).specialise()
    assert [n.op for n in graph.nodes] == ["Mul"]
    want = (q.astype(np.float64) - point) * scale
    np.testing.assert_array_equal(graph.constants["w"], want)
    assert graph.constants["w"].dtype == np.float32


ONES = np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 4, 2, 2)
LACKING: dict[str, tuple[int, dict[str, Any], list[Any], Any]] = {
    "Mish": (22, {}, [ONES], lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "HardSwish": (14, {}, [ONES], lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "GlobalLpPool": (22, {"p": 2}, [ONES],
                     lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True))),
    "Scatter": (9, {"axis": 0}, [np.zeros(3, np.float32), np.array([2]), np.float32([7])],
                lambda *_: np.float64([0, 0, 7])),
    "GroupNormalization": (
        21, {"num_groups": 2}, [ONES, np.ones(4, np.float32), np.zeros(4, np.float32)],
        lambda x, *_: np.concatenate([(g - g.mean()) / np.sqrt(g.var() + 1e-5)
                                      for g in (x[:, :2], x[:, 2:])], 1)),
}  # fmt: skip
"""Operators that ONNX's reference evaluator fails on: version, attributes, operands, meaning."""


@pytest.mark.parametrize("op", LACKING)
def test_what_the_reference_lacks_is_folded_by_its_description(op: str) -> None:
    opset, attrs, arrays, meaning = LACKING[op]
    names = [f"i{n}" for n in range(len(arrays))]
    nodes = [
        helper.make_node(op, names, ["w"], **attrs), helper.make_node("Add", ["x", "w"], ["y"])
    ]  # fmt: skip
    held = [weight(n, a) for n, a in zip(names, arrays, strict=True)]
    proto = model(nodes, [value("x", [1])], [value("y", None)], held, opset=opset)
    proto.ir_version = 13
    graph = OnnxModel.load(proto).specialise()
    assert [n.op for n in graph.nodes] == ["Add"]
    want = meaning(*(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(graph.constants["w"], want, rtol=1e-6, atol=1e-6)


def test_what_cannot_be_folded_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Pooling of regions: neither the reference nor a description of ours computes it."""
    caplog.set_level(logging.INFO, "gpuedge")
    pool = helper.make_node("MaxRoiPool", ["f", "r"], ["w"], name="pool", pooled_shape=[1, 1])
    held = [weight("f", ONES), weight("r", np.zeros((1, 5), np.float32))]
    nodes = [pool, helper.make_node("Add", ["x", "w"], ["y"])]
    graph = OnnxModel.load(
        model(nodes, [value("x", [1])], [value("y", None)], held)
    ).specialise()  # fmt: skip
    assert [n.op for n in graph.nodes] == ["MaxRoiPool", "Add"]
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("MaxRoiPool node 'pool' is computed at every inference, though all ")
    assert "RuntimeImplementationError" in line and "is not known" in line


def test_constants_do_not_depend_on_the_mistakes_of_the_reference() -> None:
    x = np.random.default_rng(1).uniform(1, 2, (2, 9, 1, 6)).astype(np.float32)
    node = helper.make_node("LRN", ["x"], ["y"], size=3, alpha=0.5, beta=0.75, bias=1.5)
    graph = OnnxModel.load(
        model([node], [], [value("y", x.shape)], [weight("x", x)])
    ).specialise({})  # fmt: skip
    assert [n.op for n in graph.folded] == ["LRN"]
    near = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    want = x / (1.5 + 0.5 / 3 * (near[:, :-2] + near[:, 1:-1] + near[:, 2:])) ** 0.75
    np.testing.assert_allclose(graph.constants["y"], want, rtol=1e-6)
