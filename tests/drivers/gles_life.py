"""Checks of a device's life and of its manners towards the application; see `gles_child`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from seam_kernels import add, downloaded, info_of, opened, tensor, uploaded

from gpuedge import backends
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.gles import api, physical
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.queue import GLContext, Want
from gpuedge.backends.loading import driver_environment
from gpuedge.core.errors import (
    DeviceLostError,
    DriverError,
)
from gpuedge.core.kernel import KernelBlob
from gpuedge.probing.api import probe

EGL_VENDOR = 0x3053
EGL_ANGLE_WEBGL = 0x33AC

ONES = np.ones(256, np.float32)


KINDS = ("Buffer", "Framebuffer", "Program", "Shader", "Texture")


def alive(device: OpenDevice) -> dict[str, int]:
    """How many objects of each kind live in a device's context."""
    found = {}
    with device.entered():
        device.queue.gl.UseProgram(0)  # a program in use lives on after it was deleted
        for kind in KINDS:
            address = device.queue.scope.display.library.lookup(f"glIs{kind}")
            ask = ctypes.CFUNCTYPE(ctypes.c_ubyte, ctypes.c_uint)(address)
            found[kind] = sum(bool(ask(name)) for name in range(1, 500))
    return found


def objects(level: str) -> None:
    """Freeing and releasing deletes what was made."""
    device = opened(level)
    before = alive(device)
    for _ in range(3):
        add(device)
    assert alive(device) == before
    assert not device.queue.flying
    kept = tensor(device, 64)
    downloaded(device, kept)
    assert sum(alive(device).values()) == sum(before.values()) + (1 if level == "gles31" else 2)
    device.close()


@contextmanager
def application(level: str, *, is_desktop: bool) -> Iterator[Callable[[], tuple[Any, ...]]]:
    """Have a context of the application's own current; yields what tells the state."""
    candidate = info_of(level).candidate
    with driver_environment(candidate):
        library = api.load(candidate)
        display = api.Display(library, api.platforms(library, candidate)[0])
        context = GLContext(display, Want("gles31" if is_desktop else level, is_desktop))
    size = api.attributes((c.EGL_WIDTH, 3), (c.EGL_HEIGHT, 5))
    config = context._config(c.EGL_PBUFFER_BIT)
    surface = library.CreatePbufferSurface(display.handle, config, size)
    assert surface
    assert library.BindAPI(context.api)
    assert library.MakeCurrent(display.handle, surface, surface, context._handle)

    def state() -> tuple[Any, ...]:
        return (
            library.QueryAPI(),
            library.GetCurrentDisplay(),
            library.GetCurrentSurface(c.EGL_DRAW),
            library.GetCurrentSurface(c.EGL_READ),
            library.GetCurrentContext(),
        )

    assert state() == (context.api, display.handle, surface, surface, context._handle)
    yield state
    library.MakeCurrent(display.handle, None, None, None)
    library.DestroySurface(display.handle, surface)
    context.close()


def earlier_user(level: str, tells_more: bool) -> None:
    """A device that the probe's process saw is found again where the application used EGL first.

    Mesa keeps the version of the first use for all of the process. It tells the UUID of a device in
    contexts of 3.2 only, so that either this process knows more of the device or the probe's does.
    """
    exact = os.environ["MESA_GLES_VERSION_OVERRIDE"]
    if tells_more:
        del os.environ["MESA_GLES_VERSION_OVERRIDE"]
    with application(level, is_desktop=False) as state:
        before = state()
        if tells_more:
            os.environ["MESA_GLES_VERSION_OVERRIDE"] = exact
        else:
            del os.environ["MESA_GLES_VERSION_OVERRIDE"]
        rows = probe(backends=[level], refresh=True, deadline_s=60.0).tried
        info = next(row.info() for row in rows if row.index is not None)
        assert (info_of(level).identity.deviceUUID is not None) is tells_more
        assert (info.identity.deviceUUID is None) is tells_more
        device = backends.load(level).open(info)
        assert isinstance(device, OpenDevice)
        add(device)
        device.close()
        assert state() == before


TEXEL_STATE = (0x84E0, 0x8C2C)
"""GL_ACTIVE_TEXTURE, GL_TEXTURE_BINDING_BUFFER."""


def bound_texels(gl: api.Gl) -> tuple[int, int]:
    """Bind a texel buffer in the application's context, at a unit that we use, too."""
    texture = gl.generate("Textures")
    gl.ActiveTexture(c.TEXTURE0)
    gl.BindTexture(c.TEXTURE_BUFFER, texture)
    return c.TEXTURE0, texture


