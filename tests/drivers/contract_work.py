"""The contract of an open device: its memory, its kernels and its recordings."""

from __future__ import annotations

import dataclasses
import gc
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from contract import ALL, BIG, BUFFERS, GPUS, RNG, TEXTURES, Site, ints, raises, rule
from lang_kernels import DOTS, dot_wanted, lane_kernel, lane_values
from seam_kernels import (
    ADD,
    COPY,
    REVERSE,
    SCALE,
    Floats,
    add,
    downloaded,
    finish,
    launch,
    printed,
    run,
    tensor,
    uploaded,
)  # fmt: skip
from texel_reads import HEAD as READ_HEAD
from texel_reads import PLACES, READS

from gpuedge import lang
from gpuedge.backends.base import Binding, Buffer, Dispatch, Usage
from gpuedge.core.errors import DriverError, InputError, OutOfMemoryError
from gpuedge.core.storage import BYTE_DTYPES, KINDS, Storage
from gpuedge.core.texels import fixed16_step


# --- memory ---------------------------------------------------------------------------------------
@rule(ALL, staged=True)
def ranges(site: Site) -> None:
    """Any range of bytes can be written and read, whatever the usage; what lies around it stays."""
    for usage in Usage:
        for texels in (1, 5000, BIG):
            wanted = ints(texels * 4)
            buffer = uploaded(site.device, wanted, usage=usage)
            assert buffer.nbytes == wanted.nbytes
            size = wanted.size
            for start, count in ((0, 3), (1, 1), (size - 3, 3), (size // 2 + 1, size // 3)):
                values = ints(count)
                site.device.write(buffer, memoryview(values), start * 4)
                wanted[start : start + count] = values
                into = np.zeros(count, np.float32)
                site.device.read(buffer, memoryview(into), start * 4)
                np.testing.assert_array_equal(into, values)
            site.device.write(buffer, memoryview(b"\xab\xcd\xef"), 5)
            wanted.view(np.uint8)[5:8] = 0xAB, 0xCD, 0xEF
            np.testing.assert_array_equal(downloaded(site.device, buffer), wanted)
            some = bytearray(6)
            site.device.read(buffer, memoryview(some), 3)
            assert some == wanted.tobytes()[3:9]
            site.device.read(buffer, memoryview(bytearray()))
            site.device.free(buffer)


@rule(ALL, staged=True)
def buffers_share_no_bytes(site: Site) -> None:
    """Each of many buffers that come and go keeps its bytes."""
    live: list[tuple[Buffer, bytes]] = []
    unit = 16 if site.level in TEXTURES else 1

    def kept() -> None:
        buffer, content = live.pop(int(RNG.integers(len(live))))
        into = bytearray(len(content))
        site.device.read(buffer, memoryview(into))
        assert into == content
        site.device.free(buffer)

    for _ in range(250):
        if live and RNG.random() < 0.45:
            kept()
            continue
        size = unit * int(RNG.choice([1, 3, 64, 255, 4096, 100_001 // unit]) * RNG.integers(1, 5))
        buffer = site.device.alloc(size, list(Usage)[int(RNG.integers(4))])
        assert buffer.nbytes == size
        content = ints(size // 4 + 1).tobytes()[:size]
        site.device.write(buffer, memoryview(content))
        live.append((buffer, content))
    while live:
        kept()


@rule(ALL, staged=True)
def views_are_copied_whole(site: Site) -> None:
    """Arrays of any shape are written and read, and read-only ones written."""
    image = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    image.setflags(write=False)
    for usage in (Usage.INPUT, Usage.CONSTANT, Usage.OUTPUT):
        buffer = tensor(site.device, 6, usage)
        site.device.write(buffer, memoryview(image))
        into = np.zeros((4, 6), np.float32)
        site.device.read(buffer, memoryview(into))
        np.testing.assert_array_equal(into.ravel(), image.ravel())
        site.device.free(buffer)


DTYPES = ("float32", "float16", "int32", "uint32", "int8", "uint8")


def of_dtype(dtype: str, count: int) -> np.ndarray[Any, Any]:
    """Return numbers that a dtype holds, extremes among them."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return RNG.standard_normal(count).astype(kind)
    limits = np.iinfo(kind)
    found = RNG.integers(limits.min, limits.max, count, kind, endpoint=True)
    found[:2] = (limits.min, limits.max)[:count]
    return found


@rule((*BUFFERS, "null"), staged=True)
def dtypes(site: Site) -> None:
    """A buffer keeps the bytes of every dtype, at any element."""
    for dtype in DTYPES:
        wanted = of_dtype(dtype, 1000)
        for usage in Usage:
            buffer = site.device.alloc(wanted.nbytes, usage, Storage(dtype=dtype))
            site.device.write(buffer, memoryview(wanted).cast("B"))
            for start, count in ((0, 1), (1, 3), (7, 500), (999, 1)):
                piece = of_dtype(dtype, count)
                wanted[start : start + count] = piece
                site.device.write(buffer, memoryview(piece).cast("B"), start * piece.itemsize)
            into = np.zeros(1000, dtype)
            site.device.read(buffer, memoryview(into).cast("B"))
            np.testing.assert_array_equal(into, wanted)
            site.device.free(buffer)


@rule(TEXTURES)
def textures_take_float32_only(site: Site) -> None:
    """A texture of float32 converts from it, and takes nothing else."""
    storage = Storage(site.device.caps.storages[0], dtype="int8")
    with raises(InputError, "of int8"):
        site.device.alloc(64, Usage.INPUT, storage)


@rule(("vulkan", "wgpu", *TEXTURES), staged=True)  # gles31 has no limit to check before it asks
def too_large(site: Site) -> None:
    """What cannot fit is out of memory, for every usage; the device works on."""
    size = site.device.caps.max_texture_size or 0
    nbytes = (4096 * size + 1) * 16 if site.level in TEXTURES else 1 << 50
    for usage in Usage:
        with raises(OutOfMemoryError, "GE-402"):
            site.device.alloc(nbytes, usage)
    add(site.device)


def resident() -> int:
    """Return how much memory this process has, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@rule(GPUS, staged=True)
def memory_is_used_again(site: Site) -> None:
    """What is freed and released is gone: its memory, and the objects that stood for it."""
    site.open().close()
    device, sizes = site.device, []
    add(device, BIG)

    def made() -> int:
        gc.collect()
        kinds = {type(thing) for thing in (kept, work.program, recording)}
        return sum(type(thing) in kinds for thing in gc.get_objects())

    kept = tensor(device, BIG, Usage.OUTPUT)
    work = launch(device, printed(device, COPY), [uploaded(device, ints(BIG * 4)), kept])
    recording = device.record([work])
    before = made()
    for _ in range(8):
        for _ in range(4):
            add(device, BIG)
        sizes.append(resident())
    assert made() == before
    # a buffer lost per addition is 2 MiB in every round; what an allocator keeps for later is not
    grown = min(b - a for a, b in pairwise(sizes))
    assert site.request["keeps_memory"] or grown < 4 * BIG * 16 // 2, sizes
    device.release(recording)
    device.release(work.program)
    for binding in work.bindings:
        device.free(binding.buffer)


# --- kernels --------------------------------------------------------------------------------------
def held(kind: str, texels: int) -> Floats:
    """Return values that a storage kind holds exactly, and their sums by two too."""
    limits = {"rgba8_u8": (0, 120), "rgba8_s8": (-60, 60), "rgba16f": (-900, 900),
              "rgba8_fixed16": (-1000, 1000)}  # fmt: skip
    low, high = limits.get(kind, (-1 << 22, 1 << 22))
    scale = 8 if "fixed" in kind else 1 if kind in limits else 1024
    return RNG.integers(low, high, texels * 4).astype(np.float32) / np.float32(scale)


def storage_of(kind: str) -> Storage:
    """Return a kind with a step of 1/128: the values above are among those that it holds."""
    return Storage(kind, -256.0, -256.0 + 65535 / 128) if "fixed" in kind else Storage(kind)


@rule(GPUS, staged=True)
def numbers(site: Site) -> None:
    """Every storage kind keeps and adds numbers exactly, whatever the size."""
    device, row = site.device, 4096
    kinds = device.caps.storages if site.level in TEXTURES else device.caps.storages[:1]
    for kind in kinds:
        storage, units = storage_of(kind), KINDS[kind].units
        assert kind != "rgba8_fixed16" or fixed16_step(storage) == 1 / 128
        blob = printed(device, ADD, dict.fromkeys("ABO", kind))
        for texels in (1, 3, row // units - 1, row // units, row // units + 1, 3 * row + 17):
            a, b = held(kind, texels), held(kind, texels)
            first = uploaded(device, a, storage)
            second = uploaded(device, b, storage, Usage.CONSTANT)
            result = tensor(device, texels, Usage.OUTPUT, storage)
            np.testing.assert_array_equal(downloaded(device, first), a)
            work = launch(device, blob, [first, second, result])
            run(device, [work], [first], [result])
            np.testing.assert_array_equal(downloaded(device, result), a + b, f"{kind} {texels}")
            for buffer in (first, second, result):
                device.free(buffer)
            device.release(work.program)


def every_byte(dtype: str, texels: int) -> np.ndarray[Any, Any]:
    """Return every value of a dtype, each in every place of a texel."""
    return (np.resize(np.arange(257) % 256, texels * 4) + np.iinfo(dtype).min).astype(dtype)


@rule(GPUS, staged=True)
def bytes_are_read(site: Site) -> None:
    """In every way and beyond the ends, kernels read bytes as the numbers that they are."""
    device, texels = site.device, 300
    places = PLACES[:4] if device.caps.dialect == "essl100" else PLACES  # ints are floats there
    for kind, dtype in BYTE_DTYPES.items():
        if kind not in device.caps.storages:
            continue
        values = every_byte(dtype, texels)
        storage = Storage(kind, *held_by(dtype), dtype)
        source = device.alloc(values.nbytes, Usage.INPUT, storage)
        device.write(source, memoryview(values).cast("B"))
        floats = uploaded(device, values.astype(np.float32))
        result = tensor(device, texels, Usage.OUTPUT)
        for name, text in READS.items():
            found = []
            for buffer, kinds in ((source, {"A": kind}), (floats, None)):
                blob = printed(device, READ_HEAD + text, kinds)
                work = launch(device, blob, [buffer, result], params={"STEP": 1, "START": 0})
                for step, start in places:
                    params = {"STEP": step, "START": start}
                    push = blob.pack_push([(texels, 1, 1, 1)] * 2, params)
                    device.write(result, memoryview(np.full(texels * 4, 0.5, np.float32)))
                    run(device, [dataclasses.replace(work, push=push)], [buffer], [result])
                    found.append(downloaded(device, result))
                device.release(work.program)
            mine, wanted = found[: len(places)], found[len(places) :]
            np.testing.assert_array_equal(mine, wanted, f"{name} of {kind}")
            if name in ("load4", "texel"):
                np.testing.assert_array_equal(mine[0], values)
        for buffer in (source, floats, result):
            device.free(buffer)


def held_by(dtype: str) -> tuple[float, float]:
    """Return the least and the greatest value of a dtype."""
    return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)


@rule(TEXTURES)
def textures_keep_bytes(site: Site) -> None:
    """A texture of bytes keeps any range of them."""
    for kind, dtype in (("rgba8_u8", "uint8"), ("rgba8_s8", "int8")):
        for texels in (1, 5, 4099):
            wanted = every_byte(dtype, texels)
            storage = Storage(kind, *held_by(dtype), dtype)
            buffer = site.device.alloc(wanted.nbytes, Usage.INPUT, storage)
            site.device.write(buffer, memoryview(wanted).cast("B"))
            for start, count in ((0, 1), (1, 2), (wanted.size - 3, 3), (wanted.size // 2, 2)):
                piece = of_dtype(dtype, count)
                wanted[start : start + count] = piece
                site.device.write(buffer, memoryview(piece).cast("B"), start)
                into = np.zeros(count, dtype)
                site.device.read(buffer, memoryview(into).cast("B"), start)
                np.testing.assert_array_equal(into, piece)
            into = np.zeros_like(wanted)
            site.device.read(buffer, memoryview(into).cast("B"))
            np.testing.assert_array_equal(into, wanted)
            site.device.free(buffer)


@rule(TEXTURES)
def kinds_mix(site: Site) -> None:
    """One kernel reads two kinds and writes a third."""
    device = site.device
    exact, small = device.caps.storages[0], "rgba8_u8"
    a, b = held(exact, 5000), held(small, 5000)
    for out in (exact, "rgba8_float"):
        blob = printed(device, ADD, {"A": exact, "B": small, "O": out})
        buffers = [uploaded(device, a), uploaded(device, b, Storage(small))]
        buffers.append(tensor(device, 5000, Usage.OUTPUT, Storage(out)))
        run(device, [launch(device, blob, buffers)])
        np.testing.assert_array_equal(downloaded(device, buffers[2]), a + b)


@rule(GPUS, staged=True)
def special_values(site: Site) -> None:
    """Infinities and NaN pass through where the device promises it; huge and tiny ones always."""
    device = site.device
    tiny, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    x = np.array([tiny, -tiny, most, -most, 1 / 3, -1e-30, 1e30, 0], np.float32)
    if not device.caps.is_finite_only:
        x = np.append(x, np.float32([np.inf, -np.inf, np.nan, 5]))
    source, result = uploaded(device, x), tensor(device, x.size // 4, Usage.OUTPUT)
    run(device, [launch(device, printed(device, COPY), [source, result])], [source], [result])
    np.testing.assert_array_equal(downloaded(device, result), x)


@rule(GPUS, staged=True)
def smaller_tensors(site: Site) -> None:
    """A buffer holds a smaller tensor; what no kernel writes stays."""
    device, row = site.device, 4096
    blob = printed(device, ADD)
    for big, small in ((9000, 5000), (300, 7), (row + 5, row - 5), (row * 2, row)):
        a, b, before = (ints(n * 4) for n in (small, small, big))
        first, second, out = (tensor(device, big, Usage.OUTPUT) for _ in range(3))
        for buffer, values in ((out, before), (first, a), (second, b)):
            device.write(buffer, memoryview(values))
        run(device, [launch(device, blob, [first, second, out], texels=small)], (), [out])
        got = downloaded(device, out)
        np.testing.assert_array_equal(got[: small * 4], a + b)
        used = small
        if site.level in TEXTURES:  # fragment shaders fill rows of all layers
            from gpuedge.backends.gles.memory import row_length

            layers = device.caps.map_texels
            long = layers * row_length(device.caps.max_texture_size or row, layers)
            used = -(-small // long) * long if small > long else small
            used = big if device.caps.is_finite_only else -(-used // layers) * layers
        np.testing.assert_array_equal(got[used * 4 :], before[used * 4 :])


@rule(BUFFERS, staged=True)
def bindings_at_offsets(site: Site) -> None:
    """Ranges of a buffer are tensors; bytes around them stay."""
    device, step = site.device, max(site.device.caps.offset_alignment, 64)
    x = ints(3 * step // 4)
    a, o = uploaded(device, x), uploaded(device, np.zeros_like(x), usage=Usage.OUTPUT)
    places = (Binding(a, 2 * step, step), Binding(a, step, step), Binding(o, step, step))
    work = launch(device, printed(device, ADD), [a, a, o], texels=step // 16)
    run(device, [dataclasses.replace(work, bindings=places)], [a], [o])
    want = np.zeros_like(x).reshape(3, -1)
    want[1] = x.reshape(3, -1)[2] + x.reshape(3, -1)[1]
    np.testing.assert_array_equal(downloaded(device, o).reshape(3, -1), want)


@rule(BUFFERS, staged=True)
def workgroups(site: Site) -> None:
    """The invocations of a workgroup share memory."""
    device, x = site.device, ints(256)
    source, result = uploaded(device, x), tensor(device, 64, Usage.OUTPUT)
    work = launch(device, printed(device, REVERSE), [source, result], width=8)
    run(device, [work], [source], [result])
    wanted = x.reshape(8, 8, 4)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(downloaded(device, result), wanted)


@rule(("vulkan", "wgpu"))
def lanes_of_subgroups(site: Site) -> None:
    """Values of every lane of a subgroup; a device without subgroups refuses such kernels."""
    device, lanes = site.device, site.device.caps.subgroup_lanes
    blob = lang.print_kernel(lane_kernel(lanes or 8), device.caps.dialect)
    if not lanes:
        with raises(DriverError, "refused"):
            device.build(blob, {})
        return
    count = 3 * lanes
    x = ints(count * 4, 99).reshape(count, 4)
    source, result = uploaded(device, x.ravel()), tensor(device, count * lanes, Usage.OUTPUT)
    push = blob.pack_push([(count, 1, 1, 1), (count * lanes, 1, 1, 1)], {})
    places = tuple(Binding(b, 0, b.nbytes) for b in (source, result))
    run(device, [Dispatch(device.build(blob, {}), places, push, (3, 1, 1))], [source], [result])
    found = downloaded(device, result).reshape(-1, 4)
    np.testing.assert_array_equal(found, lane_values(x, lanes))


@rule(("vulkan", "wgpu"))
def products_of_packed_bytes(site: Site) -> None:
    """All pairs of some bytes and many others; every driver here has the instruction."""
    device, rng = site.device, np.random.default_rng(4)
    assert device.caps.dot_products == 1
    edges = np.array([-128, -127, -1, 0, 1, 127])
    pairs = np.stack(np.meshgrid(*[edges] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    x = np.concatenate([pairs, rng.integers(-128, 128, (999, 4))]).astype(np.float32)
    y = rng.permutation(x)
    sources = [uploaded(device, each.ravel()) for each in (x, y)]
    result, kernel = tensor(device, len(x), Usage.OUTPUT), lang.load(DOTS, filename="t")
    blob = lang.print_kernel(kernel, device.caps.dialect)
    extents = (len(x), 1, 1, 1)
    places = tuple(Binding(b, 0, b.nbytes) for b in (*sources, result))
    push = blob.pack_push([extents] * 3, {})
    run(device, [Dispatch(device.build(blob, {}), places, push, extents[:3])], sources, [result])
    found = downloaded(device, result).reshape(-1, 4)
    np.testing.assert_array_equal(found, dot_wanted(x, y))


@rule(GPUS)
def specs_and_params(site: Site) -> None:
    """Values of every type reach the kernel, each dispatch its own; defaults are the blob's."""
    device, x = site.device, ints(50 * 4)
    source, blob = uploaded(device, x), printed(device, SCALE)
    results = [tensor(device, 50, Usage.OUTPUT) for _ in range(4)]
    cases: list[tuple[dict[str, Any], int, float]] = [
        ({}, 3, 0.5), ({"N": -3, "FLAG": True, "PART": 7.25}, -7, -0.125),
        ({"N": 4, "FLAG": False, "PART": 0.5}, 1 << 20, 0.0), ({"N": 1, "FLAG": True}, 0, 0.25),
    ]  # fmt: skip
    work = [
        launch(device, blob, [source, result], params={"K": k, "G": g}, specs=specs, depends=False)
        for result, (specs, k, g) in zip(results, cases, strict=True)
    ]
    run(device, work, [source], results)
    for result, (specs, k, g) in zip(results, cases, strict=True):
        part = specs.get("PART", 0.25) if specs.get("FLAG") else 0.0
        wanted = x * specs.get("N", 2) + np.float32(k) + np.float32(g + part)
        np.testing.assert_array_equal(downloaded(device, result), wanted)


# --- refusals -------------------------------------------------------------------------------------
@rule(ALL)
def programs(site: Site) -> None:
    """Programs are counted, and released once or twice; constants that a kernel lacks are
    refused.
    """
    device, blob = site.device, printed(site.device, ADD)
    before = device.counters.compilations
    made = [device.build(blob, {s.name: n for s in blob.specs if s.name == "LX"}) for n in (32, 16)]
    assert device.counters.compilations == before + 2
    assert all(program.blob == blob for program in made)
    with raises(InputError, "no specialisation constant 'TYPO'"):
        device.build(blob, {"TYPO": 1})
    for program in (*made, made[0]):
        device.release(program)


@rule(("wgpu", "gles31", *TEXTURES))  # Vulkan's drivers loop forever on such code
def broken_code(site: Site) -> None:
    """Code that is no kernel is refused in words, and the device works on."""
    device, blob = site.device, printed(site.device, ADD)
    entry = blob.entry.encode()
    mangled = blob.code.replace(entry, entry + b"(nonsense")
    for code in (mangled, b"\0", b"", bytes(20), b"fn f() {}"):
        broken = dataclasses.replace(blob, code=code, digest=repr(code))
        with raises(DriverError, "kernel 't'"):
            device.build(broken, {})
    add(device)


# --- recordings -----------------------------------------------------------------------------------
@rule(GPUS, staged=True)
def dependent_dispatches(site: Site) -> None:
    """Dispatches see each other's results, at every replay."""
    device, x = site.device, ints(5000 * 4, 8)
    source, result = uploaded(device, x), tensor(device, 5000, Usage.OUTPUT)
    scratch = [tensor(device, 5000) for _ in range(2)]
    steps, blob = [source, *scratch, *scratch, result], printed(device, SCALE)
    work = [
        launch(device, blob, [a, b], params={"K": i, "G": 0.0})
        for i, (a, b) in enumerate(pairwise(steps))
    ]
    recording = device.record(work, [source], [result])
    for factor in (1, -3, 2):
        device.write(source, memoryview(x * factor))
        finish(device, recording)
        wanted = [x * factor]
        for i in range(len(work)):
            wanted.append(wanted[-1] * 2 + np.float32(i))
        np.testing.assert_array_equal(downloaded(device, result), wanted[-1])
        np.testing.assert_array_equal(downloaded(device, scratch[1]), wanted[-2])
    device.release(recording)
    device.release(recording)


@rule(GPUS, staged=True)
def replays(site: Site) -> None:
    """A replay costs a submit and nothing else."""
    device, b = site.device, ints(64)
    first, second = uploaded(device, b), uploaded(device, b, usage=Usage.CONSTANT)
    result = tensor(device, 16, Usage.OUTPUT)
    before = device.counters.snapshot()
    work = launch(device, printed(device, ADD), [first, second, result])
    recording = device.record([work], [first], [result])
    after = {**before, "compilations": before["compilations"] + 1}
    after["recordings"] += 1
    assert device.counters.snapshot() == after
    for i in range(50):
        device.write(first, memoryview(b * i))
        finish(device, recording)
        np.testing.assert_array_equal(downloaded(device, result), b * (i + 1))
    assert device.counters.snapshot() == {**after, "submits": before["submits"] + 50}


@rule(GPUS, staged=True)
def parts_of_inputs(site: Site) -> None:
    """Inputs are written in part between submits, and whole while earlier ones are in flight."""
    device, blob = site.device, printed(site.device, ADD)
    for texels in (16, BIG):
        want = np.zeros(texels * 4, np.float32)
        ones = np.ones_like(want)
        a, b = uploaded(device, want), uploaded(device, ones, usage=Usage.CONSTANT)
        result = tensor(device, texels, Usage.OUTPUT)
        recording = device.record([launch(device, blob, [a, b, result])], [a], [result])
        for i in range(6):
            at = 4 * i * (texels // 6)
            for value in (40.0, i + 1.0) if i == 3 else (i + 1.0,):  # twice before it is sent
                device.write(a, memoryview(ones[:4] * value), 4 * at)
            want[at : at + 4] = i + 1.0
            finish(device, recording)
            np.testing.assert_array_equal(downloaded(device, result), want + 1)
        tickets = []
        for i in range(3):
            device.write(a, memoryview(ones * i))
            tickets.append(device.submit(recording))
        device.wait(tickets[-1], 60.0)
        np.testing.assert_array_equal(downloaded(device, result), 3.0)


@rule(GPUS, staged=True)
def submits_in_flight(site: Site) -> None:
    """Submits keep their order, and are waited for in any."""
    device, ones = site.device, np.ones(256, np.float32)
    a, b = uploaded(device, ones), uploaded(device, 2 * ones, usage=Usage.CONSTANT)
    o, p = (tensor(device, 64, Usage.OUTPUT) for _ in range(2))
    blob = printed(device, ADD)
    first = device.record([launch(device, blob, [a, b, o])], [a], [o])
    second = device.record([launch(device, blob, [b, o, p])], [], [p])
    tickets = [device.submit(r) for r in (first, second, first, second)]
    for ticket in (*reversed(tickets), tickets[0]):
        device.wait(ticket, 60.0)
        device.wait(ticket, 0.0)
    np.testing.assert_array_equal(downloaded(device, o), 3.0)
    np.testing.assert_array_equal(downloaded(device, p), 5.0)
    device.release(device.record([], [], []))


@rule(GPUS)
def outputs_of_others(site: Site) -> None:
    """An output that a later recording changes, or the host, is read anew."""
    device, blob = site.device, printed(site.device, ADD)
    ones = uploaded(device, np.ones(32, np.float32))
    o, p = (tensor(device, 8, Usage.OUTPUT) for _ in range(2))
    run(device, [launch(device, blob, [ones, ones, o])], [ones], [o])
    np.testing.assert_array_equal(downloaded(device, o), 2.0)
    work = [launch(device, blob, [ones, ones, o]), launch(device, blob, [o, ones, p])]
    device.write(ones, memoryview(np.full(32, 3, np.float32)))
    run(device, work, [ones], [p])
    np.testing.assert_array_equal(downloaded(device, p), 9.0)
    np.testing.assert_array_equal(downloaded(device, o), 6.0)
    device.write(p, memoryview(np.full(4, -1, np.float32)), 16)
    np.testing.assert_array_equal(downloaded(device, p)[:12], [9] * 4 + [-1] * 4 + [9] * 4)
