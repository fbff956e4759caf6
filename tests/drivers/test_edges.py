"""Corners where a GPU path once went another way than the CPU: both drivers, against numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import daily
import farm
import numpy as np
import onnxruntime
import pytest
from single_node import single

import gpuedge
from gpuedge.backends.base import Candidate
from gpuedge.backends.device import OpenDevice
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import ClosedError, InexactError
from gpuedge.device import Device
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType, type_of
from gpuedge.graph.writer import to_bytes


@pytest.fixture
def device(vulkan_device: OpenDevice) -> Iterator[Device]:
    executor = GpuExecutor(vulkan_device, "vulkan:0")
    yield Device(executor, "test")
    executor.closed = True


@pytest.mark.parametrize("count", [7, 8, 9, 20, 40])
@pytest.mark.parametrize("minimum", [False, True])
def test_any_number_of_inputs(count: int, minimum: bool, device: Device) -> None:
    executor = device.executor
    assert isinstance(executor, GpuExecutor)
    if minimum:
        executor.caps = replace(VULKAN_MINIMUM, device_class="generic")
    names = [f"a{i}" for i in range(count)]
    arrays = [np.float32([i, -i, 1, 0.5]) for i in range(count)]
    out = gpuedge.elementwise(" + ".join(names))(*arrays, device=device)
    np.testing.assert_array_equal(out, np.sum(arrays, axis=0))


@pytest.mark.parametrize(
    "text", ["x / 0.0", "x / -0.0", "x * 0.0", "x * -0.0", "x * 1e999", "x + 1e999"]
)
def test_zero_and_infinite_constants_follow_ieee(text: str, device: Device) -> None:
    x = np.array([1, -1, 0, np.inf, np.nan, 3], np.float32)
    with np.errstate(all="ignore"):
        want = eval(text, {"x": x.astype(np.float64), "__builtins__": {}}).astype(np.float32)
    got = gpuedge.elementwise(text)(x, device=device)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("op", "x", "k"), [("Mul", 1e-30, 1e30), ("Add", -3e38, 3e38), ("Mul", 1e30, 1e-30)]
)
def test_constants_of_a_chain_are_not_combined(op: str, x: float, k: float, device: Device) -> None:
    """lavapipe makes one number of two literals: infinity, or zero."""
    builder = GraphBuilder()
    name = builder.input("x", TensorType("float32", (3,)))
    factor = builder.constant("k", np.float32(k))
    for _ in range(2):
        name = builder.add(op, [name, factor])
    builder.output(name)
    graph, value = builder.build(), np.full(3, x, np.float32)
    executable = device.executor.compile(graph)
    (got,) = executable.run({"x": value}).values()
    executable.close()
    step = np.multiply if op == "Mul" else np.add
    np.testing.assert_allclose(got, step(step(value, np.float32(k)), np.float32(k)), rtol=1e-6)
    assert np.isfinite(got).all() and got.any()


def test_integers_without_a_sign_do_not_stop_at_zero(device: Device) -> None:
    graph = single("Sub", {n: TensorType("uint32", (2,)) for n in "ab"})
    executable = device.executor.compile(graph)
    big, small = np.array([5, 7], np.uint32), np.array([2, 7], np.uint32)
    assert executable.run({"a": big, "b": small})["y"].tolist() == [3, 0]
    with pytest.raises(InexactError, match="negative integers, which uint32 wraps"):
        executable.run({"a": small, "b": big})
    executable.close()


def test_sums_over_nothing_are_zero(device: Device) -> None:
    a, b = np.ones((3, 0), np.float32), np.ones((0, 2), np.float32)
    c = np.float32([1, 2])
    np.testing.assert_array_equal(gpuedge.matmul(a, b, device=device), np.zeros((3, 2)))
    got = gpuedge.gemm(a, b, c, beta=2.0, device=device)
    np.testing.assert_array_equal(got, np.tile([2.0, 4.0], (3, 1)))


def test_a_closed_kernel_does_not_run(device: Device) -> None:
    source = (
        "#version 450\nlayout(local_size_x = 64) in;\n"
        "layout(std430, binding = 0) readonly buffer A { float a[]; };\n"
        "layout(std430, binding = 1) writeonly buffer B { float b[]; };\n"
        "void main() { b[gl_GlobalInvocationID.x] = a[gl_GlobalInvocationID.x]; }\n"
    )
    kernel = device.kernel(source, inputs=["a"], outputs={"b": ("a.shape", "float32")})
    kernel(a=np.ones(64, np.float32))
    kernel.close()
    kernel.close()
    with pytest.raises(ClosedError, match="was closed"):
        kernel(a=np.ones(64, np.float32))


WHOLE = np.random.default_rng(2)
MIXED: dict[str, list[tuple[int, ...]]] = {
    "Conv": [(1, 3, 5, 6), (5, 3, 3, 3), (5,)],
    "ConvTranspose": [(1, 3, 5, 6), (3, 5, 3, 3), (5,)],
    "Gemm": [(4, 7), (7, 5), (5,)],
    "Sum": [(2, 3, 4), (3, 1), (4,)],
}


@pytest.mark.parametrize("op", MIXED)
@pytest.mark.parametrize("constant", [(1,), (2,), (0, 2), (0, 1)])
def test_constants_beside_operands_that_come_with_each_call(
    op: str, constant: tuple[int, ...], device: Device
) -> None:
    arrays = {f"x{i}": WHOLE.integers(-4, 5, s).astype(np.float32) for i, s in enumerate(MIXED[op])}
    held = {f"x{i}": arrays[f"x{i}"] for i in constant}
    feeds = {n: a for n, a in arrays.items() if n not in held}
    types = {n: type_of(a) for n, a in feeds.items()}
    model = to_bytes(single(op, types, {}, held, order=list(arrays)))
    by_ort = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with gpuedge.Session(model, device=device, fallback="error") as session:
        for sign in (1, -1, 1):
            signed = {n: sign * a for n, a in feeds.items()}
            (want,) = by_ort.run(None, signed)
            np.testing.assert_array_equal(session.run(signed)["y"], want)


DIGITS = Path(__file__).parents[2] / "examples" / "models" / "digits.onnx"
FORK = """
import os, sys, numpy as np, gpuedge
gpuedge.probe(deadline_s=60)                # on a busy machine 4 s may not do
x = np.ones(100, "f4")
gpuedge.relu(x, device="vulkan")
held = gpuedge.open("vulkan")
images, weights = np.ones((1, 8, 64, 64), "f4"), np.ones((8, 8, 3, 3), "f4")
gpuedge.conv2d(images, weights, device="cpu")
session = gpuedge.Session(sys.argv[1])
feeds = {"image": np.zeros((1, 1, 8, 8), "f4")}
before = session.run_async(feeds).result()
child = os.fork()
if child == 0:
    after = session.run_async(feeds).result()
    assert np.array_equal(after["probabilities"], before["probabilities"])
    session.close()
    gpuedge.conv2d(images, weights, device="cpu")
    gpuedge.relu(x, device="auto")
    codes = []
    for device in ("vulkan", held):
        try:
            gpuedge.relu(x, device=device)
        except gpuedge.GpuEdgeError as error:
            codes.append(error.code)
    held.close()
    os._exit(7 if codes == ["GE-103", "GE-204"] else 1)
