"""What the OpenGL ES tests check, each in a process of its own; see `gles_child`."""

from __future__ import annotations

import dataclasses

import numpy as np
from gles_kernels import (
    ADD,
    COPY,
    REVERSE,
    SCALE,
    downloaded,
    infos,
    launch,
    opened,
    printed,
    run,
    tensor,
    uploaded,
)

from gpuedge.backends.base import Binding, Dispatch, Usage
from gpuedge.core.errors import (
    BackendUnavailableError,
    DriverError,
    GpuEdgeError,
    InputError,
    OutOfMemoryError,
)
from gpuedge.core.storage import KINDS, Storage
from gpuedge.core.texels import fixed16_step

RNG = np.random.default_rng(7)


def caps(level: str, /, **wanted: object) -> None:
    """The device reports exactly these limits and facts."""
    info = infos(level)[0]
    device = opened(level)
    facts = {**device.caps.to_dict(), "renderer": info.identity.name}
    facts["software"] = info.is_software
    device.close()
    found = {k: facts[k] for k in wanted}
    if "renderer" in found:
        assert str(wanted["renderer"]) in str(found.pop("renderer"))
        wanted.pop("renderer")
    assert found == wanted, found
    identity = info.identity
    assert identity.api == level
    assert identity.name == identity.GL_RENDERER
    assert identity.GL_VENDOR and identity.GL_VERSION


def absent(_: str, wanted: str, code: str) -> None:
    """The driver does not have a level, for this reason."""
    try:
        infos(wanted)
    except BackendUnavailableError as error:
        assert error.reason.code == code, error.reason.sentence  # type: ignore[attr-defined]
    else:
        raise AssertionError("it has the level")


def shell(level: str, path: str) -> None:
    """A library without functions is refused for what it is."""
    import os

    os.environ["GPUEDGE_EGL"] = path
    try:
        infos(level)
    except BackendUnavailableError as error:
        assert error.reason.code == "missing-library"  # type: ignore[attr-defined]
        assert "eglGetProcAddress" in str(error)
    else:
        raise AssertionError("it is usable")


FLOAT = "rgba32f"


def _values(kind: str, texels: int) -> np.ndarray:
    """Values that a storage kind holds exactly, and their sums by two too."""
    n = texels * 4
    if kind == "rgba8_u8":
        return RNG.integers(0, 120, n).astype(np.float32)
    if kind == "rgba8_s8":
        return RNG.integers(-60, 60, n).astype(np.float32)
    if kind == "rgba16f":
        return RNG.integers(-900, 900, n).astype(np.float32)
    if kind == "rgba8_fixed16":
        return RNG.integers(-1000, 1000, n).astype(np.float32) / 8
    return RNG.integers(-1 << 22, 1 << 22, n).astype(np.float32) / 1024


def _storage(kind: str) -> Storage:
    # a step of 1/128: the values above are among those it holds
    return Storage(kind, -256.0, -256.0 + 65535 / 128) if "fixed" in kind else Storage(kind)


