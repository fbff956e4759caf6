"""What nodes mean: defaults, operator set differences and padding, checked by hand."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from single_node import single

from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.expand import expand, is_known, operands
from gpuedge.graph.ir import Array, Graph, Node, TensorType, type_of
from gpuedge.opset import OPERATORS, elementwise
from gpuedge.opset.evaluate import evaluate
from gpuedge.opset.tensor import Convolution, Pooling, Tensor, Window

Shape = tuple[int, ...]


def read(
    op: str,
    shapes: list[Shape],
    attrs: dict[str, Any] | None = None,
    constants: list[Any] | None = None,
    opset: int = 20,
    dtype: str = "float32",
    outputs: int = 1,
) -> Tensor:
    """Compose one node and return its first output; None among constants is an absent input."""
    types = {f"x{i}": TensorType(dtype, s) for i, s in enumerate(shapes)}
    known: dict[str, Array] = {}
    names = list(types)
    for i, value in enumerate(constants or []):
        names.append("" if value is None else f"c{i}")
        if value is not None:
            known[f"c{i}"] = np.asarray(value)
    types.update((n, type_of(v)) for n, v in known.items())
    node = Node(op, tuple(names), tuple(f"y{i}" for i in range(outputs)), attrs or {}, "n")
    return expand(node, Graph((node,), (), (), types, known, {"": opset}))[0]


def window(tensor: Tensor) -> Window:
    assert isinstance(tensor.source, (Convolution, Pooling))
    return tensor.source.window


def test_transposed_convolution() -> None:
    attrs = {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}
    found = read("ConvTranspose", [(1, 3, 4, 5), (3, 2, 3, 3)], attrs)
    assert window(found) == Window((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), (8, 10))
    wanted = {"strides": [2, 2], "output_shape": [8, 10], "auto_pad": "SAME_UPPER"}
    found = read("ConvTranspose", [(1, 3, 4, 5), (3, 2, 3, 3)], wanted)
    assert (window(found).pads, window(found).out) == ((0, 0, 1, 1), (8, 10))
    with pytest.raises(UnsupportedOpError, match="more than its windows reach"):
        read("ConvTranspose", [(1, 1, 4), (1, 1, 1)], {"strides": [3], "auto_pad": "SAME_LOWER"})


@pytest.mark.parametrize(
    ("op", "shape", "attrs", "constants", "opset", "expected"),
    [
        ("Flatten", (2, 3, 4), {}, [], 20, (2, 12)),
        ("Flatten", (2, 3, 4), {"axis": 0}, [], 20, (1, 24)),
        ("Flatten", (2, 3, 4), {"axis": 3}, [], 20, (24, 1)),
        ("Flatten", (2, 3, 4), {"axis": -1}, [], 20, (6, 4)),
        ("Reshape", (2, 3, 4), {}, [[0, -1]], 20, (2, 12)),
        ("Reshape", (2, 3, 4), {"shape": [4, 6]}, [], 4, (4, 6)),
        ("Reshape", (0, 3), {"allowzero": 1}, [[3, 0]], 20, (3, 0)),
        ("Squeeze", (1, 3, 1), {}, [], 20, (3,)),
        ("Squeeze", (1, 3, 1), {}, [[-1]], 20, (1, 3)),
        ("Squeeze", (1, 3, 1), {"axes": [0]}, [], 11, (3, 1)),
        ("Unsqueeze", (3, 4), {}, [[0, -1]], 20, (1, 3, 4, 1)),
        ("Unsqueeze", (3, 4), {"axes": [1]}, [], 11, (3, 1, 4)),
        ("Identity", (3, 4), {}, [], 20, (3, 4)),
        ("Dropout", (3, 4), {}, [np.float32(0.5), np.array(False)], 20, (3, 4)),
        ("Dropout", (3, 4), {"ratio": 0.5}, [], 10, (3, 4)),
    ],
)
def test_reshaping(
    op: str, shape: Shape, attrs: Any, constants: Any, opset: int, expected: Shape
) -> None:
    assert read(op, [shape], attrs, constants, opset).shape == expected


@pytest.mark.parametrize(
    ("op", "shape", "attrs", "constants", "words"),
    [
        ("Reshape", (2, 3), {}, [[4, -1]], "cannot be reshaped to [4, -1]"),
        ("Reshape", (2, 3), {}, [[-1, -1]], "cannot be reshaped"),
        ("Reshape", (2, 3), {}, [[5]], "cannot be reshaped to [5]"),
        ("Reshape", (6,), {}, [[6, 0]], "copies a dimension"),
        ("Squeeze", (1, 3), {}, [[1]], "not all 1"),
        ("Unsqueeze", (3,), {}, [[0, 0]], "names an axis twice"),
        ("Unsqueeze", (3,), {}, [[5]], "has axis 5"),
        ("Flatten", (3,), {"axis": 2}, [], "has axis 2"),
    ],
)
def test_impossible_reshaping(
    op: str, shape: Shape, attrs: Any, constants: Any, words: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        read(op, [shape], attrs, constants)
    assert words in str(caught.value)


def test_elementwise_parameters() -> None:
    def value(op: str, x: float, opset: int = 20, **attrs: Any) -> float:
        made = read(op, [(1,)], attrs, opset=opset)
        return float(evaluate([made], {"x0": np.float32([x])})[0][0])

    assert value("HardSigmoid", 1.0, beta=0.25) == pytest.approx(0.45)
    assert value("Selu", -1.0, opset=1) != value("Selu", -1.0, opset=6)
    with pytest.raises(UnsupportedOpError, match="approximate='erf'"):
        value("Gelu", 1.0, approximate="erf")
    with pytest.raises(UnsupportedOpError, match="divides by its alpha"):
        value("Celu", 1.0, alpha=0.0)


@pytest.mark.parametrize(
    ("op", "shapes", "kwargs", "words"),
    [
        ("Multinomial", [(2, 2)], {}, r"Multinomial node 'n' \(domain 'ai.onnx'\) is not known"),
        ("Conv", [(1, 2), (1, 2)], {}, "rank 2, without spatial dimensions"),
        ("MaxPool", [(1, 1, 4, 4)], {}, "lacks the attribute kernel_shape"),
        ("Relu", [(2,)], {"dtype": "int32"}, "computes in int32"),
        ("Add", [(2,)], {}, "has 1 operands instead of 2"),
        ("Add", [(2, 3), (2,)], {"attrs": {"axis": 0, "broadcast": 1}, "opset": 6}, "before 7"),
        ("BatchNormalization", [(1, 2, 3), *[(2,)] * 4], {"outputs": 3, "opset": 13},
         "before 14"),
        ("BatchNormalization", [(1, 2, 3), *[(2,)] * 4],
         {"attrs": {"spatial": 0}, "opset": 7}, "spatial=0"),
        ("Dropout", [(2,)], {"constants": [None, np.array(True)]}, "training mode"),
        ("Reshape", [(2,), (1,)], {}, "takes its shape from 'x1', which is not constant"),
        ("Conv", [(1, 1, 4, 4), (1, 1, 3, 3)], {"attrs": {"auto_pad": "BOTH"}}, "does not exist"),
        ("Einsum", [(1, 4), (3, 4)], {"attrs": {"equation": "ij,ij->ij"}}, "repeats an element"),
    ],
)  # fmt: skip
def test_unknown_forms(op: str, shapes: list[Shape], kwargs: Any, words: str) -> None:
    with pytest.raises(UnsupportedOpError, match=words) as caught:
        read(op, shapes, **kwargs)
    assert caught.value.what.count("\n") == 0
    assert caught.value.what.endswith(".")


def test_mixed_dtypes_are_refused() -> None:
    inputs = {"a": TensorType("float32", (2,)), "b": TensorType("float16", (2,))}
    with pytest.raises(UnsupportedOpError, match="mixes the dtypes float16, float32"):
        single("Add", inputs)


def test_operators_that_only_move_take_any_dtype() -> None:
    assert read("Transpose", [(2, 3)], dtype="int64").dtype == "int64"


@pytest.mark.parametrize(
    ("shape", "constants", "values"),
    [((2,), [1.5, float("nan")], None), ((2,), [1j], None), ((2,), ["2"], None)],
)
@pytest.mark.parametrize("op", ["Reshape", "Squeeze", "Unsqueeze"])
def test_shapes_and_axes_are_integers(op: str, shape: Shape, constants: Any, values: None) -> None:
    with pytest.raises(UnsupportedOpError, match="instead of integers"):
        read(op, [shape], constants=[constants])


def test_indices_beyond_the_axis_are_refused() -> None:
    with pytest.raises(ShapeError, match="indices outside of"):
        read("Gather", [(3,)], constants=[[3]])


def test_operands_leave_parameters_out() -> None:
    assert operands(Node("Clip", ("x", "lo", "hi"), ("y",))) == ("x", "lo", "hi")
    assert operands(Node("Reshape", ("x", "shape"), ("y",))) == ("x",)
    assert operands(Node("Conv", ("x", "w", ""), ("y",))) == ("x", "w")


def test_known_operators() -> None:
    assert {row.op for row in elementwise.ROWS} < set(OPERATORS)
    assert is_known(Node("Conv", (), ()))
    assert not is_known(Node("Conv", (), (), domain="com.microsoft"))


def test_builder_infers_as_it_goes() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (1, 3, 8, 8)))
    w = b.constant("w", np.zeros((4, 3, 3, 3), np.float32))
    y = b.add("Relu", [b.add("Conv", [x, w], {"strides": [2, 2]})])
    assert b.type(y).shape == (1, 4, 3, 3)
    b.output(y)
    graph = b.build()
    assert [n.op for n in graph.nodes] == ["Conv", "Relu"]
    assert (graph.inputs, graph.outputs, set(graph.constants)) == (("x",), (y,), {"w"})
    assert set(graph.types) == {"x", "w", *(n.outputs[0] for n in graph.nodes)}


def test_builder_refuses_unknown_and_repeated_names() -> None:
    b = GraphBuilder()
    b.input("x", TensorType("float32", (1,)))
    for wrong in (
        lambda: b.input("x", TensorType("float32", (1,))),
        lambda: b.add("Relu", ["nothing"]),
        lambda: b.output("nothing"),
        lambda: b.constant("", 1.0),
    ):
        with pytest.raises(ValueError, match="GE-200"):
            wrong()


def test_builder_raises_the_operator_set_for_young_operators() -> None:
    x = {"x": TensorType("float32", (1,))}
    assert single("Relu", x).opset == {"": 20}
    assert single("Swish", x).opset == {"": 24}


def test_graphs_made_by_hand_need_no_onnx() -> None:
    script = """
import sys
import gpuedge.graph.cost, gpuedge.graph.partition
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
builder = GraphBuilder()
builder.input("x", TensorType("float32", (2,)))
builder.output(builder.add("Relu", ["x"]))
CpuExecutor(engine="numpy").compile(builder.build())
print(sorted({"onnx", "onnxruntime", "google.protobuf"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
