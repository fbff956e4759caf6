"""Graphs back to ONNX: what comes out computes what went in, and loses nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from graph_cases import Case, gemms, matrices, moves, possible, softmaxes, windows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from single_node import single

from gpuedge.core.errors import ModelError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.graph.reader import OnnxModel
from gpuedge.graph.writer import SETTLED_OPSET, to_bytes, to_onnx

F32 = TensorProto.FLOAT


def run(model: onnx.ModelProto | bytes, feeds: dict[str, Any]) -> list[Any]:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return list(onnxruntime.InferenceSession(data, options).run(None, feeds))


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        windows("Conv"), windows("MaxPool"), windows("ConvTranspose"), matrices(), gemms(),
        softmaxes(), moves(),
    )
)  # fmt: skip
def test_round_trip_computes_the_same_bits(case: Case) -> None:
    # ONNX Runtime does not compute all "same" padding; the CPU executor's tests look after that.
    assume(possible(case) and not str(case.attrs.get("auto_pad")).startswith("SAME"))
    original = case.model()
    expected = run(original, case.feeds())
    written = to_onnx(OnnxModel.load(original).specialise())
    onnx.checker.check_model(written)
    np.testing.assert_array_equal(run(written, case.feeds())[0], expected[0])


def test_attributes_get_the_types_their_schema_wants() -> None:
    graph = single("LeakyRelu", {"x": TensorType("float32", (2,))}, {"alpha": 1})
    attribute = to_onnx(graph).graph.node[0].attribute[0]
    assert (attribute.type, attribute.f) == (onnx.AttributeProto.FLOAT, 1.0)
    np.testing.assert_array_equal(run(to_bytes(graph), {"x": np.array([-3, 2], "f")})[0], [-3, 2])


def test_node_protos_survive_unchanged() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["r"], ["t"])], "b", [],
        [helper.make_tensor_value_info("t", F32, [2])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="first"),
        helper.make_node("If", ["c"], ["i"], then_branch=body, else_branch=body),
        helper.make_node("Gelu", ["i"], ["g"], approximate="tanh"),
        helper.make_node("Resize", ["g", "", "s"], ["z"], mode="nearest",
                         cubic_coeff_a=-0.5, exclude_outside=1),
        helper.make_node("Split", ["z", "two"], ["", "y"], axis=0),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", F32, [2]),
         helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", F32, [2])],
        [numpy_helper.from_array(np.full(1, 2, np.float32), "s"),
         numpy_helper.from_array(np.array([2, 2]), "two")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    written = to_onnx(OnnxModel.load(model).specialise())
    for before, after in zip(nodes, written.graph.node, strict=True):
        pairs = [
            sorted((a.SerializeToString() for a in n.attribute), key=bytes) for n in (before, after)
        ]
        assert pairs[0] == pairs[1]
        assert (before.op_type, before.name) == (after.op_type, after.name)
        assert (list(before.input), list(before.output)) == (list(after.input), list(after.output))


def test_empty_list_attributes_keep_their_type() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"])
    node.attribute.append(helper.make_attribute("axes", [], attr_type=onnx.AttributeProto.INTS))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", F32, [2, 3])],
        [helper.make_tensor_value_info("y", F32, [1, 1])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    written = to_onnx(OnnxModel.load(model).specialise())
    assert written.graph.node[0].attribute[0].type == onnx.AttributeProto.INTS


def small() -> Graph:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (1, 2, 4, 4)))
    w = b.constant("w", np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype("f"))
    b.constant("spare", np.zeros(5, np.float32))
    b.output(b.add("Relu", [b.add("Conv", [x, w])], output="y"))
    return b.build()


def test_nodes_are_written() -> None:
    model = to_onnx(small())
    assert [n.op_type for n in model.graph.node] == ["Conv", "Relu"]
    assert [o.domain for o in model.opset_import] == [""]
    onnx.checker.check_model(model, full_check=True)
    x = np.ones((1, 2, 4, 4), np.float32)
    weights = small().constants["w"]
    expected = np.maximum(sum(
        weights[:, c, i, j] for c in range(2) for i in range(3) for j in range(3)), 0)  # fmt: skip
    np.testing.assert_allclose(run(model, {"x": x})[0][0, :, 0, 0], expected, rtol=1e-5, atol=1e-6)


def test_unused_constants_are_left_out_and_outputs_can_be_chosen() -> None:
    model = to_onnx(small())
    assert [t.name for t in model.graph.initializer] == ["w"]
    assert not to_onnx(small(), outputs=()).graph.output


@pytest.mark.parametrize(
    ("op", "opset", "written"),
    [("Relu", 26, SETTLED_OPSET), ("Relu", 13, 13), ("Swish", 26, 24), ("Reshape", 26, 25)],
)
def test_young_operator_sets_are_written_as_the_oldest_equal_one(
    op: str, opset: int, written: int
) -> None:
    constants = {"to": np.array([2])} if op == "Reshape" else {}
    graph = single(op, {"x": TensorType("float32", (2,))}, constants=constants, opset=opset)
    assert {o.domain: o.version for o in to_onnx(graph).opset_import} == {"": written}


def test_float16_and_integers_survive() -> None:
    for dtype in ("float16", "int64", "uint8", "bool"):
        graph = single("Transpose", {"x": TensorType(dtype, (2, 3))})
        x = np.arange(6).reshape(2, 3).astype(dtype)
        found = run(to_bytes(graph), {"x": x})[0]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, x.T)


def test_inputs_of_unknown_type_cannot_be_written() -> None:
    node = Node("Relu", ("x",), ("y",))
    with pytest.raises(ModelError, match="type of the value 'x' is not known"):
        to_onnx(Graph((node,), ("x",), ("y",), {}))


def test_messages_beyond_protobuf_are_refused_before_they_are_made() -> None:
    # A broadcast view claims 4 GiB without holding them.
    big = np.broadcast_to(np.float32(1), (1 << 30,))
    node = Node("Add", ("x", "big"), ("y",))
    kind = TensorType("float32", (1 << 30,))
    graph = Graph((node,), ("x",), ("y",), {"x": kind, "y": kind, "big": kind}, {"big": big})
    with pytest.raises(ModelError, match="4294967296 bytes"):
        to_bytes(graph)