_, status = os.waitpid(child, 0)
gpuedge.relu(x, device=held)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(sys, "getdlopenflags"), reason="only POSIX forks")
def test_forked_child_computes_on_the_cpu(vulkan_candidate: Candidate) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(DIGITS)],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, **vulkan_candidate.env},
    )  # fmt: skip
    assert done.stdout.strip() == "7", done.stderr


FORK_OPENED = """
import os, sys, numpy as np, gpuedge
gpuedge.probe(deadline_s=60)
x = np.ones(100, "f4")
held = gpuedge.open("vulkan")
gpuedge.relu(x, device=held)
child = os.fork()
if child == 0:
    codes = []
    for use in (gpuedge.open, lambda device: gpuedge.relu(x, device=device)):
        try:
            use("vulkan")
        except gpuedge.GpuEdgeError as error:
            codes.append(error.code)
    os._exit(7 if codes == ["GE-103", "GE-103"] else 1)
_, status = os.waitpid(child, 0)
held.close()
child = os.fork()
if child == 0:
    os._exit(int(gpuedge.relu(x, device="vulkan").sum()))
_, after = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), os.waitstatus_to_exitcode(after))
"""


@pytest.mark.skipif(not hasattr(sys, "getdlopenflags"), reason="only POSIX forks")
def test_device_opened_by_hand_counts_until_it_is_closed(vulkan_candidate: Candidate) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_OPENED],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, **vulkan_candidate.env},
    )  # fmt: skip
    assert done.stdout.strip() == "7 100", done.stderr


REPLACED = """
import shutil, sys, numpy as np, gpuedge
gpuedge.probe(deadline_s=60)
x = np.ones(10, "f4")
gpuedge.relu(x, device="auto")              # the verdict "ok" is known to this process
shutil.copy(sys.argv[1], sys.argv[2])       # ... and then an update brings another driver
try:
    gpuedge.relu(x, device="vulkan:0")
except gpuedge.NoUsableDeviceError as error:
    print(error.code)
"""


def test_driver_replaced_after_the_probe_is_probed_again(
    swiftshader: Candidate, tmp_path: Path
) -> None:
    import shutil

    crash = tmp_path / "crash.so"
    code = "__attribute__((constructor)) static void f(void) { *(volatile int *)0 = 0; }"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(crash), "-xc", "-"], input=code.encode(), check=True
    )
    library = Path(swiftshader.key).parent / "libvk_swiftshader.so"
    shutil.copy(library, tmp_path / "driver.so")
    manifest = tmp_path / "driver.json"
    manifest.write_text(json.dumps({
        "file_format_version": "1.0.0",
        "ICD": {"library_path": str(tmp_path / "driver.so"), "api_version": "1.0.5"},
    }))  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", REPLACED, str(crash), str(tmp_path / "driver.so")],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "VK_DRIVER_FILES": str(manifest)},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "GE-103"), done.stderr


ARRAYS = Path(__file__).with_name("arrays_child.py")
KINDS, WAYS = 17, 5
LEVELS = ("vulkan-swiftshader", "gles31-llvmpipe", "gles20-llvmpipe", "wgpu-lavapipe")


@pytest.mark.parametrize("name", ["cpu", *daily.in_turn(LEVELS)])
def test_arrays_of_every_awkward_kind(name: str) -> None:
    """Strides, alignment, byte order, read-only or shared memory, subclasses, changes meanwhile."""
    configuration = farm.FARM.get(name)
    if configuration is not None:
        farm.require(name)
    device = "cpu" if configuration is None else configuration.device
    environment = dict(os.environ) if configuration is None else farm.environment_of(name)
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", str(ARRAYS), device],
        capture_output=True, text=True, timeout=280, check=False,
        env={**environment, "GPUEDGE_CACHE_DIR": str(farm.cache(name))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert {k: v for k, v in found["outcome"].items() if v != "right"} == {}
    assert len(found["outcome"]) == KINDS * WAYS + 2
    assert found["device"].partition(":")[0] == device.partition(":")[0]
