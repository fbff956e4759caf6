"""The pipeline cache on disk: reused when it is right, ignored when it is anything else.

Drivers of the test machines keep nothing but a header in it, so here they seem to gain that header
with the first pipeline. A driver that dies of its own cache is staged: the process ends at the
chosen point of the backend's way through the real driver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from validation import validated
from vulkan_kernels import SCALE, add_on

from gpuedge.backends import load
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.backends.vulkan import pipeline_cache
from gpuedge.backends.vulkan.physical import Physical
from gpuedge.backends.vulkan.pipeline_cache import PipelineCache
from gpuedge.core.errors import DeviceLostError
from gpuedge.probing import run

pytestmark = pytest.mark.driver
ONES = np.ones(64, np.float32)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


GIVEN: WeakSet[PipelineCache] = WeakSet()
"""Caches whose driver took data from disk."""


def staged() -> dict[str, Callable[..., Any]]:
    """Return methods that note what the driver takes, and let a cache be empty until it grows."""
    real_create, real_size = PipelineCache._create, PipelineCache._size

    def create(self: PipelineCache, data: bytes) -> Any:
        made = real_create(self, data)
        if data and made is not None:
            GIVEN.add(self)
        return made

    def size(self: PipelineCache) -> int:
        return real_size(self) if self._unsaved or self in GIVEN else 0

    return {"_create": create, "_size": size}


@pytest.fixture(autouse=True)
def _staged(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, method in staged().items():
        monkeypatch.setattr(PipelineCache, name, method)


@pytest.fixture(scope="session")
def lavapipe_info(lavapipe: Candidate) -> DeviceInfo:
    """One driver, for what takes processes."""
    return load("vulkan").enumerate(lavapipe)[0]


def use(info: DeviceInfo) -> bool:
    """Open, compute, close; return whether the cache was used."""
    device = validated(info)
    np.testing.assert_array_equal(add_on(device, ONES, ONES), 2 * ONES)
    is_given = device.programs.cache in GIVEN
    device.close()
    return is_given


def files(folder: Path) -> list[str]:
    """Suffixes of the files in the folder."""
    return sorted(p.suffix for p in folder.rglob("pipelines/*"))


def the_file(folder: Path, suffix: str) -> Path:
    (file,) = folder.rglob(f"pipelines/*{suffix}")
    return file


def fill(info: DeviceInfo, folder: Path) -> Path:
    """Make a cache and use it once; return its file."""
    assert not use(info)
    assert use(info)
    assert files(folder) == [".bin"]
    return the_file(folder, ".bin")


def physical_of(info: DeviceInfo) -> Physical:
    device = validated(info)
    device.close()
    physical: Physical = device.memory._physical
    return physical


def test_second_open_starts_from_the_first_ones_data(vulkan_info: DeviceInfo, folder: Path) -> None:
    assert not use(vulkan_info)
    file = the_file(folder, ".new")
    data = pipeline_cache.unpack(physical_of(vulkan_info), file.read_bytes())
    assert data is not None
    # VkPipelineCacheHeaderVersionOne: its length, version, vendor, device.
    header = np.frombuffer(data[:16], np.uint32)
    who = vulkan_info.identity
    assert header.tolist() == [32, 1, who.vendorID, who.deviceID]
    assert use(vulkan_info)
    (file,) = folder.rglob("pipelines/*.bin")
    before = file.stat().st_mtime_ns
    for _ in range(3):
        assert use(vulkan_info)
        assert files(folder) == [".bin"]
        assert file.stat().st_mtime_ns == before, "a cache that did not grow is not written"


def test_every_damage_is_a_miss(vulkan_info: DeviceInfo, folder: Path) -> None:
    file = fill(vulkan_info, folder)
    good = file.read_bytes()
    header = pipeline_cache.HEADER_BYTES
    damaged = [b"", good[:7], good[:header], good[:-1], good + b"\0", bytes(len(good))]
    for place in range(len(good)):
        damaged.append(good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :])
    physical = physical_of(vulkan_info)
    assert pipeline_cache.unpack(physical, good) == good[header:]
    for bad in damaged:
        assert pipeline_cache.unpack(physical, bad) is None
    file.write_bytes(damaged[3])
    assert not use(vulkan_info)
    assert use(vulkan_info)
    assert file.read_bytes() == good, "a damaged file is replaced"


@pytest.mark.timeout(120)
def test_pipe_in_its_place_is_a_miss_and_not_awaited(vulkan_info: DeviceInfo, folder: Path) -> None:
    assert not use(vulkan_info)
    file = the_file(folder, ".new")
    file.unlink()
    os.mkfifo(file)
    assert not use(vulkan_info)
    assert file.is_fifo(), "what is no file is never replaced"
    assert not use(vulkan_info)


def test_file_above_the_limit_is_a_miss(
    vulkan_info: DeviceInfo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fill(vulkan_info, folder)
    limit = file.stat().st_size - pipeline_cache.HEADER_BYTES
    monkeypatch.setattr(pipeline_cache, "MAX_BYTES", limit)
    assert use(vulkan_info)
    monkeypatch.setattr(pipeline_cache, "MAX_BYTES", limit - 1)
    assert not use(vulkan_info)


def test_another_drivers_file_is_a_miss(
    vulkan_info: DeviceInfo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fill(vulkan_info, folder)
    real = pipeline_cache._identity

    monkeypatch.setattr(pipeline_cache, "_identity", lambda physical: real(physical) + b"!")
    assert not use(vulkan_info)
    assert files(folder) == [".bin", ".new"], "each driver version has its own file"
    monkeypatch.setattr(pipeline_cache, "file_for", lambda _: file)
    assert not use(vulkan_info)


def test_driver_that_refuses_its_data_starts_empty(
    vulkan_info: DeviceInfo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not use(vulkan_info)
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
    file = fill(vulkan_info, folder)
    before = file.stat().st_mtime_ns
    assert not use(vulkan_info.replace(disabled=frozenset({"pipeline-cache"})))
    assert file.stat().st_mtime_ns == before


def test_cache_is_saved_before_close_after_many_pipelines(
    vulkan_info: DeviceInfo, folder: Path
) -> None:
    device = validated(vulkan_info)
    for width in range(1, pipeline_cache.SAVE_EVERY):
        device.build(SCALE, {"LX": width})
    assert files(folder) == []
    device.build(SCALE, {"LX": pipeline_cache.SAVE_EVERY})
    assert files(folder) == [".new"]
    device.close()


# --- the first use ------------------------------------------------------------------------------

CHILD = """
import json, os, sys
sys.path[:0] = [sys.argv[3], os.path.dirname(sys.argv[3])]
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.core.identity import Identity
import pathlib
import test_vulkan_cache as cache
import validation
from gpuedge.backends.vulkan.pipeline_cache import PipelineCache
from gpuedge.backends.vulkan.program import Programs
from gpuedge.backends.vulkan.queue import Queue

