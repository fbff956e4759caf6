"""Kernels that users bring: GLSL by name on both drivers, and what is refused before a driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuedge.backends.device import OpenDevice
from gpuedge.core.errors import (
    ClosedError,
    CompilerUnavailableError,
    DTypeError,
    InputError,
    KernelError,
    KernelLimitError,
    KernelSyntaxError,
    ShapeError,
    UsageError,
)
from gpuedge.device import Device
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.runtime.user_kernel import MOST_BYTES

SCALE = """#version 450
layout(local_size_x = 64) in;
layout(constant_id = 3) const int TIMES = 2;
layout(constant_id = 7) const float PLUS = 0.5;
layout(std430, binding = 0) readonly buffer First { float a[]; };
layout(std430, binding = 2) readonly buffer Second { int values[]; } b;
layout(std430, binding = 1) writeonly buffer Out { float c[]; };
layout(push_constant) uniform Args { int n; float alpha; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) { c[i] = TIMES * alpha * a[i] + float(b.values[i]) + PLUS; }
}
"""
TWO = """#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) writeonly buffer Y { vec4 y[]; };
layout(std430, binding = 2) writeonly buffer Z { uint z[]; };
void main() {
    uint i = gl_GlobalInvocationID.y * 8 + gl_GlobalInvocationID.x;
    y[i] = x[i].wzyx;
    z[i] = i;
}
"""
A = np.arange(100, dtype=np.float32).reshape(4, 25)
B = np.arange(100, dtype=np.int32)[::-1]
SAME = {"c": ("a.shape", "float32")}


@pytest.fixture
def device(vulkan_device: OpenDevice) -> Iterator[Device]:
    """A device whose closing leaves the shared one open."""
    executor = GpuExecutor(vulkan_device, "vulkan:0")
    yield Device(executor, "test")
    executor.closed = True


def scale(device: Device, source: Any = SCALE, **options: Any) -> Any:
    options = {"inputs": ["a", "b"], "outputs": SAME, **options}
    return device.kernel(source, **options)


@pytest.mark.parametrize("name", ["b", "values", "Second"])
def test_buffers_answer_to_array_instance_and_block(device: Device, name: str) -> None:
    kernel = scale(device, inputs=["a", name])
    out = kernel(a=A, n=100, alpha=1.5, **{name: B})
    np.testing.assert_array_equal(out, 3.0 * A + B.reshape(4, 25) + 0.5)
    kernel.close()
    kernel.close()


def test_specs_and_params_by_name(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "scale.comp"
    path.write_text(SCALE)
    kernel = scale(device, path, specs={"TIMES": -3, "PLUS": 4.0})
    assert kernel.params == ("n", "alpha")
    for alpha in (1.0, 2.0):
        out = kernel(a=A, b=B, n=100, alpha=alpha)
        np.testing.assert_array_equal(out, -3 * alpha * A + B.reshape(4, 25) + 4)


def test_other_shapes_record_anew_and_the_same_do_not(device: Device) -> None:
    kernel = scale(device)
    counters = device.executor.impl.counters  # type: ignore[attr-defined]
    kernel(a=A, b=B, n=100, alpha=1.0)
    before = counters.snapshot()
    for i in range(5):
        kernel(a=A + i, b=B, n=100, alpha=1.0)
    after = counters.snapshot()
    assert after["submits"] == before["submits"] + 5
    assert {k: after[k] for k in after if k != "submits"} == {
        k: before[k] for k in before if k != "submits"
    }
    short = kernel(a=A[:1], b=B[:25], n=25, alpha=1.0)
    np.testing.assert_array_equal(short, 2 * A[:1] + B[:25] + 0.5)
    kernel.close()


def test_several_outputs_vectors_and_groups(device: Device) -> None:
    x = np.arange(64 * 4, dtype=np.float32).reshape(64, 4)
    kernel = device.kernel(
        TWO, inputs=["x"], outputs={"y": ("x.shape", "float32"), "z": ((64,), "uint32")}
    )
    with pytest.raises(UsageError, match="groups="):
        kernel(x=x)
    out = kernel(x=x, groups=(1, 1, 1))
    np.testing.assert_array_equal(out["y"], x[:, ::-1])
    np.testing.assert_array_equal(out["z"], np.arange(64))
    with pytest.raises(ShapeError, match="vec4"):
        kernel(x=x.ravel()[:6], groups=(1, 1, 1))
    with pytest.raises(KernelLimitError):
        kernel(x=x, groups=(1 << 30, 1, 1))
    kernel.close()


def test_empty_arrays(device: Device) -> None:
    out = scale(device)(a=A[:0], b=B[:0], n=0, alpha=1.0)
    assert out.shape == (0, 25)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"a": A, "b": B, "n": 1}, InputError, "'alpha' is missing"),
        ({"a": A, "b": B, "n": 1, "alpha": 1.0, "x": 1}, InputError, "'x' is unknown"),
        ({"a": A, "b": A, "n": 1, "alpha": 1.0}, DTypeError, "'b' has dtype float32"),
        ({"a": A.astype("f8"), "b": B, "n": 1, "alpha": 1.0}, DTypeError, "float64"),
    ],
)
def test_arguments_refused(
    device: Device, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    kernel = scale(device)
    with pytest.raises(error, match=words):
        kernel(**arguments)
    kernel.close()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"inputs": ["a"]}, InputError, "neither an input nor an output"),
        ({"inputs": ["a", "q"]}, InputError, "'q' names no buffer"),
        ({"inputs": ["a", "a"]}, InputError, "or two"),
        ({"specs": {"TIME": 1}}, InputError, "TIMES"),
        ({"specs": 3}, InputError, "specs of a kernel cannot be 3"),
        ({"inputs": None}, InputError, "inputs of a kernel cannot be None"),
        ({"outputs": None}, InputError, "outputs of a kernel cannot be None"),
        ({"outputs": {}}, InputError, "outputs of a kernel cannot be {}"),
        ({"outputs": {"c": None}}, InputError, "output 'c', float32 in the shader, cannot be None"),
        ({"outputs": {"c": ((2, "x"), "float32")}}, InputError, "cannot be"),
        ({"outputs": {"c": ((2, -1), "float32")}}, InputError, "cannot be"),
    ],
)
def test_kernels_refused(
    device: Device, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        scale(device, **options)


def test_output_shape_and_dtype_are_checked(device: Device) -> None:
    for outputs, error in (
        ({"c": ("z.shape", "float32")}, InputError),
        ({"c": ("a.shape", "int32")}, DTypeError),
    ):
        with pytest.raises(error):
            scale(device, outputs=outputs)(a=A, b=B, n=1, alpha=1.0)


def test_syntax_error_has_file_and_line(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "bad.comp"
    path.write_text(SCALE.replace("TIMES * alpha", "TIMES * alhpa"))
    with pytest.raises(KernelSyntaxError, match=r"bad\.comp:11: .*alhpa"):
        scale(device, path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("binding = 2", "binding = 5", "bindings"),
        ("binding = 2", "set = 1, binding = 0", "descriptor set"),
        ("int values[]", "double values[]", "32 bits"),
        ("int values[];", "int count; int values[];", "single array"),
        ("float alpha", "vec4 alpha", "not a scalar"),
    ],
)
def test_interfaces_that_cannot_be_bound(device: Device, old: str, new: str, words: str) -> None:
    text = SCALE.replace(old, new).replace("* alpha", "* float(alpha)")
    text = text.replace("float(alpha)", "alpha.x" if "vec4" in new else "alpha")
    with pytest.raises(KernelError, match=words):
        scale(device, text)


def test_missing_file_and_missing_compiler(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        scale(device, tmp_path / "none.comp")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("gpuedge.lang.glsl.find_spec", lambda name: None)
    with pytest.raises(CompilerUnavailableError, match="glslang-tools"):
        scale(device)


def test_too_large_a_workgroup_is_refused_before_the_driver(device: Device) -> None:
    executor = device.executor
    assert isinstance(executor, GpuExecutor)
    executor.caps = replace(executor.caps, max_invocations=32)
    with pytest.raises(KernelLimitError, match="64 invocations"):
        scale(device)
    executor.caps = replace(executor.caps, max_invocations=64, max_storage_buffers=2)
    with pytest.raises(KernelLimitError, match="3 tensors; this device offers 2"):
        scale(device)


def test_the_cpu_runs_no_glsl_and_closed_devices_nothing(device: Device) -> None:
    with pytest.raises(UsageError, match="cpu cannot run GLSL"):
        Device(CpuExecutor(), "test").kernel(SCALE, inputs=[], outputs={})
    kernel = scale(device)
    device.executor.closed = True  # type: ignore[attr-defined]
    with pytest.raises(ClosedError):
        kernel(a=A, b=B, n=1, alpha=1.0)


def test_sources_that_are_no_text_files_are_refused(device: Device, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.comp"
    os.mkfifo(pipe)
    (tmp_path / "large.comp").write_bytes(b" " * (MOST_BYTES + 1))
    (tmp_path / "bytes.comp").write_bytes(b"\xff\xfe")
    for source, words in [
        (pipe, "not a file"),
        (tmp_path, "not a file"),
        ("", "not a file"),
        (tmp_path / "large.comp", "file of at most 16 MiB"),
        (tmp_path / "bytes.comp", "invalid start byte"),
        ("a\0b", "null byte"),
        (SCALE + "// \ud800\n", "surrogates not allowed"),
        (1, "not int"),
        (None, "not NoneType"),
    ]:
        with pytest.raises(InputError, match="cannot be read") as caught:
            scale(device, source)
        assert words in str(caught.value.known)
        assert str(caught.value).count("GE-") == 1
        assert caught.value.asked_by and caught.value.hint


def test_a_compiler_that_does_not_end_is_a_syntax_error(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubling = "".join(f"#define M{i + 1} M{i} M{i}\n" for i in range(60))
    source = SCALE.replace(
        "void main", f"#define M0 +1\n{doubling}int f() {{ return 0 M60; }}\nvoid main"
    )
    monkeypatch.setattr("gpuedge.lang.glsl.TIMEOUT_S", 0.5)
    monkeypatch.setattr("gpuedge.lang.glsl.find_spec", lambda name: None)
    with pytest.raises(KernelSyntaxError) as caught:
        scale(device, source)
    assert "0.5 s" in caught.value.what
