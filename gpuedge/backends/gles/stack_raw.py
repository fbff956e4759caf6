"""The stack of bare entry points: every level, every driver, nothing to install."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuedge.backends.gles import names, shaders
from gpuedge.backends.gles.gl import Gl
from gpuedge.backends.gles.names import error_for
from gpuedge.backends.gles.stack import Box, Format, GlObject, Step
from gpuedge.core.errors import DriverError

TEXTURE_STATE = (
    (names.TEXTURE_MIN_FILTER, names.NEAREST),
    (names.TEXTURE_MAG_FILTER, names.NEAREST),
    (names.TEXTURE_WRAP_S, names.CLAMP_TO_EDGE),
    (names.TEXTURE_WRAP_T, names.CLAMP_TO_EDGE),
)


def address(data: Any) -> int:
    """Return where contiguous host memory lies; the caller keeps it alive."""
    place: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return place


def draw_to(gl: Gl, framebuffer: int, count: int) -> None:
    """Make outputs 0 to `count` - 1 of shaders go to the textures of a framebuffer."""
    points = (ctypes.c_uint * count)(*(names.COLOR_ATTACHMENT0 + i for i in range(count)))
    gl.BindFramebuffer(names.FRAMEBUFFER, framebuffer)
    gl.DrawBuffers(count, points)


class RawStack:
    """See `gpuedge.backends.gles.stack.Stack`.

    Parameters
    ----------
    gl : Gl
    draws : bool
        Whether triangles are to be drawn, with a context of our own current.
    """

    name = "raw"

    def __init__(self, gl: Gl, draws: bool) -> None:
        self._gl = gl
        self._corners: int | None = None
        if draws:
            for state in names.STATES_OFF:
                gl.Disable(state)
            gl.error()  # a level may not know every state
            corners = (ctypes.c_float * len(shaders.TRIANGLE))(*shaders.TRIANGLE)
            self._corners = gl.generate("Buffers")
            gl.BindBuffer(names.ARRAY_BUFFER, self._corners)
            size = ctypes.sizeof(corners)
            gl.BufferData(names.ARRAY_BUFFER, size, corners, names.STATIC_DRAW)
            gl.EnableVertexAttribArray(0)
            gl.VertexAttribPointer(0, 2, names.FLOAT, 0, 0, None)

    def texture(self, form: Format, width: int, height: int) -> GlObject:
        """Make a texture."""
        gl = self._gl
        name = gl.generate("Textures")
        gl.BindTexture(names.TEXTURE_2D, name)
        for key, value in TEXTURE_STATE:
            gl.TexParameteri(names.TEXTURE_2D, key, value)
        gl.TexImage2D(
            names.TEXTURE_2D, 0, form.internal, width, height, 0, form.layout, form.type, None
        )
        failed = gl.error()
        if failed:
            gl.delete("Textures", name)
            raise error_for(failed, f"glTexImage2D of {width} x {height}")
        return GlObject("Textures", name)

    def upload(self, texture: GlObject, form: Format, box: Box, data: Any) -> None:
        """Write a part of a texture."""
        gl = self._gl
        gl.BindTexture(names.TEXTURE_2D, texture.name)
        gl.TexSubImage2D(names.TEXTURE_2D, 0, *box, form.layout, form.type, address(data))

    def framebuffer(self, textures: Sequence[GlObject]) -> GlObject:
        """Make a framebuffer."""
        gl = self._gl
        name = gl.generate("Framebuffers")
        gl.BindFramebuffer(names.FRAMEBUFFER, name)
        points = [names.COLOR_ATTACHMENT0 + i for i in range(len(textures))]
        for point, texture in zip(points, textures, strict=True):
            gl.FramebufferTexture2D(names.FRAMEBUFFER, point, names.TEXTURE_2D, texture.name, 0)
        if len(points) > 1:
            draw_to(gl, name, len(points))
        status = gl.CheckFramebufferStatus(names.FRAMEBUFFER)
        gl.error()
        if status != names.FRAMEBUFFER_COMPLETE:
            gl.delete("Framebuffers", name)
            raise DriverError(
                "The driver does not render to a texture.",
                known=f"the framebuffer's status is {status:#06x}",
            )
        return GlObject("Framebuffers", name)

    def program(self, vertex: str, fragment: str) -> GlObject:
        """Compile and link two shaders."""
        stages = [(names.VERTEX_SHADER, vertex), (names.FRAGMENT_SHADER, fragment)]
        return GlObject("Programs", shaders.link(self._gl, stages))

    def compute(self, text: str) -> GlObject:
        """Compile and link a compute shader."""
        return GlObject("Programs", shaders.link(self._gl, [(names.COMPUTE_SHADER, text)]))

    def buffer(self, nbytes: int, usage: int) -> GlObject:
        """Make a buffer."""
        gl = self._gl
        name = gl.generate("Buffers")
        gl.BindBuffer(names.COPY_WRITE_BUFFER, name)
        gl.BufferData(names.COPY_WRITE_BUFFER, nbytes, None, usage)
        failed = gl.error()
        if failed:
            gl.delete("Buffers", name)
            raise error_for(failed, f"glBufferData of {nbytes} bytes")
        return GlObject("Buffers", name)

    def draw(self, program: GlObject) -> Step:
        """Return the call that draws; the program is in use."""
        return self._gl.DrawArrays, (names.TRIANGLES, 0, 3)

    def dispatch(self, program: GlObject, groups: tuple[int, int, int]) -> Step:
        """Return the call that launches workgroups; the program is in use."""
        return self._gl.DispatchCompute, groups

    def delete(self, thing: GlObject) -> None:
        """Delete an object."""
        if thing.kind == "Programs":
            self._gl.DeleteProgram(thing.name)
        else:
            self._gl.delete(thing.kind, thing.name)

    def close(self) -> None:
        """Delete the triangle."""
        if self._corners is not None:
            self._gl.delete("Buffers", self._corners)
            self._corners = None
