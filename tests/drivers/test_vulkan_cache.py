"""The pipeline cache on disk: reused when it is right, ignored when it is anything else.

Drivers of the test machines keep nothing but a header in it, so here they seem to gain that header
with the first pipeline.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from vulkan_kernels import SCALE, add_on

from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.vulkan import VulkanBackend, pipecache
from gpuedge.backends.vulkan.device import VulkanDevice
from gpuedge.backends.vulkan.physical import Physical
from gpuedge.backends.vulkan.pipecache import PipelineCache

pytestmark = pytest.mark.driver
ONES = np.ones(64, np.float32)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cache without initial data be empty until a pipeline is made."""
    real = PipelineCache._size

    def size(self: PipelineCache) -> int:
        return real(self) if self._unsaved or self.is_hit else 0

    monkeypatch.setattr(PipelineCache, "_size", size)


def use(info: DeviceInfo, **options: object) -> bool:
    """Open, compute, close; return whether the cache was used."""
    device = VulkanBackend().open(info, validation=True, **options)
    assert isinstance(device, VulkanDevice)
    np.testing.assert_array_equal(add_on(device, ONES, ONES), 2 * ONES)
    hit = device.cache.is_hit
    device.close()
    return hit


def fill(info: DeviceInfo) -> None:
    """Make a cache, and prove it as a disposable process would."""
    assert not use(info)
    assert use(info, first_use=True)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.bin"))


def physical_of(info: DeviceInfo) -> Physical:
    device = VulkanBackend().open(info, disk_cache=False)
    assert isinstance(device, VulkanDevice)
    device.close()
    return device.physical


def test_second_open_starts_from_the_first_ones_data(vulkan_info: DeviceInfo, folder: Path) -> None:
    assert not use(vulkan_info)
    (file,) = files(folder)
    assert file.parent.name == "pipelines"
    data = pipecache.unpack(physical_of(vulkan_info), file.read_bytes())
    assert data is not None
    # VkPipelineCacheHeaderVersionOne: its length, version, vendor, device.
    header = np.frombuffer(data[:16], np.uint32)
    who = vulkan_info.identity
    assert header.tolist() == [32, 1, who.vendorID, who.deviceID]
    for first_use in (True, False, False, True):
        before = file.stat().st_mtime_ns
        assert use(vulkan_info, first_use=first_use)
        assert file.stat().st_mtime_ns == before, "a cache that did not grow is not written"


def test_every_damage_is_a_miss(vulkan_info: DeviceInfo, folder: Path) -> None:
    fill(vulkan_info)
    (file,) = files(folder)
    good = file.read_bytes()
    header = pipecache._HEADER.size
    damaged = [b"", good[:7], good[:header], good[:-1], good + b"\0", bytes(len(good))]
    for place in range(len(good)):
        damaged.append(good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :])
    physical = physical_of(vulkan_info)
    assert pipecache.unpack(physical, good) == good[header:]
    for bad in damaged:
        assert pipecache.unpack(physical, bad) is None
    for bad in damaged[:8]:
        file.write_bytes(bad)
        assert not use(vulkan_info)
        assert file.read_bytes() == good, "a damaged file is replaced"


@pytest.mark.timeout(120)
def test_pipe_in_its_place_is_a_miss_and_not_awaited(vulkan_info: DeviceInfo, folder: Path) -> None:
    fill(vulkan_info)
    (file,) = files(folder)
    file.unlink()
    os.mkfifo(file)
    assert not use(vulkan_info)
    assert file.is_fifo(), "what is no file is never replaced"
    assert not use(vulkan_info)


def test_file_above_the_limit_is_a_miss(
    vulkan_info: DeviceInfo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(vulkan_info)
    (file,) = files(folder)
    limit = file.stat().st_size - pipecache._HEADER.size
    monkeypatch.setattr(pipecache, "MAX_BYTES", limit)
    assert use(vulkan_info)
    monkeypatch.setattr(pipecache, "MAX_BYTES", limit - 1)
    assert not use(vulkan_info)


def test_another_drivers_file_is_a_miss(
    vulkan_info: DeviceInfo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(vulkan_info)
    (file,) = files(folder)
    real = pipecache._identity

    def updated(physical: Physical) -> tuple[int, int, int, bytes]:
        vendor, device, version, uuid = real(physical)
        return vendor, device, version + 1, uuid

    monkeypatch.setattr(pipecache, "_identity", updated)
    assert not use(vulkan_info)
    assert len(files(folder)) == 2, "each driver version has its own file"
    monkeypatch.setattr(pipecache, "file_for", lambda _: file)
    assert not use(vulkan_info)


def test_driver_that_refuses_its_data_starts_empty(
    vulkan_info: DeviceInfo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(vulkan_info)
    real = PipelineCache._create
    given: list[int] = []

    def picky(self: PipelineCache, data: bytes) -> object:
        given.append(len(data))
        return None if data else real(self, data)

    monkeypatch.setattr(PipelineCache, "_create", picky)
    assert not use(vulkan_info)
    assert given == [32, 0]
    monkeypatch.setattr(PipelineCache, "_create", lambda *_: None)
    assert not use(vulkan_info)


def test_folder_that_cannot_be_written_is_no_error(vulkan_info: DeviceInfo, folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    assert not use(vulkan_info)


def test_cache_can_be_switched_off(vulkan_info: DeviceInfo, folder: Path) -> None:
    fill(vulkan_info)
    before = files(folder)[0].stat().st_mtime_ns
    assert not use(vulkan_info, disk_cache=False)
    assert files(folder)[0].stat().st_mtime_ns == before


def test_cache_is_saved_before_close_after_many_pipelines(
    vulkan_info: DeviceInfo, folder: Path
) -> None:
    device = VulkanBackend().open(vulkan_info, validation=True)
    for width in range(1, pipecache.SAVE_EVERY):
        device.build(SCALE, {"LX": width})
    assert files(folder) == []
    device.build(SCALE, {"LX": pipecache.SAVE_EVERY})
    assert len(files(folder)) == 1
    device.close()
