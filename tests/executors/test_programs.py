"""Kernels are compared with a device's limits once, above the seam, and built once each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuedge.backends.base import Program
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import DriverError, InputError, KernelLimitError
from gpuedge.core.kernel import KernelBlob, SpecArg, TensorArg
from gpuedge.executors.programs import Programs

AXES = tuple(SpecArg(name, "int", i, 1) for i, name in enumerate(("LX", "LY", "LZ")))


def kernel(reads: int = 1, writes: int = 1, push_bytes: int = 32) -> KernelBlob:
    tensors = [TensorArg(f"A{i}", "read", i) for i in range(reads)]
    tensors += [TensorArg(f"O{i}", "write", reads + i) for i in range(writes)]
    digest = f"{reads} {writes} {push_bytes}"
    return KernelBlob("k", "spirv", b"", "main", tuple(tensors), AXES, (), push_bytes, digest)


def opened(fail: DriverError | None = None) -> NullDevice:
    backend = NullBackend(VULKAN_MINIMUM, fail={"build": fail} if fail else {})
    return backend.open(backend.enumerate(backend.candidates({})[0])[0])


@pytest.fixture
def device() -> NullDevice:
    return opened()


def calls(device: NullDevice, method: str) -> int:
    return sum(call.method == method for call in device.calls)


def test_the_same_kernel_is_built_once_and_dropped_with_its_last_user(device: NullDevice) -> None:
    programs = Programs(device)

    def build(width: int) -> Program:
        return programs.build(kernel(), {"LX": width}, VULKAN_MINIMUM)

    first, again, other = build(32), build(32), build(16)
    assert first is again and first is not other
    assert calls(device, "build") == device.counters.compilations == 2
    programs.release(first)
    assert build(32) is first
    for program in (first, again, other):
        programs.release(program)
    assert calls(device, "release") == 2
    programs.release(first)  # it is gone: nothing happens
    assert calls(device, "release") == 2
    assert build(32) is not first


@pytest.mark.parametrize(
    ("blob", "specs", "words"),
    [
        (kernel(), {"LX": 129}, "129 invocations per workgroup; this device offers 128"),
        (kernel(), {"LX": 64, "LY": 4}, "256 invocations"),
        (kernel(), {"LZ": 65}, "65 workgroup size LZ; this device offers 64"),
        (kernel(), {"LX": 0}, r"workgroup size \(0, 1, 1\)"),
        (kernel(reads=4), {}, "5 tensors; this device offers 4"),
        (kernel(push_bytes=129), {}, "129 bytes of extents and parameters"),
        (replace(kernel(), dialect="wgsl"), {}, "is wgsl; this device takes spirv"),
    ],
)
def test_what_a_device_cannot_hold_never_reaches_its_driver(
    device: NullDevice, blob: KernelBlob, specs: dict[str, int], words: str
) -> None:
    with pytest.raises(KernelLimitError, match=words) as caught:
        Programs(device).build(blob, specs, VULKAN_MINIMUM)
    assert caught.value.code == "GE-303"
    assert calls(device, "build") == 0


def test_limits_are_those_of_the_restricted_device(device: NullDevice) -> None:
    programs = Programs(device)
    programs.build(kernel(writes=2), {}, VULKAN_MINIMUM)
    small: Caps = replace(VULKAN_MINIMUM, max_outputs=1)
    with pytest.raises(KernelLimitError, match="2 outputs; this device offers 1"):
        Programs(device).build(kernel(writes=2), {}, small)
    with pytest.raises(KernelLimitError, match="256 invocations"):
        programs.build(kernel(), {}, VULKAN_MINIMUM, local_size=(256, 1, 1))


def test_a_constant_that_the_kernel_lacks_is_refused(device: NullDevice) -> None:
    with pytest.raises(InputError, match="no specialisation constant 'TYPO'"):
        Programs(device).build(kernel(), {"TYPO": 1}, VULKAN_MINIMUM)
    assert calls(device, "build") == 0


def test_a_kernel_that_the_driver_refuses_is_not_kept() -> None:
    device = opened(DriverError("No."))
    programs = Programs(device)
    for count in (1, 2):
        with pytest.raises(DriverError):
            programs.build(kernel(), {}, VULKAN_MINIMUM)
        assert calls(device, "build") == count
