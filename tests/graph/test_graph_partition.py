"""Partitioning: properties that hold for every graph and every choice of devices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.graph.partition import Segment, partition
from gpuedge.graph.reader import OnnxModel

SIZE = TensorType("float32", (2, 3))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random directed acyclic graph of elementwise nodes over two inputs and a constant."""
    b = GraphBuilder()
    values = [b.input("a", SIZE), b.input("b", SIZE)]
    values.append(b.constant("c", np.full((2, 3), 0.5, np.float32)))
    for _ in range(draw(st.integers(1, 12))):
        op, count = draw(st.sampled_from([("Add", 2), ("Sub", 2), ("Tanh", 1), ("Sum", 3)]))
        values.append(b.add(op, [draw(st.sampled_from(values)) for _ in range(count)]))
    made = values[3:]
    b.output(made[-1], *draw(st.lists(st.sampled_from(made[:-1] or made), unique=True, max_size=3))
             if len(made) > 1 else [])  # fmt: skip
    return b.build()


def run_segments(segments: tuple[Segment, ...], inputs: dict[str, Array]) -> dict[str, Array]:
    values = dict(inputs)
    for segment in segments:
        feeds = {name: values[name] for name in segment.graph.inputs}
        values.update(CpuExecutor(threads=1).compile(segment.graph).run(feeds))
    return values


@settings(max_examples=40, deadline=None)
@given(graphs(), st.data())
def test_segments_are_a_valid_schedule_of_the_whole(graph: Graph, data: st.DataObject) -> None:
    devices = [data.draw(st.sampled_from("pqr")) for _ in graph.nodes]
    chosen = {id(node): device for node, device in zip(graph.nodes, devices, strict=True)}
    segments = partition(graph, lambda node: chosen[id(node)])

    # Every node exactly once, on its device.
    placed = [(id(n), s.device) for s in segments for n in s.graph.nodes]
    assert sorted(placed) == sorted(chosen.items())

    # Each segment reads only what exists by then, and its nodes are in order.
    ready = {"a", "b"}
    for segment in segments:
        inner = segment.graph
        assert set(inner.inputs) <= ready
        known = {*inner.inputs, *inner.constants}
        for node in inner.nodes:
            assert set(node.inputs) <= known
            known.update(node.outputs)
        assert set(inner.outputs) <= known
        assert set(inner.types) >= known - set(inner.constants)
        ready.update(inner.outputs)
    assert set(graph.outputs) <= ready

    # Neighbours differ, or they would be one.
    assert all(s.device != t.device for s, t in pairwise(segments))

    # And they compute what the whole computes.
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 3)).astype(np.float32) for name in ("a", "b")}
    expected = CpuExecutor(threads=1).compile(graph).run(feeds)
    found = run_segments(segments, feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)


def test_one_device_keeps_the_graph_as_it_came() -> None:
    b = GraphBuilder()
    x = b.input("x", SIZE)
    b.input("unused", SIZE)
    b.output(b.add("Relu", [x]))
    graph = b.build()
    (segment,) = partition(graph, lambda node: "cpu")
    assert segment == Segment("cpu", graph)


def test_independent_branches_share_segments() -> None:
    b = GraphBuilder()
    x = b.input("x", SIZE)
    left, right = b.add("Tanh", [x]), b.add("Abs", [x])
    left, right = b.add("Relu", [left]), b.add("Relu", [right])
    b.output(b.add("Add", [left, right]))
    graph = b.build()
    segments = partition(graph, lambda n: "cpu" if n.op in ("Tanh", "Abs") else "gpu")
    assert [(s.device, len(s.graph.nodes)) for s in segments] == [("cpu", 2), ("gpu", 3)]


def test_a_detour_over_another_device_splits_in_three() -> None:
    b = GraphBuilder()
    x = b.add("Tanh", [b.input("x", SIZE)])
    b.output(b.add("Add", [x, b.add("Abs", [x])]))
    segments = partition(b.build(), lambda n: "cpu" if n.op == "Abs" else "gpu")
    assert [s.device for s in segments] == ["gpu", "cpu", "gpu"]
    assert segments[2].graph.inputs == (x, segments[1].graph.outputs[0])


def test_no_nodes_no_segments() -> None:
    graph = Graph((), ("x",), ("x",), {"x": SIZE})
    assert partition(graph, lambda node: "cpu") == ()


def test_values_without_a_type_are_never_handed_over() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["at"]),
        helper.make_node("Abs", ["r"], ["s"]),
        helper.make_node("GatherND", ["s", "t"], ["y"]),
        helper.make_node("Transpose", ["at"], ["t"]),
    ]
    nodes[3], nodes[4] = nodes[4], nodes[3]
    proto = helper.make_model(
        helper.make_graph(
            nodes, "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    onnx.checker.check_model(proto)
    graph = OnnxModel.load(proto).specialise()
    # Cutting before GatherND would hand over `t`, whose length only running tells.
    segments = partition(graph, lambda n: "b" if n.op in ("Abs", "GatherND") else "a")
    assert [s.device for s in segments] == ["a"]
    # Relu may stand alone, the rest is one.
    segments = partition(graph, lambda n: "a" if n.op == "Relu" else "b")
    assert [s.device for s in segments] == ["a", "b"]
    x = np.array([[-1, 2, 0], [3, 0, 4]], np.float32)
    np.testing.assert_array_equal(run_segments(segments, {"x": x})["y"], [2, 3, 4])
