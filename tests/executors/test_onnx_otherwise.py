"""On the CPU, what ONNX Runtime or ONNX's reference evaluator computes otherwise than ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from operators import run_on
from recurrent_reference import DEFAULTS, drawn, reference

import gpuedge
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset.recurrent import MOST_STEPS

Array = np.ndarray[Any, np.dtype[Any]]


def model_of(
    op: str, given: Mapping[str, Array], outputs: Mapping[str, int], opset: int, *,
    held: tuple[str, ...] = (), **attrs: Any,
) -> Any:  # fmt: skip
    """Return a model of one node; what is held is constant."""
    names = list(given)
    if "lens" in given:  # which comes after biases
        names = ["X", "W", "R", "", "lens"]
    node = helper.make_node(op, names, list(outputs), **attrs)
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
    ends = [helper.make_tensor_value_info(n, kinds[n], given[n].shape)
            for n in given if n not in held]  # fmt: skip
    results = [helper.make_tensor_value_info(n, e, None) for n, e in outputs.items()]
    weights = [numpy_helper.from_array(given[n], n) for n in held]
    graph = helper.make_graph([node], "g", ends, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def on_cpu(model: Any, feeds: Mapping[str, Array]) -> list[Array]:
    with gpuedge.Session(model, device="cpu") as session:
        return list(session.run(dict(feeds)).values())


# --- layers --------------------------------------------------------------------------------------

NUMBERED = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")


@pytest.mark.parametrize("op", DEFAULTS)
@pytest.mark.parametrize("name", NUMBERED)
def test_activations_have_the_numbers_of_onnx(op: str, name: str) -> None:
    names = [*DEFAULTS[op][:-1], name]
    given = {n: a * np.float32(3) for n, a in drawn(op, 1, attrs={}).items()}
    attrs = {"activations": names}
    wanted = reference(op, attrs, given)
    assert np.any(wanted[0])  # ThresholdedRelu lets some pass
    outputs = dict.fromkeys(["Y", "Y_h", "Y_c"][: len(wanted)], TensorProto.FLOAT)
    model = model_of(op, given, outputs, 14, hidden_size=given["R"].shape[2], **attrs)
    graph = OnnxModel.load(model).specialise({n: a.shape for n, a in given.items()})
    found = [on_cpu(model, given), *(
        list(run_on(level, graph, given).values()) for level in ("onnxruntime", "numpy")
    )]  # fmt: skip
    for each in found:
        for got, want in zip(each, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_given_numbers_go_to_the_first_activations_that_have_one() -> None:
    given = {n: a * np.float32(3) for n, a in drawn("LSTM", 2, attrs={}).items()}
    attrs = {"activations": ["Sigmoid", "LeakyRelu", "ThresholdedRelu"], "activation_alpha": [0.5]}
    model = model_of("LSTM", given, {"Y": TensorProto.FLOAT}, 14, hidden_size=6, **attrs)
    np.testing.assert_allclose(on_cpu(model, given)[0], reference("LSTM", attrs, given)[0],
                               rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize(("op", "attrs", "has"), [
    ("LSTM", {"clip": 0.3}, ""), ("LSTM", {"layout": 1, "input_forget": 1}, ""),
    ("GRU", {"layout": 1}, "lens"), ("GRU", {"layout": 1, "activations": ["Sigmoid", "Relu"]}, ""),
    ("RNN", {"layout": 1, "clip": 0.1}, ""), ("LSTM", {"layout": 1}, ""),
])  # fmt: skip
def test_long_layers_are_right_or_refused(op: str, attrs: dict[str, Any], has: str) -> None:
    given = drawn(op, 3, attrs=attrs, has=has, steps=MOST_STEPS + 1)
    model = model_of(op, given, {"Y": TensorProto.FLOAT}, 14, hidden_size=6, **attrs)
    if op == "LSTM" and attrs == {"layout": 1}:
        (got,) = on_cpu(model, given)
        np.testing.assert_allclose(got, reference(op, attrs, given)[0], rtol=1e-4, atol=1e-4)
    else:
        with pytest.raises(UnsupportedOpError, match="leaves out"):
            on_cpu(model, given)


# --- quantised -----------------------------------------------------------------------------------

X = np.array([[1e9, -1e9, 3e9, -3e9], [1e30, -np.inf, 0.46, np.inf]], np.float32)
SCALES: dict[str, tuple[Array, dict[str, int]]] = {
    "one": (np.float32([0.1]).reshape(()), {}),
    "rows": (np.float32([0.1, 0.2]), {"axis": 0}),
    "blocks": (np.float32([[0.1, 0.2], [0.2, 0.1]]), {"axis": 1, "block_size": 2}),
}


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint16"])
def test_quantised_numbers_saturate(dtype: str, scales: str, *, is_folded: bool) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype.endswith("4") else dtype)
    scale, attrs = SCALES[scales]
    each = scale.reshape(-1, 1) if scales == "rows" else scale
    each = np.repeat(scale, 2, 1) if scales == "blocks" else each
    low, high = (0, 2 ** int(dtype[4:])) if dtype[0] == "u" else (-8, 8)
    low, high = (-128, 128) if dtype == "int8" else (low, high)
    zero = np.full(scale.shape, 1).astype(kind)
    wanted = np.clip(np.rint(X.astype(np.float64) / each) + 1, low, high - 1)
    given = {"x": X, "s": scale, "z": zero}
    model = model_of("QuantizeLinear", given, {"y": helper.np_dtype_to_tensor_dtype(kind)}, 21,
                     held=("x", "s", "z") if is_folded else ("s", "z"), **attrs)  # fmt: skip
    (got,) = on_cpu(model, {} if is_folded else {"x": X})
    assert got.dtype == kind
    np.testing.assert_array_equal(got.astype(np.float64), wanted)


# --- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize(("bounds", "wanted"), [
    ((-9, -100, -1), [0]), ((-6, -(2**63), -2), [0]), ((-9, 2, -1), []), ((-9, 2, 1), [0, 1]),
    ((-1, -100, -2), [4, 2, 0]),
])  # fmt: skip
def test_slices_begin_within_the_axis(
    bounds: tuple[int, int, int], wanted: list[int], dtype: str, *, is_folded: bool
) -> None:
    begin, end, step = (np.array([n], np.int64) for n in bounds)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    given = {"x": np.arange(5).astype(kind), "b": begin, "e": end, "a": np.int64([0]), "s": step}
    held = tuple(given) if is_folded else ("b", "e", "a", "s")
    outputs = {"y": helper.np_dtype_to_tensor_dtype(kind)}
    model = model_of("Slice", given, outputs, 13, held=held)
    if is_folded:
        got = OnnxModel.load(model).specialise().constants["y"]
    else:
        (got,) = on_cpu(model, {"x": given["x"]})
    np.testing.assert_array_equal(got.astype(np.float32), np.array(wanted, np.float32))


@pytest.mark.parametrize("bounds", [
    (-9, -100, -1), (4, -100, -1), (4, 2**31 - 1, -1), (1, 9, 2), (-2, -9, -2), (3, -5, -1),
    (-9, 9, 1), (3, 3, 1), (0, -(2**31) + 1, -1),
])  # fmt: skip
def test_the_function_slices_as_python(bounds: tuple[int, int, int]) -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    begin, end, step = bounds
    got = gpuedge.slice(x, [0, begin], [2, end], [1, step], device="cpu")
    np.testing.assert_array_equal(got, x[0:2:1, begin:end:step])


@pytest.mark.parametrize("value", [3.0, 0.0, True, 7])
def test_places_in_a_scalar_have_no_coordinates(value: Any) -> None:
    x = np.asarray(value, np.float32 if isinstance(value, float) else None)
    (got,) = on_cpu(model_of("NonZero", {"x": x}, {"y": TensorProto.INT64}, 13), {"x": x})
    assert (got.shape, got.dtype) == ((0, int(bool(value))), np.int64)


# --- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [np.array([[0, -1, 0.5, 2]]), np.array([0, -1, 0.5, 2])])
def test_all_queries_may_share_a_mask(mask: Array, causal: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    shapes = {"q": (1, 2, 3, 4), "k": (1, 2, 4, 4), "v": (1, 2, 4, 2)}
    given = {n: rng.standard_normal(s).astype(dtype) for n, s in shapes.items()}
    given["m"] = mask.astype(dtype)
    scores = given["q"].astype(np.float64) @ given["k"].swapaxes(-1, -2) / 2 + mask
    scores = np.where(np.tri(3, 4) > 0, scores, -np.inf) if causal else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ given["v"]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = model_of("Attention", given, {"y": kind}, 23, is_causal=causal)
    np.testing.assert_allclose(on_cpu(model, given)[0], wanted, rtol=1e-5, atol=1e-5)
