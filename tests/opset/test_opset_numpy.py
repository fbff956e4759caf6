"""The numpy executor against ONNX Runtime and against the oracle."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from graph_cases import Case, broadcasts, gemms, matrices, moves, possible, softmaxes, windows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset.elementwise import ROWS

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


def test_erf_is_as_exact_as_float32_allows() -> None:
    x = np.linspace(-5, 5, 20001, dtype=np.float32)
    exact = np.vectorize(math.erf)(x.astype(np.float64))
    found = run(NUMPY, Case("Erf", [x.shape]), {"x0": x})
    np.testing.assert_array_max_ulp(found, exact.astype(np.float32), maxulp=1)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_integers_of_4_bits_do_not_wrap(dtype: str) -> None:
    """Numpy subtracts them modulo 16."""
    codes, zeros, kind = np.arange(16), np.arange(16)[::-1], getattr(TensorProto, dtype.upper())
    if dtype == "int4":
        codes, zeros = codes - 8, zeros - 8
    held = [helper.make_tensor(n, kind, [16], v.tolist()) for n, v in (("q", codes), ("z", zeros))]
    held.append(numpy_helper.from_array(np.full(16, 0.5, np.float32), "s"))
    nodes = [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0),
             helper.make_node("Mul", ["w", "x"], ["y"])]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [16]) for n in "xy"]
    opset = [helper.make_opsetid("", 21)]
    proto = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], held),
                              opset_imports=opset, ir_version=10)  # fmt: skip
    x = np.ones(16, np.float32)
    graph = OnnxModel.load(proto).specialise({"x": x.shape})
    np.testing.assert_array_equal(NUMPY.compile(graph).run({"x": x})["y"], (codes - zeros) * 0.5)
