"""Buffers of every dtype, on every level that keeps tensors in buffers, against numpy.

The seam moves bytes; what they mean is a matter of the kernel, here one that a user brings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import farm
import numpy as np
import pytest
from gles_child import need, run

from gpuedge import backends
from gpuedge.backends.base import DeviceImpl, Usage
from gpuedge.backends.null import NullBackend
from gpuedge.core.errors import KernelLimitError
from gpuedge.core.storage import Storage
from gpuedge.device import Device
from gpuedge.executors.gpu import GpuExecutor

pytestmark = pytest.mark.driver
DTYPES = ("float32", "float16", "int32", "uint32", "int8", "uint8")
RNG = np.random.default_rng(3)


def values(dtype: str, count: int) -> np.ndarray[Any, Any]:
    """Return numbers that a dtype holds, extremes among them."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return RNG.standard_normal(count).astype(kind)
    limits = np.iinfo(kind)
    found = RNG.integers(limits.min, limits.max, count, kind, endpoint=True)
    found[:2] = limits.min, limits.max
    return found


def keeps(device: DeviceImpl, dtype: str) -> None:
    """Any range of a buffer of a dtype can be written and read back."""
    storage = Storage(dtype=dtype)
    wanted = values(dtype, 1000)
    size = wanted.itemsize
    for usage in Usage:
        buffer = device.alloc(wanted.nbytes, usage, storage)
        device.write(buffer, memoryview(wanted).cast("B"))
        for start, count in ((0, 1), (1, 3), (7, 500), (999, 1)):
            piece = values(dtype, max(2, count))[:count]
            device.write(buffer, memoryview(piece).cast("B"), start * size)
            wanted[start : start + count] = piece
            into = np.zeros(count, dtype)
            device.read(buffer, memoryview(into).cast("B"), start * size)
            np.testing.assert_array_equal(into, piece)
        into = np.zeros(1000, dtype)
        device.read(buffer, memoryview(into).cast("B"))
        np.testing.assert_array_equal(into, wanted)
        device.free(buffer)


@pytest.mark.parametrize("dtype", DTYPES)
def test_null_device_keeps_them(dtype: str) -> None:
    backend = NullBackend()
    keeps(backend.open(backend.enumerate(backend.candidates({})[0])[0]), dtype)


def opened(configuration: str, monkeypatch: pytest.MonkeyPatch) -> DeviceImpl:
    farm.require(configuration)
    one = farm.FARM[configuration]
    environment = one.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    backend = backends.load(one.device)
    found = [c for c in backend.candidates(environment) if c.key != "gl"]
    return backend.open(backend.enumerate(found[0])[0])


COMPUTE = ("vulkan-lavapipe", "vulkan-swiftshader", "wgpu-lavapipe", "wgpu-swiftshader")


@pytest.mark.parametrize("configuration", COMPUTE)
def test_devices_keep_them(configuration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened(configuration, monkeypatch)
    for dtype in DTYPES:
        keeps(device, dtype)
    device.close()


@pytest.mark.parametrize("configuration", ["gles31-llvmpipe", "gles31-angle"])
def test_opengl_keeps_them(configuration: str) -> None:
    need(configuration)
    run(configuration, "dtypes")


def test_textures_take_float32_only() -> None:
    need("gles30-llvmpipe")
    run("gles30-llvmpipe", "float32_only")


GLSL = """#version 450
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A {{ {type} a[]; }};
layout(std430, binding = 1) writeonly buffer B {{ {type} b[]; }};
void main() {{
  uint i = gl_GlobalInvocationID.x;
  if (i < a.length()) {{ b[i] = {type}({wide}(a[i]) / {wide}(2)); }}
}}
"""
HALVED: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "float16": ("float16_t", "float", lambda x: (x.astype(np.float32) / 2).astype(np.float16)),
    "int8": ("int8_t", "int", lambda x: np.trunc(x / 2).astype(np.int8)),
    "uint8": ("uint8_t", "uint", lambda x: x // 2),
    "int32": ("int", "int", lambda x: np.trunc(x / 2).astype(np.int32)),
}


@pytest.mark.parametrize("dtype", HALVED)
def test_kernel_of_ones_own_on_vulkan(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    impl = opened("vulkan-lavapipe", monkeypatch)
    assert impl.caps.has_fp16_storage and impl.caps.has_int8_storage
    name, wide, halved = HALVED[dtype]
    text = GLSL.format(type=name, wide=wide)
    with Device(GpuExecutor(impl, "vulkan:0"), "test") as device:
        kernel = device.kernel(text, inputs=["a"], outputs={"b": ("a.shape", dtype)})
        for count in (1, 3, 64, 1001):
            x = values(dtype, max(2, count))[:count]
            np.testing.assert_array_equal(kernel(a=x), halved(x))
        kernel.close()


@pytest.mark.parametrize(("dtype", "what"), [("float16", "fp16"), ("int8", "int8")])
def test_kernel_that_the_device_cannot_run_is_refused(
    dtype: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impl = opened("vulkan-swiftshader", monkeypatch)
    assert impl.caps.has_fp16_storage is impl.caps.has_int8_storage is False
    name, wide, _ = HALVED[dtype]
    text = GLSL.format(type=name, wide=wide)
    with (
        Device(GpuExecutor(impl, "vulkan:0"), "test") as device,
        pytest.raises(KernelLimitError, match=f"has_{what}_storage is False"),
    ):
        device.kernel(text, inputs=["a"], outputs={"b": ("a.shape", dtype)})
