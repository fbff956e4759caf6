"""Tensors in shader storage buffers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuedge.backends.base import Usage
from gpuedge.backends.gles import names
from gpuedge.backends.gles.gl import Gl
from gpuedge.backends.gles.names import error_for
from gpuedge.backends.gles.stack import GlObject, Stack
from gpuedge.backends.gles.stack_raw import address

_HINTS = {
    Usage.CONSTANT: names.STATIC_DRAW,
    Usage.INPUT: names.DYNAMIC_DRAW,
    Usage.OUTPUT: names.DYNAMIC_READ,
    Usage.SCRATCH: names.DYNAMIC_COPY,
}


@dataclass(slots=True, eq=False)
class GlesBuffer:
    """A shader storage buffer."""

    nbytes: int
    usage: Usage
    made: GlObject

    @property
    def name(self) -> int:
        """The buffer's name in OpenGL."""
        return self.made.name


class Buffers:
    """The storage buffers of one device."""

    def __init__(self, gl: Gl, stack: Stack) -> None:
        self._gl = gl
        self._stack = stack

    def alloc(self, nbytes: int, usage: Usage) -> GlesBuffer:
        """Make a buffer. Raises OutOfMemoryError."""
        return GlesBuffer(nbytes, usage, self._stack.buffer(max(16, nbytes), _HINTS[usage]))

    def free(self, buffer: GlesBuffer) -> None:
        """Delete a buffer."""
        self._stack.delete(buffer.made)

    def write(self, buffer: GlesBuffer, data: memoryview, offset: int) -> None:
        """Copy host bytes into a buffer."""
        gl = self._gl
        gl.BindBuffer(names.COPY_WRITE_BUFFER, buffer.name)
        gl.BufferSubData(names.COPY_WRITE_BUFFER, offset, data.nbytes, address(data))

    def read(self, buffer: GlesBuffer, into: Any, offset: int) -> None:
        """Copy bytes of a buffer to the host."""
        target = np.frombuffer(into, np.uint8)
        if not target.size:
            return
        gl = self._gl
        gl.BindBuffer(names.COPY_READ_BUFFER, buffer.name)
        try:
            place = gl.MapBufferRange(names.COPY_READ_BUFFER, offset, target.size, names.MAP_READ)
            if place:
                ctypes.memmove(address(target), place, target.size)
                gl.UnmapBuffer(names.COPY_READ_BUFFER)
        except BaseException:  # such as KeyboardInterrupt; a mapped buffer could not be used again
            gl.UnmapBuffer(names.COPY_READ_BUFFER)
            gl.error()  # it may not have been mapped, or no longer
            raise
        if not place:
            raise error_for(gl.error(), f"glMapBufferRange of {target.size} bytes")
