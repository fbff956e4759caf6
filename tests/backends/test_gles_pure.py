"""Parts of the OpenGL ES backends that are arithmetic: precision, rows, errors, records."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuedge.backends.base import Binding, Dispatch
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles import formats
from gpuedge.backends.gles.api import _GL, Gl
from gpuedge.backends.gles.memory import Buffers, GlesBuffer, boxes, row_length
from gpuedge.backends.gles.physical import judge_precision
from gpuedge.backends.gles.program import GlesProgram
from gpuedge.backends.gles.queue import replay
from gpuedge.backends.gles.record import GlesRecording, Recorder, record_dispatches
from gpuedge.core.errors import DeviceLostError, DriverError, OutOfMemoryError
from gpuedge.core.kernel import KernelBlob, TensorArg


@pytest.mark.parametrize(
    ("span", "bits", "is_good"),
    [
        ((127, 127), 23, True),
        ((126, 127), 23, True),
        ((62, 62), 16, False),  # the least that highp may be (OpenGL ES 2.0, 2.10.3)
        ((15, 15), 10, False),  # mediump, as a device without highp may report it
        ((14, 14), 10, False),
        ((127, 127), 16, False),
        ((62, 62), 23, False),
        ((0, 0), 0, False),  # no highp at all
    ],
)
def test_precision(span: tuple[int, int], bits: int, is_good: bool) -> None:
    why = judge_precision(span, bits)
    assert (why is None) == is_good
    assert is_good or "highp" in str(why)


@given(size=st.integers(1, 1 << 16), layers=st.sampled_from([1, 4]))
def test_row_is_a_power_of_two_that_fits(size: int, layers: int) -> None:
    row, most = row_length(size, layers), min(size, 4096 // layers)
    assert row & (row - 1) == 0
    assert row <= most
    is_greatest = most < 2 * row
    if layers == 1:
        assert is_greatest
    else:  # the least of which a texture holds 256 MiB, and no fewer than 128
        half = row // 2
        assert is_greatest or row * size * 64 >= 1 << 28
        assert half < 128 or half * size * 64 < 1 << 28


@given(first=st.integers(0, 500), count=st.integers(0, 500), bits=st.integers(0, 6))
def test_boxes_cover_the_range_in_order(first: int, count: int, bits: int) -> None:
    row = 1 << bits
    found = list(boxes(first, count, row))
    assert len(found) <= 3
    covered = [(y + j) * row + x + i for x, y, w, h in found for j in range(h) for i in range(w)]
    assert covered == list(range(first, first + count))
    assert all(x + w <= row for x, _, w, _ in found)


def test_errors_by_their_numbers() -> None:
    assert isinstance(c.error_for(0x0507, "glX"), DeviceLostError)
    assert isinstance(c.error_for(0x0505, "glX"), OutOfMemoryError)
    error = c.error_for(0x0502, "glX", "llvmpipe")
    assert type(error) is DriverError
    assert "llvmpipe" in error.what and error.known == "glX: GL_INVALID_OPERATION"
    assert c.error_for(0x1234, "glX").known == "glX: error 0x1234"
    assert isinstance(c.error_for(0x300E, "eglX"), DeviceLostError)
    assert c.error_for(0x3009, "eglX").known == "eglX: EGL_BAD_MATCH"


def test_best_exact_storage_comes_first() -> None:
    some = formats.TRIES["gles30"]["rgba8"][0]
    for found, first in (
        ({"rgba8": some}, "rgba8_float"),
        ({"rgba16f": some, "rgba8": some}, "rgba8_float"),
        ({"rgba32ui": some, "rgba16f": some, "rgba8": some}, "rgba32ui"),
        ({"rgba32f": some, "rgba32ui": some, "rgba8": some}, "rgba32f"),
    ):
        assert formats.storages(found)[0] == first
    assert "rgba16f" not in formats.storages({"rgba8": some})


def test_times_are_within_what_drivers_take() -> None:
    waited: list[float] = []
    queue: Any = SimpleNamespace(
        lost=None, scope=nullcontext(), wait=lambda ticket, seconds: waited.append(seconds)
    )
    none: Any = None
    device = OpenDevice(none, none, (queue, none, none, none), lambda: None)
    for seconds in (-1.0, 1.5, float("inf"), 1e30):
        device.wait(none, seconds)
    assert waited[:2] == [0.0, 1.5]
    assert waited[2] == waited[3] and int(waited[2] * 1e9) < 1 << 62


class Calls:
    """Notes the calls of OpenGL functions by name."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def ready(self, call: Any, *args: Any) -> Any:
        return partial(call, *args)

    def __getattr__(self, name: str) -> Any:
        call = lambda *args: self.made.append(f"{name} {args}")  # noqa: E731
        setattr(self, name, call)
        return call


