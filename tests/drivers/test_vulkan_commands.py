"""What is recorded and how often the driver is called: the costs that add up at every replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from seam_kernels import downloaded
from validation import validated
from vulkan_kernels import SCALE, dispatch, upload

from gpuedge.backends.base import DeviceInfo, Usage

pytestmark = pytest.mark.driver
ONES = np.ones(64, np.float32)


class Spy:
    """The driver's library, writing down the names of its calls."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._lib, name)

        def call(*args: Any) -> Any:
            self.calls.append((name, args))
            return real(*args)

        return call

    def commands(self) -> list[str]:
        """Names of the recorded commands, barriers with their stages."""
        found = []
        for name, args in self.calls:
            if name == "vkCmdPipelineBarrier":
                found.append(f"{args[1]:#x}>{args[2]:#x}")
            elif name.startswith("vkCmd"):
                found.append(name.removeprefix("vkCmd"))
        return found


def spied(info: DeviceInfo, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, Spy]:
    device = validated(info, **options)
    spy = Spy(device.queue.api.lib)
    monkeypatch.setattr(device.queue.api, "lib", spy)
    for name in ("Submit", "Wait", "Reset"):
        full = {"Submit": "vkQueueSubmit", "Wait": "vkWaitForFences", "Reset": "vkResetFences"}
        monkeypatch.setattr(device.queue, f"_{name.lower()}", getattr(spy, full[name]))
    return device, spy


COMPUTE, HOST, BOTH = "0x800", "0x4000", "0x1800"


@pytest.mark.parametrize("staging", [False, True])
def test_recorded_commands(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch, staging: bool
) -> None:
    device, spy = spied(vulkan_info, monkeypatch, staging=staging)
    source = upload(device, ONES)
    results = [device.alloc(ONES.nbytes, Usage.OUTPUT) for _ in range(3)]
    work = [
        dispatch(device, SCALE, [source, results[0]], 64),
        dispatch(device, SCALE, [source, results[1]], 64, depends=False),
        dispatch(device, SCALE, [results[1], results[2]], 64, width=32),
    ]
    work[1] = replace(work[1], program=work[0].program)
    spy.calls.clear()
    device.record(work, [source], results)
    one = ["BindDescriptorSets", "PushConstants", "Dispatch"]
    before = ["CopyBuffer", f"{BOTH}>{BOTH}"] if staging else []
    after = [f"{BOTH}>{BOTH}", *["CopyBuffer"] * 3] if staging else []
    assert spy.commands() == [
        f"{BOTH}>{BOTH}",
        *before,
        "BindPipeline",
        *one,
        *one,
        f"{COMPUTE}>{COMPUTE}",
        "BindPipeline",
        *one,
        *after,
        f"{BOTH}>{HOST}",
    ]
    device.close()


@pytest.mark.parametrize("staging", [False, True])
def test_a_replay_calls_three_functions(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch, staging: bool
) -> None:
    device, spy = spied(vulkan_info, monkeypatch, staging=staging)
    source, result = upload(device, ONES), device.alloc(ONES.nbytes, Usage.OUTPUT)
    recording = device.record([dispatch(device, SCALE, [source, result], 64)], [source], [result])
    device.wait(device.submit(recording), 60.0)
    spy.calls.clear()
    for i in range(100):
        device.write(source, memoryview(ONES * i))
        device.wait(device.submit(recording), 60.0)
        assert downloaded(device, result)[5] == 2 * i
    names = [name for name, _ in spy.calls]
    assert names == ["vkQueueSubmit", "vkWaitForFences", "vkResetFences"] * 100
    assert len(device.queue._free) == 1
    device.close()