validation.log_in(pathlib.Path(os.environ["GPUEDGE_CACHE_DIR"]).parent)
request, point = json.loads(sys.argv[1]), sys.argv[2]
end, _, at = point.partition("@")
def die():
    os.kill(os.getpid(), 9) if end == "kill" else os._exit(0) if end == "exit" else os.abort()
def dying(real):  # the driver did its part, and then it is over
    return lambda *given: (real(*given), die())
for name, method in cache.staged().items():
    setattr(PipelineCache, name, method)
if at == "create":
    create = PipelineCache._create
    PipelineCache._create = lambda self, data: die() if data else create(self, data)
elif at == "build":
    Programs.build = dying(Programs.build)
elif at == "run":
    Queue.submit = dying(Queue.submit)
elif at == "settled":
    PipelineCache.settle = dying(PipelineCache.settle)
info = DeviceInfo(Candidate(**request["candidate"]), request["index"],
                  Identity.from_dict(request["identity"]), True)
assert cache.use(info), "it was not tried"
"""


def child(info: DeviceInfo, point: str) -> int:
    """Use the cache in a process that ends at a point; return its exit status."""
    request = {
        "candidate": {**info.candidate.as_dict(), "env": dict(info.candidate.env)},
        "index": info.index,
        "identity": info.identity.to_dict(),
    }
    command = [sys.executable, "-c", CHILD, json.dumps(request), point, str(Path(__file__).parent)]
    environ = {**os.environ, "PYTHONFAULTHANDLER": ""}
    done = subprocess.run(
        command, check=False, env=environ, capture_output=True, text=True, timeout=280
    )
    assert done.returncode != 1, done.stderr
    return done.returncode


def age(file: Path, seconds: float) -> None:
    """Make a file look that old."""
    when = time.time() - seconds
    os.utime(file, (when, when))


POINTS = [
    "abort@run",
    *(
        pytest.param(p, marks=pytest.mark.long)
        for p in ("abort@create", "exit@create", "abort@build")
    ),
]


@pytest.mark.parametrize("point", POINTS)
def test_data_that_end_a_process_are_dropped(
    lavapipe_info: DeviceInfo, folder: Path, point: str
) -> None:
    assert not use(lavapipe_info)
    data = the_file(folder, ".new").read_bytes()
    assert child(lavapipe_info, point) == (0 if "exit" in point else -signal.SIGABRT)
    assert files(folder) == [".trial"]
    assert not use(lavapipe_info), "the next start does without it"
    assert files(folder) == [".trial"], (
        "the driver makes the same bytes again, and they are kept out"
    )
    bad = the_file(folder, ".trial")
    assert bad.read_bytes() == data
    age(bad, pipeline_cache.BARRED_S - 60)
    assert not use(lavapipe_info)
    assert files(folder) == [".trial"]
    age(bad, pipeline_cache.BARRED_S + 60)
    assert not use(lavapipe_info)
    assert files(folder) == [".new", ".trial"], "after a month the driver may try again"


def test_data_that_were_good_stay_when_later_ones_are_not(
    lavapipe_info: DeviceInfo, folder: Path
) -> None:
    good = fill(lavapipe_info, folder)
    good.with_suffix(".new").write_bytes(good.read_bytes())
    assert child(lavapipe_info, "abort@create") == -signal.SIGABRT
    assert files(folder) == [".bin", ".trial"]
    assert use(lavapipe_info)
    assert files(folder) == [".bin", ".trial"]


def test_process_that_is_killed_after_the_first_run_says_nothing_of_the_data(
    lavapipe_info: DeviceInfo, folder: Path
) -> None:
    assert not use(lavapipe_info)
    assert child(lavapipe_info, "kill@settled") == -signal.SIGKILL
    assert files(folder) == [".bin"]
    assert use(lavapipe_info)


def test_trial_without_work_ends_as_it_began(vulkan_info: DeviceInfo, folder: Path) -> None:
    assert not use(vulkan_info)
    device = validated(vulkan_info)
    assert files(folder) == [".trial"]
    assert not use(vulkan_info), "another device meanwhile does without"
    device.close()
    assert files(folder) == [".new"]


def test_lost_device_says_nothing_good_of_its_data(vulkan_info: DeviceInfo, folder: Path) -> None:
    assert not use(vulkan_info)
    device = validated(vulkan_info)
    assert device.programs.cache.is_trial
    device.queue.lost = DeviceLostError("It is gone.")
    device.close()
    assert files(folder) == [".trial"]


PROBE_CHILD = """
import os, sys
sys.path[:0] = [{folder!r}, os.path.dirname({folder!r})]
import test_vulkan_cache as cache
from gpuedge.backends.vulkan.pipeline_cache import PipelineCache
from gpuedge.probing import child
for name, method in cache.staged().items():
    setattr(PipelineCache, name, method)
create = PipelineCache._create
PipelineCache._create = lambda self, data: os.abort() if data and {dies} else create(self, data)
sys.exit(child.main())
"""


@pytest.mark.parametrize("dies", [False, True])
def test_probe_is_a_first_use_and_a_bad_cache_is_not_a_bad_driver(
    lavapipe_info: DeviceInfo, folder: Path, tmp_path: Path, dies: bool
) -> None:
    assert not use(lavapipe_info)
    program = tmp_path / "child.py"
    program.write_text(PROBE_CHILD.format(dies=dies, folder=str(Path(__file__).parent)))
    command = (sys.executable, str(program))
    (rows,) = run.probe_all([lavapipe_info.candidate], 60.0, command)
    assert [r.status for r in rows] == ["ok"]
    assert files(folder) == ([".trial"] if dies else [".bin"])
    assert use(lavapipe_info) is not dies
