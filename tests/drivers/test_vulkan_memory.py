"""Memory on Vulkan: blocks of the right size, used again; copies; flushes where they are due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from validation import validated
from vulkan_kernels import add_on

from gpuedge.backends.base import DeviceInfo, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.vulkan import constants, memory, physical
from gpuedge.backends.vulkan.memory import VulkanBuffer
from gpuedge.backends.vulkan.physical import MemoryType, Physical, describe

pytestmark = pytest.mark.driver


def reserved(device: OpenDevice) -> int:
    """Bytes of device memory allocated from the driver."""
    return sum(block.free.size for block in device.memory.blocks)


def test_big_buffers_get_blocks_of_their_size_and_reuse_them(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "BLOCK_BYTES", 1 << 20)
    device = validated(vulkan_info)
    size = 3 << 20
    big = device.alloc(size, Usage.OUTPUT)
    assert size <= reserved(device) < size + (1 << 16)
    content = np.arange(size // 4, dtype=np.float32)
    device.write(big, memoryview(content))
    into = np.zeros_like(content)
    device.read(big, memoryview(into))
    np.testing.assert_array_equal(into, content)
    device.free(big)
    parts = [device.alloc(1 << 20, Usage.OUTPUT) for _ in range(3)]
    assert len(device.memory.blocks) == 1
    for part in parts:
        device.free(part)
    device.memory.trim()
    assert reserved(device) == 0
    device.close()


def test_staged_copies_leave_no_memory_behind(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "COPY_CHUNK", 1 << 20)
    device = validated(vulkan_info, staging=True)
    kept = device.alloc(5 << 19, Usage.CONSTANT)
    content = np.arange(5 << 17, dtype=np.float32)
    device.write(kept, memoryview(content))
    before = reserved(device)
    for _ in range(3):
        device.write(kept, memoryview(content))
    assert reserved(device) == before
    into = np.zeros_like(content)
    device.read(kept, memoryview(into))
    np.testing.assert_array_equal(into, content)
    device.close()


@pytest.mark.parametrize("staging", [False, True])
def test_memory_that_is_not_coherent_is_flushed_and_invalidated(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch, staging: bool
) -> None:
    def incoherent(*args: Any) -> Physical:
        found = describe(*args)
        hidden = tuple(
            MemoryType(t.flags & ~constants.HOST_COHERENT, t.heap) for t in found.memory_types
        )
        return replace(found, memory_types=hidden, non_coherent_atom=256)

    monkeypatch.setattr(physical, "describe", incoherent)
    device = validated(vulkan_info, staging=staging)
    ranges: list[tuple[str, int, int]] = []
    real = device.memory._sync

    def noted(call: str, buffer: VulkanBuffer, offset: int, nbytes: int) -> None:
        ranges.append((call.removeprefix("vk"), offset, nbytes))
        real(call, buffer, offset, nbytes)

    monkeypatch.setattr(device.memory, "_sync", noted)
    buffers = [device.alloc(100, Usage.INPUT) for _ in range(4)]
    places = [cast(VulkanBuffer, b).staging or cast(VulkanBuffer, b) for b in buffers]
    assert all(p.offset % 256 == 0 and p.size % 256 == 0 for p in places)
    ones = np.ones(64, np.float32)
    np.testing.assert_array_equal(add_on(device, ones, ones), 2 * ones)
    # One write each for the input and the constant, one read of the output.
    assert ranges == [
        ("FlushMappedMemoryRanges", 0, 256),
        ("FlushMappedMemoryRanges", 0, 256),
        ("InvalidateMappedMemoryRanges", 0, 256),
    ]
    device.close()
