"""The rewrite of quantised parts to integers: what it makes, leaves alone, and computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from planrun import TEXTURES, run_graph
from quantised_model import network

from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.integers import in_integers
from gpuedge.graph.ir import Array, Node
from gpuedge.graph.reader import OnnxModel

RNG = np.random.default_rng(7)


def image() -> Array:
    return RNG.uniform(-2, 2, (2, 3, 8, 10)).astype(np.float32)


def ops(proto: onnx.ModelProto, *, rewrites: bool = True) -> list[str]:
    graph = OnnxModel.load(proto).specialise({"x": (2, 3, 8, 10)}, rewrites=rewrites)
    return [n.op for n in graph.nodes]


def test_what_stands_between_becomes_an_operator_of_integers() -> None:
    found = ops(network())
    assert found.count("QLinearConv") == 3
    assert not {"Conv", "Gemm", "Relu"} & set(found)
    assert found.index("MaxPool") == found.index("QLinearConv") + 1
    assert ops(network(), rewrites=False).count("Conv") == 2


@pytest.mark.parametrize("caps", [VULKAN_MINIMUM, TEXTURES], ids=["vulkan", "gles20"])
def test_the_same_numbers(caps: Any) -> None:
    """Against floats, as ONNX has it: a value on the edge between two steps may take the other."""
    proto, x = network(), image()
    read = OnnxModel.load(proto)
    graph, plain = (read.specialise({"x": x.shape}, rewrites=r) for r in (True, False))
    (wanted,) = CpuExecutor(engine="numpy").compile(plain).run({"x": x}).values()
    (reference,) = CpuExecutor(engine="numpy").compile(graph).run({"x": x}).values()
    (got,) = run_graph(graph, {"x": x}, caps).values()
    np.testing.assert_array_equal(got, reference)
    assert np.abs(got - wanted).max() <= 0.7 * 1.001  # one step of the result
    assert len(np.unique(wanted)) > 4


def test_what_does_not_fit_stays() -> None:
    assert ops(network(bias_scale=1.01)).count("QLinearConv") == 2  # a bias in another scale
    assert "Relu" in ops(network(zero=3))  # which cuts at the zero point, not at zero
    proto = network()
    proto.graph.output.append(helper.make_tensor_value_info("c2", TensorProto.FLOAT, None))
    assert "Conv" in ops(proto)  # somebody wants the floats


def test_products_and_pools() -> None:
    q, d = "QuantizeLinear", "DequantizeLinear"
    names = {"s": np.float32(0.5), "z": np.int8(-3), "t": np.float32(0.25), "u": np.int8(4)}
    nodes = (
        Node(d, ("a", "s", "z"), ("ad",)), Node(d, ("b", "t", "u"), ("bd",)),
        Node("MatMul", ("ad", "bd"), ("m",)), Node(q, ("m", "s", "z"), ("mq",)),
        Node(d, ("mq", "s", "z"), ("md",)), Node("AveragePool", ("md",), ("p",)),
        Node(q, ("p", "t", "u"), ("pq",)),
        Node(d, ("pq", "t", "u"), ("pd",)), Node("MaxPool", ("pd",), ("o",)),
        Node(q, ("o", "s", "z"), ("oq",)),
    )  # fmt: skip
    constants = {n: np.asarray(v) for n, v in names.items()}
    made, extra = in_integers(nodes, constants, ("oq",), 13)
    by_output = {n.outputs[0]: n for n in made}
    product = by_output["mq"]
    assert (product.op, product.inputs) == (
        "QLinearMatMul", ("a", "s", "z", "b", "t", "u", "s", "z"))  # fmt: skip
    assert extra[by_output["pq"].inputs[1]] == 0.5  # of 0.25 in steps of 0.5
    assert by_output["oq"].op == q  # the maximum goes to another scale
    assert in_integers(nodes, {}, ("oq",), 13) == (nodes, {})
