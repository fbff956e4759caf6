"""Every function of one element on real drivers, within the bound of its derivation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import op_units
import oracle
import pytest
from proving import proved

import gpuedge
from gpuedge.backends.vulkan.device import VulkanDevice
from gpuedge.device import Device

pytestmark = pytest.mark.driver


@pytest.fixture(scope="module")
def gpu(vulkan_device: VulkanDevice) -> Iterator[Device]:
    with proved(vulkan_device) as device:
        yield device


@pytest.mark.parametrize("name", op_units.DOMAINS)
def test_unary(gpu: Device, name: str) -> None:
    for case in op_units.unary(name):
        case.check(gpu)


@pytest.mark.parametrize("name", op_units.SPECIAL)
def test_special(gpu: Device, name: str) -> None:
    op_units.SPECIAL[name].check(gpu)


def test_every_operation_is_covered() -> None:
    assert op_units.uncovered() == set()


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
    x = op_units.spread(-5, 5)
    before = x.copy()
    oracle.check(gpuedge.relu(x[::-3], device=gpu), oracle.elementwise("relu", x[::-3]))
    np.testing.assert_array_equal(x, before)


def test_power_of_zero_and_to_zero(gpu: Device) -> None:
    got = gpuedge.pow(np.float32([0, 0, 3, -2, 1]), np.float32([2, 0, 0, 0, 7]), device=gpu)
    np.testing.assert_array_equal(got[[0, 1, 2, 3]], np.float32([0, 1, 1, 1]))