def test_dispatches_wait_for_those_they_depend_on() -> None:
    gl: Any = Calls()
    blob = KernelBlob("k", "essl310", b"", "main", (TensorArg("O", "write", 0),), (), (), 0, "d")
    program = GlesProgram(blob, 5, {}, {})
    buffer = GlesBuffer(64, 9)
    work = [
        Dispatch(program, (Binding(buffer, 16, 32),), b"", (i + 1, 1, 1), depends)
        for i, depends in enumerate((True, False, True))
    ]
    recording = GlesRecording()
    record_dispatches(gl, work, recording)
    replay(recording)
    storage, update = (c.SHADER_STORAGE_BARRIER,), (c.BUFFER_UPDATE_BARRIER,)
    assert gl.made == [
        f"MemoryBarrier {storage}",
        "UseProgram (5,)",
        f"BindBufferRange {(c.SHADER_STORAGE_BUFFER, 0, 9, 16, 32)}",
        "DispatchCompute (1, 1, 1)",
        "DispatchCompute (2, 1, 1)",
        f"MemoryBarrier {storage}",
        "DispatchCompute (3, 1, 1)",
        f"MemoryBarrier {update}",
    ]


def test_texel_buffers_are_fetched_behind_barriers_and_freed() -> None:
    gl: Any = Calls()
    names = iter((31, 32))
    gl.generate = lambda kind: next(names)
    gl.tex_buffer_range = lambda *args: gl.made.append(f"range {args}")
    tensors = (TensorArg("A", "read", 0, "texels_f16"), TensorArg("O", "write", 1))
    blob = KernelBlob("k", "essl310", b"", "main", tensors, (), (), 0, "d")
    program = GlesProgram(blob, 5, {}, {"A": 0})
    a, o = Binding(GlesBuffer(64, 9), 16, 32), Binding(GlesBuffer(64, 8), 0, 64)
    work = [
        Dispatch(program, (source, o), b"", (1, 1, 1), depends)
        for source, depends in ((a, True), (a, False), (replace(a, offset=0), True))
    ]
    recording = GlesRecording()
    record_dispatches(gl, work, recording)
    assert gl.made == [
        f"BindTexture {(c.TEXTURE_BUFFER, 31)}",
        f"range {(c.TEXTURE_BUFFER, c.RGBA16F, 9, 16, 32)}",
        f"BindTexture {(c.TEXTURE_BUFFER, 32)}",
        f"range {(c.TEXTURE_BUFFER, c.RGBA16F, 9, 0, 32)}",
    ]
    gl.made.clear()
    replay(recording)
    barrier = (c.SHADER_STORAGE_BARRIER | c.TEXTURE_FETCH_BARRIER,)
    assert gl.made == [
        f"MemoryBarrier {barrier}",
        "UseProgram (5,)",
        f"ActiveTexture {(c.TEXTURE0,)}",
        f"BindTexture {(c.TEXTURE_BUFFER, 31)}",
        f"BindBufferRange {(c.SHADER_STORAGE_BUFFER, 1, 8, 0, 64)}",
        "DispatchCompute (1, 1, 1)",
        "DispatchCompute (1, 1, 1)",
        f"MemoryBarrier {barrier}",
        f"ActiveTexture {(c.TEXTURE0,)}",
        f"BindTexture {(c.TEXTURE_BUFFER, 32)}",
        "DispatchCompute (1, 1, 1)",
        f"MemoryBarrier {(c.BUFFER_UPDATE_BARRIER,)}",
    ]
    gl.made.clear()
    Recorder(gl, Buffers(gl), lambda _: None).release(recording)
    assert gl.made == ["delete ('Textures', 31)", "delete ('Textures', 32)"]


