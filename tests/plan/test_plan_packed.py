"""Look-ups in tables: bags in one kernel, and tables larger than a binding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import model, value, weight
from planrun import WIDE, Seen, run_graph

from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.storage import Storage
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.reader import OnnxModel
from gpuedge.plan.planner import plan

RNG = np.random.default_rng(6)


def bag(combine: str, table: Array, shape: tuple[int, int]) -> Graph:
    """Return what adds up, or averages, the rows that indices name; -1 names none."""
    nodes = [
        helper.make_node("GreaterOrEqual", ["ids", "zero"], ["there"]),
        helper.make_node("Where", ["there", "ids", "zero"], ["safe"]),
        helper.make_node("Gather", ["table", "safe"], ["rows"]),
        helper.make_node("Cast", ["there"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["rows", "column"], ["masked"]),
        helper.make_node(combine, ["masked", "one"], ["y"], keepdims=0),
    ]
    held = {"table": table, "zero": np.array(0), "one": np.array([1]), "last": np.array([-1])}
    proto = model(nodes, [value("ids", list(shape), TensorProto.INT64)],
                  [value("y", [shape[0], table.shape[1]])],
                  [weight(n, a) for n, a in held.items()], opset=18)  # fmt: skip
    return OnnxModel.load(proto).specialise({"ids": shape})


@pytest.mark.parametrize("combine", ["ReduceSum", "ReduceMean"])
def test_a_bag_is_one_kernel(combine: str) -> None:
    table = RNG.integers(-4, 5, (50, 8)).astype(np.float32)
    ids = RNG.integers(-1, 50, (6, 4))
    graph, seen = bag(combine, table, ids.shape), Seen()
    (got,) = run_graph(graph, {"ids": ids}, WIDE, seen=seen).values()
    picked = table[ids] * (ids >= 0)[..., None]
    assert (got == (picked.sum(1) if combine == "ReduceSum" else picked.mean(1))).all()
    made = plan(graph, VULKAN_MINIMUM)
    (last,) = (launch for launch in made.passes if launch.variant == "reduce_map")
    assert made.passes[-1] is last
    # of the rows that are picked none lies in memory: they would be as large as ids times a row
    assert max(t.layout.nbytes for t in made.tensors.values() if t.host is None) < 4 * 24 * 8


def test_a_table_larger_than_a_binding_is_divided_unless_bytes_fit() -> None:
    small = replace(VULKAN_MINIMUM, max_storage_buffer_bytes=1 << 14)
    table = RNG.normal(0, 1, (1000, 8)).astype(np.float32)
    graph = bag("ReduceSum", table, (6, 4))
    parts = [t.nbytes for t in plan(graph, small).tensors.values() if t.is_constant]
    assert sorted(parts)[-2:] == [16000, 16000]
    codes = RNG.integers(-128, 128, (1000, 8)).astype(np.int8)
    nodes = [helper.make_node("DequantizeLinear", ["table", "scale"], ["wide"]),
             helper.make_node("Gather", ["wide", "ids"], ["y"])]  # fmt: skip
    proto = model(nodes, [value("ids", [6], TensorProto.INT64)], [value("y", [6, 8])],
                  [weight("table", codes), weight("scale", np.float32(0.5))], opset=21)  # fmt: skip
    made = plan(OnnxModel.load(proto).specialise({"ids": (6,)}), small)
    (held,) = (t for t in made.tensors.values() if t.is_constant and t.layout.nbytes > 1000)
    assert (held.nbytes, held.storage) == (8000, Storage("buffer_s8", -128.0, 127.0, "int8"))
