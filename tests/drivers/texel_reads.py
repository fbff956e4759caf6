"""Kernels that read texel buffers or textures, on any open device; `test_texel_reads` runs them.

What the same kernel reads of the same bytes as a storage buffer is what must come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from seam_kernels import add, opened

from gpuedge import lang
from gpuedge.backends.base import Binding, Buffer, Dispatch, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.gles import api
from gpuedge.core.kernel import Extents, Number
from gpuedge.core.storage import BUFFER, HALF_BUFFER, READ_AS

Raw = npt.NDArray[Any]

SHAPE = (2, 4, 32, 64)
"""Extents (N, S, H, W) of 16,384 texels: so many halves are all 65,536 there are."""

HEAD = "kernel map t;\nin tensor A;\nout tensor O;\nparam int STEP;\nparam int START;\n"
INDEX = "int i = ((p.w * 4 + p.z) * 32 + p.y) * 64 + p.x; i = i * STEP + START;\n"
READS = {
    "load4": "vec4 main(ivec4 p) { return load4(A, ivec4(p.x * STEP + START, p.yzw)); }",
    "load4z": "vec4 main(ivec4 p) { return load4z(A, ivec4(p.x * STEP + START, p.yzw)); }",
    "rows of load4z": "vec4 main(ivec4 p) {\n"
    "return load4z(A, ivec4(p.x, p.y * STEP + START, p.zw)); }",
    "texel": f"vec4 main(ivec4 p) {{ {INDEX} return texel(A, i); }}",
    "load1": "vec4 f(int e) { return vec4(load1(A, e), load1(A, e + 1), load1(A, e + 2),"
    f" load1(A, e + 3)); }}\nvec4 main(ivec4 p) {{ {INDEX} return f(i); }}",
}
"""Every way to read, by name."""

PLACES = (
    (1, 0),
    (4, 0),
    (1, -1),
    (1, 7),
    (3, -90_001),
    (65_537, 1),
    (1, 2**31 - 7),
    (-5, -(2**31)),
)
"""Pairs (STEP, START): within the tensor, about its ends, and as far out as ints reach."""

MIXED = (
    "kernel map t;\nin tensor A;\nin tensor B;\nin tensor C;\nout tensor O;\n"
    "vec4 main(ivec4 p) { vec4 v = load4(C, p) * 4.0; v += load4(A, p);\n"
    "return v + texel(B, p.x) * 2.0; }"
)
SUM = "kernel map t;\nin tensor A;\nin tensor B;\nout tensor O;\n" + (
    "vec4 main(ivec4 p) { return load4(A, p) * 2.0 + load4(B, p); }"
)


def floats() -> Raw:
    """Return bit patterns of float32: zeros, denormals, infinities, NaN with payloads, and any."""
    odd = np.uint32([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000,
                     0x7FFFFFFF, 0x7FC0DEAD])  # fmt: skip
    odd = np.append(odd, odd | np.uint32(1 << 31))
    rng = np.random.default_rng(3)
    return np.append(odd, rng.integers(0, 1 << 32, 65_536 - odd.size, dtype=np.uint32))


def halves() -> Raw:
    """Return every float16 once, in an order that repeats nothing within a texel."""
    return np.arange(65_536, dtype=np.uint32).astype(np.uint16) * np.uint16(40_503)


def tensor_of(device: OpenDevice, values: Raw) -> tuple[Buffer, Binding]:
    """Return a buffer with a tensor in its middle, ones all around, and where the tensor lies."""
    gap = device.caps.offset_alignment
    made = device.alloc(values.nbytes + 2 * gap, Usage.INPUT)
    device.write(made, memoryview(np.full(made.nbytes, 0x3C, np.uint8)))
    device.write(made, memoryview(values), gap)
    return made, Binding(made, gap, values.nbytes)


def launched(
    device: OpenDevice,
    text: str,
    kinds: Mapping[str, str],
    bindings: Sequence[Binding],
    extents: Extents,
    params: Mapping[str, Number] | None = None,
) -> Dispatch:
    """Build a kernel and launch it over tensors of these extents; the last one is written."""
    blob = lang.print_kernel(lang.load(text, filename="t"), device.caps.dialect, kinds)
    assert [t.storage for t in blob.tensors] == [kinds.get(t.name, BUFFER) for t in blob.tensors]
    program = device.build(blob, {"LX": 8})
    push = blob.pack_push([extents] * len(bindings), params)
    x, y, s, n = extents
    return Dispatch(program, tuple(bindings), push, (-(-x // 8), y, s * n))


def finished(device: OpenDevice, recording: Any) -> None:
    """Run a recording to its end."""
    device.wait(device.submit(recording), 60.0)


def differences(device: OpenDevice, values: Raw, kind: str, read_as: str) -> dict[str, int]:
    """Return how many values each way of reading gets wrong at all places."""
    extents = SHAPE[3], SHAPE[2], SHAPE[1], SHAPE[0]
    source, place = tensor_of(device, values)
    result = device.alloc(65_536 * 4, Usage.OUTPUT)
    out = Binding(result, 0, result.nbytes)
    wrong: dict[str, int] = {}
    for name, text in READS.items():
        for step, start in PLACES:
            found = []
            for way in (kind, read_as):
                device.write(result, memoryview(np.full(65_536, 0x5A5A5A5A, np.uint32)))
                params = {"STEP": step, "START": start}
                work = launched(device, HEAD + text, {"A": way}, (place, out), extents, params)
                recording = device.record([work], [source], [result])
                finished(device, recording)
                found.append(np.empty(65_536, np.uint32))
                device.read(result, memoryview(found[-1]))
                device.release(recording)
                device.release(work.program)
            assert np.unique(found[0]).size > 1 or (name, start) != ("texel", 0)
            is_other = found[0] != found[1]
            if kind == HALF_BUFFER:  # Mesa's unpackHalf2x16 has one NaN of each sign
                one, two = (f.view(np.float32) for f in found)
                is_other &= ~(np.isnan(one) & np.isnan(two))
            wrong[name] = wrong.get(name, 0) + int(np.sum(is_other))
            if (name, step, start) in {("texel", 1, 0), ("load4", 1, 0), ("load1", 4, 0)}:
                check_values(found[1], values, f"{name} of {kind}")
    device.free(source)
    device.free(result)
    return wrong


def check_values(found: Raw, values: Raw, name: str) -> None:
    """Assert that numbers come as numpy has them: bits of float32, values of float16."""
    if values.dtype == np.uint32:
        np.testing.assert_array_equal(found, values, name)
        return
    wanted = values.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found.view(np.float32), wanted, name)
    is_number = ~np.isnan(wanted)
    np.testing.assert_array_equal(found[is_number], wanted.view(np.uint32)[is_number], name)


def reads(device: OpenDevice, read_as: Mapping[str, str] = READ_AS) -> None:
    """Every way to read gives the bits that it gives of a storage buffer; payloads of NaN that come
    of float16 are not compared.
    """
    caps = device.caps
    assert max(caps.max_texel_buffers, caps.max_texture_copies) >= 8
    assert max(caps.max_texel_elements, caps.max_copied_elements) >= 65_536
    for values, kind in ((floats(), BUFFER), (halves(), HALF_BUFFER)):
        found = differences(device, values, kind, read_as[kind])
        assert found == dict.fromkeys(READS, 0), kind


def views_of(recording: Any) -> int:
    """Return how many texel buffers or textures a recording owns."""
    return len(recording.views if hasattr(recording, "views") else recording.textures)


def mixed(device: OpenDevice, read_as: Mapping[str, str] = READ_AS) -> None:
    """A kernel reads tensors of all kinds, whatever the order; passes wait for what they fetch.

    A range that is read twice is one texel buffer, or one texture.
    """
    whole, halved = read_as[BUFFER], read_as[HALF_BUFFER]
    rng, n = np.random.default_rng(5), 777
    one, two = (rng.integers(-99, 99, n * 4).astype(np.float32) for _ in range(2))
    half = rng.integers(-99, 99, n * 4).astype(np.float16)
    made = [tensor_of(device, values) for values in (one, two, half)]
    middle, result = (device.alloc(n * 16, use) for use in (Usage.SCRATCH, Usage.OUTPUT))
    a, b, c = (place for _, place in made)
    m, o = Binding(middle, 0, n * 16), Binding(result, 0, n * 16)
    extents = n, 1, 1, 1
    texels = {"A": whole, "B": whole}
    # reads what was fetched before; of WebGPU's buffers none is read and written by one dispatch
    again = texels if device.caps.dialect == "wgsl" else {"B": whole}
    work = [
        launched(device, MIXED, {"B": whole, "C": halved}, (a, b, c, m), extents),
        launched(device, SUM, texels, (m, b, o), extents),
        launched(device, SUM, again, (m, o, m), extents),
        launched(device, SUM, texels, (m, b, o), extents),
    ]
    recording = device.record(work, [made[0][0]], [result])
    assert views_of(recording) == 4  # b, c, m, o
    for factor in (1, -3, 5):
        device.write(a.buffer, memoryview(one * np.float32(factor)), a.offset)
        finished(device, recording)
        first = half.astype(np.float32) * 4 + one * np.float32(factor) + two * 2
        second = (first * 2) + (first * 2 + two)
        found = np.empty(n * 4, np.float32)
        device.read(result, memoryview(found))
        np.testing.assert_array_equal(found, second * 2 + two)
    device.release(recording)
    for one_work in work:
        device.release(one_work.program)
    for buffer in (*(buffer for buffer, _ in made), middle, result):
        device.free(buffer)


def texel_reads(level: str) -> None:
    """Run both checks on a device of OpenGL ES."""
    from gles_life import alive

    device = opened(level)
    before = alive(device)
    reads(device)
    mixed(device)
    assert alive(device) == before
    device.close()


def no_texel_buffers(level: str) -> None:
    """A driver without the extension has none, and is used without them."""
    device = opened(level)
    assert (device.caps.max_texel_buffers, device.caps.max_texel_elements) == (0, 0)
    add(device)
    device.close()


def no_texel_function(level: str) -> None:
    """Nor has one that knows the limits and lacks the function."""
    real = api.Library.lookup
    api.Library.lookup = lambda self, name: (  # type: ignore[method-assign]
        0 if "TexBufferRange" in name else real(self, name)
    )
    no_texel_buffers(level)
