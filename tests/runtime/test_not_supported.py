"""What docs/devices.md says is not supported: refused with a code, or left to the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from faulty import FaultyPool
from onnx import TensorProto, helper
from onnx_models import model, value, weight

import gpuedge
from gpuedge.core.errors import UnsupportedOpError

node = helper.make_node
X, Y = value("x", [2]), value("y", [2])


def typed(kind: Any) -> onnx.ModelProto:
    """Return a model whose input is no tensor."""
    graph = helper.make_graph([node("Identity", ["s"], ["t"])], "g",
                              [helper.make_value_info("s", kind)],
                              [helper.make_value_info("t", kind)])  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sparse() -> onnx.ModelProto:
    made = model([node("Relu", ["x"], ["y"])], [X], [Y])
    ones = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    at = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(ones, at, [4]))
    return made


FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])


@pytest.mark.parametrize(
    "made",
    [
        typed(helper.make_sequence_type_proto(FLOATS)),
        typed(helper.make_optional_type_proto(FLOATS)),
        sparse(),
        model([node("Mine", ["x"], ["y"], domain="my.own")], [X], [Y],
              imports=[helper.make_opsetid("my.own", 1)]),
    ],
    ids=["sequence", "optional", "sparse", "own operator"],
)  # fmt: skip
def test_refused_everywhere(made: onnx.ModelProto) -> None:
    with pytest.raises(UnsupportedOpError):
        gpuedge.Session(made, device="cpu")


def branch(op: str) -> onnx.GraphProto:
    return helper.make_graph([node(op, ["x"], ["made"])], op, [], [value("made", [2])])


def through(kind: int, **more: Any) -> onnx.ModelProto:
    """Return a model that computes with another type inside."""
    nodes = [node("Cast", ["x"], ["k"], to=kind), node("Cast", ["k"], ["y"], to=TensorProto.FLOAT)]
    return model(nodes, [X], [Y], **more)


BODY = helper.make_graph(
    [node("Identity", ["c"], ["go"]), node("Add", ["v", "v"], ["w"])], "body",
    [helper.make_tensor_value_info("i", TensorProto.INT64, []),
     helper.make_tensor_value_info("c", TensorProto.BOOL, []), value("v", [2])],
    [helper.make_tensor_value_info("go", TensorProto.BOOL, []), value("w", [2])],
)  # fmt: skip
COUNTED = [node("ReduceSum", ["x"], ["t"], keepdims=0),
           node("Cast", ["t"], ["n"], to=TensorProto.INT64)]  # fmt: skip
"""A count that only values tell."""

ON_CPU = {
    "Loop": model([node("Greater", ["m", "m"], ["c"]),
                   node("Loop", ["n", "c", "x"], ["y"], body=BODY)],
                  [X, value("m", [])], [Y], [weight("n", np.int64(3))]),
    "If": model([node("Greater", ["m", "m"], ["c"]),
                 node("If", ["c"], ["y"], then_branch=branch("Abs"), else_branch=branch("Neg"))],
                [X, value("m", [])], [Y]),
    "LSTM": model([node("Expand", ["x", "to"], ["r"]),
                   node("LSTM", ["r", "w", "w"], ["y"], hidden_size=2)], [X], [value("y", None)],
                  [weight("to", np.array([513, 1, 2])),
                   weight("w", np.ones((1, 8, 2), np.float32))]),
    "SequenceAt": model([*COUNTED, node("SequenceConstruct", ["x", "x", "x"], ["s"]),
                         node("SequenceAt", ["s", "n"], ["y"])], [X], [value("y", [2])]),
    "RandomNormalLike": model([node("RandomNormalLike", ["x"], ["y"])], [X], [Y]),
    "Dropout": model([node("Dropout", ["x", "r", "t"], ["y"])], [X], [Y],
                     [weight("r", np.float32(0.5)), weight("t", np.bool_(True))]),
    "Gelu": model([node("Gelu", ["x"], ["y"], domain="com.microsoft")], [X], [Y],
                  imports=[helper.make_opsetid("com.microsoft", 1)]),
    "Bernoulli": model([node("Bernoulli", ["x"], ["y"])], [X], [Y]),
    "float64": through(TensorProto.DOUBLE),
    "bfloat16": through(TensorProto.BFLOAT16),
    "float8": through(TensorProto.FLOAT8E4M3FN, opset=19),
    "size by values": model([node("NonZero", ["x"], ["i"]),
                             node("CumSum", ["i", "a"], ["k"]),
                             node("Cast", ["k"], ["y"], to=TensorProto.FLOAT)],
                            [X], [value("y", None)], [weight("a", np.int64(1))]),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_CPU)
def test_left_to_the_cpu(name: str, take: Callable[[FaultyPool], FaultyPool]) -> None:
    take(FaultyPool())
    given = {v.name: np.ones([d.dim_value for d in v.type.tensor_type.shape.dim], np.float32)
             for v in ON_CPU[name].graph.input}  # fmt: skip
    policy = gpuedge.Policy(crosscheck=0)  # the GPU only pretends
    with gpuedge.Session(ON_CPU[name], device="vulkan", policy=policy) as session:
        assert session.refusals
        assert "y" in session.run(given)
        if name[0].isupper():
            assert [r.device for r in session.placement if name in r.ops] == ["cpu"]
    with pytest.raises(UnsupportedOpError):
        gpuedge.Session(ON_CPU[name], device="vulkan", fallback="error")
