"""The oracle's own layers, by hand and by loops; `test_operators` compares with the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Node, TensorType, type_of
from gpuedge.graph.reference import run_node
from gpuedge.opset.bounds import Num, U
from gpuedge.oracle import layers
from gpuedge.oracle.nodes import compute, evaluate

RNG = np.random.default_rng(1)


def loops(x: Array, w: Array, pad: int, stride: int, dilation: int, group: int) -> Array:
    """Return a convolution in Python, one product at a time."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    n, c, height, width = x.shape
    m, per, kh, kw = w.shape
    oh = (height + 2 * pad - dilation * (kh - 1) - 1) // stride + 1
    ow = (width + 2 * pad - dilation * (kw - 1) - 1) // stride + 1
    y = np.zeros((n, m, oh, ow))
    for b, f, i, j in itertools.product(range(n), range(m), range(oh), range(ow)):
        for q, u, v in itertools.product(range(per), range(kh), range(kw)):
            row, column = i * stride + u * dilation - pad, j * stride + v * dilation - pad
            if 0 <= row < height and 0 <= column < width:
                y[b, f, i, j] += x[b, f // (m // group) * per + q, row, column] * w[f, q, u, v]
    assert c == per * group
    return y


@pytest.mark.parametrize(
    ("x", "w", "pad", "stride", "dilation", "group"),
    [
        ((1, 3, 7, 5), (4, 3, 3, 3), 1, 1, 1, 1),
        ((2, 4, 6, 9), (6, 2, 3, 2), 0, 2, 1, 2),
        ((1, 5, 8, 8), (5, 1, 3, 3), 2, 1, 2, 5),
        ((2, 3, 4, 5), (4, 3, 1, 2), 4, 1, 1, 1),
        ((1, 2, 1, 1), (3, 2, 1, 1), 0, 1, 1, 1),
    ],
)
def test_convolution_equals_loops(
    x: tuple[int, ...], w: tuple[int, ...], pad: int, stride: int, dilation: int, group: int
) -> None:
    image, filters = (RNG.integers(-9, 9, shape) for shape in (x, w))
    how = {"pads": [pad] * 4, "stride": [stride] * 2, "dilation": [dilation] * 2}
    exact = layers.convolve(image, filters, groups=group, **how)
    np.testing.assert_array_equal(exact, loops(image, filters, pad, stride, dilation, group))


def test_layers_by_hand() -> None:
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    w = np.float32([[[[1, 0], [0, -1]]]])
    np.testing.assert_array_equal(layers.conv2d(x, w).v, np.full((1, 1, 2, 2), -4.0))
    y = layers.conv_transpose2d(x[:, :, :2, :2], w, stride=(2, 2)).v
    np.testing.assert_array_equal(
        y[0, 0], [[0, 0, 1, 0], [0, 0, 0, -1], [3, 0, 4, 0], [0, -3, 0, -4]]
    )
    top, _ = layers.pool("max", x, (2, 2), (2, 2), pads=(1, 1, 0, 0))
    np.testing.assert_array_equal(top[0, 0], [[0, 2], [6, 8]])
    mean, _ = layers.pool("avg", x, (2, 2), (2, 2), pads=(1, 1, 0, 0), include_pad=True)
    np.testing.assert_array_equal(mean[0, 0], [[0, 0.75], [2.25, 6]])
    half, _ = layers.softmax(np.zeros((1, 2)), 1)
    np.testing.assert_array_equal(half, [[0.5, 0.5]])


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def integers(*shape: int) -> Array:
    return RNG.integers(-9, 9, shape).astype(np.int8)


IMAGE = floats(2, 6, 9, 8)
PADS = {"pads": [1, 0, 2, 1], "strides": [2, 1]}
SPREAD = {"output_padding": [1, 0], **PADS}
AXES = np.array([1, -1])


def test_what_the_reference_lacks_or_misreads() -> None:
    cubes = (np.abs(IMAGE) ** 3).sum((2, 3), keepdims=True)
    (result,) = compute(Node("GlobalLpPool", ("x",), ("y",), {"p": 3}), [IMAGE])
    np.testing.assert_allclose(Num.of(result).v, np.cbrt(cubes), rtol=1e-12)
    (result,) = compute(Node("LpNormalization", ("x",), ("y",), {"axis": 1, "p": 1}), [IMAGE])
    np.testing.assert_allclose(np.abs(Num.of(result).v).sum(1), 1, rtol=1e-12)
    attrs = {"size": 3, "alpha": 0.75, "beta": 0.5, "bias": 2.0}
    (result,) = compute(Node("LRN", ("x",), ("y",), attrs), [IMAGE])
    wide = np.pad(IMAGE**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    squares = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    np.testing.assert_allclose(Num.of(result).v, IMAGE / np.sqrt(2 + 0.25 * squares), rtol=1e-12)


def test_codes_are_convolved_with_the_numbers_of_each_filter() -> None:
    x = RNG.integers(0, 256, (2, 3, 5, 6)).astype(np.uint8)
    w = RNG.integers(-128, 128, (4, 3, 3, 2)).astype(np.int8)
    zeros, bias = RNG.integers(-9, 9, 4).astype(np.int8), RNG.integers(-9999, 9999, 4)
    given = [
        x, np.float32(0.5), np.uint8(7), w, np.float32([1, 0.5, 0.25, 2]), zeros, np.float32(64),
        np.uint8(128), bias.astype(np.int32),
    ]  # fmt: skip
    # the reference rounds with the zero point: halves go the same way where that is even
    node = Node("QLinearConv", tuple("abcdefghi"), ("y",), PADS)
    (wanted,) = run_node(
        node, dict(zip("abcdefghi", map(np.asarray, given), strict=True)), {"": 21}
    )
    (result,) = compute(node, given)
    assert len(np.unique(wanted)) > 20
    np.testing.assert_array_equal(result, wanted)


def test_other_operators_are_the_references_and_errors_move_with_values() -> None:
    x = Num(floats(3, 4), np.abs(floats(3, 4)))
    (turned,) = compute(Node("Transpose", ("x",), ("y",), {}), [x])
    np.testing.assert_array_equal(Num.of(turned).v, x.v.T)
    np.testing.assert_array_equal(Num.of(turned).e, x.e.T)
    mask = compute(Node("Greater", ("a", "b"), ("y",), {}), [x.v, np.zeros(4)])[0]
    np.testing.assert_array_equal(mask, x.v > 0)
    with pytest.raises(ValueError, match="no bound is derived for Einsum"):
        compute(Node("Einsum", ("x",), ("y",), {"equation": "ij->"}),
                [Num(floats(3, 3), np.ones((3, 3)))])  # fmt: skip
    with pytest.raises(UnsupportedOpError, match="cannot compute Unheard"):
        compute(Node("Unheard", ("x",), ("y",), {}), [x.v])


def test_graphs_carry_errors_from_node_to_node() -> None:
    builder = GraphBuilder()
    builder.input("x", TensorType("float32", (4, 6)))
    builder.constant("w", np.float32(RNG.integers(-3, 4, (6, 5))))
    builder.output(builder.add("Relu", [builder.add("MatMul", ["x", "w"], output="p")]))
    graph = builder.build()
    x = RNG.integers(-3, 4, (4, 6)).astype(np.float32)
    last = graph.outputs[0]
    exact = Num.of(evaluate(graph, {"x": x}, whole=True)[last])
    np.testing.assert_array_equal(exact.v, np.maximum(x @ graph.constants["w"], 0))
    assert not exact.e.any()
    rounded = evaluate(graph, {"x": x})["p"]
    size = 4 * 6 * U * (np.abs(x) @ np.abs(graph.constants["w"]))
    np.testing.assert_allclose(Num.of(rounded).e, size, rtol=1e-12, atol=1e-37)
    stored = {"p": lambda num: Num(num.v, num.e + 1.0)}
    wide = Num.of(evaluate(graph, {"x": x}, whole=True, stored=stored)[last])
    assert (wide.e[exact.v > 1] >= 1).all()


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_recurrent_layers_equal_onnx_runtime(op: str, direction: str, is_whole: bool) -> None:
    gates, count = {"RNN": 1, "GRU": 3, "LSTM": 4}[op], 1 + (direction == "bidirectional")
    shapes = [(4, 3, 5), (count, gates * 2, 5), (count, gates * 2, 2)]
    if is_whole:
        state = (count, 3, 2)
        shapes += [(count, gates * 4), (3,), state, *([state, (count, 6)] if op == "LSTM" else [])]
    arrays = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    if is_whole:
        arrays[4] = np.array([4, 1, 2], np.int32)
    names = [f"in{i}" for i in range(len(arrays))]
    builder = GraphBuilder()
    for name, array in zip(names, arrays, strict=True):
        builder.input(name, type_of(array))
    how: dict[str, object] = {"hidden_size": 2, "direction": direction}
    how |= {"linear_before_reset": int(is_whole)} if op == "GRU" else {}
    outputs = builder.add_all(op, names, how, outputs=3 if op == "LSTM" else 2)
    builder.output(*outputs)
    graph, feeds = builder.build(), dict(zip(names, arrays, strict=True))
    theirs = CpuExecutor(engine="onnxruntime", threads=1).compile(graph).run(feeds)
    wanted = evaluate(graph, feeds)
    for output in outputs:
        value, error = Num.of(wanted[output])
        assert value.shape == theirs[output].shape
        # sigmoid and tanh of ONNX Runtime (rational functions) keep absolute errors, not relative
        assert np.all(np.abs(theirs[output] - value) <= error + 4 * U)
        assert error.max() < 1e-2
