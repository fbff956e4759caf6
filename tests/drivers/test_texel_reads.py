"""Reads through texel buffers: bits of storage buffers, within limits, nothing left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import farm
import numpy as np
import pytest
import texel_reads
from conftest import CANDIDATES
from gles_child import need, run
from validation import validated

from gpuedge.backends import load
from gpuedge.backends.device import OpenDevice
from gpuedge.core.storage import BUFFER, TEXELS
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.ir import Graph, Node, TensorType

pytestmark = pytest.mark.driver


def test_every_read_gives_the_same_bits_on_vulkan(vulkan_device: OpenDevice) -> None:
    texel_reads.reads(vulkan_device)
    texel_reads.mixed(vulkan_device)


@pytest.mark.parametrize(
    "configuration",
    [
        "gles31-llvmpipe",
        "gles31-angle",
        *(pytest.param(f"gles31-{d}", marks=pytest.mark.long) for d in ("softpipe", "zink")),
    ],
)
def test_every_read_gives_the_same_bits_on_gles(configuration: str) -> None:
    need(configuration)
    run(configuration, "texel_reads")


def test_driver_without_the_extension_or_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    need("gles31-llvmpipe")
    run("gles31-llvmpipe", "no_texel_function")
    gone = "-GL_EXT_texture_buffer -GL_OES_texture_buffer"
    bare = farm.FARM["gles31-llvmpipe"]
    with_out = {**bare.variables, "MESA_EXTENSION_OVERRIDE": gone}
    one = farm.Configuration(bare.device, bare.files, with_out)
    monkeypatch.setitem(farm.FARM, "gles31-llvmpipe", one)
    run("gles31-llvmpipe", "no_texel_buffers")


@pytest.fixture(params=sorted(CANDIDATES))
def executor(request: pytest.FixtureRequest) -> Iterator[GpuExecutor]:
    backend = load("vulkan")
    impl = validated(backend.enumerate(CANDIDATES[request.param]())[0])
    made = GpuExecutor(impl, "vulkan:0")
    yield made
    made.close()


def product(rows: int) -> Graph:
    """Return y = a * b + c over arrays of `rows` rows of 64 numbers, c a single row."""
    kinds = {name: TensorType("float32", (rows, 64)) for name in ("a", "b", "t", "y")}
    kinds["c"] = TensorType("float32", (1, 64))
    nodes = (Node("Mul", ("a", "b"), ("t",)), Node("Add", ("t", "c"), ("y",)))
    return Graph(nodes, ("a", "b", "c"), ("y",), kinds)


def test_larger_tensors_are_read_as_storage_buffers(executor: GpuExecutor) -> None:
    rng = np.random.default_rng(9)
    most = executor.caps.max_texel_elements
    rows = 65_536 // 16 + 1  # SwiftShader's limit and a row more
    inputs = {n: rng.integers(-99, 99, (rows, 64)).astype(np.float32) for n in "ab"}
    inputs["c"] = rng.integers(-99, 99, (1, 64)).astype(np.float32)
    executable = executor.compile(product(rows))
    wanted = inputs["a"] * inputs["b"] + inputs["c"]
    np.testing.assert_array_equal(executable.run(inputs)["y"], wanted)
    seen = set()
    plan = executable.plan
    for one, program in zip(plan.passes, executable._programs, strict=True):
        for value, storage in zip(one.tensors.values(), program.layout.storages, strict=True):
            if value not in one.outputs:
                seen.add((plan.tensors[value].layout.nbytes // 16, storage))
    assert all(storage == (TEXELS if size <= most else BUFFER) for size, storage in seen)
    assert min(seen)[0] <= 64 and max(seen)[0] > 65_536
    executable.close()


def test_recordings_free_their_texel_buffers(executor: GpuExecutor) -> None:
    impl: Any = executor.impl
    alive: Counter[str] = Counter()
    queue = impl.queue
    create, destroy = queue.create, queue.destroy

    def created(kind: str, *args: Any, **fields: Any) -> Any:
        made = create(kind, *args, **fields)
        alive[kind] += 1
        return made

    def destroyed(kind: str, *args: Any) -> None:
        alive[kind] -= 1
        destroy(kind, *args)

    queue.create, queue.destroy = created, destroyed
    for _ in range(5):
        executable = executor.compile(product(3))
        inputs = {n: np.ones((1 if n == "c" else 3, 64), np.float32) for n in "abc"}
        np.testing.assert_array_equal(executable.run(inputs)["y"], np.float32(2))
        assert alive["BufferView"] == 3
        executable.close()
        assert alive["BufferView"] == 0
    queue.create, queue.destroy = create, destroy
