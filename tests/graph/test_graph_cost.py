"""Counting operations and bytes, against counts made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from single_node import single

from gpuedge.executors.base import Work
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.cost import count
from gpuedge.graph.ir import Graph, Node, TensorType


def graph(op: str, *shapes: tuple[int, ...], **attrs: Any) -> Graph:
    return single(op, {f"x{i}": TensorType("float32", s) for i, s in enumerate(shapes)}, attrs)


@pytest.mark.parametrize(
    ("made", "kind", "expected"),
    [
        (graph("Conv", (1, 3, 8, 8), (4, 3, 3, 3)), "conv", 2 * 4 * 36 * 27),
        (graph("Conv", (1, 3, 8, 8), (4, 3, 3, 3), (4,)), "conv", 2 * 4 * 36 * 27 + 4 * 36),
        (graph("Conv", (1, 4, 8, 8), (4, 1, 3, 3), group=4), "map", 2 * 4 * 36 * 9),
        (graph("Conv", (1, 4, 8, 8), (4, 2, 3, 3), group=2), "conv", 2 * 4 * 36 * 18),
        (graph("Conv", (1, 1, 8, 8), (4, 1, 3, 3)), "conv", 2 * 4 * 36 * 9),
        (graph("ConvTranspose", (1, 3, 8, 8), (3, 5, 2, 2)), "conv", 2 * 3 * 64 * 5 * 4),
        (graph("MatMul", (7, 2, 3), (3, 5)), "matmul", 2 * 7 * 2 * 3 * 5),
        (graph("Gemm", (2, 3), (3, 5)), "matmul", 2 * 2 * 3 * 5),
        (graph("Add", (2, 3), (3,)), "map", 6),
        (graph("Sum", (2, 3), (3,), (1,)), "map", 12),
        (graph("Relu", (2, 3)), "map", 6),
        (graph("MaxPool", (1, 1, 4, 4), kernel_shape=[2, 2]), "map", 9 * 4),
        (graph("GlobalAveragePool", (1, 2, 4, 4)), "map", 2 * 16 + 2),
        (graph("Softmax", (2, 3)), "map", 4 * 6),
        (graph("Transpose", (2, 3)), "map", 0),
        (graph("BatchNormalization", (1, 2, 3), (2,), (2,), (2,), (2,)), "map", 2 * 6 + 2),
    ],
    ids=lambda v: v.nodes[0].op if isinstance(v, Graph) else None,
)
def test_operations(made: Graph, kind: str, expected: int) -> None:
    assert count(made)["flops"] == ({kind: expected} if expected else {})


def small() -> Graph:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (2, 6)))
    w = b.constant("w", np.ones((3, 4), np.float32))
    view = b.add("Reshape", [x, b.constant("to", np.array([4, 3]))])
    b.output(b.add("Relu", [b.add("MatMul", [view, w])], output="y"))
    return b.build()


def test_whole_graph_fits_the_executors_work() -> None:
    work = Work(**count(small()))
    assert work.flops == {"matmul": 2 * 4 * 3 * 4, "map": 16}
    assert (work.bytes_in, work.bytes_out) == (48, 64)
    # The product reads 12 + 12 and writes 16 elements, the activation reads and writes 16; the
    # reshape is only another view.
    assert work.bytes_moved == 4 * (12 + 12 + 16 + 16 + 16)
    assert work.launches == 2


def test_unknown_operators_count_one_operation_per_element() -> None:
    node = Node("Einsum", ("x", "axis"), ("y",))
    types = {"x": TensorType("float32", (5,)), "y": TensorType("float32", (5,))}
    made = Graph((node,), ("x",), ("y",), types)
    assert count(made)["flops"] == {"map": 5}
    assert count(made)["bytes_moved"] == 40
    assert count(Graph((node,), ("x",), ("y",), {}))["flops"] == {}
