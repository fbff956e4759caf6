"""Memory on real drivers: buffers never share bytes, freed memory is used again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from validation import validated
from vulkan_kernels import add_on

from gpuedge.backends.base import Buffer, DeviceInfo, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.vulkan import constants, memory, physical
from gpuedge.backends.vulkan.memory import BLOCK_BYTES, VulkanBuffer
from gpuedge.backends.vulkan.physical import MemoryType, Physical, describe

pytestmark = pytest.mark.driver
USAGES = list(Usage)


def reserved(device: OpenDevice) -> int:
    """Bytes of device memory allocated from the driver."""
    return sum(block.free.size for block in device.memory.blocks)


@pytest.mark.parametrize("staging", [False, True])
def test_many_buffers_keep_their_bytes(vulkan_info: DeviceInfo, staging: bool) -> None:
    device = validated(vulkan_info, staging=staging)
    rng = np.random.default_rng(11)
    live: list[tuple[Buffer, bytes]] = []
    for _ in range(250):
        if live and rng.random() < 0.45:
            buffer, content = live.pop(int(rng.integers(len(live))))
            into = bytearray(len(content))
            device.read(buffer, memoryview(into))
            assert into == content
            device.free(buffer)
        else:
            size = int(rng.choice([1, 3, 64, 255, 4096, 100_001]) * rng.integers(1, 5))
            buffer = device.alloc(size, USAGES[int(rng.integers(4))])
            assert buffer.nbytes == size
            content = rng.bytes(size)
            device.write(buffer, memoryview(content))
            live.append((buffer, content))
    for buffer, content in live:
        into = bytearray(len(content))
        device.read(buffer, memoryview(into))
        assert into == content
    device.close()


def test_freed_memory_is_used_again(vulkan_info: DeviceInfo) -> None:
    device = validated(vulkan_info)
    first = device.alloc(1 << 20, Usage.OUTPUT)
    assert isinstance(first, VulkanBuffer)
    place, total = first.offset, reserved(device)
    assert total == BLOCK_BYTES
    for _ in range(200):
        device.free(first)
        first = device.alloc(1 << 20, Usage.OUTPUT)
        assert isinstance(first, VulkanBuffer)
        assert first.offset == place
    assert reserved(device) == total
    assert device.counters.allocations == 201
    device.close()


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


def test_freeing_twice_and_after_close_is_harmless(vulkan_info: DeviceInfo) -> None:
    device = validated(vulkan_info)
    buffer = device.alloc(100, Usage.OUTPUT)
    other = device.alloc(100, Usage.OUTPUT)
    device.free(buffer)
    device.free(buffer)
    ones = np.ones(64, np.float32)
    np.testing.assert_array_equal(add_on(device, ones, ones), 2 * ones)
    device.close()
    device.free(other)


def test_shaped_and_read_only_views_are_copied_whole(vulkan_device: OpenDevice) -> None:
    image = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    image.setflags(write=False)
    for usage in (Usage.INPUT, Usage.CONSTANT, Usage.OUTPUT):
        buffer = vulkan_device.alloc(image.nbytes, usage)
        vulkan_device.write(buffer, memoryview(image))
        into = np.zeros((4, 6), np.float32)
        vulkan_device.read(buffer, memoryview(into))
        np.testing.assert_array_equal(into.ravel(), image.ravel())


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
