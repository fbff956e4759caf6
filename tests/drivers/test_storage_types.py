"""Buffers of dtypes that a kernel which a user brings reads and writes, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import farm
import numpy as np
import pytest
from contract_work import of_dtype

from gpuedge import backends
from gpuedge.backends.base import DeviceImpl
from gpuedge.core.errors import KernelLimitError
from gpuedge.device import Device
from gpuedge.executors.gpu import GpuExecutor

pytestmark = pytest.mark.driver


def opened(configuration: str, monkeypatch: pytest.MonkeyPatch) -> DeviceImpl:
    farm.require(configuration)
    one = farm.FARM[configuration]
    environment = one.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    backend = backends.load(one.device)
    found = [c for c in backend.candidates(environment) if c.key != "gl"]
    return backend.open(backend.enumerate(found[0])[0])


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
            x = of_dtype(dtype, count)
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
