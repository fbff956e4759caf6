"""What goes wrong: time-outs, lost devices, no memory, races, bad modules, drivers that pretend."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from validation import environment, messages, validated
from vulkan_kernels import (
    ADD,
    SCALE,
    SPIN_WIDTH,
    add_on,
    dispatch,
    download,
    run,
    spin,
    spin_groups,
    spin_values,
    upload,
)

from gpuedge.backends import load
from gpuedge.backends.base import Candidate, DeviceInfo, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    OutOfMemoryError,
)

pytestmark = pytest.mark.driver
HERE = Path(__file__).parent
ONES = np.ones(64, np.float32)


def test_timeout_then_the_same_work_finishes(vulkan_device: OpenDevice) -> None:
    groups = spin_groups(vulkan_device, 1.0)
    result = vulkan_device.alloc(4 * SPIN_WIDTH * groups, Usage.OUTPUT)
    work = spin(vulkan_device, result, groups)
    recording = vulkan_device.record([work], [], [result])
    ticket = vulkan_device.submit(recording)
    start = time.perf_counter()
    with pytest.raises(DeviceTimeoutError, match=r"0\.02 s"):
        vulkan_device.wait(ticket, 0.02)
    waited = time.perf_counter() - start
    vulkan_device.wait(ticket, 60.0)
    assert waited < (time.perf_counter() - start) / 2
    vulkan_device.wait(ticket, 0.0)
    got = download(vulkan_device, result)
    np.testing.assert_array_equal(got, spin_values(got.size))
    np.testing.assert_array_equal(add_on(vulkan_device, ONES, ONES), 2 * ONES)


def test_closing_busy_device_is_bounded_and_does_not_crash(lavapipe: Candidate) -> None:
    # In a process of its own: what is still running is left to its end on purpose.
    code = f"""
import logging, sys, time
sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}
from gpuedge.backends import device as base
from test_vulkan_faults import SPIN_WIDTH, Usage, load, spin, spin_groups
backend = load("vulkan")
candidate = backend.candidates({{"VK_DRIVER_FILES": {lavapipe.key!r}}})[0]
device = backend.open(backend.enumerate(candidate)[0])
base.CLOSE_TIMEOUT_S = 0.05
groups = spin_groups(device, 1.5)
result = device.alloc(4 * SPIN_WIDTH * groups, Usage.OUTPUT)
device.submit(device.record([spin(device, result, groups)]))
start = time.perf_counter()
device.close()
print("closed", time.perf_counter() - start < 0.8)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "closed True\n"), ran.stderr
    assert "still busy" in ran.stderr


def test_absurd_allocation_is_out_of_memory(vulkan_device: OpenDevice) -> None:
    for usage in Usage:
        with pytest.raises(OutOfMemoryError, match="does not fit"):
            vulkan_device.alloc(1 << 50, usage)
    np.testing.assert_array_equal(add_on(vulkan_device, ONES, ONES), 2 * ONES)


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


@pytest.mark.parametrize("call", ["submit", "wait"])
def test_lost_device_stays_lost_and_closes(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    device = validated(vulkan_info)
    x = upload(device, ONES)
    result = device.alloc(ONES.nbytes, Usage.OUTPUT)
    recording = device.record([dispatch(device, SCALE, [x, result], 64)], [x], [result])
    ticket = device.submit(recording)
    device.wait(ticket, 60.0)
    if call == "wait":
        ticket = device.submit(recording)
        device.queue.api.lib.vkQueueWaitIdle(device.queue.handle)
    monkeypatch.setattr(device.queue, f"_{call}", lambda *_: -4)
    with pytest.raises(DeviceLostError, match="VK_ERROR_DEVICE_LOST"):
        device.submit(recording) if call == "submit" else device.wait(ticket, 60.0)
    monkeypatch.undo()
    into = memoryview(np.zeros(64, np.float32))
    for later in (
        lambda: device.submit(recording),
        lambda: device.alloc(4, Usage.INPUT),
        lambda: device.read(result, into),
        lambda: device.write(x, into),
        lambda: device.build(SCALE, {"LX": 2}),
        lambda: device.record([]),
    ):
        with pytest.raises(DeviceLostError, match="VK_ERROR_DEVICE_LOST"):
            later()
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
from test_vulkan_faults import ADD, load
from vulkan_kernels import kernel
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
        np.testing.assert_array_equal(download(device, result), poison)
        device.close()


LOSING = """
import sys
sys.path[:0] = {paths!r}
from test_vulkan_faults import SPIN_WIDTH, DeviceLostError, Usage, load, os, spin
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
