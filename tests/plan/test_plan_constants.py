"""Constants beside operands that come with each call, in every combination, against ONNX Runtime.

The planner arranges what the host fills (weights with their bias, the parameters of a norm)
together: some of that is known while planning and some is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
from planrun import TEXTURES, WIDE, run_graph
from single_node import single

from gpuedge.graph.ir import Array, Graph, type_of
from gpuedge.graph.writer import to_bytes

RNG = np.random.default_rng(5)


def whole(*shape: int) -> Array:
    return RNG.integers(-3, 4, shape).astype(np.float32)


def least(*shape: int) -> Array:
    return RNG.integers(1, 4, shape).astype(np.float32)


def codes(*shape: int) -> Array:
    return RNG.integers(0, 9, shape).astype(np.uint8)


HALF, TWO, POINT = np.float32(0.5), np.float32(2), np.uint8(3)

CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Conv": ([whole(1, 3, 5, 5), whole(6, 3, 3, 3), whole(6)], {}),
    "Conv-depthwise": ([whole(1, 5, 4, 4), whole(5, 1, 3, 3), whole(5)], {"group": 5}),
    "Conv-1d": ([whole(2, 3, 9), whole(5, 3, 3), whole(5)], {"pads": [1, 1]}),
    "ConvTranspose": ([whole(1, 3, 4, 4), whole(3, 5, 3, 3), whole(5)], {"strides": [2, 2]}),
    "Gemm": ([whole(3, 7), whole(7, 5), whole(5)], {}),
    "MatMul": ([whole(2, 3, 7), whole(7, 5)], {}),
    "BatchNormalization": ([whole(2, 3, 4), least(3), whole(3), whole(3), least(3)], {}),
    "LayerNormalization": ([whole(2, 3, 5), whole(5), whole(5)], {}),
    "InstanceNormalization": ([whole(2, 3, 5), whole(3), whole(3)], {}),
    "PRelu": ([whole(2, 3, 4), whole(3, 1)], {}),
    "Where": ([whole(3, 4) > 0, whole(2, 3, 4), whole(4)], {}),
    "Clip": ([whole(2, 3, 4), np.float32(-1), TWO], {}),
    "Concat": ([whole(2, 3, 4), whole(2, 1, 4), whole(2, 2, 4)], {"axis": 1}),
    "Sum": ([whole(2, 3, 4), whole(3, 1), whole(4)], {}),
    "Gather": ([whole(5, 4), np.array([0, 2, -1])], {}),
    "ScatterND": ([whole(5, 4), np.array([[0], [2]]), whole(2, 4)], {}),
    "QuantizeLinear": ([whole(5, 4), HALF, POINT], {}),
    "DequantizeLinear": ([codes(5, 4), HALF, POINT], {}),
    "ConvInteger": ([codes(1, 3, 5, 5), codes(4, 3, 3, 3), POINT, POINT], {}),
    "QLinearConv": ([codes(1, 3, 5, 5), HALF, POINT, codes(4, 3, 3, 3), HALF, POINT, TWO,
                     POINT, np.arange(4, dtype=np.int32)], {}),
    "QLinearMatMul": ([codes(3, 5), HALF, POINT, codes(5, 4), HALF, POINT, TWO, POINT], {}),
}  # fmt: skip


def choices(count: int) -> Iterator[tuple[bool, ...]]:
    """Yield which operands are constant: each combination, of many operands one and all but one."""
    for chosen in itertools.product((False, True), repeat=count):
        if not all(chosen) and (count < 4 or sum(chosen) in (1, count - 1)):
            yield chosen


def graph_of(name: str, chosen: tuple[bool, ...]) -> tuple[Graph, dict[str, Array]]:
    """Return a node with some operands constant, and what the others are."""
    operands, attrs = CASES[name]
    arrays = {f"x{i}": np.asarray(a) for i, a in enumerate(operands)}
    constants = {n: a for (n, a), c in zip(arrays.items(), chosen, strict=True) if c}
    feeds = {n: a for n, a in arrays.items() if n not in constants}
    types = {n: type_of(a) for n, a in feeds.items()}
    return single(
        name.split("-", maxsplit=1)[0], types, attrs, constants, order=list(arrays)
    ), feeds


@pytest.mark.parametrize("name", CASES)
def test_any_operand_may_be_constant(name: str) -> None:
    for number, chosen in enumerate(choices(len(CASES[name][0]))):
        graph, feeds = graph_of(name, chosen)
        by_ort = onnxruntime.InferenceSession(to_bytes(graph), providers=["CPUExecutionProvider"])
        (want,) = by_ort.run(None, feeds)
        got = run_graph(graph, feeds, (WIDE, TEXTURES)[number % 2])["y"]
        exact = "Norm" not in name
        np.testing.assert_allclose(
            got, want, rtol=0, atol=0 if exact else 1e-5, err_msg=f"{name} {chosen}"
        )
