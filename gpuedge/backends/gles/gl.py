"""The entry points of OpenGL ES by `ctypes`, found through EGL; nothing is hidden or checked.

One table says how each function is called. A function that the driver lacks is simply not there:
using it raises DriverError, `has` asks first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gpuedge.backends.gles import names
from gpuedge.core.errors import DriverError

Lookup = Callable[[str], int]
"""Gives the address of a function by its name; 0 if there is none."""

_TYPES: dict[str, Any] = {
    "v": None,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "b": ctypes.c_ubyte,
    "f": ctypes.c_float,
    "z": ctypes.c_ssize_t,
    "q": ctypes.c_uint64,
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
}

SIGNATURES = {
    # result, then parameters: void int uint byte float ssize(z) uint64(q) pointer string
    "ActiveTexture": "vu",
    "AttachShader": "vuu",
    "BindAttribLocation": "vuus",
    "BindBuffer": "vuu",
    "BindBufferBase": "vuuu",
    "BindBufferRange": "vuuuzz",
    "BindFramebuffer": "vuu",
    "BindTexture": "vuu",
    "BufferData": "vuzpu",
    "BufferSubData": "vuzzp",
    "CheckFramebufferStatus": "uu",
    "ClientWaitSync": "upuq",
    "CompileShader": "vu",
    "CreateProgram": "u",
    "CreateShader": "uu",
    "DeleteBuffers": "vip",
    "DeleteFramebuffers": "vip",
    "DeleteProgram": "vu",
    "DeleteShader": "vu",
    "DeleteSync": "vp",
    "DeleteTextures": "vip",
    "Disable": "vu",
    "DispatchCompute": "vuuu",
    "DrawArrays": "vuii",
    "DrawBuffers": "vip",
    "EnableVertexAttribArray": "vu",
    "FenceSync": "puu",
    "Finish": "v",
    "Flush": "v",
    "FramebufferTexture2D": "vuuuui",
    "GenBuffers": "vip",
    "GenFramebuffers": "vip",
    "GenTextures": "vip",
    "GenVertexArrays": "vip",
    "BindVertexArray": "vu",
    "GetError": "u",
    "GetGraphicsResetStatusEXT": "u",
    "GetGraphicsResetStatusKHR": "u",
    "GetInteger64v": "vup",
    "GetIntegeri_v": "vuup",
    "GetIntegerv": "vup",
    "GetProgramInfoLog": "vuipp",
    "GetProgramiv": "vuup",
    "GetShaderInfoLog": "vuipp",
    "GetShaderPrecisionFormat": "vuupp",
    "GetShaderiv": "vuup",
    "GetString": "su",
    "GetStringi": "suu",
    "GetUniformLocation": "ius",
    "GetUnsignedBytei_vEXT": "vuup",
    "LinkProgram": "vu",
    "MapBufferRange": "puzzu",
    "MemoryBarrier": "vu",
    "ReadPixels": "viiiiuup",
    "ShaderSource": "vuipp",
    "TexImage2D": "vuiiiiiuup",
    "TexParameteri": "vuui",
    "TexSubImage2D": "vuiiiiiuup",
    "Uniform1f": "vif",
    "Uniform1i": "vii",
    "Uniform4f": "viffff",
    "Uniform4i": "viiiii",
    "UnmapBuffer": "bu",
    "UseProgram": "vu",
    "VertexAttribPointer": "vuiubip",
    "Viewport": "viiii",
}

_SUFFIXES = ("", "KHR", "EXT", "OES")


MAX_EXTENSIONS = 4096
"""Extensions that are asked for, ten times what any driver has; the count may be anything."""


MAX_TEXT = 1 << 16
"""Bytes of a driver's string that are looked at."""


class Gl:
    """The functions, without the prefix ``gl``: ``gl.BindTexture(target, name)``.

    Parameters
    ----------
    lookup : callable
        Gives addresses; EGL answers for functions that the driver lacks, too, so a function being
        there proves nothing about the driver.
    """

    def __init__(self, lookup: Lookup) -> None:
        for name, signature in SIGNATURES.items():
            result, *parameters = (_TYPES[letter] for letter in signature)
            address = next((a for s in _SUFFIXES if (a := lookup(f"gl{name}{s}"))), 0)
            if address:
                setattr(self, name, ctypes.CFUNCTYPE(result, *parameters)(address))

    def __getattr__(self, name: str) -> Any:
        raise DriverError(f"The driver has no function gl{name}.")

    def has(self, *functions: str) -> bool:
        """Say whether EGL gave an address for each function."""
        return all(f in self.__dict__ for f in functions)

    def error(self) -> int:
        """Return the first error since the last call of this, 0 for none."""
        first: int = self.GetError()
        further = first
        for _ in range(8):  # one per kind of error; a lost context repeats its own for ever
            if further == 0:
                break
            further = self.GetError()
        return first

    def integer(self, name: int) -> int:
        """Return an implementation limit; 0 if the driver does not know it."""
        value = ctypes.c_int(0)
        self.GetIntegerv(name, ctypes.byref(value))
        return max(0, value.value)

    def integers(self, name: int, count: int) -> tuple[int, ...]:
        """Return a limit of several numbers."""
        values = (ctypes.c_int * count)()
        self.GetIntegerv(name, values)
        return tuple(values)

    def indexed(self, name: int) -> tuple[int, int, int]:
        """Return a limit that is asked for by index 0, 1 and 2."""
        found = []
        for index in range(3):
            value = ctypes.c_int(0)
            self.GetIntegeri_v(name, index, ctypes.byref(value))
            found.append(max(0, value.value))
        return found[0], found[1], found[2]

    def text(self, name: int) -> str:
        """Return a string of the driver, or its beginning; stray bytes are replaced."""
        raw: bytes | None = self.GetString(name)
        return (raw or b"")[:MAX_TEXT].decode("utf-8", "replace")

    def extensions(self, major: int) -> frozenset[str]:
        """Return the names of the extensions of the current context."""
        if major < 3:
            return frozenset(self.text(names.GL_EXTENSIONS).split())
        count = min(self.integer(names.NUM_EXTENSIONS), MAX_EXTENSIONS)
        raw = (self.GetStringi(names.GL_EXTENSIONS, i) or b"" for i in range(count))
        return frozenset(name.decode("ascii", "replace") for name in raw)

    def generate(self, kind: str) -> int:
        """Return a new object of a kind such as ``Textures``."""
        name = ctypes.c_uint(0)
        getattr(self, f"Gen{kind}")(1, ctypes.byref(name))
        return name.value

    def delete(self, kind: str, name: int) -> None:
        """Delete an object made by `generate`."""
        getattr(self, f"Delete{kind}")(1, ctypes.byref(ctypes.c_uint(name)))

    def precision(self, shader: int, kind: int) -> tuple[int, int, int]:
        """Return (log2 of the least, log2 of the greatest magnitude, bits) of a precision."""
        span, bits = (ctypes.c_int * 2)(), ctypes.c_int(0)
        self.GetShaderPrecisionFormat(shader, kind, span, ctypes.byref(bits))
        return span[0], span[1], bits.value
