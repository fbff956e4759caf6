"""Long reductions, devices of the least allowed ability, and devices that need staging."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import op_cases as cases
import pytest
from proving import proved
from validation import validated

import gpuedge
from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.device import OpenDevice
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.device import Device

pytestmark = pytest.mark.driver


@pytest.fixture(scope="module")
def gpu(vulkan_device: OpenDevice) -> Iterator[Device]:
    with proved(vulkan_device) as device:
        yield device


@pytest.fixture(scope="module")
def smallest(vulkan_info: DeviceInfo) -> Iterator[Device]:
    """A device clamped to the limits every Vulkan device must meet."""
    impl = validated(vulkan_info)
    with proved(impl, limits=VULKAN_MINIMUM) as device:
        assert device.caps is not None
        assert device.caps.max_storage_buffers == 4
        assert device.caps.offset_alignment == 256
        yield device
    impl.close()


@pytest.fixture(scope="module")
def staged(vulkan_info: DeviceInfo) -> Iterator[Device]:
    """A device whose memory the host does not see."""
    impl = validated(vulkan_info, staging=True)
    with proved(impl) as device:
        yield device
    impl.close()


@pytest.mark.parametrize("name", cases.LONG_NAMES)
def test_long_reduction(gpu: Device, name: str) -> None:
    # lavapipe would end the loops of an invocation after 65,535 turns and say nothing.
    cases.check(cases.long(name), gpu)


def test_more_matrices_than_workgroups_along_an_axis(gpu: Device) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-9, 10, (65_536, *s)).astype("f4") for s in ((1, 3), (3, 2)))
    np.testing.assert_array_equal(gpuedge.matmul(a, b, device=gpu), a @ b)


SUBSET: dict[str, tuple[cases.Family, int]] = {
    "conv2d": (cases.conv2d(whole=True), 12),
    "conv_transpose2d": (cases.conv_transpose2d(whole=True), 5),
    "matmul": (cases.matmul(whole=True), 12),
    "gemm": (cases.gemm(whole=True), 6),
    "max_pool2d": (cases.pooling("max"), 5),
    "avg_pool2d": (cases.pooling("avg"), 5),
    "softmax": (cases.softmax(), 5),
    "concat": (cases.concat(), 6),
    "movement": (cases.movement(), 6),
    "binary": (cases.binary(), 10),
    "expression": (cases.expression(), 25),
}


@pytest.mark.parametrize("name", SUBSET)
def test_minimum_limits(smallest: Device, name: str) -> None:
    family, count = SUBSET[name]
    cases.run_cases(family, count, smallest)


@pytest.mark.parametrize("name", ["softmax", "product"])
def test_long_reduction_on_minimum_limits(smallest: Device, name: str) -> None:
    cases.check(cases.long(name), smallest)


@pytest.mark.parametrize("name", ["conv2d", "gemm", "softmax", "expression"])
def test_staging(staged: Device, name: str) -> None:
    family, count = SUBSET[name]
    cases.run_cases(family, count, staged)


@pytest.mark.parametrize("name", cases.SPECIAL)
def test_staging_of_special_functions(staged: Device, name: str) -> None:
    cases.check(cases.SPECIAL[name], staged)
