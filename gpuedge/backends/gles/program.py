"""Building kernels: text with its specs filled in, a linked program, the places of its uniforms.

Also the texts of our own: the triangle that fragment kernels are drawn with, and what formats and
levels are tried with.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Gl
from gpuedge.core.caps import Caps
from gpuedge.core.errors import DeviceError, DriverError
from gpuedge.core.kernel import KernelBlob, Number, PushArg

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A prepared call: a function and its arguments."""

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
        program = link(gl, [(c.COMPUTE_SHADER, COMPUTE)])
    else:
        fragment = COPY_FLOAT[level]
        program = link(gl, [(c.VERTEX_SHADER, VERTEX[level]), (c.FRAGMENT_SHADER, fragment)])
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
        if not _status(gl.GetProgramiv, program, c.LINK_STATUS):
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
    if not _status(gl.GetShaderiv, shader, c.COMPILE_STATUS):
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
    error = c.error_for(code, "building a program")
    return DriverError(what, known=log) if isinstance(error, DriverError) else error


def _status(ask: Callable[..., Any], thing: int, what: int) -> int:
    value = ctypes.c_int(0)
    ask(thing, what, ctypes.byref(value))
    return value.value


def _log(ask: Callable[..., Any], get: Callable[..., Any], thing: int) -> str:
    size = min(max(1, _status(ask, thing, c.INFO_LOG_LENGTH)), MAX_LOG)
    text = ctypes.create_string_buffer(size)
    get(thing, size, None, text)
    return text.value.decode("utf-8", "replace").strip() or "the driver gives no reason"


@dataclass(slots=True, eq=False)
class GlesProgram:
    """A linked program.

    Attributes
    ----------
    blob : KernelBlob
    name : int
    places : dict of str to int
        Locations of the uniforms in use, by name.
    units : dict of str to int
        Texture unit of each tensor that is read, by name.
    applied : object
        The values its uniforms have, one of `known`; uniforms stay set until others are.
    """

    blob: KernelBlob
    name: int
    places: dict[str, int]
    units: dict[str, int]
    applied: object = None
    known: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)


def prepare_drawing(gl: Gl) -> int:
    """Make the triangle the current vertices and switch off what changes fragments.

    Returns the buffer of its corners, to be deleted in the end.
    """
    for state in c.STATES_OFF:
        gl.Disable(state)
    gl.error()  # a level may not know every state
    corners = (ctypes.c_float * len(TRIANGLE))(*TRIANGLE)
    name = gl.generate("Buffers")
    gl.BindBuffer(c.ARRAY_BUFFER, name)
    gl.BufferData(c.ARRAY_BUFFER, ctypes.sizeof(corners), corners, c.STATIC_DRAW)
    gl.EnableVertexAttribArray(0)
    gl.VertexAttribPointer(0, 2, c.FLOAT, 0, 0, None)
    return name


def build(
    gl: Gl, caps: Caps, blob: KernelBlob, specs: Mapping[str, Number], row: int | None
) -> GlesProgram:
    """Compile and link a kernel; `row` is the texels of a row where tensors are textures.

    Raises DriverError with what the driver says where it refuses.
    """
    text = blob.specialised(specs, {} if row is None else {"ROW": row})
    if row is None:
        stages = [(c.COMPUTE_SHADER, text)]
    else:
        stages = [(c.VERTEX_SHADER, VERTEX[caps.level]), (c.FRAGMENT_SHADER, text)]
    try:
        name = link(gl, stages)
    except DriverError as error:
        error.asked_by = f"kernel {blob.name!r}"
        error.hint = "report it with the output of: gpuedge info --json"
        raise
    return _located(gl, blob, name, draws=row is not None)


def _located(gl: Gl, blob: KernelBlob, name: int, *, draws: bool) -> GlesProgram:
    """Find the program's uniforms, and tie each sampler to its unit once for all."""
    wanted = [f"{letter}_{t.name}" for t in blob.tensors for letter in "tdi"]
    wanted += [f"p_{arg.name}" for arg in blob.push if arg.type != "ivec4"]
    found = {w: gl.GetUniformLocation(name, w.encode()) for w in wanted}
    places = {w: location for w, location in found.items() if location >= 0}
    units = {}
    if draws:
        reads = [t.name for t in blob.tensors if t.access == "read"]
        units = {tensor: unit for unit, tensor in enumerate(reads) if f"t_{tensor}" in places}
        gl.UseProgram(name)
        for tensor, unit in units.items():
            gl.Uniform1i(places[f"t_{tensor}"], unit)
    return GlesProgram(blob, name, places, units)


def uniforms(gl: Gl, program: GlesProgram, values: tuple[Any, ...]) -> list[Step]:
    """Return the calls that set a program's uniforms; `values` are pairs (name, numbers)."""
    is_float = program.blob.dialect == "essl100"
    steps: list[Step] = []
    for name, numbers in values:
        place = program.places.get(name)
        if place is None:
            continue
        floats = is_float or any(isinstance(n, float) for n in numbers)
        call = getattr(gl, f"Uniform{len(numbers)}{'f' if floats else 'i'}")
        steps.append((call, (place, *numbers)))
    return steps


def pushed(blob: KernelBlob, push: bytes) -> list[tuple[str, tuple[Number, ...]]]:
    """Return the uniforms that a block of pushed values stands for: extents and parameters."""
    return [_pushed(arg, push) for arg in blob.push]


def _pushed(arg: PushArg, push: bytes) -> tuple[str, tuple[Number, ...]]:
    if arg.type == "ivec4":
        return f"d_{arg.name}", struct.unpack_from("<4i", push, arg.offset)
    code = "<i" if arg.type == "int" else "<f"
    return f"p_{arg.name}", struct.unpack_from(code, push, arg.offset)
