"""Weights larger than a binding: sums are split, and every part of them is exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import model, value, weight
from planrun import TEXTURES, WIDE, PlanRun, Seen, run_graph

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph import fold
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.graph.reader import OnnxModel
from gpuedge.oracle.layers import convolve
from gpuedge.plan.arrange import ARENA, arrange
from gpuedge.plan.matmul import UNIT, parts
from gpuedge.plan.planner import plan, why_not

SMALL = replace(WIDE, max_storage_buffer_bytes=8192)
"""A binding holds 2048 numbers: 64 rows of 32."""


def integers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def product(m: int, k: int, n: int, batch: tuple[int, ...] = (), *, given: bool = False) -> Graph:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (*batch, m, k)))
    w = integers(*batch, k, n, seed=1)
    right = b.input("w", TensorType("float32", w.shape)) if given else b.constant("w", w)
    b.output(
        b.add("Relu", [b.add("Add", [b.add("MatMul", [x, right]), b.constant("c", integers(n))])])
    )
    return b.build()


@pytest.mark.parametrize(
    ("depth", "most", "wanted"),
    [
        (8, 8, [(0, 8)]),
        (9, 8, [(0, 8), (8, 9)]),
        (1, 16, [(0, 1)]),
        (100, 32, [(0, 32), (32, 64), (64, 96), (96, 100)]),
    ],
)
def test_parts_cover_a_sum_once(depth: int, most: int, wanted: list[tuple[int, int]]) -> None:
    assert [(p.start, p.stop) for p in parts(depth, most)] == wanted


@pytest.mark.parametrize("ruled_out", [(), ("matmul_rows", "matmul_tile"), ("matmul_rows",)])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 199, 33), (40, 131, 40), (5, 64, 31), (3, 260, 1)])
def test_products_by_large_weights(m: int, k: int, n: int, ruled_out: tuple[str, ...]) -> None:
    graph, x = product(m, k, n), integers(m, k, seed=2)
    caps = replace(SMALL, max_storage_buffer_bytes=max(8192, 16 * m * -(-k // 4)))
    made = plan(graph, caps, ruled_out)
    launched = [p for p in made.passes if p.variant.startswith("matmul")]
    if 16 * k * -(-n // 4) > caps.max_storage_buffer_bytes:
        assert len(launched) > 1
        assert all(int(p.specs["KT"]) % UNIT == 0 for p in launched[:-1])
    want = np.maximum(x.astype(np.float64) @ graph.constants["w"] + graph.constants["c"], 0)
    found = run_graph(graph, {"x": x}, caps, ruled_out)
    np.testing.assert_array_equal(*found.values(), want)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_batches_and_weights_that_are_inputs(batch: tuple[int, ...], *, given: bool) -> None:
    graph, x = product(2, 131, 14, batch, given=given), integers(*batch, 2, 131, seed=3)
    w = integers(*batch, 131, 14, seed=1)
    assert any(one.specs.get("B0", 0) for one in plan(graph, SMALL).passes)
    found = run_graph(graph, {"x": x, **({"w": w} if given else {})}, SMALL)
    want = np.maximum(x.astype(np.float64) @ w + graph.constants["c"], 0)
    np.testing.assert_array_equal(*found.values(), want)


def test_on_textures() -> None:
    caps = replace(TEXTURES, max_storage_buffer_bytes=8192)
    graph, x = product(3, 140, 20), integers(3, 140, seed=4)
    want = np.maximum(x.astype(np.float64) @ graph.constants["w"] + graph.constants["c"], 0)
    np.testing.assert_array_equal(*run_graph(graph, {"x": x}, caps).values(), want)


def test_convolutions_with_large_weights() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (1, 24, 5, 5)))
    w, bias = integers(20, 24, 3, 3), integers(20, seed=1)
    y = b.add("Conv", [x, b.constant("w", w), b.constant("b", bias)], {"pads": [1, 1, 1, 1]})
    b.output(y)
    graph, data = b.build(), integers(1, 24, 5, 5, seed=5)
    caps = replace(WIDE, max_storage_buffer_bytes=11000)
    assert len([p for p in plan(graph, caps).passes if "K" in p.tensors]) == 2
    want = convolve(data, w, pads=(1, 1, 1, 1)) + bias[:, None, None]
    np.testing.assert_array_equal(*run_graph(graph, {"x": data}, caps).values(), want)


def test_what_cannot_be_split_is_refused_with_the_numbers() -> None:
    graph = product(600, 8, 8)
    with pytest.raises(UnsupportedOpError, match=r"binds a tensor of 19200 bytes") as caught:
        plan(graph, SMALL)
    assert "at most 8192 (max_storage_buffer_bytes" in str(caught.value)


def gemm(shape: tuple[int, int], **attrs: Any) -> Any:
    """Return a model whose weights are made by nodes from constants."""
    filled = helper.make_node(
        "ConstantOfShape", ["shape"], ["f"], "fill", value=weight("v", np.float32([0.5]))
    )
    turned = helper.make_node("Transpose", ["w"], ["t"], "turn", perm=[1, 0])
    both = helper.make_node("Mul", ["f", "t"], ["both"], "both")
    last = helper.make_node("Gemm", ["x", "both", "c"], ["y"], "gemm", **attrs)
    k, n = shape[::-1] if attrs.get("transB") else shape
    held = [
        weight("shape", np.array(shape)), weight("w", 2 * integers(*shape[::-1])),
        weight("c", integers(n)),
    ]  # fmt: skip
    return model([filled, turned, both, last], [value("x", [2, k])], [value("y", [2, n])], held)


@pytest.mark.parametrize("is_turned", [0, 1])
def test_constants_that_are_too_large_to_fold(
    monkeypatch: pytest.MonkeyPatch, is_turned: int
) -> None:
    monkeypatch.setattr(fold, "FOLD_LIMIT", 1000)
    graph = OnnxModel.load(
        gemm((40, 150) if is_turned else (150, 40), transB=is_turned)
    ).specialise()
    assert [n.op for n in graph.nodes] == ["ConstantOfShape", "Transpose", "Mul", "Gemm"]
    assert [why_not(n, graph, SMALL) for n in graph.nodes] == [None] * 4
    made = plan(graph, SMALL)
    assert {p.variant.partition("_")[0] for p in made.passes} <= {"matmul", "pack", "unpack"}
    x = integers(2, 150, seed=6)
    w = graph.constants["w"].astype(np.float64) / 2  # transposed once, or twice
    want = x @ (w if is_turned else w.T) + graph.constants["c"]
    np.testing.assert_array_equal(run_graph(graph, {"x": x}, SMALL)["y"], want)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool"])
def test_filled_with_a_value_of_any_dtype(dtype: str) -> None:
    node = helper.make_node(
        "ConstantOfShape", ["shape"], ["y"], value=weight("v", np.array([1], dtype))
    )
    filled = OnnxModel.load(
        model([node], [], [value("y", None, int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))],
              [weight("shape", np.array([2, 3]))])
    ).specialise()  # fmt: skip
    np.testing.assert_array_equal(filled.constants["y"], np.ones((2, 3), dtype), strict=True)


def test_buffers_are_no_larger_than_the_device_allocates() -> None:
    graph = product(8, 199, 60)
    made = plan(graph, SMALL)
    whole, cut = arrange(made, 256), arrange(made, 256, most_bytes=8192)
    assert whole.buffers["constants"].nbytes > 40000
    assert max(b.nbytes for b in cut.buffers.values()) <= 8192
    assert ARENA in whole.buffers
    assert cut.memory["constant"] >= whole.memory["constant"] - 256
    assert {r.buffer for r in cut.regions.values()} == set(cut.buffers)
    x = integers(8, 199, seed=7)
    want = PlanRun(made, 256, Seen()).run({"x": x})
    run = PlanRun(made, 256, Seen(), most_bytes=8192)
    for name, array in run.run({"x": x}).items():
        np.testing.assert_array_equal(array, want[name])


def test_an_arena_beyond_the_largest_buffer_becomes_several() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (1, 8, 16, 16)))
    y = x
    for i in range(3):
        y = b.add("Conv", [y, b.constant(f"w{i}", integers(8, 8, 1, 1))])
    b.output(b.add("Relu", [b.add("Add", [y, b.add("MaxPool", [x], {"kernel_shape": [1, 1]})])]))
    made = plan(b.build(), WIDE)
    whole = arrange(made, 256)
    least = max(t.layout.nbytes for t in made.tensors.values() if t.host is None)
    cut = arrange(made, 256, most_bytes=least)
    assert whole.buffers[ARENA].nbytes > least >= max(h.nbytes for h in cut.buffers.values())
