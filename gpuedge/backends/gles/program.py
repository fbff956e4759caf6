"""Building kernels: text with its specs filled in, a linked program, the places of its uniforms."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Gl
from gpuedge.core.errors import DeviceError, DriverError
from gpuedge.core.kernel import KernelBlob, Number, PushArg

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A prepared call: a function and its arguments."""

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


def link(gl: Gl, level: str, text: str) -> int:
    """Compile a compute or fragment shader of a level, and link it; return the program.

    Raises DeviceError: a DriverError with what the driver says where it refuses.
    """
    stages = [(c.COMPUTE_SHADER, text)]
    if level in VERTEX:
        stages = [(c.VERTEX_SHADER, VERTEX[level]), (c.FRAGMENT_SHADER, text)]
    program: int = gl.CreateProgram()
    shaders: list[int] = []
    try:
        for kind, source in stages:
            shaders.append(gl.CreateShader(kind))
            _compile(gl, shaders[-1], source)
            gl.AttachShader(program, shaders[-1])
        gl.BindAttribLocation(program, 0, b"position")
        gl.LinkProgram(program)
        if not _status(gl.GetProgramiv, program, c.LINK_STATUS):
            log = _log(gl.GetProgramiv, gl.GetProgramInfoLog, program)
            raise refusal(gl.error(), "The driver does not link a program.", log)
    except BaseException:
        gl.DeleteProgram(program)
        raise
    finally:
        for shader in shaders:
            gl.DeleteShader(shader)
    return program


def _compile(gl: Gl, shader: int, text: str) -> None:
    source = ctypes.c_char_p(text.encode())
    gl.ShaderSource(shader, 1, ctypes.byref(source), None)
    gl.CompileShader(shader)
    if not _status(gl.GetShaderiv, shader, c.COMPILE_STATUS):
        log = _log(gl.GetShaderiv, gl.GetShaderInfoLog, shader)
        raise refusal(gl.error(), "The driver does not compile a shader.", log)


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


@dataclass(slots=True, eq=False)
class GlesProgram:
    """A linked program, called `name` by OpenGL.

    `places` are the locations of the uniforms in use by name, `units` the texture unit of each
    tensor that has a sampler. `applied` are the values that its uniforms have, one of `known`;
    uniforms stay set until others are.
    """

    blob: KernelBlob
    name: int
    places: dict[str, int]
    units: dict[str, int]
    applied: object = None
    known: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)


class Programs:
    """The programs of one device; `macros` say what texts for textures depend on."""

    def __init__(self, gl: Gl, level: str, macros: Mapping[str, int] | None) -> None:
        self._gl = gl
        self._level = level
        self._values = macros or {}
        self._corners = None if macros is None else prepare_drawing(gl)

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> GlesProgram:
        """Compile and link a kernel, and tie each sampler to its unit once for all.

        Raises DriverError with what the driver says where it refuses.
        """
        gl = self._gl
        name = link(gl, self._level, blob.specialised(specs, self._values))
        wanted = [f"{letter}_{t.name}" for t in blob.tensors for letter in "tdi"]
        wanted += [f"p_{arg.name}" for arg in blob.push if arg.type != "ivec4"]
        places = {w: at for w in wanted if (at := gl.GetUniformLocation(name, w.encode())) >= 0}
        sampled = [t.name for t in blob.tensors if f"t_{t.name}" in places]
        units = {tensor: unit for unit, tensor in enumerate(sampled)}
        if units:
            gl.UseProgram(name)
            for tensor, unit in units.items():
                gl.Uniform1i(places[f"t_{tensor}"], unit)
        gl.check(f"building kernel {blob.name!r}")
        return GlesProgram(blob, name, places, units)

    def release(self, program: GlesProgram) -> None:
        """Delete a program."""
        self._gl.DeleteProgram(program.name)

    def close(self) -> None:
        """Delete what all programs draw; they go with the context."""
        if self._corners is not None:
            self._gl.delete("Buffers", self._corners)


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


def pushed(arg: PushArg, push: bytes) -> tuple[str, tuple[Number, ...]]:
    """Return the uniform that a pushed value stands for: a tensor's extents or a parameter."""
    if arg.type == "ivec4":
        return f"d_{arg.name}", struct.unpack_from("<4i", push, arg.offset)
    code = "<i" if arg.type == "int" else "<f"
    return f"p_{arg.name}", struct.unpack_from(code, push, arg.offset)
