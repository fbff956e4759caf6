"""The positive control of the operation suite: wrong kernels and dead drivers are noticed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import daily
import numpy as np
import op_cases as cases
import pytest
from mutants import MUTANTS, mutated
from proving import ProvedExecutor, UnprovenError, proved

import gpuedge
from gpuedge.backends.device import OpenDevice
from gpuedge.device import Device
from gpuedge.executors import kernels
from gpuedge.plan.library import texts

pytestmark = [pytest.mark.driver, daily.day(2, of=4)]

CAUGHT_BY: dict[str, cases.Family] = {
    "conv2d: padding off by one": cases.conv2d(whole=True),
    "conv2d_tile: last columns": cases.conv2d(whole=True),
    "winograd_input: a pad": cases.tiles(),
    "winograd_output: last row": cases.tiles(),
    "matmul_block: a column of B": cases.matmul(whole=True),
    "pool: trailing padding counts": cases.pooling("avg"),
    "pack: last lane": cases.conv2d(whole=True),
}


@pytest.fixture
def gpu(vulkan_device: OpenDevice) -> Iterator[Device]:
    with proved(vulkan_device) as device:
        yield device


def executor_of(device: Device) -> ProvedExecutor:
    executor = device.executor
    assert isinstance(executor, ProvedExecutor)
    return executor


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_wrong_kernel_is_caught(gpu: Device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = mutated(texts(), name)
    kernel = MUTANTS[name][0]
    executor_of(gpu).prover.changed = {kernel: wrong[kernel]}
    monkeypatch.setattr(kernels, "texts", lambda: wrong)
    with pytest.raises(AssertionError, match="wrong, first") as caught:
        cases.run_cases(CAUGHT_BY[name], 60, gpu)
    assert not isinstance(caught.value, UnprovenError)


def test_dead_driver_is_named(gpu: Device) -> None:
    process = executor_of(gpu).prover.process
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSEGV)
    process.join(10)
    with pytest.raises(UnprovenError, match=r"died \(exit code -11\) with kernel elementwise"):
        gpuedge.abs(np.ones(3, np.float32), device=gpu)


def test_only_proven_kernels_are_built(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # The child proves the library's kernel, so another text under the same name is refused.
    wrong = mutated(texts(), "pool: maximum starts at zero")
    monkeypatch.setattr(kernels, "texts", lambda: wrong)
    with pytest.raises(UnprovenError, match="did not build kernel pool"):
        gpuedge.max_pool2d(np.ones((1, 1, 4, 4), np.float32), 2, device=gpu)
