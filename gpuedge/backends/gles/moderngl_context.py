"""Running beside an application that draws with moderngl, and handing results to it.

The device gets a context of its own in the share group of the application's: it sees the same
textures and buffers and changes nothing else, so moderngl's own state stays as it is. Nothing is
imported here; who has a moderngl context has the package (``pip install gpuedge[moderngl]``).
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, cast

from gpuedge.backends.base import Binding, Buffer, DeviceInfo, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.gles import api, physical
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Gl
from gpuedge.backends.gles.memory import (
    MAX_ROW,
    GlesBuffer,
    GlesTexture,
    Textures,
    make_framebuffer,
    make_texture,
)
from gpuedge.backends.gles.program import link
from gpuedge.backends.gles.queue import Want
from gpuedge.backends.loading import driver_environment
from gpuedge.core.errors import DriverError, UsageError
from gpuedge.safety.packages import command

if TYPE_CHECKING:
    import moderngl

_DTYPES = {c.FLOAT: "f4", c.HALF_FLOAT: "f2", c.UNSIGNED_INT: "u4", c.UNSIGNED_BYTE: "f1"}
"""How moderngl names the types of texels."""

_FLATTEN = """\
#version 300 es
precision highp float;
precision highp int;
precision highp {u}sampler2DArray;
uniform highp {u}sampler2DArray t;
layout(location = 0) out highp {u}vec4 o;
void main() {{
    highp vec2 place = gl_FragCoord.xy;
    int f = int(place.y) * {width} + int(place.x);
    int at = f / {layers};
    o = texelFetch(t, ivec3(at % {row}, at / {row}, f % {layers}), 0);
}}
"""
"""Copies texels of several layers to one; the sampler's unit is 0 from the beginning."""


def open_beside(info: DeviceInfo, context: moderngl.Context) -> physical.Opened:
    """Open a device in the share group of an application's context, current in this thread.

    Raises UsageError where it is no moderngl context or no EGL context that is current here, and
    DriverError where it belongs to another device.
    """
    known = sys.modules.get("moderngl")
    if known is None or not isinstance(context, known.Context):
        raise UsageError(
            f"context={context!r} is not a moderngl context.",
            hint=f"make one with moderngl.create_context(); {command('moderngl')}",
        )
    with driver_environment(info.candidate):
        library = api.load(info.candidate)
    handle, display = library.GetCurrentContext(), library.GetCurrentDisplay()
    if not handle or not display:
        raise UsageError(
            "No EGL context is current in this thread.",
            known="only contexts of EGL can be shared with, not those of GLX, WGL or CGL",
            hint="moderngl.create_context(standalone=True, backend='egl')",
        )
    level = info.candidate.backend
    kind = ctypes.c_int(0)
    library.QueryContext(display, handle, c.EGL_CONTEXT_CLIENT_TYPE, ctypes.byref(kind))
    is_desktop = kind.value == c.EGL_OPENGL_API
    if is_desktop and level != "gles31":
        raise UsageError(
            f"The level {level} cannot share with a context of desktop OpenGL.",
            hint="open 'gles31' instead",
        )
    # Both of a group tell of resets, or neither: a context is asked for either way in turn.
    want = Want(level, is_desktop)
    shown = api.Display(library, api.Platform("the application's", 0), display)
    opened = physical.open_display(shown, want, share=handle)
    if difference := info.identity.differences(opened.identity, ("GL_RENDERER",)):
        opened.context.close()
        raise DriverError(
            "The application's context belongs to another device.",
            asked_by=f"{level} of {info.identity.name}",
            known=difference,
        )
    return opened


class Sharing:
    """Hands results to the application's context, without a copy through the host."""

    def __init__(self, device: OpenDevice, gl: Gl, context: moderngl.Context) -> None:
        self._device = device
        self._gl = gl
        self._context = context

    def share(self, source: Binding, target: Buffer | None = None) -> tuple[Buffer, Any]:
        """Return what holds the result in `source`, and that as an object of moderngl's.

        A texture of one layer is handed over as it is, one of several is drawn to one that belongs
        to it. A part of a buffer is copied on the device to a buffer of just its size: `target`,
        which an earlier call returned, or a new one that the caller frees.
        """
        thing = source.buffer
        if isinstance(thing, GlesTexture):
            name, size, kind = thing.name, (thing.width, thing.height), _DTYPES[thing.form.type]
            if (layers := cast(Textures, self._device.memory).layers) > 1:
                with self._device.entered():
                    name, size = self._in_one_layer(thing, layers)
            return thing, self._context.external_texture(name, size, 4, 0, kind)
        copy = cast(GlesBuffer, target or self._device.alloc(source.nbytes, Usage.OUTPUT))
        with self._device.entered():
            gl = self._gl
            gl.BindBuffer(c.COPY_READ_BUFFER, cast(GlesBuffer, thing).name)
            gl.BindBuffer(c.COPY_WRITE_BUFFER, copy.name)
            places = (c.COPY_READ_BUFFER, c.COPY_WRITE_BUFFER)
            gl.CopyBufferSubData(*places, source.offset, 0, copy.nbytes)
            gl.Finish()
            gl.check("copying a result")
        return copy, self._context.external_buffer(copy.name, copy.nbytes)

    def _in_one_layer(self, thing: GlesTexture, layers: int) -> tuple[int, tuple[int, int]]:
        """Return the name and size of a texture of one layer with the texels of another."""
        gl, count = self._gl, thing.width * thing.height * layers
        width = min(count, MAX_ROW)
        size = width, -(-count // width)
        if not thing.plain:
            thing.plain = make_texture(gl, thing.form, *size)
            thing.plain_frame = make_framebuffer(gl, thing.plain)
            u = "u" if thing.form.type == c.UNSIGNED_INT else ""
            text = _FLATTEN.format(u=u, width=width, row=thing.width, layers=layers)
            thing.plain_program = link(gl, "gles30", text)
        gl.BindFramebuffer(c.FRAMEBUFFER, thing.plain_frame)
        gl.ActiveTexture(c.TEXTURE0)
        gl.BindTexture(c.TEXTURE_2D_ARRAY, thing.name)
        gl.Viewport(0, 0, *size)
        gl.UseProgram(thing.plain_program)
        gl.DrawArrays(c.TRIANGLES, 0, 3)
        gl.Finish()
        gl.check("copying a result")
        return thing.plain, size
