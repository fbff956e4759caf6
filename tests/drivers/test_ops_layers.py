"""A sample of the conformance cases under Vulkan's validation layer, with its checks of barriers.

`test_conformance` runs all of them, without the layer: drivers forgive what the layer reports.
"""

from __future__ import annotations

from collections.abc import Iterator

import daily
import numpy as np
import op_cases as cases
import pytest
from proving import proved

import gpuedge
from gpuedge.backends.device import OpenDevice
from gpuedge.conformance.case import Case
from gpuedge.conformance.catalogue import listed
from gpuedge.device import Device
from gpuedge.ops import call as ops_call
from gpuedge.plan.library import variants

pytestmark = pytest.mark.driver

EXACT = [s for s in listed() if s.storage == "float32" and not s.variant]
DAYS = 8
"""So many days it takes until every case ran under the layer."""

SAMPLE = EXACT[daily.turn(DAYS) :: DAYS]
SECOND = EXACT[2::4]
RULED_OUT = tuple(
    v.id
    for v in variants()
    if v.op in ("conv2d", "matmul") and v.form == "group" and v.id != "matmul_tile"
)


def of(op: str) -> list[Case]:
    return [s for s in SECOND if s.op == op]


@pytest.fixture(scope="module")
def gpu(vulkan_device: OpenDevice) -> Iterator[Device]:
    with proved(vulkan_device) as device:
        yield device


@pytest.mark.parametrize("op", sorted({s.op for s in EXACT}))
def test_sample(gpu: Device, op: str) -> None:
    for spec in SAMPLE:
        if spec.op == op:
            cases.check(spec, gpu)


def test_the_sample_is_of_everything() -> None:
    assert len(SAMPLE) >= len(EXACT) // DAYS >= 50
    assert {s.op for s in EXACT} >= set(gpuedge.ops.__all__)


def test_transformed_tiles(gpu: Device) -> None:
    cases.run_cases(cases.tiles(), 6, gpu)


@pytest.fixture(scope="module")
def second_best(vulkan_device: OpenDevice) -> Iterator[Device]:
    """A device with kernels in groups for matrix products only, and not the best one."""
    with proved(vulkan_device, RULED_OUT) as device:
        yield device


@pytest.mark.parametrize("op", ["conv2d", "matmul", "gemm"])
def test_second_best_variants(second_best: Device, op: str) -> None:
    for spec in of(op):
        cases.check(spec, second_best)


def test_shared_memory_over_a_long_axis(second_best: Device) -> None:
    cases.check(cases.long("product-rows"), second_best)
    variants = {
        row.kernel
        for _, compiled in ops_call.models.items()
        if compiled.executor is second_best.executor
        for row in compiled.rows
    }
    assert any("matmul_tile" in v for v in variants)
    assert not any(out in v for v in variants for out in RULED_OUT)


def test_batches_of_nothing(gpu: Device) -> None:
    x, w = np.ones((0, 3, 5, 5), np.float32), np.ones((4, 3, 3, 3), np.float32)
    assert gpuedge.conv2d(x, w, device=gpu).shape == (0, 4, 3, 3)
    assert gpuedge.max_pool2d(x, 2, device=gpu).shape == (0, 3, 2, 2)
    assert gpuedge.matmul(x, np.ones((5, 4), np.float32), device=gpu).shape == (0, 3, 5, 4)
    assert gpuedge.add(x, np.ones(5, np.float32), device=gpu).shape == (0, 3, 5, 5)
