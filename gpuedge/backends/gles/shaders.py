"""Texts of our own shaders, and compiling by the bare entry points."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

from gpuedge.backends.gles import names
from gpuedge.backends.gles.gl import Gl
from gpuedge.backends.gles.names import error_for
from gpuedge.core.errors import DeviceError, DriverError

POSITION = "position"
"""The attribute of the vertex shaders, at location 0."""

VERTEX = {
    "gles20": "attribute vec2 position;\nvoid main() { gl_Position = vec4(position, 0.0, 1.0); }\n",
    "gles30": "#version 300 es\nin vec2 position;\n"
    "void main() { gl_Position = vec4(position, 0.0, 1.0); }\n",
}
"""The vertex shader of each fragment level: one triangle over the whole viewport."""

TRIANGLE = (-1.0, -1.0, 3.0, -1.0, -1.0, 3.0)
"""Corners of the triangle."""

MAX_LOG = 1 << 14
"""Bytes of a driver's log that are asked for; the length that it announces may be anything."""

_HEAD = {
    "gles20": """\
precision highp float;
precision highp sampler2D;
uniform highp sampler2D t;
uniform float width;
""",
    "gles30": """\
#version 300 es
precision highp float;
precision highp int;
precision highp sampler2D;
uniform highp sampler2D t;
uniform float width;
layout(location = 0) out highp vec4 o;
""",
}
_FETCH = {
    "gles20": "texture2D(t, vec2(gl_FragCoord.x / width, 0.5))",
    "gles30": "texelFetch(t, ivec2(int(gl_FragCoord.x), 0), 0)",
}
_RESULT = {"gles20": "gl_FragColor", "gles30": "o"}


def _copy(level: str, form: str) -> str:
    """Return a shader that copies a row of texels; `form` is what becomes of one, ``{}``."""
    # In a branch, as kernels do: Mesa 22.3 rounds what #version 100 fetches there to 16 bits on
    # llvmpipe and zink, whatever precision is declared (outside of branches it does not).
    body = f"vec4 v = vec4(0.0); if (width > 0.0) {{ v = {_FETCH[level]}; }}"
    return f"{_HEAD[level]}void main() {{ {body} {_RESULT[level]} = {form.format('v')}; }}\n"


COPY_FLOAT = {level: _copy(level, "{}") for level in _HEAD}
COPY_BYTES = {level: _copy(level, "(floor({} * 255.0 + 0.5) + 0.25) / 255.0") for level in _HEAD}
"""Copies bytes the way kernels read and store them."""

COPY_BITS = {"gles30": re.sub(r"\bvec4|\bsampler2D", r"u\g<0>", _copy("gles30", "{}"))}
COPY_BITS["gles30"] = COPY_BITS["gles30"].replace("uvec4(0.0)", "uvec4(0u)")
COMPUTE = """\
#version 310 es
precision highp float;
layout(local_size_x = 1, local_size_y = 1, local_size_z = 1) in;
layout(std430, binding = 0) writeonly buffer B { highp vec4 b[]; };
void main() { b[gl_GlobalInvocationID.x] = vec4(gl_GlobalInvocationID.x); }
"""


def check_version(gl: Gl, level: str) -> None:
    """Compile and link a small shader of a level's language. Raises DriverError."""
    if level == "gles31":
        program = link(gl, [(names.COMPUTE_SHADER, COMPUTE)])
    else:
        fragment = COPY_FLOAT[level]
        program = link(
            gl, [(names.VERTEX_SHADER, VERTEX[level]), (names.FRAGMENT_SHADER, fragment)]
        )
    gl.DeleteProgram(program)


def link(gl: Gl, stages: list[tuple[int, str]]) -> int:
    """Compile shaders and link them; return the program.

    Raises
    ------
    DriverError (GE-405)
        The driver refuses; the error holds what it says.
    DeviceLostError (GE-401), OutOfMemoryError (GE-402)
    """
    program: int = gl.CreateProgram()
    made: list[int] = []
    try:
        for kind, text in stages:
            made.append(_compile(gl, kind, text))
            gl.AttachShader(program, made[-1])
        gl.BindAttribLocation(program, 0, POSITION.encode())
        gl.LinkProgram(program)
        if not _status(gl.GetProgramiv, program, names.LINK_STATUS):
            log = _log(gl.GetProgramiv, gl.GetProgramInfoLog, program)
            raise refusal(gl.error(), "The driver does not link a program.", log)
    except BaseException:
        gl.DeleteProgram(program)
        raise
    finally:
        for shader in made:
            gl.DeleteShader(shader)
    return program


def _compile(gl: Gl, kind: int, text: str) -> int:
    shader: int = gl.CreateShader(kind)
    source = ctypes.c_char_p(text.encode())
    gl.ShaderSource(shader, 1, ctypes.byref(source), None)
    gl.CompileShader(shader)
    if not _status(gl.GetShaderiv, shader, names.COMPILE_STATUS):
        log = _log(gl.GetShaderiv, gl.GetShaderInfoLog, shader)
        error = refusal(gl.error(), "The driver does not compile a shader.", log)
        gl.DeleteShader(shader)
        raise error
    return shader


def refusal(code: int, what: str, log: str) -> DeviceError:
    """Return the error of a shader or program that does not build (not raised here).

    A driver that lost the device or has no memory left refuses, too: `code`, the OpenGL error that
    it left behind, tells. Any other one says less than the log.
    """
    error = error_for(code, "building a program")
    return DriverError(what, known=log) if isinstance(error, DriverError) else error


def _status(ask: Callable[..., Any], thing: int, what: int) -> int:
    value = ctypes.c_int(0)
    ask(thing, what, ctypes.byref(value))
    return value.value


def _log(ask: Callable[..., Any], get: Callable[..., Any], thing: int) -> str:
    size = min(max(1, _status(ask, thing, names.INFO_LOG_LENGTH)), MAX_LOG)
    text = ctypes.create_string_buffer(size)
    get(thing, size, None, text)
    return text.value.decode("utf-8", "replace").strip() or "the driver gives no reason"
