"""Fusing: fewer kernels, and never more tensors than one can bind.

`test_plan_fuzz` compares random graphs, fused and not, with float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from planrun import WIDE, run_graph

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.expand import program
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.opset.expr import loads
from gpuedge.opset.tensor import Tensor
from gpuedge.oracle.layers import convolve
from gpuedge.plan import conv, matmul, planner
from gpuedge.plan.fuse import CHAIN_LIMIT, Fusion, Limits, fuse
from gpuedge.plan.planner import plan

SHAPE = (2, 5, 3, 4)
PER_CHANNEL = (5, 1, 1)
PADS = (1, 1, 1, 1)
CAPS = [VULKAN_MINIMUM, replace(VULKAN_MINIMUM, max_storage_buffers=5), WIDE]


def chain(length: int, operands: int = 0) -> Graph:
    b = GraphBuilder()
    value = b.input("x", TensorType("float32", SHAPE))
    others = [b.input(f"a{i}", TensorType("float32", SHAPE)) for i in range(operands)]
    for i in range(length):
        value = b.add("Add", [value, others[i]]) if i < operands else b.add("Relu", [value])
    b.output(value)
    return b.build()


def fused(graph: Graph, operands: int = 7, extras: int = 4) -> list[list[str]]:
    """The operators of each kernel, in order."""
    values = program(graph)
    wanted = [values[name] for name in graph.outputs]
    stages = fuse(wanted, Limits(operands, extras)).stages
    return [[t.label.partition("/")[0] for t in stage.covered] for stage in stages]


def test_chain_becomes_one_kernel() -> None:
    assert fused(chain(CHAIN_LIMIT)) == [["Relu"] * CHAIN_LIMIT]


def test_chains_have_a_longest_length() -> None:
    sizes = [len(ops) for ops in fused(chain(CHAIN_LIMIT + 3))]
    assert sum(sizes) == CHAIN_LIMIT + 3
    assert max(sizes) <= CHAIN_LIMIT


@pytest.mark.parametrize("operands", [2, 3, 4, 7])
def test_operands_are_limited(operands: int) -> None:
    graph = chain(6, 6)
    values = program(graph)
    made = fuse([values[name] for name in graph.outputs], Limits(operands, 4))
    for stage in made.stages:
        assert stage.body is not None
        assert len({load.tensor for load in loads(stage.body)}) <= operands


def layer(*, residual: bool = True, used_twice: bool = False) -> Graph:
    """Convolution, scale per channel, residual, activation."""
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", SHAPE))
    w = b.constant("w", np.ones((5, 5, 3, 3), np.float32))
    s = b.constant("s", np.full(PER_CHANNEL, 2, np.float32))
    conv = b.add("Conv", [x, w], {"pads": [1, 1, 1, 1]})
    value = b.add("Mul", [conv, s])
    if residual:
        value = b.add("Add", [value, x])
    value = b.add("Relu", [value])
    b.output(value, *([conv] if used_twice else []))
    return b.build()


def test_epilogue_joins_its_convolution() -> None:
    assert fused(layer()) == [["Conv", "Mul", "Add", "Relu"]]


def test_epilogue_stops_where_tensors_run_out() -> None:
    assert fused(layer(), extras=0) == [["Conv"], ["Mul", "Add", "Relu"]]
    # The residual is the convolution's own input, which its kernel binds anyway.
    assert fused(layer(), extras=1) == [["Conv", "Mul", "Add", "Relu"]]


def test_own_input_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "MAX_TRIPS", 12)  # so that the sum is split
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", SHAPE))
    w = b.constant("w", np.ones((5, 5, 3, 3), np.float32))
    b.output(b.add("Relu", [b.add("Add", [b.add("Conv", [x, w], {"pads": [1, 1, 1, 1]}), x])]))
    graph = b.build()
    array = np.random.default_rng(4).integers(-2, 3, SHAPE).astype(np.float32)
    (got,) = run_graph(graph, {"x": array}).values()
    np.testing.assert_array_equal(
        got, np.maximum(convolve(array, np.ones((5, 5, 3, 3)), pads=PADS) + array, 0)
    )
    last = [p for p in plan(graph, VULKAN_MINIMUM).passes if p.variant.startswith("conv2d")]
    assert len(last) > 1 and set(last[-1].tensors) == {"X", "K", "O", "E0"}


def test_own_matrices_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "STEP", 1)
    b = GraphBuilder()
    names = [b.input(n, TensorType("float32", (7, 7))) for n in "ab"]
    product = b.add("MatMul", names)
    b.output(b.add("Sub", [b.add("Mul", [product, "a"]), "b"]))
    rng = np.random.default_rng(4)
    arrays = {n: rng.integers(-2, 3, (7, 7)).astype(np.float32) for n in names}
    (got,) = run_graph(b.build(), arrays).values()
    x, y = arrays["a"].astype(np.float64), arrays["b"].astype(np.float64)
    np.testing.assert_array_equal(got, (x @ y) * x - y)


def test_value_that_is_needed_elsewhere_stays() -> None:
    assert fused(layer(used_twice=True))[0] == ["Conv"]
    x = np.random.default_rng(0).integers(-2, 3, SHAPE).astype(np.float32)
    graph = layer(used_twice=True)
    got = run_graph(graph, {"x": x}, WIDE)
    conv = convolve(x, np.ones((5, 5, 3, 3)), pads=PADS)
    np.testing.assert_array_equal(got[graph.outputs[1]], conv)
    np.testing.assert_array_equal(got[graph.outputs[0]], np.maximum(2 * conv + x, 0))


@pytest.mark.parametrize("caps", CAPS, ids=["four", "five", "eight"])
def test_layer_on_devices_with_few_bindings(caps: Caps) -> None:
    x = np.random.default_rng(0).integers(-2, 3, SHAPE).astype(np.float32)
    (got,) = run_graph(layer(), {"x": x}, caps).values()
    conv = convolve(x, np.ones((5, 5, 3, 3)), pads=PADS)
    np.testing.assert_array_equal(got, np.maximum(2 * conv + x, 0))


def test_forgotten_limit_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(outputs: Sequence[Tensor], _: Limits) -> Fusion:
        return fuse(outputs, Limits(99, 99))

    monkeypatch.setattr(planner, "fuse", greedy)
    x = np.zeros(SHAPE, np.float32)
    feeds = {"x": x} | {f"a{i}": x for i in range(6)}
    with pytest.raises(UnsupportedOpError, match="binds 8 tensors") as caught:
        run_graph(chain(6, 6), feeds, VULKAN_MINIMUM)
    assert "at most 4 (max_storage_buffers, max_push_bytes)" in str(caught.value.known)


def test_what_decides_a_place_is_no_epilogue() -> None:
    """Where updates go is a reduction; a chain that ends in the scatter made it an epilogue."""
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (5, 4)))
    total = b.add("CumSum", [x, b.constant("axis", np.array(0, np.int64))])
    where = b.input("where", TensorType("int64", (2, 1)))
    new = b.constant("new", np.full((2, 4), 7, np.float32))
    b.output(b.add("ScatterND", [total, where, new]))
    feeds = {"x": np.arange(20, dtype=np.float32).reshape(5, 4), "where": np.array([[3], [0]])}
    (got,) = run_graph(b.build(), feeds, WIDE).values()
    want = feeds["x"].cumsum(0)
    want[[3, 0]] = 7
    np.testing.assert_array_equal(got, want)


def test_tensors_that_are_read_in_two_layouts_are_bound_in_one_where_they_are_many() -> None:
    """Eight operands: indices are read in C order, values as the convolution has them."""
    b, dice = GraphBuilder(opset=19), np.random.default_rng(6)
    kinds = {
        "x": TensorType("float32", (30, 3, 7)), "c": TensorType("bool", (30, 39, 7)),
        "g": TensorType("float32", (1, 1, 7)), "i": TensorType("int64", (39, 6, 30)),
    }  # fmt: skip
    for name, kind in kinds.items():
        b.input(name, kind)
    w, most, rest, new = (
        dice.integers(-3, 4, shape).astype(np.float32)
        for shape in ((39, 1, 1), (1, 39, 7), (1, 7), (39, 6, 30))
    )
    value = b.add("Conv", ["x", b.constant("w", w)], {"group": 3, "kernel_shape": [1]})
    value = b.add("Where", ["c", value, b.constant("rest", rest)])
    value = b.add("Min", [value, "g", b.constant("most", most)])
    value = b.add("Transpose", [value], {"perm": [1, 2, 0]})
    b.output(b.add("ScatterElements", [value, "i", b.constant("new", new)], {"axis": 1}))
    feeds = {
        "x": dice.integers(-3, 4, (30, 3, 7)).astype(np.float32),
        "c": dice.integers(0, 2, (30, 39, 7)).astype(bool),
        "g": dice.integers(-3, 4, (1, 1, 7)).astype(np.float32),
        "i": np.argsort(dice.random((39, 7, 30)), axis=1)[:, :6],
    }
    (got,) = run_graph(b.build(), feeds, replace(VULKAN_MINIMUM, max_storage_buffers=8)).values()
    x = feeds["x"][:, np.arange(39) // 13] * w[:, 0]
    x = np.minimum(np.minimum(np.where(feeds["c"], x, rest), feeds["g"]), most).transpose(1, 2, 0)
    np.put_along_axis(x, feeds["i"], new, 1)
    np.testing.assert_array_equal(got, x)
