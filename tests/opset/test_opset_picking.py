"""Results whose length only values tell: NonZero and NonMaxSuppression, in numpy and as plans."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from planrun import TEXTURES, plan_device, run_graph

import gpuedge
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.expand import expand
from gpuedge.graph.ir import Array, Graph, Node, type_of
from gpuedge.plan.planner import why_not

LEVELS = pytest.mark.parametrize("caps", [VULKAN_MINIMUM, TEXTURES], ids=["vulkan", "gles20"])


def graph_of(
    op: str, inputs: dict[str, Array], constants: dict[str, Any] | None = None, **attrs: Any
) -> Graph:
    known = {name: np.asarray(value) for name, value in (constants or {}).items()}
    names = [*inputs, *known]
    if op == "NonMaxSuppression":
        order = ("boxes", "scores", "most", "overlap", "floor")
        names = [n if n in names else "" for n in order]
    node = Node(op, tuple(names), ("y",), attrs, "node")
    types = {name: type_of(array) for name, array in {**inputs, **known}.items()}
    return Graph((node,), tuple(inputs), ("y",), types, known, {"": 20})


def in_numpy(graph: Graph, inputs: dict[str, Array]) -> Array:
    return CpuExecutor(engine="numpy").compile(graph).run(inputs)["y"]


def as_onnxruntime(graph: Graph, inputs: dict[str, Array]) -> Array:
    return CpuExecutor(engine="onnxruntime").compile(graph).run(inputs)["y"]


# --- what is not zero ----------------------------------------------------------------------------


@LEVELS
@pytest.mark.parametrize("shape", [(1,), (9,), (3, 5), (2, 3, 1, 5)])
def test_places_of_what_is_not_zero(shape: tuple[int, ...], caps: Caps) -> None:
    rng = np.random.default_rng(len(shape))
    for share, dtype in ((0.0, "int64"), (0.3, "float32"), (0.7, "bool"), (1.0, "uint8")):
        x = (rng.random(shape) < share) * rng.integers(1, 4, shape)
        given = {"x": x.astype(dtype)}
        wanted = np.stack(np.nonzero(x))
        graph = graph_of("NonZero", given)
        for got in (in_numpy(graph, given), run_graph(graph, given, caps)["y"]):
            assert got.dtype == np.int64
            np.testing.assert_array_equal(got, wanted)


def test_nothing_and_scalars() -> None:
    given = {"x": np.zeros((3, 0), np.float32)}
    assert in_numpy(graph_of("NonZero", given), given).shape == (2, 0)
    scalar = graph_of("NonZero", {"x": np.ones((), np.float32)})
    assert "scalar" in str(why_not(scalar.nodes[0], scalar, VULKAN_MINIMUM))


# --- boxes ---------------------------------------------------------------------------------------


@cache
def boxes(batches: int, count: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    centre, half = rng.random((batches, count, 2)), rng.random((batches, count, 2)) / 5
    return np.concatenate([centre - half, centre + half], axis=2).astype(np.float32)


def scene(classes: int = 2, batches: int = 2, count: int = 9, seed: int = 3) -> dict[str, Array]:
    # few different scores, so that many are equal
    scores = np.random.default_rng(seed).integers(0, 9, (batches, classes, count)) / 8
    return {"boxes": boxes(batches, count, seed), "scores": scores.astype(np.float32)}


@LEVELS
@pytest.mark.parametrize("most", [1, 100])
@pytest.mark.parametrize("extra", [{}, {"overlap": np.float32([0.2]), "floor": np.float32(0.3)}])
def test_boxes_are_those_of_onnxruntime(most: int, extra: dict[str, Any], caps: Caps) -> None:
    given = scene()
    graph = graph_of("NonMaxSuppression", given, {"most": np.array([most]), **extra})
    wanted = as_onnxruntime(graph, given)
    assert len(wanted) > 3
    np.testing.assert_array_equal(in_numpy(graph, given), wanted)
    got = run_graph(graph, given, caps)["y"]
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, wanted)


@LEVELS
def test_boxes_given_in_other_ways(caps: Caps) -> None:
    """Corners the other way round, and centres with sizes."""
    given = scene()
    corners = given["boxes"]
    extra = {"most": np.array(4), "overlap": np.float32(0.4)}
    wanted = as_onnxruntime(graph_of("NonMaxSuppression", given, extra), given)
    turned = {**given, "boxes": corners[:, :, [2, 1, 0, 3]]}
    graph = graph_of("NonMaxSuppression", turned, extra)
    np.testing.assert_array_equal(run_graph(graph, turned, caps)["y"], wanted)
    middle, size = (corners[..., :2] + corners[..., 2:]) / 2, corners[..., 2:] - corners[..., :2]
    centred = {**given, "boxes": np.concatenate([middle[..., ::-1], size[..., ::-1]], axis=2)}
    graph = graph_of("NonMaxSuppression", centred, extra, center_point_box=1)
    np.testing.assert_array_equal(run_graph(graph, centred, caps)["y"], wanted)


@LEVELS
def test_an_overlap_as_large_as_allowed_stays(caps: Caps) -> None:
    """Two boxes share exactly a half of what they cover, which is not more than a half."""
    halves = np.array([[[0, 0, 2, 2], [0, 0, 2, 1]]], np.float32)
    given = {"boxes": halves, "scores": np.array([[[0.5, 0.75]]], np.float32)}
    below = np.nextafter(np.float32(0.5), np.float32(0))
    for allowed, wanted in ((0.5, [[0, 0, 1], [0, 0, 0]]), (below, [[0, 0, 1]])):
        extra = {"most": np.array(2), "overlap": np.float32(allowed)}
        graph = graph_of("NonMaxSuppression", given, extra)
        np.testing.assert_array_equal(run_graph(graph, given, caps)["y"], wanted)


def test_no_boxes() -> None:
    given = scene()
    for extra in ({}, {"most": np.array([0])}):
        assert in_numpy(graph_of("NonMaxSuppression", given, extra), given).shape == (0, 3)
    extra = {"most": np.array(5), "overlap": np.float32(0.5), "floor": np.float32(2)}
    graph = graph_of("NonMaxSuppression", given, extra)
    assert run_graph(graph, given, VULKAN_MINIMUM)["y"].shape == (0, 3)


def test_what_boxes_are_refused() -> None:
    given = scene(batches=1, count=600)
    graph = graph_of("NonMaxSuppression", given, {"most": np.array([2**40])})
    assert "up to 600 boxes" in str(why_not(graph.nodes[0], graph, VULKAN_MINIMUM))
    odd = {**given, "scores": given["scores"][:, :, 1:]}
    graph = graph_of("NonMaxSuppression", odd, {"most": np.array([3])})
    with pytest.raises(ShapeError, match="needs boxes"):
        expand(graph.nodes[0], graph)


# --- in models -----------------------------------------------------------------------------------


def model(*, is_read: bool) -> Any:
    """Return a model of what is not zero in -x; where it is read, times two."""
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
            helper.make_tensor_value_info("y", TensorProto.INT64, None)]  # fmt: skip
    nodes = [helper.make_node("Neg", ["x"], ["n"], "neg"),
             helper.make_node("NonZero", ["n"], ["z" if is_read else "y"], "places")]  # fmt: skip
    if is_read:
        nodes.append(helper.make_node("Add", ["z", "z"], ["y"], "twice"))
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 4]], np.float32)


def test_a_result_of_any_length_leaves_the_device_cut() -> None:
    with gpuedge.Session(model(is_read=False), device=plan_device(), fallback="error") as session:
        for x in (X, X * 0, X + 1):
            got = session.run({"x": x})["y"]
            np.testing.assert_array_equal(got, np.stack(np.nonzero(x)))
        assert session.profile()["compile"]["count"] == 1
        assert session.refusals == {}


def test_what_is_read_by_other_nodes_runs_on_the_cpu() -> None:
    """A kernel has no way to work on part of a tensor; said by name."""
    with gpuedge.Session(model(is_read=True), device=plan_device()) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], 2 * np.stack(np.nonzero(X)))
        on_cpu = {n for row in session.placement if row.device == "cpu" for n in row.nodes}
        assert on_cpu == {"places", "twice"}
        assert "whose size only values tell" in session.refusals["places"]
    with pytest.raises(UnsupportedOpError, match="cannot run") as refused:
        gpuedge.Session(model(is_read=True), device=plan_device(), fallback="error")
    assert "'twice' reads 'z', whose size only values tell" in str(refused.value)
