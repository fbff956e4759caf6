"""Sizes no device could hold and shapes nobody defined: refused while reading, never tried."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_models import I64, model, simple, value, weight
from single_node import single

import gpuedge
from gpuedge.core.errors import ModelError, ShapeError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph import sizes
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.expand import program
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset.windows import MAX_EXTENT

HUGE = 10**12


def kinds(*shapes: tuple[int, ...], dtype: str = "float32") -> dict[str, TensorType]:
    return {f"x{i}": TensorType(dtype, s) for i, s in enumerate(shapes)}


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_long_range_inside_a_branch_is_not_written_out_while_planning(*, is_known: bool) -> None:
    def branch(name: str) -> Any:
        node = helper.make_node("Range", ["zero", "n", "one"], [name])
        return helper.make_graph([node], name, [], [value(name, None, I64)])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    weights = [weight("zero", np.array(0)), weight("n", np.array(HUGE)),
               weight("one", np.array(1))]  # fmt: skip
    given = [value("c", [], TensorProto.BOOL)]
    if is_known:
        weights, given = [*weights, weight("c", np.array(True))], [value("x", [1])]
    loaded = OnnxModel.load(model([node], given, [value("y", None, I64)], weights))
    start = time.process_time()
    with pytest.raises(ModelError, match=r"would compute '(y/a|b)' of 1000000000000 elements"):
        loaded.specialise()
    assert time.process_time() - start < 5


def test_a_short_range_is_still_folded_and_a_long_one_left_to_run_time() -> None:
    nodes = [helper.make_node("Range", ["zero", "n", "one"], ["y"])]
    for length, ops in ((5, []), (20_000_000, ["Range"])):
        weights = [weight("zero", np.array(0)), weight("n", np.array(length)),
                   weight("one", np.array(1))]  # fmt: skip
        proto = model(nodes, [value("x", [1])], [value("y", None, I64)], weights)
        graph = OnnxModel.load(proto).specialise()
        assert [n.op for n in graph.nodes] == ops
        assert graph.shape("y") == (length,)


def test_picking_operators_are_folded_and_others_of_unknown_size_are_not() -> None:
    held = {"a": ints(1, 0, 3)}
    proto = model([helper.make_node("NonZero", ["a"], ["y"])], [value("x", [1])],
                  [value("y", None, I64)], [weight(n, v) for n, v in held.items()])  # fmt: skip
    graph = OnnxModel.load(proto).specialise()
    np.testing.assert_array_equal(graph.constants["y"], [[0, 2]])
    text = np.array(["a b"], object)
    nodes = [helper.make_node("StringSplit", ["a"], ["s", "y"])]
    proto = model(nodes, [value("x", [1])], [value("y", None, I64)], [weight("a", text)], opset=20)
    assert [n.op for n in OnnxModel.load(proto).specialise().nodes] == ["StringSplit"]


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "words"),
    [
        ("Conv", [(1, 0, 4, 4), (2, 0, 3, 3)], {"pads": [1] * 4}, "no input channels"),
        ("Conv", [(1, 0, 4), (2, 0, 3)], {"pads": [1] * 2}, "no input channels"),
        ("Conv", [(1, 0, 4, 4, 4), (2, 0, 3, 3, 3)], {"pads": [1] * 6}, "no input channels"),
        ("Conv", [(1, 2, 0, 4), (2, 2, 1, 1)], {"pads": [1] * 4}, "empty image"),
        ("Conv", [(1, 2, 4, 4), (0, 2, 1, 1)], {}, "empty weights"),
        ("Conv", [(1, 2, 4, 4), (2, 2, 0, 1)], {}, "empty weights"),
        ("ConvTranspose", [(1, 0, 4, 4), (0, 2, 3, 3)], {}, "no input channels"),
        ("ConvTranspose", [(1, 2, 4, 4), (2, 0, 3, 3)], {}, "empty weights"),
        ("ConvTranspose", [(1, 2, 0, 4), (2, 1, 3, 3)], {}, "empty image"),
        ("MaxPool", [(1, 0, 4, 4)], {"kernel_shape": [2, 2]}, "no input channels"),
        ("AveragePool", [(1, 1, 0, 4)], {"kernel_shape": [1, 1], "pads": [1] * 4}, "empty image"),
        ("GlobalAveragePool", [(1, 2, 0, 4)], {}, "empty image"),
        ("GlobalMaxPool", [(1, 0, 3, 4)], {}, "no input channels"),
        ("Conv", [(1, 1, 4, 4), (1, 1, 3, 3)], {"strides": [2**31, 1]}, "strides with a value"),
        ("Conv", [(1, 1, 4, 4), (1, 1, 3, 3)], {"dilations": [2**40, 1]}, "dilations with a"),
        ("Conv", [(1, 1, 4, 4), (1, 1, 3, 3)], {"pads": [2**62, 0, 0, 0]}, "pads with a value"),
        ("Conv", [(1, 1, 4, 4), (1, 1, 1, 1)], {"pads": [MAX_EXTENT, 0, 0, 0]}, "padded extent"),
        ("MaxPool", [(1, 1, 4)], {"kernel_shape": [2**31]}, "kernel_shape with a value"),
        ("AveragePool", [(1, 1, 4)],
         {"kernel_shape": [MAX_EXTENT], "pads": [MAX_EXTENT, 0]}, "padded extent"),
        ("ConvTranspose", [(1, 1, 9, 1), (1, 1, 1, 1)], {"strides": [2**30, 1]}, "output extent"),
        ("Conv", [(1, 1, 2**31), (1, 1, 1)], {}, "an extent of 2147483648"),
        ("Conv", [(1, 1, 4, 4), (1, 1, 1, 1)], {"pads": [2**20] * 4}, "the most is 68719476736"),
        ("Add", [(2**20, 1), (1, 2**20)], {}, "the most is 68719476736"),
    ],
)  # fmt: skip
def test_windows_over_nothing_or_too_far(
    op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ShapeError, match=words):
        single(op, kinds(*shapes), attrs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_convolution_without_channels_does_not_reach_onnxruntime(dtype: str) -> None:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    proto = model([node], [value("x", [1, "C", 4, 4], element)], [value("y", None, element)],
                  [weight("w", np.ones((2, 0, 3, 3), dtype))])  # fmt: skip
    with gpuedge.Session(proto, device="cpu") as s, pytest.raises(ShapeError, match="no input"):
        s.run({"x": np.ones((1, 0, 4, 4), dtype)})


@pytest.mark.parametrize(
    ("strides", "dilations", "extra", "fits"),
    [(2, 1, 1, True), (3, 2, 2, True), (2, 3, 1, True), (1, 1, 1, False), (2, 1, 2, False),
     (1, 2, 1, False), (2, 3, 2, False)],
)  # fmt: skip
def test_output_padding_is_taken_where_onnxruntime_takes_it(
    strides: int, dilations: int, extra: int, fits: bool
) -> None:
    attrs = {"strides": [strides], "dilations": [dilations], "output_padding": [extra]}
    shapes = [(1, 1, 4), (1, 1, 3)]
    w = np.ones(shapes[1], np.float32)
    raw = simple("ConvTranspose", shapes[0], {"w": w}, **attrs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    run = onnxruntime.InferenceSession(raw.SerializeToString(), options).run
    feeds = {"x0": np.ones(shapes[0], np.float32), "x1": w}
    if fits:
        graph = single("ConvTranspose", kinds(*shapes), attrs)
        expected = run(None, {"x": feeds["x0"]})[0]
        found = CpuExecutor(engine="numpy").compile(graph).run(feeds)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        return
    with pytest.raises(ShapeError, match="must be less than its stride"):
        single("ConvTranspose", kinds(*shapes), attrs)
    with pytest.raises(Exception, match=r"output_padding|inconsistent"):
        run(None, {"x": feeds["x0"]})


def test_generated_names_cannot_be_identifiers_of_a_user() -> None:
    def build(names: list[str]) -> Graph:
        b = GraphBuilder()
        values = [b.input(n, TensorType("float32", (2,))) for n in names]
        b.output(b.add("Add", [b.add("Mul", values), values[0]]))
        return b.build()

    graph = build(["Mul_0", "Add_1"])
    made = [node.outputs[0] for node in graph.nodes]
    assert not any(name.isidentifier() for name in made)
    assert len({*made, *graph.inputs}) == 4


def test_constants_inside_an_operator_are_not_written_out_while_planning() -> None:
    nodes = [helper.make_node("AffineGrid", ["t", "size"], ["g"]),
             helper.make_node("ReduceMax", ["g"], ["y"], keepdims=0)]  # fmt: skip
    proto = model(nodes, [value("t", [2, 2, 3])], [value("y", None)],
                  [weight("size", ints(2, 1, 1 << 13, 1 << 13))], opset=20)  # fmt: skip
    graph = OnnxModel.load(proto).specialise()
    tracemalloc.start()
    try:
        assert program(graph)["g"].shape == (2, 1 << 13, 1 << 13, 2)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20  # one plane of them is 256 MiB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("most", [2**20, 3 * 2**20 - 1])
def test_a_node_that_does_not_fit_into_the_memory_of_the_machine_is_refused(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One megabyte of `x` beside two of `y`: three are needed."""
    monkeypatch.setattr(sizes, "_memory", lambda: most)
    monkeypatch.setattr(sizes, "SUSPECT", 0)
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0, name="twice")
    proto = model([node], [value("x", [2**18])], [value("y", None)])
    with pytest.raises(ModelError, match="'twice' would need") as caught:
        gpuedge.Session(proto, device="cpu")
    assert "of memory" in str(caught.value)
    monkeypatch.setattr(sizes, "_memory", lambda: 3 * 2**20)
    with gpuedge.Session(proto, device="cpu") as session:
        assert session.run([np.zeros(2**18, np.float32)])["y"].shape == (2**19,)
