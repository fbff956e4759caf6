"""OpenGL ES with nothing in between: EGL and GL through ctypes, independent of gpuedge.

As a script it prints what a driver says of itself as one JSON document:
``python benchmarks/bare/gl.py 2.0``. `GPUEDGE_EGL` names the libEGL to use, as for gpuedge; its
libGLESv2 lies beside it. Without it the system's libraries are used.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_uint, c_void_p
from pathlib import Path
from typing import Any

EGL_EXTENSIONS, EGL_NONE = 0x3055, 0x3038
EGL_PLATFORM_SURFACELESS, EGL_PLATFORM_ANGLE = 0x31DD, 0x3202
ANGLE_ON_SWIFTSHADER = (0x3203, 0x3450, 0x3209, 0x3487)  # type Vulkan, device type SwiftShader
EXACT_VERSION_ANGLE = (0x3483, 0)  # EGL_CONTEXT_OPENGL_BACKWARDS_COMPATIBLE_ANGLE
EGL_API_ES, ES2_BIT, ES3_BIT, PBUFFER_BIT = 0x30A0, 0x4, 0x40, 0x1

TEXTURE_2D, RGBA, BYTES, FRAMEBUFFER = 0x0DE1, 0x1908, 0x1401, 0x8D40
RGBA32UI, RGBA_INTEGER, UINT = 0x8D70, 0x8D99, 0x1405
NEAREST, MIN_FILTER, MAG_FILTER = 0x2600, 0x2801, 0x2800
FRAGMENT, VERTEX, COMPUTE = 0x8B30, 0x8B31, 0x91B9
STORAGE, ARRAY, STATIC, FLOAT = 0x90D2, 0x8892, 0x88E4, 0x1406
STRINGS = {"vendor": 0x1F00, "renderer": 0x1F01, "version": 0x1F02, "extensions": 0x1F03}
VALUES = 16
"""Values of the smallest work: 16 texels of RGBA8, 4 of RGBA32UI or of a storage buffer."""

SHADERS = {
    "2.0": (
        "attribute vec2 p; void main() { gl_Position = vec4(p, 0.0, 1.0); }",
        "precision highp float; uniform highp sampler2D t; uniform vec2 s;"
        "void main() { gl_FragColor = texture2D(t, gl_FragCoord.xy * s); }",
    ),
    "3.0": (
        "#version 300 es\nin vec2 p; void main() { gl_Position = vec4(p, 0.0, 1.0); }",
        "#version 300 es\nprecision highp float; uniform highp usampler2D t; out highp uvec4 o;"
        "void main() { o = texelFetch(t, ivec2(gl_FragCoord.xy), 0); }",
    ),
}
COPY = """#version 310 es
layout(local_size_x = 4) in;
layout(std430, binding = 0) readonly buffer A { vec4 a[]; };
layout(std430, binding = 1) writeonly buffer B { vec4 b[]; };
void main() { b[gl_GlobalInvocationID.x] = a[gl_GlobalInvocationID.x]; }"""


class BareError(Exception):
    """A driver refused something; the message says what."""


class BareGl:
    """A context of exactly one version, current after it was made, until `unbind`.

    Parameters
    ----------
    version : str
        ``2.0``, ``3.0`` or ``3.1``.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        named = os.environ.get("GPUEDGE_EGL", "").split(os.pathsep)[0]
        beside = Path(named).with_name("libGLESv2.so") if named else "libGLESv2.so.2"
        self.gl = ctypes.CDLL(str(beside), mode=ctypes.RTLD_GLOBAL)
        self.egl = ctypes.CDLL(named or "libEGL.so.1")
        self.egl.eglGetProcAddress.restype = c_void_p
        self.egl.eglQueryString.restype = c_char_p
        self.egl.eglGetDisplay.restype = c_void_p
        self.egl.eglCreateContext.restype = c_void_p
        self.egl.eglCreatePbufferSurface.restype = c_void_p
        self.egl.eglQueryString.argtypes = [c_void_p, c_int]
        self.is_current = False
        self._open()

    def _open(self) -> None:
        self.display, is_angle = self._display()
        if not self.egl.eglInitialize(self.display, None, None):
            raise BareError(f"eglInitialize: {self.egl.eglGetError():#x}")
        self.egl.eglBindAPI(EGL_API_ES)
        major, minor = map(int, self.version.split("."))
        bit = ES2_BIT if major == 2 else ES3_BIT
        config, count = c_void_p(), c_int()
        wanted = ints(0x3033, PBUFFER_BIT, 0x3040, bit)  # surface type, renderable type
        self.egl.eglChooseConfig(self.display, wanted, byref(config), 1, byref(count))
        if not count.value:
            raise BareError("no EGL configuration")
        exact = EXACT_VERSION_ANGLE if is_angle else ()
        wanted = ints(0x3098, major, 0x30FB, minor, *exact)
        if major == 2 and not is_angle:
            wanted = ints(0x3098, 2)
        self.context = c_void_p(self.egl.eglCreateContext(self.display, config, None, wanted))
        if not self.context:
            raise BareError(f"eglCreateContext: {self.egl.eglGetError():#x}")
        small = ints(0x3057, 1, 0x3056, 1)
        self.surface = c_void_p(self.egl.eglCreatePbufferSurface(self.display, config, small))
        self.bind()

    def _display(self) -> tuple[c_void_p, bool]:
        """Return the display, and whether it is ANGLE's."""
        known = (self.egl.eglQueryString(None, EGL_EXTENSIONS) or b"").decode()
        address = self.egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT")
        if address and "platform_angle" in known:
            found = self._platform(address, EGL_PLATFORM_ANGLE, *ANGLE_ON_SWIFTSHADER)
            return found, True
        if address and "platform_surfaceless" in known:
            return self._platform(address, EGL_PLATFORM_SURFACELESS), False
        return c_void_p(self.egl.eglGetDisplay(None)), False

    def _platform(self, address: int, platform: int, *attributes: int) -> c_void_p:
        get = ctypes.CFUNCTYPE(c_void_p, c_uint, c_void_p, POINTER(c_int))(address)
        return c_void_p(get(platform, None, ints(*attributes)))

    def call(self, name: str, result: Any, *types: Any) -> Callable[..., Any]:
        """Return a GL function with its types."""
        function = getattr(self.gl, name)
        function.restype, function.argtypes = result, types
        made: Callable[..., Any] = function
        return made

    def bind(self) -> None:
        """Make the context current on this thread."""
        if not self.is_current:
            self.egl.eglBindAPI(EGL_API_ES)
            surface = self.surface
            if not self.egl.eglMakeCurrent(self.display, surface, surface, self.context):
                raise BareError(f"eglMakeCurrent: {self.egl.eglGetError():#x}")
            self.is_current = True

    def unbind(self) -> None:
        """Leave the thread without a context."""
        if self.is_current:
            self.egl.eglMakeCurrent(self.display, None, None, None)
            self.is_current = False

    def close(self) -> None:
        """Destroy the context and end the display."""
        self.unbind()
        self.egl.eglDestroySurface(self.display, self.surface)
        self.egl.eglDestroyContext(self.display, self.context)
        self.egl.eglTerminate(self.display)
        self.egl.eglReleaseThread()

    def facts(self) -> dict[str, str]:
        """Return vendor, renderer, version and extensions."""
        get = self.call("glGetString", c_char_p, c_uint)
        return {name: (get(number) or b"").decode() for name, number in STRINGS.items()}

    def program(self, *stages: tuple[int, str]) -> int:
        """Compile and link shaders."""
        program = int(self.gl.glCreateProgram())
        for kind, text in stages:
            shader = self.gl.glCreateShader(kind)
            self.gl.glShaderSource(shader, 1, byref(c_char_p(text.encode())), None)
            self.gl.glCompileShader(shader)
            self.gl.glAttachShader(program, shader)
            self.gl.glDeleteShader(shader)
        self.gl.glLinkProgram(program)
        linked = c_int()
        self.gl.glGetProgramiv(program, 0x8B82, byref(linked))
        if not linked.value:
            raise BareError("a program does not link")
        self.gl.glUseProgram(program)
        return program

    def texture(self, data: ctypes.Array[Any] | None, width: int) -> int:
        """Make a texture one row high: RGBA8 on 2.0, RGBA32UI on 3.0."""
        name = c_uint()
        self.gl.glGenTextures(1, byref(name))
        self.gl.glBindTexture(TEXTURE_2D, name)
        for which in (MIN_FILTER, MAG_FILTER):
            self.gl.glTexParameteri(TEXTURE_2D, which, NEAREST)
        for which in (0x2802, 0x2803):
            self.gl.glTexParameteri(TEXTURE_2D, which, 0x812F)  # clamp to edge
        kinds = (RGBA, RGBA, BYTES) if self.version == "2.0" else (RGBA32UI, RGBA_INTEGER, UINT)
        self.gl.glTexImage2D(TEXTURE_2D, 0, kinds[0], width, 1, 0, *kinds[1:], data)
        return name.value

    def draw(self) -> Callable[[], bytes]:
        """Set up a copy of 16 values by a draw; calling the result draws and reads them back."""
        width = VALUES if self.version == "2.0" else VALUES // 4
        data = (c_float * VALUES)(*range(VALUES))
        vertex, fragment = SHADERS[self.version]
        program = self.program((VERTEX, vertex), (FRAGMENT, fragment))
        target, source = self.texture(None, width), self.texture(data, width)
        frame, corners = c_uint(), c_uint()
        self.gl.glGenFramebuffers(1, byref(frame))
        self.gl.glBindFramebuffer(FRAMEBUFFER, frame)
        self.gl.glFramebufferTexture2D(FRAMEBUFFER, 0x8CE0, TEXTURE_2D, target, 0)
        self.gl.glBindTexture(TEXTURE_2D, source)
        self.gl.glViewport(0, 0, width, 1)
        self.gl.glDisable(0x0BD0)  # dithering
        self.gl.glGenBuffers(1, byref(corners))
        self.gl.glBindBuffer(ARRAY, corners)
        triangle = (c_float * 6)(-1, -1, 3, -1, -1, 3)
        self.call("glBufferData", None, c_uint, c_void_p, c_void_p, c_uint)(
            ARRAY, ctypes.sizeof(triangle), triangle, STATIC
        )
        place = self.gl.glGetAttribLocation(program, b"p")
        self.gl.glEnableVertexAttribArray(place)
        self.gl.glVertexAttribPointer(place, 2, FLOAT, 0, 0, None)
        if self.version == "2.0":
            scale = self.call("glUniform2f", None, c_int, c_float, c_float)
            scale(self.gl.glGetUniformLocation(program, b"s"), 1 / width, 1.0)
        into = ctypes.create_string_buffer(VALUES * 4)
        kinds = (RGBA, BYTES) if self.version == "2.0" else (RGBA_INTEGER, UINT)
        arrays, pixels = self.gl.glDrawArrays, self.gl.glReadPixels

        def run() -> bytes:
            arrays(4, 0, 3)
            pixels(0, 0, width, 1, *kinds, into)
            return into.raw

        return run

    def dispatch(self) -> Callable[[], bytes]:
        """Set up a copy of 16 values by compute; calling the result runs it and maps the result."""
        data = (c_float * VALUES)(*range(VALUES))
        size = VALUES * 4
        self.program((COMPUTE, COPY))
        names = (c_uint * 2)()
        self.gl.glGenBuffers(2, names)
        allocate = self.call("glBufferData", None, c_uint, c_void_p, c_void_p, c_uint)
        for binding, content in enumerate((data, None)):
            self.gl.glBindBufferBase(STORAGE, binding, names[binding])
            allocate(STORAGE, size, content, 0x88E9)
        compute, barrier = self.gl.glDispatchCompute, self.gl.glMemoryBarrier
        map_range = self.call("glMapBufferRange", c_void_p, c_uint, c_void_p, c_void_p, c_uint)
        unmap = self.gl.glUnmapBuffer

        def run() -> bytes:
            compute(1, 1, 1)
            barrier(0x200)  # buffer update
            values = ctypes.string_at(map_range(STORAGE, 0, size, 1), size)
            unmap(STORAGE)
            return values

        return run

    def work(self) -> Callable[[], bytes]:
        """Set up the smallest work of this version; it returns the 16 values it was given."""
        return self.dispatch() if self.version == "3.1" else self.draw()


def ints(*values: int) -> ctypes.Array[c_int]:
    """Return an attribute list."""
    return (c_int * (len(values) + 1))(*values, EGL_NONE)


def main(version: str) -> None:
    """Print what the driver says of itself, and whether its smallest work is right."""
    context = BareGl(version)
    wanted = bytes((c_float * VALUES)(*range(VALUES)))
    facts = context.facts() | {"works": context.work()() == wanted}
    facts["error"] = context.gl.glGetError()
    context.close()
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
