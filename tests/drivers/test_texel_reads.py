"""Reads of texel buffers and textures: bits of storage buffers, within limits, nothing left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import daily
import farm
import numpy as np
import pytest
import texel_reads
from conftest import CANDIDATES
from gles_child import run
from seam_kernels import add
from validation import validated
from wgpu_kernels import ADAPTERS, open_on, upload

from gpuedge.backends import load
from gpuedge.backends.base import Binding, Dispatch, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.vulkan import constants
from gpuedge.backends.vulkan.views import Texture
from gpuedge.core.errors import DriverError
from gpuedge.core.kernel import Extents
from gpuedge.core.storage import (
    BUFFER,
    COPIED_AS,
    IMAGE,
    LOADED_AS,
    READ_AS,
    TEXELS,
    TEXTURE,
    TEXTURE_ROW,
)
from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
from gpuedge.graph.ir import Graph, Node, TensorType

pytestmark = [pytest.mark.driver, daily.day(0, of=4)]


@pytest.mark.parametrize("read_as", [READ_AS, COPIED_AS], ids=["texel buffers", "textures"])
def test_every_read_gives_the_same_bits_on_vulkan(
    vulkan_device: OpenDevice, read_as: dict[str, str]
) -> None:
    texel_reads.reads(vulkan_device, read_as)
    texel_reads.mixed(vulkan_device, read_as)


@pytest.fixture(params=sorted(ADAPTERS))
def webgpu(request: pytest.FixtureRequest) -> Iterator[OpenDevice]:
    made = open_on(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("read_as", [COPIED_AS, LOADED_AS], ids=["textures", "images"])
def test_every_read_gives_the_same_bits_on_webgpu(
    webgpu: OpenDevice, read_as: dict[str, str]
) -> None:
    texel_reads.reads(webgpu, read_as)
    texel_reads.mixed(webgpu, read_as)


@pytest.mark.parametrize(
    "configuration",
    [
        "gles31-llvmpipe",
        "gles31-angle",
        *(pytest.param(f"gles31-{d}", marks=pytest.mark.long) for d in ("softpipe", "zink")),
    ],
)
def test_every_read_gives_the_same_bits_on_gles(configuration: str) -> None:
    run(configuration, "texel_reads")


def test_driver_without_the_extension_or_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    run("gles31-llvmpipe", "no_texel_function")
    gone = "-GL_EXT_texture_buffer -GL_OES_texture_buffer"
    bare = farm.FARM["gles31-llvmpipe"]
    with_out = {**bare.variables, "MESA_EXTENSION_OVERRIDE": gone}
    one = farm.Configuration(bare.device, bare.files, with_out)
    monkeypatch.setitem(farm.EVERY, "gles31-llvmpipe", one)
    run("gles31-llvmpipe", "no_texel_buffers")


@pytest.fixture(params=sorted(CANDIDATES))
def executor(request: pytest.FixtureRequest) -> Iterator[GpuExecutor]:
    backend = load("vulkan")
    impl = validated(backend.enumerate(CANDIDATES[request.param]())[0])
    made = GpuExecutor(impl, "vulkan:0")
    yield made
    made.close()


PRODUCT = (
    "kernel map t;\nin tensor A;\nin tensor B;\nout tensor O;\n"
    "vec4 main(ivec4 p) { return load4(A, p) * load4(B, p); }"
)


def product(rows: int) -> Graph:
    """Return y = a * b + c over arrays of `rows` rows of 64 numbers, c a single row."""
    kinds = {name: TensorType("float32", (rows, 64)) for name in ("a", "b", "t", "y")}
    kinds["c"] = TensorType("float32", (1, 64))
    nodes = (Node("Mul", ("a", "b"), ("t",)), Node("Add", ("t", "c"), ("y",)))
    return Graph(nodes, ("a", "b", "c"), ("y",), kinds)


def kinds_read(executable: GpuExecutable) -> set[tuple[int, str]]:
    """Return how many texels the tensors have that kernels only read, and what they read."""
    plan = executable.plan
    return {
        (plan.tensors[value].layout.nbytes // 16, storage)
        for one, program in zip(plan.passes, executable._programs, strict=True)
        for value, storage in zip(one.tensors.values(), program.layout.storages, strict=True)
        if value not in one.outputs
    }


@pytest.mark.parametrize(
    ("limits", "beyond"), [({}, TEXTURE), ({"max_copied_elements": 65_536}, BUFFER)]
)
def test_larger_tensors_are_read_as_textures_or_storage_buffers(
    executor: GpuExecutor, limits: dict[str, int], beyond: str
) -> None:
    rng = np.random.default_rng(9)
    most = 65_536
    assert most <= executor.caps.max_texel_elements  # all that SwiftShader has
    executor.caps = replace(executor.caps, max_texel_elements=most, **limits)
    rows = most // 16 + 1
    inputs = {n: rng.integers(-99, 99, (rows, 64)).astype(np.float32) for n in "ab"}
    inputs["c"] = rng.integers(-99, 99, (1, 64)).astype(np.float32)
    executable = executor.compile(product(rows))
    assert sum(executable._where.copied.values()) == 0
    for factor in (1, -3):  # textures show what the host wrote last
        given = {**inputs, "a": inputs["a"] * np.float32(factor)}
        wanted = given["a"] * inputs["b"] + inputs["c"]
        np.testing.assert_array_equal(executable.run(given)["y"], wanted)
    seen = kinds_read(executable)
    assert all(storage == (TEXELS if size <= most else beyond) for size, storage in seen)
    assert min(seen)[0] <= 64 and max(seen)[0] > most
    executable.close()


def test_products_of_large_constants_and_of_what_kernels_wrote(executor: GpuExecutor) -> None:
    """Textures of an input, of constants beside one another, and of scratch memory."""
    rng, shapes = np.random.default_rng(11), {"x": (40, 48), "k": (48, 52), "l": (52, 44)}
    values = {n: rng.integers(-9, 9, shape).astype(np.float32) for n, shape in shapes.items()}
    kinds = {n: TensorType("float32", shape) for n, shape in shapes.items()}
    kinds |= {"t": TensorType("float32", (40, 52)), "y": TensorType("float32", (40, 44))}
    nodes = (Node("MatMul", ("x", "k"), ("t",)), Node("MatMul", ("t", "l"), ("y",)))
    constants = {n: values[n] for n in "kl"}
    executor.caps = replace(executor.caps, max_texel_elements=0)
    executable = executor.compile(Graph(nodes, ("x",), ("y",), kinds, constants))
    wanted = values["x"] @ values["k"] @ values["l"]
    np.testing.assert_array_equal(executable.run({"x": values["x"]})["y"], wanted)
    assert {storage for _, storage in kinds_read(executable)} == {TEXTURE}
    executable.close()


def test_driver_without_linear_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """SwiftShader has none to be stored to: asked for such, it has no textures."""
    monkeypatch.setattr(constants, "USE_SAMPLED", 0x08)
    backend = load("vulkan")
    device = backend.open(backend.enumerate(CANDIDATES["swiftshader"]())[0])
    caps = device.caps
    assert (caps.max_texture_copies, caps.max_copied_elements) == (0, 0)
    assert not caps.has_texture_views and caps.max_texel_buffers >= 16
    add(device)
    device.close()


def test_texture_that_takes_more_memory_than_lies_there(executor: GpuExecutor) -> None:
    impl: Any = executor.impl
    made = impl.alloc(16 * 2048, Usage.SCRATCH)
    alive = Alive(impl.queue, "destroy")
    made.block.nbytes = made.offset + 16 * 2048
    with pytest.raises(DriverError, match="too large"):
        Texture(impl.queue, TEXTURE, made, Binding(made, 0, 16 * 2048))
    assert alive["Image"] == 0


class Alive(Counter[str]):
    """Objects of a driver that are alive, by kind, counted from now on."""

    def __init__(self, queue: Any, release: str) -> None:
        super().__init__()
        self._made, self._freed = queue.create, getattr(queue, release)
        queue.create = self._create
        setattr(queue, release, self._release)

    def _create(self, kind: str, *args: Any, **fields: Any) -> Any:
        made = self._made(kind, *args, **fields)
        self[kind] += 1
        return made

    def _release(self, kind: str, *args: Any) -> None:
        self[kind] -= 1
        self._freed(kind, *args)


@pytest.mark.parametrize(
    ("limits", "views"), [({}, "BufferView"), ({"max_texel_elements": 0}, "ImageView")]
)
def test_recordings_free_their_texel_buffers_and_textures(
    executor: GpuExecutor, limits: dict[str, int], views: str
) -> None:
    executor.caps = replace(executor.caps, **limits)  # type: ignore[arg-type]
    impl: Any = executor.impl
    alive = Alive(impl.queue, "destroy")
    for _ in range(5):
        executable = executor.compile(product(3))
        inputs = {n: np.ones((1 if n == "c" else 3, 64), np.float32) for n in "abc"}
        np.testing.assert_array_equal(executable.run(inputs)["y"], np.float32(2))
        assert alive[views] == 3
        executable.close()
        assert alive["BufferView"] == alive["ImageView"] == alive["Image"] == 0


@pytest.mark.parametrize("kind", [TEXTURE, IMAGE])
def test_copies_are_made_when_they_are_needed(webgpu: OpenDevice, kind: str) -> None:
    """Those of constants once, of what the host writes anew, of what a kernel wrote again."""
    alive = Alive(webgpu.queue, "release")
    values = np.arange(4 * (2 * TEXTURE_ROW + 3), dtype=np.float32)
    x = upload(webgpu, values)
    k = upload(webgpu, np.full_like(values, 2), Usage.CONSTANT)
    m, o = (webgpu.alloc(values.nbytes, use) for use in (Usage.SCRATCH, Usage.OUTPUT))
    few = webgpu.alloc(5 * 16, Usage.OUTPUT)
    whole = [Binding(b, 0, b.nbytes) for b in (x, k, m, o)]
    part = Binding(m, 0, few.nbytes)
    kinds = {"A": kind, "B": kind}
    extents = values.size // 4, 1, 1, 1

    def multiply(*places: Binding, of: Extents = extents) -> Dispatch:
        return texel_reads.launched(webgpu, PRODUCT, kinds, places, of)

    work = [
        multiply(whole[0], whole[1], whole[2]),
        multiply(part, part, Binding(few, 0, few.nbytes), of=(5, 1, 1, 1)),
        multiply(whole[2], whole[1], whole[3]),
    ]
    recording: Any = webgpu.record(work, [x], [o, few])
    assert len(recording.textures) == alive["Texture"] == 3  # of x, k and m
    for factor in (1, 3, -5):
        # whole rows and the rest of the last one are two commands
        assert len(recording.once) == (2 if factor == 1 else 0)
        assert [len(copies) for copies, _ in recording.passes] == [2, 1, 2]
        webgpu.write(x, memoryview(values * np.float32(factor)))
        texel_reads.finished(webgpu, recording)
        found = np.empty_like(values)
        webgpu.read(o, memoryview(found))
        np.testing.assert_array_equal(found, values * np.float32(4 * factor))
        webgpu.read(few, memoryview(found[:20]))
        np.testing.assert_array_equal(found[:20], (values[:20] * np.float32(2 * factor)) ** 2)
    webgpu.release(recording)
    assert alive["Texture"] == 0 and alive["TextureView"] == -3
