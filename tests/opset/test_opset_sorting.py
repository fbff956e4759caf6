"""Sorting by merging, and updates sorted by where they go, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset import scatter, sorting
from gpuedge.opset.evaluate import evaluate
from gpuedge.opset.sorting import MOST_RANKED
from gpuedge.opset.tensor import given

SHAPES = [((MOST_RANKED + 1,), 0), ((3, 1000, 2), 1), ((2, 1024), 1), ((1, 2500), 1)]


def ordered(x: np.ndarray, along: int, count: int, *, largest: bool) -> np.ndarray:
    tensor = given("x", x.shape, "float32")
    found = sorting.order(tensor, along, count, largest=largest)
    return evaluate([found], {"x": x})[0]


@pytest.mark.parametrize(("shape", "along"), SHAPES)
@pytest.mark.parametrize("largest", [False, True])
def test_a_long_axis_is_sorted_and_equal_elements_stay_in_order(
    shape: tuple[int, ...], along: int, largest: bool
) -> None:
    x = np.random.default_rng(7).integers(-40, 40, shape).astype(np.float32)
    wanted = np.argsort(-x if largest else x, axis=along, kind="stable")
    for count in (1, 70, shape[along]):
        got = ordered(x, along, count, largest=largest)
        np.testing.assert_array_equal(got, np.take(wanted, range(count), axis=along))


@pytest.mark.parametrize("extent", [9, MOST_RANKED, 900])
@pytest.mark.parametrize("largest", [False, True])
def test_nan_is_more_than_any_number(extent: int, largest: bool) -> None:
    x = np.random.default_rng(8).normal(size=extent).astype(np.float32)
    x[::7], x[5], x[6] = np.nan, np.inf, -np.inf
    keys = np.argsort(np.argsort(x), kind="stable")  # numpy puts NaN last
    keys[np.isnan(x)] = extent
    wanted = np.argsort(-keys if largest else keys, kind="stable")
    np.testing.assert_array_equal(ordered(x, 0, extent, largest=largest), wanted)


@pytest.mark.parametrize("extent", [1, MOST_RANKED, MOST_RANKED + 1, 700, 4095, 4096, 4097])
@pytest.mark.parametrize("count", [1, 7, 64, 1000])
def test_how_many_are_not_above_a_number(count: int, extent: int) -> None:
    rising = np.sort(np.random.default_rng(9).integers(0, 90, extent)).astype(np.float32)
    found = sorting.upper_bound(given("x", rising.shape, "float32"), 0, count)
    wanted = np.searchsorted(rising, np.arange(count), side="right")
    np.testing.assert_array_equal(evaluate([found], {"x": rising})[0], wanted)


def scattered(op: str, x: Any, indices: Any, updates: Any, **attrs: Any) -> tuple[Any, Any]:
    """What gpuedge's description and ONNX's reference make of a node."""
    arrays = {"x": x, "i": indices, "u": updates}
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in arrays.items()]  # fmt: skip
    output = helper.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, x.shape)
    node = helper.make_node(op, list(arrays), ["y"], **attrs)
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    read = OnnxModel.load(model).specialise({n: a.shape for n, a in arrays.items()}, {})
    got = CpuExecutor(engine="numpy").compile(read).run(arrays)["y"]
    return got, ReferenceEvaluator(model).run(None, arrays)[0]


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_many_updates(reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(10)
    x = rng.integers(-9, 9, (3, 900)).astype(dtype)
    places = np.stack([rng.permutation(900)[:700] for _ in range(2)]) - 450
    if reduction != "none":  # what comes last, ONNX leaves open
        places = rng.integers(-900, 900, (2, 700))
    updates = rng.choice([-1, 1], (2, 700)).astype(dtype)
    if reduction != "mul":
        updates = rng.integers(-9, 9, (2, 700)).astype(dtype)
    assert scatter._is_long(700, 900)
    got, wanted = scattered(
        "ScatterElements", x, places, updates, axis=1, reduction=reduction
    )  # fmt: skip
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_many_rows(reduction: str) -> None:
    rng = np.random.default_rng(11)
    x = rng.integers(-9, 9, (40, 50, 3)).astype(np.float32)
    flat = rng.permutation(2000)[:700] if reduction == "none" else rng.integers(0, 2000, 700)
    places = np.stack(np.unravel_index(flat, (40, 50)), 1).astype(np.int64)
    updates = rng.integers(-9, 9, (700, 3)).astype(np.float32)
    got, wanted = scattered("ScatterND", x, places, updates, reduction=reduction)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("extent", [500, 1500])
@pytest.mark.parametrize("is_repeated", [False, True])
def test_distinct_elements_of_a_long_row(extent: int, is_repeated: bool, is_sorted: int) -> None:
    x = np.random.default_rng(12).permutation(extent).astype(np.float32)
    if is_repeated:
        x //= 4
        x[7::50] = np.nan
    names = ["y", "first", "place", "times"]
    node = helper.make_node("Unique", ["x"], names, sorted=is_sorted)
    inputs = [helper.make_tensor_value_info("x", 1, x.shape)]
    outputs = [helper.make_tensor_value_info(n, 1 if n == "y" else 7, [None]) for n in names]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    read = OnnxModel.load(model).specialise({"x": x.shape}, {})
    got = CpuExecutor(engine="numpy").compile(read).run({"x": x})
    wanted = ReferenceEvaluator(model).run(None, {"x": x})
    for name, right in zip(names, wanted, strict=True):
        np.testing.assert_array_equal(got[name], right, err_msg=name)
