"""The numpy executor against ONNX Runtime and against the oracle."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from graph_cases import Case, broadcasts, gemms, matrices, moves, possible, softmaxes, windows
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Array
from gpuedge.opset.bounds import Num
from gpuedge.opset.elementwise import ROWS
from gpuedge.oracle.layers import convolve
from gpuedge.oracle.nodes import compute

UNARY = sorted({row.op for row in ROWS if len(row.operands) == 1} | {"Clip", "Gelu"})
quick = settings(max_examples=80, deadline=None)
NUMPY, ORT = CpuExecutor(engine="numpy"), CpuExecutor(engine="onnxruntime", threads=1)


def run(executor: CpuExecutor, case: Case, feeds: dict[str, Array]) -> Array:
    graph = case.graph()
    result = executor.compile(graph).run(feeds)["y"]
    assert result.shape == graph.shape("y")
    assert result.dtype == case.dtype
    return result


def agree(case: Case, feeds: dict[str, Array] | None = None) -> None:
    """Both engines give the same numbers; they add in different orders, so not the same bits."""
    feeds = case.feeds() if feeds is None else feeds
    np.testing.assert_allclose(run(NUMPY, case, feeds), run(ORT, case, feeds), rtol=1e-5, atol=1e-5)


# --- against ONNX Runtime ------------------------------------------------------------------------


@quick
@given(st.sampled_from(["Conv", "MaxPool", "AveragePool"]).flatmap(windows))
def test_windows_agree(case: Case) -> None:
    assume(possible(case))
    agree(case)


@quick
@given(windows("ConvTranspose"))
def test_transposed_windows_agree(case: Case) -> None:
    assume(possible(case))
    agree(case)


@quick
@given(st.one_of(matrices(), gemms(), softmaxes()))
def test_products_and_softmax_agree(case: Case) -> None:
    agree(case)


@quick
@given(moves())
def test_moves_agree_exactly(case: Case) -> None:
    feeds = case.feeds()
    np.testing.assert_array_equal(run(NUMPY, case, feeds), run(ORT, case, feeds))


@quick
@given(broadcasts(2), st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min"]))
def test_binary_agree_exactly(shapes: list[tuple[int, ...]], op: str) -> None:
    case = Case(op, shapes)
    feeds = case.feeds()
    np.testing.assert_array_equal(run(NUMPY, case, feeds), run(ORT, case, feeds))


@quick
@given(broadcasts(3), st.sampled_from(["Max", "Min", "Sum", "Mean"]))
def test_variadic_agree(shapes: list[tuple[int, ...]], op: str) -> None:
    agree(Case(op, shapes))


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 4, 6), (1, 1, 1, 1)])
def test_global_pools_agree(op: str, shape: tuple[int, ...]) -> None:
    agree(Case(op, [shape]))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3), (1, 3, 7)])
def test_batch_normalisation_agrees(shape: tuple[int, ...]) -> None:
    case = Case("BatchNormalization", [shape, (3,), (3,), (3,), (3,)], {"epsilon": 0.125})
    feeds = case.feeds()
    feeds["x4"] = np.abs(feeds["x4"])
    agree(case, feeds)


def test_clip_prelu_and_pow_agree() -> None:
    bounds = {"lo": np.float32(-0.5), "hi": np.float32(0.25)}
    agree(Case("Clip", [(3, 5)], constants={k: np.array(v) for k, v in bounds.items()}, opset=13))
    agree(Case("Clip", [(3, 5)], {"min": -0.5, "max": 0.25}, opset=7))
    agree(Case("PRelu", [(2, 3, 4), (3, 1)]))
    case = Case("Pow", [(4, 5), (1, 5)])
    feeds = case.feeds()
    agree(case, {"x0": np.abs(feeds["x0"]), "x1": feeds["x1"] * 3})


SPECIAL = np.array(
    [0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 20, -20, 100, -100, 1e-7, -1e-7, np.inf, -np.inf,
     np.nan, 3.4e38, 1e-40], np.float32)  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_unary_agree_also_at_the_edges(op: str) -> None:
    # of -inf ONNX Runtime makes NaN here, and the formula that kernels share -inf
    points = SPECIAL[-np.inf != SPECIAL] if op in ("Mish", "Swish") else SPECIAL
    agree(Case(op, [points.shape], opset=24 if op == "Swish" else 20), {"x0": points})


@pytest.mark.parametrize("op", UNARY)
def test_float16_is_computed_in_float32_and_rounded_once(op: str) -> None:
    case = Case(op, [(4, 9)], opset=24 if op == "Swish" else 20, dtype="float16")
    feeds = {"x0": np.abs(case.feeds()["x0"]) + np.float16(0.1)}
    wide = run(NUMPY, replace(case, dtype="float32"), {"x0": feeds["x0"].astype(np.float32)})
    np.testing.assert_array_equal(run(NUMPY, case, feeds), wide.astype(np.float16))


# --- against the oracle --------------------------------------------------------------------------


PARAMETERS: dict[str, dict[str, float | str]] = {
    "LeakyRelu": {"alpha": 0.3},
    "Elu": {"alpha": 0.7},
    "Selu": {"alpha": 1.5, "gamma": 1.25},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "ThresholdedRelu": {"alpha": 0.8},
    "Celu": {"alpha": 2.0},
    "Swish": {"alpha": 1.5},
    "Clip": {"min": -0.5, "max": 0.25},
}
VERSIONS = {"Swish": 24, "Clip": 6}
POINTS = np.random.default_rng(7).uniform(-9, 9, (13, 7)).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [*((op, PARAMETERS.get(op, {})) for op in UNARY), ("Gelu", {"approximate": "tanh"})],
)
def test_unary_operators_agree_with_the_oracle(op: str, attrs: dict[str, float | str]) -> None:
    case = Case(op, [POINTS.shape], attrs, opset=VERSIONS.get(op, 20))
    (exact,) = compute(case.graph().nodes[0], [POINTS])
    result = run(NUMPY, case, {"x0": POINTS})
    # Cancellation near zero costs a few units of the largest term, hence the absolute part.
    np.testing.assert_allclose(result, Num.of(exact).v, rtol=2e-6, atol=2e-6)


def test_erf_is_as_exact_as_float32_allows() -> None:
    x = np.linspace(-5, 5, 20001, dtype=np.float32)
    exact = np.vectorize(math.erf)(x.astype(np.float64))
    found = run(NUMPY, Case("Erf", [x.shape]), {"x0": x})
    np.testing.assert_array_max_ulp(found, exact.astype(np.float32), maxulp=1)


@pytest.mark.parametrize(
    ("x", "w", "pad", "stride", "dilation", "group"),
    [
        ((1, 3, 7, 5), (4, 3, 3, 3), 1, 1, 1, 1),
        ((2, 4, 6, 9), (6, 2, 3, 2), 0, 2, 1, 2),
        ((1, 5, 8, 8), (5, 1, 3, 3), 2, 1, 2, 5),
        ((1, 2, 1, 1), (3, 2, 1, 1), 0, 1, 1, 1),
    ],
)
def test_conv_agrees_with_the_oracle(
    x: tuple[int, ...], w: tuple[int, ...], pad: int, stride: int, dilation: int, group: int
) -> None:
    attrs = {"pads": [pad] * 4, "strides": [stride] * 2, "dilations": [dilation] * 2}
    case = Case("Conv", [x, w], {**attrs, "group": group})
    feeds = case.feeds()
    how = {"pads": [pad] * 4, "stride": [stride] * 2, "dilation": [dilation] * 2}
    exact = convolve(feeds["x0"], feeds["x1"], groups=group, **how)
    np.testing.assert_allclose(run(NUMPY, case, feeds), exact, rtol=1e-5, atol=1e-5)


def test_transposed_conv_is_the_adjoint_of_conv() -> None:
    shape = {"pads": [1, 0, 1, 0], "strides": [2, 3], "dilations": [1, 2]}
    forward = Case("Conv", [(1, 4, 9, 12), (6, 2, 3, 2)], {**shape, "group": 2})
    x, w = forward.feeds(1)["x0"], forward.feeds(2)["x1"]
    y = run(NUMPY, forward, {"x0": x, "x1": w})
    g = np.random.default_rng(3).standard_normal(y.shape).astype(np.float32)
    extra = [9 - ((y.shape[2] - 1) * 2 + 3 - 2), 12 - ((y.shape[3] - 1) * 3 + 3)]
    back = Case("ConvTranspose", [y.shape, w.shape], {**shape, "group": 2, "output_padding": extra})
    # <conv(x), g> = <x, conv_transpose(g)>
    left = np.vdot(y.astype(np.float64), g)
    right = np.vdot(x.astype(np.float64), run(NUMPY, back, {"x0": g, "x1": w}))
    assert left == pytest.approx(right, rel=1e-5)


def test_softmax_is_stable_and_sums_to_one() -> None:
    x = np.array([[1000.0, 1001.0, 999.0], [-1e30, 0.0, 1.0]], np.float32)
    found = run(NUMPY, Case("Softmax", [(2, 3)], {"axis": 1}, opset=13), {"x0": x})
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(found, e / e.sum(axis=1, keepdims=True), rtol=1e-6)
    old = Case("Softmax", [(2, 3, 4)], {"axis": 1}, opset=11)
    flat = run(NUMPY, old, {"x0": np.ones((2, 3, 4), np.float32)})
    np.testing.assert_allclose(flat, 1 / 12, rtol=1e-6)


def test_average_counts_padding_only_when_told() -> None:
    ones = {"x0": np.ones((1, 1, 2, 2), np.float32)}
    attrs = {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}
    case = Case("AveragePool", [(1, 1, 2, 2)], attrs)
    np.testing.assert_array_equal(run(NUMPY, case, ones)[0, 0], [[1, 1], [1, 1]])
    case.attrs["count_include_pad"] = 1
    np.testing.assert_array_equal(run(NUMPY, case, ones)[0, 0], [[0.25, 0.5], [0.5, 1]])


def test_average_with_ceiling_divides_by_positions_inside_the_pads() -> None:
    # 4 pixels and 2 pads: the third window starts at 4 and has 2 of its 3 positions inside.
    attrs = {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1}
    case = Case("AveragePool", [(1, 1, 4)], {**attrs, "count_include_pad": 1})
    ones = {"x0": np.ones((1, 1, 4), np.float32)}
    np.testing.assert_allclose(run(NUMPY, case, ones)[0, 0], [2 / 3, 1, 1 / 2], rtol=1e-6)
    agree(case, ones)
    plain = Case("AveragePool", [(1, 1, 4)], attrs)
    np.testing.assert_array_equal(run(NUMPY, plain, ones)[0, 0], [1, 1, 1])


@pytest.mark.parametrize(("op", "expected"), [("AveragePool", 0), ("MaxPool", -3.4028235e38)])
def test_windows_that_meet_no_pixel(op: str, expected: float) -> None:
    case = Case(op, [(1, 1, 1)], {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]})
    assert run(NUMPY, case, {"x0": np.full((1, 1, 1), 5, np.float32)}) == np.float32(expected)
    agree(case)
