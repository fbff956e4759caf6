"""Random graphs of all families through planner and interpreter, against float64.

The models are those of `modelgen`, which real drivers run as well; here nothing hides a layout, a
lifetime or an offset that is wrong. What `modelgen` never makes, tensors without any element, has
graphs of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from modelgen.judge import graph_of, judge
from modelgen.networks import random_case
from planrun import FLOAT_TEXTURES, TEXTURES, WIDE, run_graph

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.opset.bounds import Num
from gpuedge.oracle.nodes import evaluate
from gpuedge.plan.planner import plan, why_not

DEVICES = {
    "minimum": VULKAN_MINIMUM,
    "wide": WIDE,
    "gles20": TEXTURES,
    "gles30": FLOAT_TEXTURES,
}


def supported(graph: Graph, device: str) -> bool:
    """Tell whether every node is one that the device takes by itself."""
    return all(why_not(node, graph, DEVICES[device]) is None for node in graph.nodes)


def check(seed: int, device: str, *, rewrites: bool = True) -> bool:
    """Compare one model on one device with float64; return whether the device took it.

    A device that takes every node alone takes the graph, unless integers grow on the way.
    """
    kind, case = random_case(seed)
    graph = graph_of(case)
    if kind != "graph" or not supported(graph, device):
        return False
    feeds = {name: case.feeds[name] for name in graph.inputs}
    try:
        outputs = run_graph(graph, feeds, DEVICES[device], rewrites=rewrites)
    except UnsupportedOpError as error:
        assert "may give integers beyond" in error.what, seed
        return False
    assert judge(case, outputs).why == "", seed
    return True


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rewrites", "seeds"), [(True, range(50)), (False, range(50, 75))])
def test_random_graphs(device: str, rewrites: bool, seeds: range) -> None:
    taken = [check(seed, device, rewrites=rewrites) for seed in seeds]
    assert sum(taken) > len(seeds) / 2


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_many_random_graphs(device: str) -> None:
    for seed in range(2000):
        check(seed, device)
        check(seed, device, rewrites=False)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


EMPTY: tuple[tuple[str, tuple[int, ...], Sequence[object], dict[str, object]], ...] = (
    ("Reshape", (4, 0), [ints(0, 2, 2)], {"allowzero": 1}),
    ("Transpose", (4, 0, 3), [], {"perm": [2, 0, 1]}),
    ("Unsqueeze", (4, 0), [ints(1)], {}),
    ("Gather", (4, 5), [ints()], {"axis": 1}),
    ("Concat", (4, 0), [np.ones((4, 3), np.float32), np.ones((4, 0), np.float32)], {"axis": 1}),
    ("Concat", (4, 0), [np.ones((2, 0), np.float32)], {"axis": 0}),
    ("Relu", (4, 0), [], {}),
    ("Add", (4, 0), [np.ones((4, 1), np.float32)], {}),
    ("MatMul", (4, 0), [np.ones((0, 3), np.float32)], {}),
    ("MatMul", (0, 4), [np.ones((4, 3), np.float32)], {}),
    ("CumSum", (4, 0), [np.int64(0)], {}),
    ("Softmax", (0, 4), [], {"axis": 1}),
    ("Conv", (0, 2, 5, 5), [np.ones((3, 2, 3, 3), np.float32)], {}),
    ("GlobalAveragePool", (0, 3, 4, 4), [], {}),
)
"""Operators on tensors without any element, or that make such."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "shape", "others", "attrs"), EMPTY)
def test_nothing_is_computed_of_nothing(
    device: str, op: str, shape: tuple[int, ...], others: Sequence[object], attrs: dict[str, object]
) -> None:
    builder = GraphBuilder()
    names = [builder.input("x", TensorType("float32", shape))]
    names += [builder.constant(f"c{i}", other) for i, other in enumerate(others)]
    last = builder.add(op, names, attrs)
    builder.output(last, builder.add("Neg", [last]))
    graph = builder.build()
    feeds = {"x": np.ones(shape, np.float32)}
    for name, array in run_graph(graph, feeds, DEVICES[device]).items():
        np.testing.assert_array_equal(array, Num.of(evaluate(graph, feeds, whole=True)[name]).v)


LARGE = 2**24
"""From here on float32 does not hold every integer."""


@pytest.mark.parametrize(
    ("caps", "op", "shape", "other", "known"),
    [
        (TEXTURES, "Transpose", (2, LARGE // 2 + 8), None, "exactly to 16777216"),
        (TEXTURES, "Concat", (3, LARGE // 4), (5, LARGE // 4), "exactly to 16777216"),
        (WIDE, "Gather", (LARGE + 8,), (2,), "exactly to 16777216"),
        (WIDE, "Transpose", (2, 2**30 + 8), None, "exactly to 2147483648"),
        (WIDE, "Transpose", (2, LARGE // 2 + 8), None, None),
        (WIDE, "Gather", (3, LARGE), (2,), None),
        (TEXTURES, "Gather", (LARGE // 2 - 8,), (2,), None),
    ],
)
def test_integers_that_are_not_exact_are_refused(
    caps: Caps, op: str, shape: tuple[int, ...], other: tuple[int, ...] | None, known: str | None
) -> None:
    b = GraphBuilder()
    names = [b.input("x", TensorType("float32", shape))]
    if other is not None:
        names.append(b.input("y", TensorType("int64" if op == "Gather" else "float32", other)))
    b.output(b.add(op, names, {"axis": 0} if op == "Concat" else {}))
    caps = replace(caps, max_storage_buffer_bytes=2**40, max_groups=(2**31,) * 3)
    if known is None:
        plan(b.build(), caps)
        return
    with pytest.raises(UnsupportedOpError) as caught:
        plan(b.build(), caps)
    assert op in caught.value.what
    assert known in str(caught.value.known)


def test_wrong_indices_stay_inside_the_tensor() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (5,)))
    i = b.input("i", TensorType("float32", (4,)))
    whole = b.input("n", TensorType("int64", (4,)))
    b.output(b.add("Add", [b.add("Gather", [x, whole]), i]))
    far = np.array([2**62, -(2**62), 7, -9], np.int64)
    feeds = {"x": np.arange(5, dtype=np.float32), "i": np.zeros(4, np.float32), "n": far}
    (got,) = run_graph(b.build(), feeds, WIDE).values()
    np.testing.assert_array_equal(got, [4, 0, 4, 0])
