"""What goes wrong on Vulkan: no memory, races, bad modules, lost work, drivers that pretend."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seam_kernels import downloaded
from validation import environment, messages, validated
from vulkan_kernels import (
    ADD,
    SCALE,
    add_on,
    dispatch,
    run,
    upload,
)

from gpuedge.backends import load
from gpuedge.backends.base import Candidate, DeviceInfo, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.core.errors import (
    DriverError,
    OutOfMemoryError,
)

pytestmark = pytest.mark.driver
HERE = Path(__file__).parent
ONES = np.ones(64, np.float32)


class Refusing:
    """The driver's library, except that one call returns given results first."""

    def __init__(self, lib: Any, name: str, results: list[int]) -> None:
        self._lib = lib
        self._name = name
        self.results = results
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._lib, name)
        if name != self._name:
            return real

        def call(*args: Any) -> Any:
            self.calls += 1
            return self.results.pop(0) if self.results else real(*args)

        return call


def refuse(
    device: OpenDevice, monkeypatch: pytest.MonkeyPatch, name: str, results: list[int]
) -> Refusing:
    lib = Refusing(device.queue.api.lib, name, results)
    monkeypatch.setattr(device.queue.api, "lib", lib)
    return lib


def test_driver_out_of_memory_is_retried_smaller_then_reported(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = validated(vulkan_info)
    with monkeypatch.context() as patch:
        lib = refuse(device, patch, "vkAllocateMemory", [-2])
        small = device.alloc(1000, Usage.OUTPUT)
        assert lib.calls == 2
    assert device.memory.blocks[0].free.size < 1 << 16
    with monkeypatch.context() as patch:
        refuse(device, patch, "vkAllocateMemory", [-1] * 10)
        with pytest.raises(OutOfMemoryError, match="VK_ERROR_OUT_OF_HOST_MEMORY"):
            device.alloc(1 << 20, Usage.OUTPUT)
    with monkeypatch.context() as patch:
        refuse(device, patch, "vkBindBufferMemory", [-2])
        with pytest.raises(OutOfMemoryError, match="vkBindBufferMemory"):
            device.alloc(16, Usage.OUTPUT)
    device.free(small)
    np.testing.assert_array_equal(add_on(device, ONES, ONES), 2 * ONES)
    device.close()


def test_staging_that_does_not_fit_leaves_nothing_behind(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = validated(vulkan_info, staging=True)

    real = device.memory._place

    def refuse_twin(nbytes: int, usage: Usage, wanted: tuple[int, ...] = ()) -> Any:
        if wanted:
            raise OutOfMemoryError("full")
        return real(nbytes, usage)

    with monkeypatch.context() as patch:
        patch.setattr(device.memory, "_place", refuse_twin)
        with pytest.raises(OutOfMemoryError):
            device.alloc(1000, Usage.INPUT)
    assert all(block.free.is_empty for block in device.memory.blocks)
    device.close()


def test_other_results_are_named(vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    device = validated(vulkan_info)
    with monkeypatch.context() as patch:
        refuse(device, patch, "vkCreateComputePipelines", [-13])
        with pytest.raises(DriverError, match=r"(?s)kernel 'add'.* returned VK_ERROR_UNKNOWN"):
            device.build(ADD, {"LX": 1})
    assert device.counters.compilations == 0
    np.testing.assert_array_equal(add_on(device, ONES, ONES), 2 * ONES)
    device.close()


def test_layer_sees_a_missing_barrier(vulkan_device: OpenDevice) -> None:
    """Positive control: without it, silence of the layer in other tests would prove nothing."""
    x = upload(vulkan_device, ONES)
    between = vulkan_device.alloc(ONES.nbytes, Usage.SCRATCH)
    result = vulkan_device.alloc(ONES.nbytes, Usage.OUTPUT)
    for depends in (True, False):
        work = [
            dispatch(vulkan_device, SCALE, [x, between], 64),
            dispatch(vulkan_device, SCALE, [between, result], 64, depends=depends),
        ]
        vulkan_device.release(vulkan_device.record(work, [x], [result]))
        assert ("SYNC-HAZARD-READ-AFTER-WRITE" in messages()) is not depends


def test_layer_sees_a_bad_module(lavapipe: Candidate, tmp_path: Path) -> None:
    # Drivers loop forever on this module, so this happens in a process of its own.
    code = f"""
import sys
sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}
from gpuedge.backends import load
from vulkan_kernels import ADD, kernel
bad = bytearray(ADD.code)
bad[4 * 30 : 4 * 34] = bytes(16)
backend = load("vulkan")
candidate = backend.candidates({{"VK_DRIVER_FILES": {lavapipe.key!r}}})[0]
device = backend.open(backend.enumerate(candidate)[0])
device.build(kernel("bad", "", 3, code=bytes(bad)), {{"LX": 1}})
"""
    log = tmp_path / "log.txt"
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **environment(log)})
    try:
        end = time.monotonic() + 60
        while not log.exists() or "SPIR-V module not valid" not in log.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()


def test_mock_driver_runs_and_leaves_the_output_untouched(mock_icd: Candidate) -> None:
    info = load("vulkan").enumerate(mock_icd)[0]
    assert not info.is_software
    for disabled in ((), ("mapped-device-memory",)):
        device = load("vulkan").open(info.replace(disabled=frozenset(disabled)))
        x, result = upload(device, ONES), device.alloc(ONES.nbytes, Usage.OUTPUT)
        poison = np.frombuffer(b"\xab" * ONES.nbytes, np.float32)
        device.write(result, memoryview(poison))
        run(device, [dispatch(device, SCALE, [x, result], 64)], [x], [result])
        np.testing.assert_array_equal(downloaded(device, result), poison)
        device.close()


LOSING = """
import sys
sys.path[:0] = {paths!r}
import os
from gpuedge.backends import load
from gpuedge.backends.base import Usage
from gpuedge.core.errors import DeviceLostError
from vulkan_kernels import SPIN_WIDTH, spin
backend = load("vulkan")
info = backend.enumerate(backend.candidates(os.environ)[0])[0]
for _ in range({closings}):
    device = backend.open(info)
    result = device.alloc(4 * SPIN_WIDTH * 1000, Usage.OUTPUT)
    ticket = device.submit(device.record([spin(device, result, 1000)], [], [result]))
    try:
        device.wait(ticket, 60.0)
    except DeviceLostError:
        device.close()
        print("closed", flush=True)
    del device, result, ticket
"""


@pytest.mark.parametrize(
    ("fault", "closings", "is_kept"),
    [("lost-running@read:1+", 8, True), ("lost-running@read", 1, False), ("lost@read", 1, False)],
)
def test_closing_a_lost_device_whose_work_still_runs_ends_no_process(
    lavapipe: Candidate, fault: str, closings: int, is_kept: bool
) -> None:
    faults = str(HERE.parent / "faults")
    sys.path.insert(0, faults)
    import kit

    code = LOSING.format(paths=[str(HERE), str(HERE.parent)], closings=closings)
    environ = kit.build().environment("vulkan", fault, {"VK_DRIVER_FILES": lavapipe.key})
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "closed\n" * closings), ran.stderr
    assert ("still busy" in ran.stderr) is is_kept
