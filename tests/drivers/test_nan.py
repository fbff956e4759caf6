"""NaN, infinity and zero where results depend on them: what the test drivers make of our kernels.

Vulkan promises nothing here; these tests hold the kernels to it on drivers that compare correctly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuedge
import gpuedge.ops.expression
from gpuedge.backends.device import OpenDevice
from gpuedge.device import Device
from gpuedge.executors.gpu import GpuExecutor

NAN, INF = np.nan, np.inf
X = np.array([NAN, INF, -INF, 0.0, 1.5, -2.0, 3.0, NAN], np.float32)


@pytest.fixture
def device(vulkan_device: OpenDevice) -> Iterator[Device]:
    executor = GpuExecutor(vulkan_device, "vulkan:0")
    yield Device(executor, "test")
    executor.closed = True


UNARY = tuple(
    name
    for name in gpuedge.ops.__all__
    if name in gpuedge.ops.expression.NAMES or name in ("neg", "reciprocal")
    if name not in ("clip", "maximum", "minimum", "pow", "prelu", "where")
    if name not in ("equal", "greater", "greater_equal", "less", "less_equal")
)


@pytest.mark.parametrize("name", UNARY)
def test_nan_stays_nan_and_numbers_stay_numbers(name: str, device: Device) -> None:
    got = getattr(gpuedge, name)(X, device=device)
    undefined = {"log": X < 0, "sqrt": X < 0, "sin": np.isinf(X), "cos": np.isinf(X)}
    infinite = {"mish", "gelu", "hard_swish", "softsign", "silu", "elu", "celu", "selu"}
    expected = np.isnan(X) | undefined.get(name, np.zeros(8, bool))
    if name == "thresholded_relu":
        expected[:] = False  # by its definition what is not above the threshold becomes 0
    known = ~np.isinf(X) if name in infinite else np.ones(8, bool)
    np.testing.assert_array_equal(np.isnan(got)[known], expected[known])


def test_exact_values_at_the_edges(device: Device) -> None:
    zero_and_inf = np.array([0.0, INF], np.float32)
    np.testing.assert_array_equal(gpuedge.log(zero_and_inf, device=device), [-INF, INF])
    np.testing.assert_array_equal(
        gpuedge.exp(np.array([-INF, INF], np.float32), device=device), [0, INF]
    )
    np.testing.assert_array_equal(gpuedge.sigmoid(np.float32([INF]), device=device), [1])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum"])
def test_either_nan_operand_gives_nan(name: str, device: Device) -> None:
    got = getattr(gpuedge, name)(X[:, None], X[::-1].copy(), device=device)
    operation: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply}.get(name)
    with np.errstate(invalid="ignore"):
        want = (operation or getattr(np, name))(X[:, None], X[::-1])
    np.testing.assert_array_equal(got, want)


def test_pow_follows_c(device: Device) -> None:
    """Annex F.9.4.4 of C99, of which numpy has all, with the signs of zeros."""
    points = [NAN, INF, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 1e30, 2.0**24 + 2]
    signed = np.array([*points, *(-p for p in points)], np.float32)
    base, exponent = map(np.ravel, np.meshgrid(signed, signed, indexing="ij"))
    with np.errstate(all="ignore"):
        want = np.power(base, exponent)
    got = gpuedge.pow(base, exponent, device=device)
    is_normal = (want == 0) | ~(np.abs(want) < 2.0**-126)  # below that it may be zero
    np.testing.assert_allclose(got[is_normal], want[is_normal], rtol=1e-5)
    is_number = is_normal & ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[is_number], np.signbit(want)[is_number])


def test_nan_passes_through_layers(device: Device) -> None:
    x = np.zeros((1, 5, 4, 4), np.float32)
    x[0, 2, 1, 1] = NAN
    pooled = gpuedge.max_pool2d(x, 2, device=device)
    assert np.isnan(pooled[0, 2, 0, 0]) and np.isnan(pooled).sum() == 1
    assert np.isnan(gpuedge.global_max_pool2d(np.tile(x, (1, 1, 9, 9)), device=device)).sum() == 1
    rows = np.isnan(gpuedge.softmax(x, device=device))
    assert rows[0, 2, 1].all() and rows.sum() == 4
    weights = np.ones((3, 5, 3, 3), np.float32)
    out = gpuedge.conv2d(x, weights, padding=1, activation="relu", device=device)
    assert np.isnan(out[0, :, :3, :3]).all() and not np.isnan(out[0, :, 3]).any()
