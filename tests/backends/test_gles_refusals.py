"""What becomes of a driver's answers that the specification does not know, or that say too much."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import pytest

from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles import physical
from gpuedge.backends.gles import program as shaders
from gpuedge.backends.gles.api import MAX_EXTENSIONS, MAX_TEXT, Gl
from gpuedge.backends.gles.queue import Fences, fences
from gpuedge.core.errors import DeviceLostError, DriverError, OutOfMemoryError


class Answering(Gl):
    """Functions that answer what a test says."""

    def __init__(self, **answers: Any) -> None:
        self.__dict__.update(answers, ready=partial)


def made(answer: int) -> Fences:
    gl = Answering(ClientWaitSync=lambda *_: answer, FenceSync=print, DeleteSync=print)
    found = fences(gl, "gles30", None)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("answer", [0, 1, 0x911D, 0x1234, 0xFFFFFFFF])
def test_a_wait_is_over_only_if_the_driver_says_so(answer: int) -> None:
    with pytest.raises(DriverError) as caught:
        made(answer).is_done(object(), 1.0)
    assert f"{answer:#06x}" in str(caught.value)


def test_a_wait_ends_or_times_out() -> None:
    def wait(answer: int) -> bool:
        return made(answer).is_done(object(), 1.0)

    assert (wait(0x911A), wait(0x911C), wait(0x911B)) == (True, True, False)


def refused(code: int) -> Exception:
    return shaders.refusal(code, "It does not compile.", "line 1: no")


def test_a_refusal_of_a_lost_or_exhausted_device_is_no_fault_of_the_shader() -> None:
    assert isinstance(refused(c.CONTEXT_LOST), DeviceLostError)
    assert isinstance(refused(c.OUT_OF_MEMORY), OutOfMemoryError)
    for code in (0, 0x0502, 0x1234):
        error = refused(code)
        assert isinstance(error, DriverError)
        assert "line 1: no" in str(error)


@pytest.mark.parametrize("announced", [-1, 0, 5, 10 << 20, (1 << 31) - 1])
def test_no_more_of_a_log_is_asked_for_than_anybody_reads(announced: int) -> None:
    rooms = []

    def ask(thing: int, what: int, value: Any) -> None:
        value._obj.value = announced

    def get(thing: int, room: int, length: Any, text: Any) -> None:
        rooms.append(room)
        ctypes.memset(text, ord("e"), room)  # and no NUL

    log = shaders._log(ask, get, 1)
    assert 1 <= rooms[0] <= shaders.MAX_LOG
    assert log == "e" * rooms[0]


def test_errors_of_egl_have_reasons() -> None:
    lost, exhausted = (c.error_for(code, "eglX") for code in (0x300E, 0x3003))
    assert isinstance(lost, DeviceLostError)
    assert isinstance(exhausted, OutOfMemoryError)
    assert c.reason_for(lost, "other") == "device-lost"
    assert c.reason_for(exhausted, "other") == "out-of-memory"
    other = c.error_for(0x1234, "eglX")
    assert "0x1234" in str(other)
    assert c.reason_for(other, "other") == "other"


@pytest.mark.parametrize(("value", "fits"), [(-1, False), (63, False), (64, True), (4096, True)])
def test_limits_that_cannot_be_are_refused(value: int, fits: bool) -> None:
    if fits:
        assert physical.checked("MAX_TEXTURE_SIZE", value, 64, 4096) == value
        return
    with pytest.raises(DriverError, match="limits cannot be"):
        physical.checked("MAX_TEXTURE_SIZE", value, 64)


def extended(count: int, name: bytes | None) -> Answering:
    def integer(what: int, value: Any) -> None:
        value[0] = count

    return Answering(GetIntegerv=integer, GetStringi=lambda what, index: name)


def test_lists_and_strings_without_an_end_are_cut_off() -> None:
    asked = []
    gl = extended((1 << 31) - 1, None)
    gl.GetStringi = lambda what, index: asked.append(index) or b"GL_X"
    assert gl.extensions(3) == {"GL_X"}
    assert len(asked) == MAX_EXTENSIONS
    text = Answering(GetString=lambda what: b"x" * (10 << 20)).text(c.GL_RENDERER)
    assert len(text) == MAX_TEXT
    assert Answering(GetString=lambda what: None).text(c.GL_RENDERER) == ""
