"""Shape inference against ONNX's own, on random nodes."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from graph_cases import Case, broadcasts, fits, gemms, matrices, moves, softmaxes, windows
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.opset.elementwise import ROWS

quick = settings(max_examples=120, deadline=None)


def by_onnx(case: Case) -> tuple[int, ...] | None:
    """The shape ONNX infers; None where it refuses or infers a senseless extent."""
    if case.attrs.get("ceil_mode"):
        # Until version 22 ONNX counted windows that start beyond the input; ONNX Runtime never did.
        case = replace(case, opset=22)
    try:
        model = onnx.shape_inference.infer_shapes(case.model(), strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return None
    dims = model.graph.output[0].type.tensor_type.shape.dim
    shape = tuple(d.dim_value for d in dims)
    return shape if min(shape, default=1) > 0 else None


def check(case: Case) -> None:
    expected = by_onnx(case)
    try:
        found = case.graph().types["y"]
    except ShapeError as error:
        # ONNX rounds the size of a window that does not fit up to 1; nothing could run that.
        assert expected is None or not fits(case), error
        assert case.op in str(error) and "x0=" in str(error)
        return
    assert found.dtype == case.dtype
    assert found.shape == expected


@quick
@given(st.sampled_from(["Conv", "MaxPool", "AveragePool"]).flatmap(windows))
def test_windows(case: Case) -> None:
    check(case)


@quick
@given(windows("ConvTranspose"))
def test_transposed_windows(case: Case) -> None:
    if str(case.attrs.get("auto_pad")).startswith("SAME"):
        # The text says input times stride; ONNX's inference adds the output padding to that, ONNX
        # Runtime does not. The numpy executor is compared with ONNX Runtime on such cases.
        case.attrs.pop("output_padding", None)
    try:
        check(case)
    except UnsupportedOpError as error:
        # Only "same" padding that cannot be reached is not known.
        assert str(case.attrs["auto_pad"]).startswith("SAME")
        assert "more than its windows reach" in str(error)


@quick
@given(st.one_of(matrices(), gemms(), softmaxes(), moves()))
def test_products_softmax_and_moves(case: Case) -> None:
    check(case)


@quick
@given(broadcasts(2), st.sampled_from(["Add", "Sub", "Mul", "Div", "Pow", "PRelu"]))
def test_binary(shapes: list[tuple[int, ...]], op: str) -> None:
    case = Case(op, shapes)
    if op != "PRelu":
        check(case)
        return
    try:
        assert case.graph().shape("y") == shapes[0]
    except ShapeError as error:
        assert "slope" in str(error)


@quick
@given(broadcasts(3), st.sampled_from(["Max", "Min", "Sum", "Mean"]))
def test_variadic(shapes: list[tuple[int, ...]], op: str) -> None:
    check(Case(op, shapes))


@pytest.mark.parametrize("op", [row.op for row in ROWS if len(row.operands) == 1])
def test_unary(op: str) -> None:
    check(Case(op, [(2, 3)], opset=24 if op == "Swish" else 20))


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 4, 6)])
def test_global_pools(op: str, shape: tuple[int, ...]) -> None:
    check(Case(op, [shape]))


def test_batch_normalisation() -> None:
    check(Case("BatchNormalization", [(2, 3, 4, 5), (3,), (3,), (3,), (3,)], {"epsilon": 0.1}))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            Case("Conv", [(1, 3, 8, 8), (4, 2, 3, 3)]),
            "3 input channels, but its weights take 2 in each of 1 groups",
        ),
        (Case("Conv", [(1, 3, 8, 8), (4, 3, 3)]), "weights of rank 3"),
        (Case("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (3,)]), "bias of shape [4]"),
        (Case("Conv", [(1, 3, 2, 8), (4, 3, 3, 3)]), "a window of 3 over 2 positions"),
        (Case("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"strides": [1]}), "1 strides instead of 2"),
        (Case("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"strides": [0, 1]}), "at least 1"),
        (Case("MatMul", [(2, 3), (4, 5)]), "rows of 3 by columns of 4"),
        (Case("MatMul", [(2, 3, 4), (3, 4, 5)]), "batch dimensions"),
        (Case("Gemm", [(2, 3), (3, 4), (3,)]), "third input to [2, 4]"),
        (Case("Add", [(2, 3), (4,)]), "do not broadcast"),
        (Case("Concat", [(2, 3), (3, 3)], {"axis": 1}), "along axis 1"),
        (Case("Transpose", [(2, 3)], {"perm": [0, 0]}), "no permutation"),
        (Case("Softmax", [(2, 3)], {"axis": 2}), "axis 2"),
        (Case("BatchNormalization", [(1, 3, 2, 2), (3,), (3,), (2,), (3,)]), "shape [3]"),
    ],
)
def test_errors_name_node_operator_and_shapes(case: Case, words: str) -> None:
    with pytest.raises(ShapeError) as caught:
        case.graph()
    text = str(caught.value)
    assert words in text
    assert f"{case.op} node 'y'" in text
    for name, shape in zip(case.names, case.shapes, strict=True):
        assert f"{name}={list(shape)}" in text
