"""Layers on real drivers under the validation layer: integers bit for bit, others in bounds."""

from __future__ import annotations

from collections.abc import Iterator

import op_cases as cases
import op_layers as layers
import op_long
import pytest
from hypothesis import strategies as st
from proving import proved

from gpuedge.backends.vulkan.device import VulkanDevice
from gpuedge.device import Device
from gpuedge.ops import _run

pytestmark = pytest.mark.driver

LAYERS: dict[str, tuple[st.SearchStrategy[cases.Case], int]] = {
    "conv2d-whole": (layers.conv2d(whole=True), 80),
    "conv2d-random": (layers.conv2d(whole=False), 25),
    "conv_transpose2d-whole": (layers.conv_transpose2d(whole=True), 25),
    "conv_transpose2d-random": (layers.conv_transpose2d(whole=False), 8),
    "matmul-whole": (layers.matmul(whole=True), 40),
    "matmul-random": (layers.matmul(whole=False), 10),
    "gemm-whole": (layers.gemm(whole=True), 20),
    "gemm-random": (layers.gemm(whole=False), 5),
    "max_pool2d": (layers.pooling("max"), 30),
    "avg_pool2d": (layers.pooling("avg"), 30),
    "softmax": (cases.softmax(), 20),
    "concat": (cases.concat(), 20),
    "movement": (cases.movement(), 25),
    "binary": (cases.binary(), 40),
    "expression": (cases.expression(), 35),
}
"""Strategies, and cases of each on each driver."""


RULED_OUT = ("conv2d_px4", "matmul_rows")


@pytest.fixture(scope="module")
def gpu(vulkan_device: VulkanDevice) -> Iterator[Device]:
    with proved(vulkan_device) as device:
        yield device


@pytest.mark.parametrize("name", LAYERS)
def test_layer(gpu: Device, name: str) -> None:
    strategy, count = LAYERS[name]
    cases.run_cases(strategy, count, gpu)


@pytest.fixture(scope="module")
def second_best(vulkan_device: VulkanDevice) -> Iterator[Device]:
    """A device whose best variants are ruled out."""
    with proved(vulkan_device, RULED_OUT) as device:
        yield device


@pytest.mark.parametrize("name", ["conv2d-whole", "matmul-whole", "matmul-random"])
def test_second_best_variants(second_best: Device, name: str) -> None:
    strategy, count = LAYERS[name]
    cases.run_cases(strategy, count // 2, second_best)


def test_shared_memory_over_a_long_axis(second_best: Device) -> None:
    op_long.product_rows().check(second_best)
    variants = {
        row.kernel
        for compiled in _run._compiled.values()
        if compiled.executor is second_best.executor
        for row in compiled.rows
    }
    assert any("matmul_tile" in v for v in variants)
    assert not any(out in v for v in variants for out in RULED_OUT)


def test_there_are_enough_cases() -> None:
    # On lavapipe and SwiftShader together; each test above asserts that its number was reached.
    assert 2 * sum(count for _, count in LAYERS.values()) >= 500