def storages(level: str) -> None:
    """Every storage kind keeps and adds numbers, whatever the size; kinds mix in one kernel."""
    device = opened(level)
    row = 4096
    for kind in device.caps.storages:
        storage = _storage(kind)
        assert kind != "rgba8_fixed16" or fixed16_step(storage) == 1 / 128
        units = KINDS[kind].units
        for texels in (1, 3, row // units - 1, row // units, row // units + 1, 3 * row + 17):
            a, b = _values(kind, texels), _values(kind, texels)
            first, second = uploaded(device, a, storage), uploaded(device, b, storage)
            np.testing.assert_array_equal(downloaded(device, first), a)
            result = tensor(device, texels, Usage.OUTPUT, storage)
            blob = printed(device, ADD, dict.fromkeys("ABO", kind))
            work = launch(device, blob, [first, second, result])
            run(device, [work])
            np.testing.assert_array_equal(downloaded(device, result), a + b, f"{kind} {texels}")
            for buffer in (first, second, result):
                device.free(buffer)
            device.release(work.program)
    device.close()


def mixed(level: str) -> None:
    """One kernel reads two kinds and writes a third."""
    device = opened(level)
    kinds = device.caps.storages
    exact, small = kinds[0], "rgba8_u8"
    a, b = _values(exact, 5000), _values(small, 5000)
    for out in (exact, "rgba8_float"):
        blob = printed(device, ADD, {"A": exact, "B": small, "O": out})
        buffers = [uploaded(device, a), uploaded(device, b, Storage(small))]
        buffers.append(tensor(device, 5000, Usage.OUTPUT, Storage(out)))
        run(device, [launch(device, blob, buffers)])
        np.testing.assert_array_equal(downloaded(device, buffers[2]), a + b)
    device.close()


def chain(level: str) -> None:
    """Passes see each other's results; one program serves passes with other values; replays."""
    device = opened(level)
    blob = printed(device, SCALE)
    count = 4100
    source, middle, result = (tensor(device, count, u) for u in (Usage.INPUT, Usage.SCRATCH,
                                                                 Usage.OUTPUT))  # fmt: skip
    steps = [
        launch(device, blob, [source, middle], params={"K": 3, "G": 0.5}, specs={"N": 4}),
        launch(device, blob, [middle, result], params={"K": -7, "G": 0.25}, specs={"N": 4}),
    ]
    recording = device.record(steps, [source], [result])
    alone = device.record([steps[0]], [source], [])
    for _ in range(3):
        x = RNG.integers(-1000, 1000, count * 4).astype(np.float32)
        device.write(source, memoryview(x))
        device.wait(device.submit(recording), 60)
        wanted = (x * 4 + np.float32(3.5)) * 4 - np.float32(6.75)
        np.testing.assert_array_equal(downloaded(device, result), wanted)
        device.wait(device.submit(alone), 60)
        np.testing.assert_array_equal(downloaded(device, middle), x * 4 + np.float32(3.5))
    flagged = launch(device, blob, [source, result], params={"K": 0, "G": 0.0},
                     specs={"N": -1, "FLAG": True, "PART": 0.125})  # fmt: skip
    run(device, [flagged])
    np.testing.assert_array_equal(downloaded(device, result), np.float32(0.125) - x)
    assert device.counters.snapshot() == {
        "allocations": 3, "compilations": 3, "recordings": 3, "submits": 7,
    }  # fmt: skip
    device.close()


def powers(level: str) -> None:
    """Kernels use exp2 where it is exact of whole numbers, and only there."""
    from gpuedge.backends.gles import formats, program

    texts: list[str] = []
    link, exact = program.link, formats._POWERS
    program.link = lambda gl, level, text: texts.append(text) or link(gl, level, text)  # type: ignore[func-returns-value]
    wrong = ("exp2(n + 1e-5)", "(n == 127.0 ? 1.7e38 : exp2(n))", "(n < -125.0 ? 0.0 : exp2(n))")
    for call in ("exp2(n)", *wrong):
        formats._POWERS = exact.replace("exp2(n)", call)
        texts.clear()
        chain(level)
        assert texts and all(("#define EXP2" in one) is (call == "exp2(n)") for one in texts), call


def reuse(level: str) -> None:
    """A buffer holds a smaller tensor, and gives back its bytes as another shape."""
    from gpuedge.backends.gles.memory import row_length

    device = opened(level)
    layers = device.caps.map_texels
    row = layers * row_length(device.caps.max_texture_size or 4096, layers)
    for big, small in ((9000, 5000), (300, 7), (row + 5, row - 5), (row * 2, row)):
        a, b = _values("rgba32f", small), _values("rgba32f", small)
        first, second, out = (tensor(device, big, Usage.OUTPUT) for _ in range(3))
        before = _values("rgba32f", big)
        for buffer, values in ((out, before), (first, a), (second, b)):
            device.write(buffer, memoryview(values))
        work = launch(device, printed(device, ADD), [first, second, out], texels=small)
        run(device, [work])
        got = downloaded(device, out)
        np.testing.assert_array_equal(got[: small * 4], a + b)
        used = -(-small // row) * row if small > row else small
        used = -(-used // device.caps.map_texels) * device.caps.map_texels
        if level != "gles31":  # fragment shaders fill rows of all layers; what lies behind stays
            used *= 4 if device.caps.storages[0] == "rgba8_float" else 1
        if used < big and device.caps.storages[0] != "rgba8_float":
            np.testing.assert_array_equal(got[used * 4 :], before[used * 4 :])
    device.close()


def parts(level: str) -> None:
    """Any range of bytes can be written and read; what lies around it stays."""
    device = opened(level)
    wanted = _values("rgba32f", 5000)
    buffer = uploaded(device, wanted)
    for start, count in ((0, 3), (1, 1), (4, 4), (5, 9), (16381, 10), (19990, 10), (7, 19000)):
        values = _values("rgba32f", count)[:count]
        device.write(buffer, memoryview(values), start * 4)
        wanted[start : start + count] = values
        np.testing.assert_array_equal(downloaded(device, buffer), wanted)
        into = np.zeros(count, np.float32)
        device.read(buffer, memoryview(into), start * 4)
        np.testing.assert_array_equal(into, values)
    device.read(buffer, memoryview(b""))
    device.close()


def special(level: str) -> None:
    """Infinities and NaN pass through where the device promises it; huge and tiny ones always."""
    device = opened(level)
    tiny, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    x = np.array([tiny, -tiny, most, -most, 1 / 3, -1e-30, 1e30, 0], np.float32)
    if not device.caps.is_finite_only:
        x = np.append(x, np.float32([np.inf, -np.inf, np.nan, 5]))
    source, result = uploaded(device, x), tensor(device, x.size // 4, Usage.OUTPUT)
    run(device, [launch(device, printed(device, COPY), [source, result])])
    np.testing.assert_array_equal(downloaded(device, result), x)
    device.close()


def groups(level: str) -> None:
    """Workgroups share memory; ranges of one buffer are tensors."""
    device = opened(level)
    x = RNG.standard_normal(64 * 4).astype(np.float32)
    align = device.caps.offset_alignment
    assert device.caps.has_suballocation
    arena = device.alloc(align + 2 * 1024 + align, Usage.OUTPUT)
    at = -(-(align + 1024) // align) * align
    device.write(arena, memoryview(x), align)
    blob = printed(device, REVERSE)
    program = device.build(blob, {"LX": 8})
    bindings = (Binding(arena, align, 1024), Binding(arena, at, 1024))
    push = blob.pack_push([(64, 1, 1, 1)] * 2)
    run(device, [Dispatch(program, bindings, push, (8, 1, 1))])
    into = np.zeros(256, np.float32)
    device.read(arena, memoryview(into), at)
    wanted = x.reshape(8, 8, 4)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(into, wanted)
    device.close()


def _raises(kind: type[GpuEdgeError], words: str, call: object, *args: object) -> None:
    try:
        call(*args)  # type: ignore[operator]
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def refusals(level: str) -> None:
    """What cannot be done is refused in words, and nothing breaks by it."""
    device = opened(level)
    blob = printed(device, ADD)
    text = blob.code.replace(b"void main", b"void main(nonsense")
    broken = dataclasses.replace(blob, code=text, digest="broken")
    _raises(DriverError, "kernel 't'", device.build, broken, {})
    _raises(InputError, "no specialisation constant 'NO'", device.build, blob, {"NO": 1})
    source = uploaded(device, _values("rgba32f", 4))
    result = tensor(device, 4, Usage.OUTPUT)
    if level != "gles31":
        size = device.caps.max_texture_size or 0
        huge = (4096 * size + 1) * 16
        _raises(OutOfMemoryError, "does not fit", device.alloc, huge, Usage.SCRATCH)
    run(device, [launch(device, blob, [source, source, result])])
    np.testing.assert_array_equal(downloaded(device, result), 2 * downloaded(device, source))
    device.close()


def dtypes(level: str) -> None:
    """Storage buffers keep the bytes of every dtype."""
    from test_storage_types import DTYPES, keeps

    device = opened(level)
    for dtype in DTYPES:
        keeps(device, dtype)
    device.close()


def float32_only(level: str) -> None:
    """A texture converts from float32, and takes nothing else."""
    device = opened(level)
    storage = Storage(device.caps.storages[0], dtype="int8")
    _raises(InputError, "of int8", device.alloc, 64, Usage.INPUT, storage)
    device.close()