def manners(level: str, desktop: bool = False) -> None:
    """What the application had current is current again after every call, and after close."""
    with application(level, is_desktop=desktop) as state:
        before = state()
        device = opened(level)
        assert state() == before
        gl = api.Gl(device.queue.scope.display.library.lookup)
        mine = bound_texels(gl) if device.caps.max_texel_buffers else ()
        add(device)
        assert state() == before
        assert tuple(gl.integer(name) for name in TEXEL_STATE[: len(mine)]) == mine
        with device.entered():
            inside = state()
            assert inside[4] not in (None, before[4])
            with device.entered():
                add(device)
                assert state() == inside
            assert state() == inside
        assert state() == before
        device.close()
        assert state() == before
    device = opened(level)  # and nothing where nothing was
    add(device)
    library = api.load(device.info.candidate)
    assert library.GetCurrentContext() is None
    device.close()


def terminate(library: api.Library, handle: int) -> None:
    """Do as an application that is done with its display."""
    function = ctypes.CDLL(library.path).eglTerminate
    function.argtypes = [ctypes.c_void_p]
    assert function(handle)


def latecomer(level: str) -> None:
    """An application that comes after us keeps its display and context when we close."""
    device = opened(level)
    display = device.queue.scope.display
    library, handle = display.library, display.handle
    assert library.Initialize(handle, None, None)  # as the application does, past our own books
    application = GLContext(display, Want(level))
    with application:
        add(device)
        device.close()
        assert library.GetCurrentContext() == application._handle
        assert library.GetCurrentDisplay() == handle
    assert library.QueryString(handle, EGL_VENDOR)
    with application:
        assert library.GetCurrentContext() == application._handle
    application.close()


def terminated(level: str) -> None:
    """A display terminated behind our back: the device is lost, and a new one can be had."""
    device = opened(level)
    buffer = uploaded(device, ONES)
    library, handle = device.queue.scope.display.library, device.queue.scope.display.handle
    terminate(library, handle)
    calls: list[Callable[[], Any]] = [lambda: downloaded(device, buffer), lambda: add(device)]
    with expecting_loss():
        calls[0]()
    with application(level, is_desktop=False) as state:  # which initialises the display again
        before = state()
        for call in calls:
            with expecting_loss():
                call()
            assert state() == before
        device.free(buffer)
        device.close()
        assert state() == before
        for _ in range(2):
            again = opened(level)
            add(again)
            again.close()
            assert state() == before
        assert library.QueryString(handle, EGL_VENDOR)
    device = opened(level)
    terminate(library, handle)
    device.close()
    opened(level).close()


@contextmanager
def expecting_loss() -> Iterator[None]:
    """Expect that the device is lost."""
    try:
        yield
    except DeviceLostError as error:
        assert error.code == "GE-401"
        assert "terminated" in str(error) and "open it again" in str(error)
    else:
        raise AssertionError("it works")


def webgl(level: str, file: str) -> None:
    """A context that enforces Appendix A takes every text of a file, and refuses what it must."""
    import json

    real = GLContext._attempts
    GLContext._attempts = lambda self: [[*a, (EGL_ANGLE_WEBGL, 1)] for a in real(self)]  # type: ignore[method-assign]
    # Such contexts leave the driver's version out of the name.
    physical._mark = lambda _: ()  # type: ignore[assignment]
    device = opened(level)
    refused = {
        "while": "void main() { float x = 0.0; while (x < 3.0) { x += 1.0; }"
        " gl_FragColor = vec4(x); }",
        "bound": "uniform float n; void main() { float x = 0.0;"
        " for (float i = 0.0; i < n; i += 1.0) { x += 1.0; } gl_FragColor = vec4(x); }",
    }
    head = "precision highp float;\n"
    for name, text in refused.items():
        try:
            device.build(_blob(name, head + text), {})
        except DriverError:
            continue
        raise AssertionError(f"{name} was taken: this context checks nothing")
    texts = json.loads(Path(file).read_text())
    assert len(texts) > 25
    for name, text in texts.items():
        program = device.build(_blob(name, text), {})
        device.release(program)
    device.close()


def _blob(name: str, text: str) -> KernelBlob:
    return KernelBlob(name, "essl100", text.encode(), "main", (), (), (), 0, name)
