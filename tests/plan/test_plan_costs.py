"""What a plan costs, against bytes counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from planrun import WIDE

from gpuedge.core.storage import Storage
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.cost import count
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.plan.costs import planned
from gpuedge.plan.planner import plan

PIXELS = TensorType("float32", (1, 4, 16, 16))
SIZE = 4 * 4 * 16 * 16


def chain(*ops: str) -> Graph:
    b = GraphBuilder()
    x = b.input("x", PIXELS)
    for op in ops:
        x = b.add(op, [x])
    b.output(x)
    return b.build()


def test_a_fused_chain_reads_once_and_writes_once() -> None:
    graph = chain("Relu", "Tanh", "Sigmoid", "Neg")
    found = planned(graph, plan(graph, WIDE))
    assert found["launches"] == 1
    assert found["bytes_moved"] == 2 * SIZE
    nodes = count(graph)
    assert nodes["bytes_moved"] == 4 * 2 * SIZE
    for key in ("flops", "bytes_in", "bytes_out"):
        assert found[key] == nodes[key]  # type: ignore[literal-required]


def test_repacking_counts_because_memory_does_it() -> None:
    b = GraphBuilder()
    x = b.input("x", PIXELS)
    w = b.constant("w", np.ones((4, 4, 3, 3), np.float32))
    b.output(b.add("Conv", [x, w], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}))
    graph = b.build()
    found = planned(graph, plan(graph, WIDE))
    # To texels of four channels, the convolution, and back: each reads and writes. The weights are
    # nine taps and the bias, four texels each.
    assert found["launches"] == 3
    assert found["bytes_moved"] == 6 * SIZE + 16 * 4 * (9 + 1)


def test_half_the_bytes_where_tensors_are_kept_as_halves() -> None:
    graph = chain("Relu")
    made = plan(graph, WIDE)
    half = {n: replace(t, storage=Storage("rgba16f")) for n, t in made.tensors.items()}
    assert planned(graph, replace(made, tensors=half))["bytes_moved"] == SIZE
