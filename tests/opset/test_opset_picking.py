"""Results whose length only values tell, in models: what leaves a device, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from planrun import plan_device
from single_node import single

import gpuedge
from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.graph.ir import Array, TensorType


def kinds(**shapes: tuple[int, ...]) -> dict[str, TensorType]:
    return {name: TensorType("float32", shape) for name, shape in shapes.items()}


def test_what_no_device_picks() -> None:
    with pytest.raises(UnsupportedOpError, match="elements of a scalar"):
        single("NonZero", kinds(x=()))
    most = {"most": np.array([2**40])}
    with pytest.raises(UnsupportedOpError, match="up to 600 boxes"):
        single("NonMaxSuppression", kinds(boxes=(1, 600, 4), scores=(1, 2, 600)), None, most)
    with pytest.raises(ShapeError, match="needs boxes"):
        single("NonMaxSuppression", kinds(boxes=(1, 9, 4), scores=(1, 2, 8)), None, most)


NodeProto = onnx.NodeProto
node = helper.make_node


def model(*after: NodeProto, dtype: int = TensorProto.INT64, **weights: Any) -> onnx.ModelProto:
    """Return a model of what is not zero in -x, and of nodes that read it as `z` and give `y`."""
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
            helper.make_tensor_value_info("y", dtype, None)]  # fmt: skip
    nodes = [node("Neg", ["x"], ["n"], "neg"),
             node("NonZero", ["n"], ["z" if after else "y"], "places"), *after]  # fmt: skip
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 4]], np.float32)


def test_a_result_of_any_length_leaves_the_device_cut() -> None:
    with gpuedge.Session(model(is_read=False), device=plan_device(), fallback="error") as session:
        for x in (X, X * 0, X + 1):
            got = session.run({"x": x})["y"]
            np.testing.assert_array_equal(got, np.stack(np.nonzero(x)))
        assert session.profile()["compile"]["count"] == 1
        assert session.refusals == {}


ROWS = node("Transpose", ["z"], ["t"], perm=[1, 0])
PICKED = node("GatherND", ["n", "t"], ["v"])
COLUMN = node("Unsqueeze", ["v", "one"], ["c"])
FOLLOWING: dict[str, tuple[onnx.ModelProto, Callable[[Array, Array], Array]]] = {
    "twice": (model(node("Add", ["z", "z"], ["y"])), lambda z, x: 2 * z),
    "a row": (model(node("Gather", ["z", "i"], ["y"]), i=np.array([1, 0, 1])),
              lambda z, x: z[[1, 0, 1]]),
    "flat": (model(node("Slice", ["z", "one", "two", "zero"], ["s"]),
                   node("Reshape", ["s", "minus"], ["y"]), zero=[0], one=[1], two=[2], minus=[-1]),
             lambda z, x: z[1]),
    "turned": (model(ROWS, node("Unsqueeze", ["t", "two"], ["u"]),
                     node("Squeeze", ["u", "two"], ["y"]), two=[2]), lambda z, x: z.T),
    "broadcast": (model(ROWS, node("Mul", ["t", "by"], ["y"]), by=[[10, 1]]),
                  lambda z, x: z.T * [10, 1]),
    "summed": (model(node("ReduceMax", ["z"], ["y"], axes=[0], keepdims=0)), lambda z, x: z.max(0)),
    "picked": (model(ROWS, PICKED, node("Identity", ["v"], ["y"]), dtype=TensorProto.FLOAT),
               lambda z, x: -x[tuple(z)]),
    "joined": (model(ROWS, PICKED, COLUMN, node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
                     node("Concat", ["f", "c", "f"], ["y"], axis=1), one=[1],
                     dtype=TensorProto.FLOAT),
               lambda z, x: np.concatenate([z.T, -x[tuple(z)][:, None], z.T], 1)),
    "padded": (model(ROWS, node("Pad", ["t", "pads"], ["y"]), pads=[0, 1, 0, 2]),
               lambda z, x: np.pad(z.T, ((0, 0), (1, 2)))),
    "the first": (model(node("Slice", ["z", "zero", "three", "one"], ["y"]), zero=[0], three=[3],
                        one=[1]), lambda z, x: z[:, :3]),
    "but the last two": (model(node("Slice", ["z", "zero", "end", "one"], ["y"]), zero=[0],
                               end=[-2], one=[1]), lambda z, x: z[:, :-2]),
    "no row": (model(node("Slice", ["z", "zero", "zero", "zero"], ["y"]), zero=[0]),
               lambda z, x: z[:0]),
    "parts": (model(ROWS, node("Split", ["t"], ["a", "b"], axis=1),
                    node("Sub", ["a", "b"], ["y"])), lambda z, x: (z[0] - z[1])[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWING)
def test_what_is_computed_place_by_place_stays_on_the_device(name: str) -> None:
    proto, wanted = FOLLOWING[name]
    with gpuedge.Session(proto, device=plan_device(), fallback="error") as session:
        for x in (X, X * 0, np.sign(X) + (X == 0)):
            got = session.run({"x": x})["y"]
            want = wanted(np.stack(np.nonzero(x)), x)
            np.testing.assert_array_equal(got, want)
            assert got.shape == want.shape
        assert session.profile()["compile"]["count"] == 1


FLOATS = node("Cast", ["z"], ["f"], to=TensorProto.FLOAT)
TOGETHER = node("NonZero", ["x"], ["w"])
BEYOND: dict[str, tuple[onnx.ModelProto, str]] = {
    "summed": (model(node("ReduceMax", ["z"], ["y"], "op", axes=[1])), "place by place"),
    "summed up": (model(node("CumSum", ["z", "one"], ["y"], "op"), one=1), "place by place"),
    "joined": (model(node("Concat", ["z", "w"], ["y"], "op", axis=1), w=np.ones((2, 5), int)),
               "place by place"),
    "twice as long": (model(node("Concat", ["z", "z"], ["y"], "op", axis=1)), "place by place"),
    "from the end": (model(node("Slice", ["z", "at", "to", "one"], ["y"], "op"), at=[-2], to=[99],
                           one=[1]), "place by place"),
    "from the second": (model(node("Slice", ["z", "one", "to", "one"], ["y"], "op"), to=[99],
                              one=[1]), "place by place"),
    "every second": (model(node("Slice", ["z", "zero", "to", "one", "two"], ["y"], "op"), to=[99],
                           zero=[0], one=[1], two=[2]), "place by place"),
    "of a size": (model(node("Add", ["z", "w"], ["y"], "op"), w=np.ones((2, 12), int)),
                  "place by place"),
    "one number": (model(node("Reshape", ["z", "minus"], ["y"], "op"), minus=[-1]),
                   "place by place"),
    "how long": (model(node("Shape", ["z"], ["y"], "op")), "place by place"),
    "two lengths": (model(TOGETHER, node("Sub", ["z", "w"], ["y"], "op")), "equally long"),
    "matrices": (model(FLOATS, node("MatMul", ["f", "w"], ["y"], "op"), dtype=TensorProto.FLOAT,
                       w=np.ones((12, 2), np.float32)), "place by place"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_what_needs_the_length_runs_on_the_cpu(name: str) -> None:
    """A kernel has no way to work on part of a tensor; said by name."""
    proto, why = BEYOND[name]
    with pytest.raises(UnsupportedOpError, match="cannot run") as refused:
        gpuedge.Session(proto, device=plan_device(), fallback="error")
    assert why in str(refused.value)
    if name in ("of a size", "matrices"):
        return  # such models fit one length only
    with gpuedge.Session(proto, device=plan_device()) as session:
        want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})[0]
        np.testing.assert_array_equal(session.run({"x": X})["y"], want)
        on_cpu = {n for row in session.placement if row.device == "cpu" for n in row.nodes}
        assert on_cpu >= {"places", "op"}
        assert why in session.refusals["op"]
        assert "whose size only values tell" in session.refusals["places"]


# --- what ONNX Runtime or a kernel has otherwise -------------------------------------------------

COLUMN = {
    "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
    "ngram_indexes": [0, 0], "pool_int64s": [1, 2], "weights": [10.0, 1.0],
}  # fmt: skip


def answers(onnx_node: NodeProto, *operands: Array, **held: Array) -> list[list[Array]]:
    """Return what a node gives on the CPU and, where it is not of doubles, on a device."""
    feeds = dict(zip(onnx_node.input, operands, strict=False))
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in onnx_node.output]
    kept = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    made = helper.make_model(
        helper.make_graph([onnx_node], "g", inputs, outputs, kept),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    found = []
    for device in ("cpu", plan_device())[: 1 if operands[0].dtype == np.float64 else 2]:
        with gpuedge.Session(made, device=device, fallback="error") as session:
            found.append([*session.run(feeds).values()])
    return found


@pytest.mark.parametrize("axis", [None, 0])
def test_nan_is_one_of_what_differs(axis: int | None) -> None:
    x = np.array([[1, np.nan], [1, 2], [1, np.nan]], np.float32)
    how = {} if axis is None else {"axis": axis}
    wanted = {
        None: ([1, 2, np.nan], [0, 3, 1], [0, 2, 0, 1, 0, 2], [3, 1, 2]),
        0: ([[1, 2], [1, np.nan]], [1, 0], [1, 0, 1], [1, 2]),
    }[axis]
    for found in answers(node("Unique", ["x"], ["y", "i", "v", "c"], **how), x):
        for got, one in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, one)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ordered", [0, 1])
def test_nan_is_above_infinity(ordered: int, dtype: type) -> None:
    x = np.array([np.inf, np.nan, -np.inf, 3e38, 0, np.nan, np.inf, -0.0], dtype)
    some, first, which, count = np.unique(x, True, True, True)
    order = np.arange(5) if ordered else np.argsort(first)
    wanted = some[order], first[order], np.argsort(order)[which], count[order]
    for found in answers(node("Unique", ["x"], ["y", "i", "v", "c"], sorted=ordered), x):
        for got, one in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, one)


def test_sequences_of_one_column_have_weights_of_their_own() -> None:
    x = np.array([1, 2, 2])
    for found in answers(node("TfIdfVectorizer", ["x"], ["y"], mode="TFIDF", **COLUMN), x):
        assert found[0].tolist() == [12.0]
    with pytest.raises(UnsupportedOpError, match="in one column once"):
        answers(node("TfIdfVectorizer", ["x"], ["y"], mode="IDF", **COLUMN), x)


def test_sequences_without_a_column_are_refused_by_the_cpu_too() -> None:
    wrong = node("TfIdfVectorizer", ["x"], ["y"], mode="TF", **COLUMN | {"ngram_indexes": [0]})
    with pytest.raises(ShapeError, match="more sequences than columns"):
        answers(wrong, np.array([1, 2, 2]))


def test_boxes_of_negative_sides_overlap_with_nothing() -> None:
    boxes = np.array([[[0, 0, 4, 4], [10, 10, -20, 2], [20, 20, 4, 4]]], np.float32)
    picking = node("NonMaxSuppression", ["b", "s", "m", "t"], ["y"], center_point_box=1)
    scores = np.array([[[0.75, 0.5, 0.25]]], np.float32)
    for found in answers(picking, boxes, scores, m=np.array([9]), t=np.array([0.5], np.float32)):
        assert found[0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
