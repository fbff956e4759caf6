"""Reductions, and operators that ONNX defines by functions, against its reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from planrun import WIDE, run_graph
from single_node import single

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.expand import expand
from gpuedge.graph.ir import Array, Graph, Node, TensorType, type_of
from gpuedge.graph.writer import to_onnx
from gpuedge.plan.planner import why_not

X = np.random.default_rng(5).uniform(0.1, 2, (2, 4, 7, 9)).astype(np.float32)
HALF = np.random.default_rng(6).uniform(0.5, 1, 4).astype(np.float32)
WHOLE = np.random.default_rng(7).integers(-9, 10, (3, 5, 7)).astype(np.float32)

CASES: dict[str, tuple[str, dict[str, Any], list[Any], int]] = {
    "sum": ("ReduceSum", {"keepdims": 0}, [[1, -1]], 20),
    "mean of all": ("ReduceMean", {}, [], 20),
    "mean by attribute": ("ReduceMean", {"axes": (2, 3)}, [], 13),
    "max": ("ReduceMax", {}, [[0, 2]], 20),
    "min by attribute": ("ReduceMin", {"axes": (-1,)}, [], 11),
    "l1": ("ReduceL1", {}, [[2]], 18),
    "l2": ("ReduceL2", {}, [[1, 2]], 18),
    "sum of squares": ("ReduceSumSquare", {"keepdims": 0}, [[3]], 18),
    "log of sum": ("ReduceLogSum", {}, [[2]], 18),
    "mean and variance": ("MeanVarianceNormalization", {}, [], 18),
    "groups": ("GroupNormalization", {"num_groups": 2}, [HALF, HALF], 21),
    "root mean square": ("RMSNormalization", {}, [np.ones(9, np.float32)], 23),
    "layer": ("LayerNormalization", {"axis": 1}, [np.full((4, 7, 9), 2, np.float32)], 17),
}


def graph_of(name: str, x: Array = X) -> Graph:
    op, attrs, extra, opset = CASES[name]
    arrays = [np.asarray(e) if isinstance(e, np.ndarray) else np.array(e, np.int64) for e in extra]
    constants = {f"c{i}": a for i, a in enumerate(arrays)}
    types = {"x": type_of(x), **{n: type_of(a) for n, a in constants.items()}}
    node = Node(op, ("x", *constants), ("y",), attrs, "node")
    made = Graph((node,), ("x",), ("y",), types, constants, {"": opset})
    (out,) = (TensorType(t.dtype, t.shape) for t in expand(node, made)[:1])
    return Graph((node,), ("x",), ("y",), {**types, "y": out}, constants, {"": opset})


@pytest.mark.parametrize("name", CASES)
def test_numpy_agrees_with_the_reference(name: str) -> None:
    graph = graph_of(name)
    (wanted,) = ReferenceEvaluator(to_onnx(graph)).run(None, {"x": X})
    got = CpuExecutor(engine="numpy").compile(graph).run({"x": X})["y"]
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("caps", [VULKAN_MINIMUM, WIDE], ids=["minimum", "wide"])
@pytest.mark.parametrize("name", CASES)
def test_plans_agree_with_the_reference(name: str, caps: Caps) -> None:
    graph = graph_of(name)
    assert why_not(graph.nodes[0], graph, caps) is None
    (wanted,) = ReferenceEvaluator(to_onnx(graph)).run(None, {"x": X})
    np.testing.assert_allclose(run_graph(graph, {"x": X}, caps)["y"], wanted, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2], []])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin"])
def test_reductions_of_whole_numbers_are_exact(op: str, axes: list[int]) -> None:
    constants = {"axes": np.array(axes, np.int64)} if axes else {}
    graph = single(op, {"x": type_of(WHOLE)}, {"keepdims": 0}, constants)
    combine = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}[op]
    wanted = combine(WHOLE.astype(np.float64), axis=tuple(axes) or None)
    got = run_graph(graph, {"x": WHOLE}, VULKAN_MINIMUM)["y"]
    np.testing.assert_array_equal(got, wanted)


def test_a_function_of_unknown_operators_is_refused() -> None:
    types = {"x": type_of(X), "y": type_of(X)}
    node = Node("Bernoulli", ("x",), ("y",), {}, "node")
    graph = Graph((node,), ("x",), ("y",), types, {}, {"": 20})
    with pytest.raises(UnsupportedOpError, match="is not known"):
        expand(node, graph)
    assert "not known" in str(why_not(node, graph, WIDE))


def test_layer_normalisation_of_a_mean_far_above_the_deviation() -> None:
    """The float32 mean is off by up to half a unit of 10, a thousandth of the deviation here."""
    x = np.random.default_rng(8).normal(10, 1e-3, (2, 4, 7, 9)).astype(np.float32)
    (got,) = run_graph(graph_of("layer", x), {"x": x}, VULKAN_MINIMUM).values()
    exact = x.astype(np.float64)
    axes = (1, 2, 3)
    centred = exact - exact.mean(axes, keepdims=True)
    wanted = 2 * centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=16 * 2.0**-24 * np.abs(wanted).max())
