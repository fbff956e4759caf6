"""What operations make of dtypes, Python numbers and the layout of their operands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from proving import proved

import gpuedge
from gpuedge.backends.device import OpenDevice
from gpuedge.device import Device

pytestmark = pytest.mark.driver


@pytest.fixture(scope="module")
def gpu(vulkan_device: OpenDevice) -> Iterator[Device]:
    with proved(vulkan_device) as device:
        yield device


def test_float16_is_computed_in_float32_and_rounded_once(gpu: Device) -> None:
    a = np.float16([2048, 1, 60000, 0.1])
    b = np.float16([1, 2**-11, 60000, 0.2])
    got = gpuedge.elementwise("(a + b) * 0.25")(a, b, device=gpu)
    assert got.dtype == np.float16
    exact = (a.astype(np.float64) + b.astype(np.float64)) * 0.25
    np.testing.assert_array_equal(got, exact.astype(np.float16))


def test_mixed_precision_gives_the_wider(gpu: Device) -> None:
    got = gpuedge.add(np.float16([1, 2]), np.float32([2**-20, 3]), device=gpu)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.float32([1 + 2**-20, 5]))


def test_scalars_and_lists(gpu: Device) -> None:
    assert gpuedge.add(1.5, 2, device=gpu) == np.float32(3.5)
    np.testing.assert_array_equal(gpuedge.mul([1, 2, 3], 2, device=gpu), np.float32([2, 4, 6]))


def test_operands_are_not_changed(gpu: Device) -> None:
    x = np.linspace(-5, 5, 1003, dtype=np.float32)
    before = x.copy()
    got = gpuedge.relu(x[::-3], device=gpu)
    np.testing.assert_array_equal(got, np.maximum(before[::-3], 0))
    np.testing.assert_array_equal(x, before)


def test_power_of_zero_and_to_zero(gpu: Device) -> None:
    got = gpuedge.pow(np.float32([0, 0, 3, -2, 1]), np.float32([2, 0, 0, 0, 7]), device=gpu)
    np.testing.assert_array_equal(got[[0, 1, 2, 3]], np.float32([0, 1, 1, 1]))


def test_operands_in_any_layout(gpu: Device) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(-4, 5, (2, 3, 6, 5)).astype(np.float32)
    w = rng.integers(-4, 5, (4, 3, 3, 3)).astype(np.float32)
    wanted = gpuedge.conv2d(x, w, device=gpu)
    turned = np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    frozen = x.copy()
    frozen.flags.writeable = False
    for guise in (turned, x.astype(">f4"), np.asfortranarray(x), frozen):
        np.testing.assert_array_equal(gpuedge.conv2d(guise, w, device=gpu), wanted)
        np.testing.assert_array_equal(
            gpuedge.matmul(guise, np.float32([[2]] * 5), device=gpu), 2 * x.sum(-1, keepdims=True)
        )
