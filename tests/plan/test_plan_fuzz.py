"""Random graphs of all families through planner and interpreter, against float64.

The models are those of `modelgen`, which real drivers run as well; here nothing hides a layout, a
lifetime or an offset that is wrong.
"""

from __future__ import annotations

from dataclasses import replace

import daily
import numpy as np
import pytest
from modelgen.judge import graph_of, judge
from modelgen.networks import random_case
from planrun import FLOAT_TEXTURES, TEXTURES, WIDE, run_graph

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.plan.planner import plan, why_not

pytestmark = daily.day(2, of=4)

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
@pytest.mark.parametrize(("rewrites", "count"), [(True, 20), (False, 10)])
def test_random_graphs(device: str, rewrites: bool, count: int) -> None:
    """Others each day, of those that the long form has."""
    first = daily.turn(50) * count
    taken = [check(seed, device, rewrites=rewrites) for seed in range(first, first + count)]
    assert sum(taken) > count / 2


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_many_random_graphs(device: str) -> None:
    for seed in range(2000):
        check(seed, device)
        check(seed, device, rewrites=False)


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
