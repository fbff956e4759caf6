"""LayerNormalization and CumSum within the bounds of ``docs/numerics.md``, on inputs that cancel.

LayerNormalization, to first order in U = 2^-24, for n values x with mean M and A = mean(abs(x)):

* the first mean m is off by (n + 4) U A: n - 1 additions, a division of 2.5 ULP.
* the mean r of x - m is off by (n + 5) U (D + abs(m - M)), with D = mean(abs(x - M)), and m + r
  stands for M. So x - m - r is off by 2 U abs(x - M) + (n + 6) U (D + (n + 4) U A) from x - M.
* the variance takes that in, a square, n - 1 additions and a division; then follow epsilon, a root
  of 4.5 ULP, a division, two products and a sum. With S = sqrt(var + epsilon), z = (x - M) / S and
  D <= S the result is off by (1.5 n + 30) U (1 + abs(z)) (1 + (n + 4) U A / S) abs(scale) and one
  rounding of its own. The bound says 2 n + 40, which leaves room for higher orders up to n = 2^20.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpuedge
from gpuedge.backends.device import OpenDevice
from gpuedge.device import Device
from gpuedge.executors.gpu import GpuExecutor

U = 2.0**-24
RNG = np.random.default_rng(5)
ROWS = 4
EXTENTS = (1, 2, 7, 64, 1000)


@pytest.fixture
def device(vulkan_device: OpenDevice) -> Iterator[Device]:
    executor = GpuExecutor(vulkan_device, "vulkan:0")
    yield Device(executor, "test")
    executor.closed = True


def computed(device: Device, op: str, x: Any, *weights: Any, **attrs: Any) -> Any:
    """Return what a device makes of a node, in float64."""
    names = [f"w{i}" for i in range(len(weights))]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **attrs)],
        "node",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    policy = gpuedge.Policy(crosscheck=0)
    with gpuedge.Session(model, device=device, policy=policy, fallback="error") as session:
        return session.run({"x": x})["y"].astype(np.float64)


def rows(kind: str, n: int) -> Any:
    """Return rows whose mean is far larger than their deviation, or that one value rules."""
    x = RNG.normal(0, 1, (ROWS, n))
    made = {
        "million": 1e6 + x,
        "tens": 10 + 1e-4 * x,
        "neighbours": 16777215.0 - (np.arange(n) % 2) + 0 * x,
        "constant": 0.1 + 0 * x,
        "outlier": np.where(np.arange(n) == 0, 1e6, x),
    }
    return made[kind].astype(np.float32)


@pytest.mark.parametrize("kind", ["million", "tens", "neighbours", "constant", "outlier"])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_layer_normalisation(device: Device, kind: str, epsilon: float) -> None:
    for n in EXTENTS:
        x = rows(kind, n)
        scale = RNG.uniform(0.5, 2, n).astype(np.float32)
        shift = RNG.normal(0, 1, n).astype(np.float32)
        got = computed(device, "LayerNormalization", x, scale, shift, epsilon=epsilon)
        v = x.astype(np.float64)
        centred = v - v.mean(1, keepdims=True)
        s = np.sqrt((centred**2).mean(1, keepdims=True) + float(np.float32(epsilon)))
        z, size = centred / s, np.abs(v).mean(1, keepdims=True)
        exact = z * scale + shift
        lost = 1 + (n + 4) * U * size / s
        bound = (2 * n + 40) * U * (1 + np.abs(z)) * lost * scale + U * np.abs(exact)
        assert (np.abs(got - exact) <= bound).all(), (n, np.max(np.abs(got - exact) / bound))


def terms(kind: str, n: int) -> Any:
    """Return rows whose sums cancel, all at once or step by step."""
    x = RNG.uniform(1e6, 2e6, (ROWS, n))
    back = np.where(np.arange(n) < n // 2, x, -np.roll(x, n // 2, 1))
    made = {"halves": back, "signs": x * (1 - 2 * (np.arange(n) % 2)), "tenths": 0.1 + 0 * x}
    return made[kind].astype(np.float32)


@pytest.mark.parametrize("kind", ["halves", "signs", "tenths"])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_sums(device: Device, kind: str, reverse: int, exclusive: int) -> None:
    for n in (1, 2, 3, 1000, 20_000):
        x = terms(kind, n)
        axis = np.array([1], np.int64)
        got = computed(device, "CumSum", x, axis, reverse=reverse, exclusive=exclusive)

        def running(a: Any) -> Any:
            a = a[:, ::-1] if reverse else a
            total = np.cumsum(a.astype(np.longdouble), 1) - (a if exclusive else 0)
            return total[:, ::-1] if reverse else total

        bound = math.ceil(math.log2(n)) * U * running(np.abs(x))
        assert (np.abs(got - running(x)) <= bound).all(), n
