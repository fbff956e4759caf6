"""A pipeline cache is used first where a crash costs nothing, and never again after one.

The driver's crash on its own cache is staged: the process ends at the chosen point of the backend's
way through the real driver, the way a fault in the driver would end it there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_vulkan_cache import _growing, files, fill, folder, use
from vulkan_kernels import SCALE

from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.vulkan import VulkanBackend
from gpuedge.backends.vulkan.device import VulkanDevice
from gpuedge.backends.vulkan.pipecache import PipelineCache
from gpuedge.probing import run

pytestmark = pytest.mark.driver
__all__ = ["_growing", "folder"]  # fixtures

CHILD = """
import json, os, sys
sys.path.insert(0, sys.argv[3])
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.core.identity import Identity
import test_vulkan_cache as cache
from gpuedge.backends.vulkan.pipecache import PipelineCache
from gpuedge.backends.vulkan.program import Programs
from gpuedge.backends.vulkan.queue import Queue

request, point = json.loads(sys.argv[1]), sys.argv[2]
end, _, at = point.partition("@")
def die():
    os.kill(os.getpid(), 9) if end == "kill" else os._exit(0) if end == "exit" else os.abort()
def dying(real):  # the driver did its part, and then it is over
    return lambda *given: (real(*given), die())
real_size = PipelineCache._size
PipelineCache._size = lambda s: real_size(s) if s._unsaved or s.is_hit else 0
if at == "create":
    create = PipelineCache._create
    PipelineCache._create = lambda self, data: die() if data else create(self, data)
elif at == "build":
    Programs.build = dying(Programs.build)
elif at == "run":
    Queue.wait = dying(Queue.wait)
elif at == "close":
    PipelineCache.close = lambda self: (self._trial.step("close"), die())
elif at == "settled":
    PipelineCache.settle = (lambda real: lambda self: (real(self), die()))(PipelineCache.settle)
info = DeviceInfo(Candidate(**request["candidate"]), request["index"],
                  Identity.from_dict(request["identity"]), True)
assert cache.use(info, first_use=True), "it was not tried"
"""


def child(info: DeviceInfo, point: str) -> int:
    """Use the cache in a disposable process that ends at a point; return its exit status."""
    request = {
        "candidate": {**info.candidate.as_dict(), "env": dict(info.candidate.env)},
        "index": info.index,
        "identity": info.identity.to_dict(),
    }
    command = [sys.executable, "-c", CHILD, json.dumps(request), point, str(Path(__file__).parent)]
    environ = {**os.environ, "PYTHONFAULTHANDLER": ""}
    done = subprocess.run(
        command, check=False, env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 1, done.stderr
    return done.returncode


def test_unproven_cache_is_left_aside_and_kept(vulkan_info: DeviceInfo, folder: Path) -> None:
    assert not use(vulkan_info)
    (file,) = files(folder)
    before = file.read_bytes()
    device = VulkanBackend().open(vulkan_info)
    assert device.unproven
    device.build(SCALE, {"LX": 3})
    device.close()
    assert file.read_bytes() == before, "what waits for its proof is not replaced"
    assert use(vulkan_info, first_use=True)
    device = VulkanBackend().open(vulkan_info)
    assert isinstance(device, VulkanDevice)
    assert not device.unproven
    assert device.cache.is_hit
    device.close()


def test_trial_without_a_pipeline_proves_nothing(vulkan_info: DeviceInfo, folder: Path) -> None:
    assert not use(vulkan_info)
    VulkanBackend().open(vulkan_info, first_use=True).close()
    assert not use(vulkan_info)
    assert use(vulkan_info, first_use=True)
    assert use(vulkan_info)


def test_changed_blob_needs_a_proof_of_its_own(
    vulkan_info: DeviceInfo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(vulkan_info)
    device = VulkanBackend().open(vulkan_info)
    assert isinstance(device, VulkanDevice)
    assert device.cache.is_hit
    data = device.cache._data(device.cache._size())
    with monkeypatch.context() as patch:
        patch.setattr(PipelineCache, "_size", lambda _: len(data) + 8)
        patch.setattr(PipelineCache, "_data", lambda *_: data + bytes(8))
        device.build(SCALE, {"LX": 7})
        device.close()
    assert not use(vulkan_info)
    assert use(vulkan_info, first_use=True)


@pytest.mark.parametrize(
    "point", ["abort@create", "exit@create", "abort@build", "abort@run", "abort@close"]
)
def test_blob_that_ends_a_process_is_quarantined(
    vulkan_info: DeviceInfo, folder: Path, point: str
) -> None:
    assert not use(vulkan_info)
    (file,) = files(folder)
    blob = file.read_bytes()
    assert child(vulkan_info, point) == (0 if "exit" in point else -signal.SIGABRT)
    assert not use(vulkan_info, first_use=True), "the next start does without it"
    (bad,) = folder.rglob("*.bad")
    assert bad.read_bytes() == blob
    assert files(folder) == [], "the driver makes the same bytes again, which stay refused"
    file.write_bytes(blob)
    assert not use(vulkan_info, first_use=True)
    assert not use(vulkan_info)


def test_process_that_is_killed_after_the_first_run_says_nothing_of_the_blob(
    vulkan_info: DeviceInfo, folder: Path
) -> None:
    assert not use(vulkan_info)
    assert child(vulkan_info, "kill@settled") == -signal.SIGKILL
    assert not use(vulkan_info), "nor is it proven"
    assert use(vulkan_info, first_use=True)
    assert list(folder.rglob("*.bad")) == []
    assert list(folder.rglob("*.mark")) == []


PROBE_CHILD = """
import os, sys
from gpuedge.backends.vulkan.pipecache import PipelineCache
from gpuedge.probing import child
create, size = PipelineCache._create, PipelineCache._size
PipelineCache._create = lambda self, data: os.abort() if data and {dies} else create(self, data)
PipelineCache._size = lambda s: size(s) if s._unsaved or s.is_hit else 0
sys.exit(child.main())
"""


@pytest.mark.parametrize("dies", [False, True])
def test_probe_proves_the_cache_or_quarantines_it(
    vulkan_info: DeviceInfo, folder: Path, tmp_path: Path, dies: bool
) -> None:
    assert not use(vulkan_info)
    (file,) = files(folder)
    program = tmp_path / "child.py"
    program.write_text(PROBE_CHILD.format(dies=dies))
    command = (sys.executable, str(program))
    (rows,) = run.probe_all([vulkan_info.candidate], 60.0, command)
    assert [r.status for r in rows] == ["ok"], "a bad cache is not a bad driver"
    assert file.exists() is not dies
    assert len(list(folder.rglob("*.bad"))) == dies
    device = VulkanBackend().open(vulkan_info)
    assert isinstance(device, VulkanDevice)
    assert (device.cache.is_hit, device.unproven) == (not dies, False)
    device.close()
