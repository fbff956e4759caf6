"""Loops, scans and sequences that planning knows become plain nodes with the same results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_models import model, value, weight

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph import flow
from gpuedge.graph.expand import expand
from gpuedge.graph.ir import Graph
from gpuedge.graph.reader import OnnxModel

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
node = helper.make_node


def scalar(name: str, kind: int) -> Any:
    return helper.make_tensor_value_info(name, kind, [])


def repeated(test: Any, *more: Any) -> onnx.GraphProto:
    """Return a body that adds an outer value and its step, and gives every value it had."""
    nodes = [node("Cast", ["i"], ["f"], to=TensorProto.FLOAT), node("Add", ["s", "x"], ["a"]),
             node("Add", ["a", "f"], ["t"]), node("Neg", ["t"], ["row"]), test]  # fmt: skip
    given = [scalar("i", TensorProto.INT64), scalar("c", TensorProto.BOOL), value("s", None)]
    made = [scalar("on", TensorProto.BOOL), value("t", None), value("row", None)]
    return helper.make_graph(nodes, "body", given, made, list(more))


def looped(trips: str, cond: str, body: onnx.GraphProto, count: int = 3) -> onnx.ModelProto:
    held = [weight("n", np.int64(count)), weight("yes", np.bool_(True))]
    outer = [
        node("Relu", ["x"], ["start"]),
        node("Loop", [trips, cond, "start"], ["y", "z"], body=body),
    ]
    return model(outer, [value("x", [3, 4])], [value("y", None), value("z", None)], held)


ON = node("Identity", ["c"], ["on"])
WHILE = node("Less", ["i", "most"], ["on"])
SCAN = helper.make_graph(
    [node("Add", ["s", "r"], ["t"]), node("Mul", ["t", "k"], ["row"])], "body",
    [value("s", [3]), value("r", [3])], [value("t", [3]), value("row", [3])],
    [weight("k", np.float32(2))],
)  # fmt: skip
SAME_NAMES = helper.make_graph(
    [node("Scan", ["s", "c"], ["u", "rows"], body=SCAN, num_scan_inputs=1),
     node("Add", ["u", "r"], ["v"])], "outer",
    [value("s", [3]), value("r", [3])], [value("v", [3]), value("rows", [2, 3])],
    [weight("c", np.arange(6, dtype=np.float32).reshape(2, 3))],
)  # fmt: skip
MODELS: dict[str, onnx.ModelProto] = {
    "a Scan in a Scan with the same names": model(
        [node("Scan", ["h", "x"], ["y", "z"], body=SAME_NAMES, num_scan_inputs=1,
              scan_input_axes=[1])],
        [value("x", [3, 4])], [value("y", None), value("z", None)],
        [weight("h", np.ones(3, np.float32))]),
    "Loop": looped("n", "", repeated(ON)),
    "Loop with a condition": looped("n", "yes", repeated(ON)),
    "Loop until": looped("", "yes", repeated(WHILE, weight("most", np.int64(2)))),
    "Scan": model(
        [node("Relu", ["h"], ["start"]),
         node("Scan", ["start", "x"], ["y", "z"], body=SCAN, num_scan_inputs=1,
              scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1],
              scan_output_directions=[1])],
        [value("x", [3, 4])], [value("y", None), value("z", None)],
        [weight("h", np.ones(3, np.float32))]),
    "sequences": model(
        [node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0),
         node("SequenceInsert", ["s", "e", "one"], ["t"]), node("SequenceErase", ["t"], ["u"]),
         node("SequenceAt", ["u", "last"], ["a"]), node("SequenceLength", ["u"], ["n"]),
         node("Cast", ["n"], ["f"], to=TensorProto.FLOAT), node("Mul", ["a", "f"], ["y"]),
         node("ConcatFromSequence", ["u"], ["z"], axis=1, new_axis=1)],
        [value("x", [3, 4])], [value("y", None), value("z", None)],
        [weight("e", np.full(4, 9, np.float32)), weight("one", np.int64(1)),
         weight("last", np.int64(-1))]),
}  # fmt: skip


def plain(made: onnx.ModelProto) -> Graph:
    return OnnxModel.load(made).specialise({"x": X.shape})


def wanted(made: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(made.SerializeToString())
    return list(session.run(None, dict(feeds)))


@pytest.mark.parametrize("name", MODELS)
def test_what_is_known_becomes_plain_nodes(name: str) -> None:
    graph = plain(MODELS[name])
    ops = {n.op for n in graph.nodes}
    assert not ops & {"Loop", "Scan", "If"} | (ops & flow.SEQUENCES), ops
    got = CpuExecutor(engine="numpy").compile(graph).run({"x": X})
    for result, right in zip(got.values(), wanted(MODELS[name], {"x": X}), strict=True):
        np.testing.assert_array_equal(result, right)


def test_a_loop_of_too_many_nodes_stays_and_says_so() -> None:
    graph = plain(looped("n", "", repeated(ON), count=1000))
    (loop,) = [n for n in graph.nodes if n.op == "Loop"]
    with pytest.raises(UnsupportedOpError, match="would become 5000 nodes; loops may become 4096"):
        expand(loop, graph)


def test_a_loop_that_values_end_stays() -> None:
    ended = [node("ReduceSum", ["t"], ["q"], keepdims=0), node("Cast", ["q"], ["on"], to=9)]
    body = repeated(ended[1])
    body.node.insert(4, ended[0])
    graph = plain(looped("n", "yes", body))
    (loop,) = [n for n in graph.nodes if n.op == "Loop"]
    with pytest.raises(UnsupportedOpError, match="only known while the model runs"):
        expand(loop, graph)


def test_an_endless_loop_stays() -> None:
    graph = plain(looped("", "yes", repeated(ON)))
    assert [n.op for n in graph.nodes if n.op == "Loop"]
