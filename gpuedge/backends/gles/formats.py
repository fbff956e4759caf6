"""Texture formats, and which of them a driver renders to and gives back unchanged.

Extension strings and version numbers are not asked: a driver may complete a framebuffer of a format
that it does not list, and refuse one that it does. Texels are written, drawn through a shader and
read back; what comes back equal can be used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Gl
from gpuedge.backends.gles.memory import (
    BYTES,
    Format,
    download,
    make_framebuffer,
    make_texture,
    physical,
    target_of,
    upload,
)
from gpuedge.backends.gles.program import link, prepare_drawing
from gpuedge.core.errors import DeviceError, DeviceLostError, DriverError
from gpuedge.core.storage import KINDS
from gpuedge.core.storage import LAYERS as _LAYERS

log = logging.getLogger("gpuedge.gles")

_FLOATS = (c.RGBA, c.FLOAT, 16)
_HALF, _HALF_OES = (c.RGBA, c.HALF_FLOAT, 8), (c.RGBA, c.HALF_FLOAT_OES, 8)
_BYTES = (c.RGBA, c.UNSIGNED_BYTE, 4)
_BITS = (c.RGBA_INTEGER, c.UNSIGNED_INT, 16)

TRIES: dict[str, dict[str, tuple[Format, ...]]] = {
    "gles30": {
        "rgba32f": (Format(c.RGBA32F, *_FLOATS, *_FLOATS),),
        "rgba32ui": (Format(c.RGBA32UI, *_BITS, *_BITS),),
        "rgba16f": (
            Format(c.RGBA16F, *_HALF, *_HALF),
            Format(c.RGBA16F, *_HALF, *_FLOATS),
        ),
        BYTES: (Format(c.RGBA8, *_BYTES, *_BYTES),),
    },
    "gles20": {
        "rgba32f": (  # sized where CHROMIUM_color_buffer_float_rgba is, else as OES_texture_float
            Format(c.RGBA32F, *_FLOATS, *_FLOATS),
            Format(c.RGBA, *_FLOATS, *_FLOATS),
        ),
        "rgba16f": (
            Format(c.RGBA, *_HALF_OES, *_HALF_OES),
            Format(c.RGBA, *_HALF_OES, *_HALF),
            Format(c.RGBA, *_HALF_OES, *_FLOATS),
            Format(c.RGBA16F, *_HALF_OES, *_HALF_OES),
            Format(c.RGBA16F, *_HALF, *_HALF),
        ),
        BYTES: (Format(c.RGBA, *_BYTES, *_BYTES),),
    },
}
"""Ways to make and read each physical format at each level, in the order of trying."""

NEEDED = {"gles30": ("rgba32f", "rgba32ui"), "gles20": (BYTES,)}
"""Formats of which a level must have at least one."""

VALUES: dict[str, npt.NDArray[Any]] = {
    "rgba32f": np.array(
        [
            *(1.5, -2.25, 3.4028234e38, -1.1754944e-38),
            *(0.1, 1 / 3, 16777215.0, -16777217.0),
            *(0.0, 65504.0, -1e-30, 123456.79),
        ],
        np.float32,
    ),
    "rgba16f": np.array([1.5, -2.25, 65504, -6.1035156e-05, 0.1, 1 / 3, 0, 2049], np.float16),
    "rgba32ui": np.array(
        [0, 1, 0xFFFFFFFF, 0x80000000, 0x7FC00001, 0xFF800000, 0x00000001, 0x3DCCCCCD], np.uint32
    ),
    BYTES: np.arange(256, dtype=np.uint8),
}
"""What is written and must come back; four values are a texel."""

LAYERS = {"gles20": (1,), "gles30": (_LAYERS["essl300"], 1)}
"""How many layers textures of a level have, the best first: kernels draw to all of them."""
_FETCHES = {
    "gles20": "texture2D(t, vec2(gl_FragCoord.x / width, 0.5))",
    "gles30": "textureLod(t, vec3(gl_FragCoord.x / width, 0.5, {layer}.0), 0.0)",
}
_SINGLE = "textureLod(t, vec2(gl_FragCoord.x / width, 0.5), 0.0)"

# In a branch, as kernels do: Mesa 22.3 rounds what #version 100 fetches there to 16 bits on
# llvmpipe and zink, whatever precision is declared (outside of branches it does not).
_COPY = """\
precision highp float;
precision highp int;
precision highp {u}{sampler};
uniform highp {u}{sampler} t;
uniform float width;
void main() {{
    {u}vec4 v = {u}vec4(0);
{copies}}}
"""


# White where exp2 of a whole number is the power of two, which multiplications give exactly.
_POWERS = """\
precision highp float;
void main() {
    float n = floor(gl_FragCoord.x) - 126.0;
    float factor = n < 0.0 ? 0.5 : 2.0;
    float power = 1.0;
    for (int i = 1; i < 128; i++) {
        power *= float(i) > abs(n) ? 1.0 : factor;
    }
    gl_FragColor = vec4(exp2(n) == power ? 1.0 : 0.0);
}
"""
_EXPONENTS = 254
"""Powers of two that are normal float32, from 2^-126 on."""


def copy_text(level: str, name: str, layers: int) -> str:
    """Return a shader that copies a row of texels of a physical format, in all layers.

    It treats bytes the way kernels read and store them.
    """
    value = "(floor(v * 255.0 + 0.5) + 0.25) / 255.0" if name == BYTES else "v"
    u = "u" if name == "rgba32ui" else ""
    head, copies = "", ""
    for layer in range(layers):
        result = "gl_FragColor"
        if level != "gles20":
            result = f"o_{layer}"
            head += f"layout(location = {layer}) out highp {u}vec4 {result};\n"
        is_single = level == "gles30" and layers == 1
        fetch = _SINGLE if is_single else _FETCHES[level].format(layer=layer)
        copies += f"    if (width > 0.0) {{ v = {fetch}; }}\n    {result} = {value};\n"
    text = _COPY.format(
        u=u, sampler="sampler2D" if layers == 1 else "sampler2DArray", copies=copies
    )
    return f"#version 300 es\n{head}{text}" if head else text


def has_exact_powers(gl: Gl, formats: Mapping[str, Format]) -> bool:
    """Tell whether exp2 of whole numbers is exact in fragment shaders of OpenGL ES 2.0.

    False where that cannot be drawn. Raises DeviceLostError.
    """
    if (form := formats.get(BYTES)) is None:
        return False
    corners = prepare_drawing(gl)
    objects: list[tuple[str, int]] = []
    try:
        objects.append(("Textures", make_texture(gl, form, _EXPONENTS, 1)))
        objects.append(("Framebuffers", make_framebuffer(gl, objects[0][1])))
        return bool((_drawn(gl, link(gl, "gles20", _POWERS), form, _EXPONENTS) == 255).all())
    except DeviceLostError:
        raise
    except DeviceError:
        return False
    finally:
        gl.BindFramebuffer(c.FRAMEBUFFER, 0)
        for kind, number in reversed([("Buffers", corners), *objects]):
            gl.delete(kind, number)
        gl.error()


def storages(formats: dict[str, Format]) -> tuple[str, ...]:
    """Return the storage kinds that formats allow, the best one exact for float32 first.

    Bytes that hold a float32 come before what is not exact; integers come last.

    >>> storages({})
    ()
    """
    order = ["rgba32f", "rgba32ui", "rgba8_float", "rgba16f", "rgba8_fixed16"]
    order += [kind for kind in KINDS if kind.startswith("rgba8_") and kind not in order]
    return tuple(kind for kind in order if physical(kind) in formats)


def probe(gl: Gl, level: str, layers: int) -> tuple[dict[str, Format], dict[str, DeviceError]]:
    """Try every physical format of a level in the current context.

    Returns the formats that work, and why the others do not: for one that can be made in several
    ways, why the last does not. Raises DeviceLostError.
    """
    corners = prepare_drawing(gl)
    formats: dict[str, Format] = {}
    failures: dict[str, DeviceError] = {}
    try:
        for name, tries in TRIES[level].items():
            for form in tries:
                why = _fault(gl, level, name, form, layers)
                if why is None:
                    formats[name] = form
                    break
                failures[name] = why
        log.debug("formats that do not work: %s", described(failures) or "none")
    finally:
        gl.UseProgram(0)
        gl.delete("Buffers", corners)
    return formats, failures


def described(failures: dict[str, DeviceError]) -> str:
    """Return what failed and why, in one line."""
    return "; ".join(f"{name}: {error.known or error.what}" for name, error in failures.items())


def _values(name: str, layers: int) -> npt.NDArray[Any]:
    """Return what is written to all layers: in each of them the values begin elsewhere."""
    values = VALUES[name].reshape(-1, 4)
    rolled = [np.roll(values, layer, axis=0) for layer in range(layers)]
    return np.ascontiguousarray(np.stack(rolled, axis=1)).reshape(-1)


def _fault(gl: Gl, level: str, name: str, form: Format, layers: int) -> DeviceError | None:
    """Return why a format cannot be used, None if it can. Raises DeviceLostError."""
    values = _values(name, layers)
    width = VALUES[name].size // 4
    objects: list[tuple[str, int]] = []
    gl.error()
    try:
        for _ in range(2):
            objects.append(("Textures", make_texture(gl, form, width, 1, layers)))
        source, target = objects[0][1], objects[1][1]
        upload(gl, source, form, (0, 0, width, 1), values, layers)
        objects.append(("Framebuffers", make_framebuffer(gl, target, layers)))
        got = _copied(gl, level, (name, form, layers), source)
        is_same = np.array_equal(got, values)
        return None if is_same else DriverError("Texels do not come back unchanged.")
    except DeviceLostError:
        raise
    except DeviceError as error:
        return error
    finally:
        gl.BindFramebuffer(c.FRAMEBUFFER, 0)
        for kind, number in reversed(objects):
            gl.delete(kind, number)
        gl.error()


def _copied(gl: Gl, level: str, kind: tuple[str, Format, int], source: int) -> npt.NDArray[Any]:
    """Return a row of texels drawn into the framebuffer that is bound, and read back."""
    name, form, layers = kind
    width, dtype = VALUES[name].size // 4, VALUES[name].dtype
    gl.ActiveTexture(c.TEXTURE0)
    gl.BindTexture(target_of(layers), source)
    text = copy_text(level, name, layers)
    back = _drawn(gl, link(gl, level, text), form, width, layers)
    return back.view(dtype if form.read_bytes == form.nbytes else np.float32)


def _drawn(
    gl: Gl, program: int, form: Format, width: int, layers: int = 1
) -> npt.NDArray[np.uint8]:
    """Return the bytes of a row of texels that a program draws; it is deleted."""
    try:
        gl.Viewport(0, 0, width, 1)
        gl.UseProgram(program)
        gl.Uniform1f(gl.GetUniformLocation(program, b"width"), width)
        gl.DrawArrays(c.TRIANGLES, 0, 3)
        back = np.zeros(width * layers * form.read_bytes, np.uint8)
        download(gl, form, (0, 0, width, 1), back, layers)
        failed = gl.error()
        if failed:
            raise c.error_for(failed, "drawing a texture")
    finally:
        gl.UseProgram(0)
        gl.DeleteProgram(program)
    return back