def test_a_refused_recording_leaves_no_texture() -> None:
    gl: Any = Calls()
    gl.generate = lambda kind: 31

    def refuse(*_: Any) -> None:
        raise DriverError("no")

    gl.tex_buffer_range = refuse
    blob = KernelBlob(
        "k", "essl310", b"", "main", (TensorArg("A", "read", 0, "texels"),), (), (), 0, "d"
    )
    program = GlesProgram(blob, 5, {}, {"A": 0})
    work = Dispatch(program, (Binding(GlesBuffer(64, 9), 0, 64),), b"", (1, 1, 1), True)
    with pytest.raises(DriverError):
        Recorder(gl, Buffers(gl), lambda _: None).record([work], (), ())
    assert gl.made[-1] == "delete ('Textures', 31)"


def test_buffers_that_the_host_sees() -> None:
    gl: Any = Calls()
    memory = (ctypes.c_char * 64)(*b"shared")
    place = ctypes.addressof(memory)
    gl.MapBufferRange, gl.error = lambda *args: place, lambda: 0
    buffer, other = GlesBuffer(64, 9), GlesBuffer(64, 8)
    assert Buffers(gl).address(buffer) is None and not gl.made
    shared = Buffers(gl, is_shared=True)
    assert shared.address(buffer) == buffer.place == place
    gl.made, gl.GetError = [], lambda: 0
    into = bytearray(64)
    shared.read(buffer, into, 0)  # a result of others: it is mapped for this
    assert into == memory.raw and not buffer.place
    bind, unmap = f"BindBuffer {(c.COPY_READ_BUFFER, 9)}", f"UnmapBuffer {(c.COPY_READ_BUFFER,)}"
    assert gl.made == [bind, unmap, unmap]
    gl.MapBufferRange = lambda *args: None  # the driver refuses
    assert shared.address(other) is None and not other.place


def test_interrupted_reading_leaves_no_buffer_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    gl: Any = Calls()
    gl.MapBufferRange = lambda *args: 4096

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ctypes, "memmove", interrupt)
    buffer = GlesBuffer(64, 9)
    with pytest.raises(KeyboardInterrupt):
        Buffers(gl).read(buffer, bytearray(64), 0)
    bound, unmapped = gl.made[:2]
    assert bound == f"BindBuffer {(c.COPY_READ_BUFFER, 9)}"
    assert unmapped == f"UnmapBuffer {(c.COPY_READ_BUFFER,)}"


def test_function_that_the_driver_lacks() -> None:
    gl = Gl(lambda name: 0)
    assert not gl.has("DrawArrays")
    with pytest.raises(DriverError, match="no function glDrawArrays"):
        gl.DrawArrays(0, 0, 0)


def test_every_function_has_a_well_formed_signature() -> None:
    made = [ctypes.CFUNCTYPE(ctypes.c_uint)(lambda: 7)]
    gl = Gl(lambda name: ctypes.cast(made[0], ctypes.c_void_p).value or 0)
    assert gl.has(*" ".join(_GL.values()).split())
    assert gl.GetGraphicsResetStatusKHR() == 7


def test_errors_are_all_taken_and_the_first_is_told() -> None:
    class Faulty(Gl):
        def __init__(self, *codes: int) -> None:
            self.codes = list(codes)
            self.GetError: Any = lambda: self.codes.pop(0) if self.codes else 0

    gl = Faulty(0x0502, 0x0500)
    assert (gl.error(), gl.codes) == (0x0502, [])
    gl = Faulty(0, 0x0500)
    assert (gl.error(), gl.codes) == (0, [0x0500])
    lost = Faulty(*[0x0507] * 100)  # repeats itself forever
    assert lost.error() == 0x0507


def test_probing_shaders_fetch_in_a_branch_with_full_precision() -> None:
    for level, tries in formats.TRIES.items():
        for name, layers in product(tries, formats.LAYERS[level]):
            text = formats.copy_text(level, name, layers)
            assert text.count("if (width > 0.0) { v = tex") == layers
            assert "mediump" not in text and "uniform highp" in text
    assert "uniform highp usampler2DArray t;" in formats.copy_text("gles30", "rgba32ui", 4)


def test_halves_used_for_trying_are_halves() -> None:
    values = formats.VALUES["rgba16f"]
    assert values.dtype == np.float16 and np.isfinite(values).all()
