"""What reads whole texels: reductions along them and across them, and operands of fewer elements.

Whole numbers through the interpreter, on both sides of every condition, exact against numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planrun import run_graph
from single_node import single

from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.opset.index import axis
from gpuedge.plan import lower
from gpuedge.plan.emit import ELEMENT, STEP, pace
from gpuedge.plan.planner import plan

FLOAT = "float32"
X = axis(ELEMENT, 48)


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        (X, 1), (X + 4, 1), (X + 2, None), (X * 2, None), (X * 4, None), (X % 8, 1), (X % 6, None),
        (X // 8, 0), (X // 8 * 3 + 1, 0), (X // 6, None), (X // 4 * 8 + X % 4, 1),
        (X // 8 * 6 + X % 8, None), (axis(STEP, 9) * 4 + X, 1), (axis(STEP, 9) * 6 + X, None),
        (axis(STEP, 9), 0), ((X + 2) // 8, None), ((X + 2) % 8, None), (X // 4 % 6 * 2, 0),
    ],
)  # fmt: skip
def test_pace_is_that_of_every_texel(index: Any, wanted: int | None) -> None:
    assert pace(index, ELEMENT) == wanted


def texts(graph: Graph) -> list[str]:
    return [one.source.epilogue or "" for one in plan(graph, VULKAN_MINIMUM).passes]


REDUCED = [
    # shape, axes, whether the first pass reads whole texels
    ((3, 8), (1,), True),
    ((3, 7), (1,), False),
    ((3, 8), (0,), True),
    ((3, 6), (0,), False),
    ((3, 24), (1,), True),
    ((3, 26), (1,), False),
    ((21, 4), (0,), True),
    ((21, 6), (0,), False),
    ((2, 21, 4), (1,), True),
    ((2, 3, 4, 5), (2, 3), True),
    ((2, 3, 4, 5), (1, 3), False),
    ((40,), (0,), True),
    ((7,), (0,), False),
    ((41,), (0,), False),
    ((5, 4, 12), (0, 2), True),
]


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize(("shape", "along", "is_whole"), REDUCED)
def test_reductions_are_exact(
    op: str, shape: tuple[int, ...], along: tuple[int, ...], is_whole: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(lower, "CHUNK", 8)
    rng = np.random.default_rng(len(shape))
    x = rng.integers(-9, 10, shape).astype(np.float32)
    if op == "ReduceProd":
        x = np.where(rng.random(shape) < 0.5, np.float32(-1), np.float32(1))
        x[(0,) * len(shape)] = 3
    graph = single(op, {"x": TensorType(FLOAT, shape)}, None, {"axes": np.array(along)}, opset=18)
    function = {"Sum": np.sum, "Max": np.max, "Min": np.min, "Prod": np.prod}[op[6:]]
    found = run_graph(graph, {"x": x})["y"]
    np.testing.assert_array_equal(found, function(x, axis=along, keepdims=True))
    first = texts(graph)[0]
    assert ("= texel(" in first, "load1(" in first) == (is_whole, not is_whole)


@pytest.mark.parametrize(
    ("shape", "other", "calls"),
    [
        ((6, 8), (8,), "texel(E1, i0 / 4)"),
        ((6, 8), (6, 1), "vec4(load1(E1, i0))"),
        ((6, 7), (7,), "float f1 = load1(E1, i0)"),
        ((2, 3, 8), (2, 1, 8), "/ 4)"),
        ((2, 6, 2), (6, 2), "texel(E1, i0 / 4)"),
        ((2, 6, 2), (6, 1), "float"),
        ((3, 5), (1, 1), "vec4(load1(E1, 0))"),
    ],
)
def test_operands_of_fewer_elements(
    shape: tuple[int, ...], other: tuple[int, ...], calls: str
) -> None:
    rng = np.random.default_rng(len(other))
    x, y = (rng.integers(-99, 100, s).astype(np.float32) for s in (shape, other))
    graph = single("Sub", {"x": TensorType(FLOAT, shape), "y": TensorType(FLOAT, other)},
                   output="z")  # fmt: skip
    np.testing.assert_array_equal(run_graph(graph, {"x": x, "y": y})["z"], x - y)
    assert calls in texts(graph)[0]
