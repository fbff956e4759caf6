"""A bare OpenGL ES context for printed kernels: plain ctypes, its own texture codecs in numpy.

Shares nothing with the backend, so that a mistake in either shows. Run in a process of its own:
Mesa reads its environment when it loads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.kernel import Extents, KernelBlob, Number

Floats = npt.NDArray[np.float32]
Range = tuple[float, float]

ROW = 4096
SURFACELESS, OPENGL_ES_API, CLIENT_VERSION, MINOR_VERSION = 0x31DD, 0x30A0, 0x3098, 0x30FB
RENDERABLE_TYPE, SURFACE_TYPE, NONE = 0x3040, 0x3033, 0x3038
FRAGMENT, VERTEX, COMPUTE = 0x8B30, 0x8B31, 0x91B9
TEXTURE_2D, TEXTURE0, FRAMEBUFFER, COLOR0, COMPLETE = 0x0DE1, 0x84C0, 0x8D40, 0x8CE0, 0x8CD5
TEXTURE_2D_ARRAY = 0x8C1A
ARRAY_BUFFER, STORAGE_BUFFER, STATIC_DRAW, BARRIER_ALL = 0x8892, 0x90D2, 0x88E4, 0xFFFFFFFF
RGBA, FLOAT, HALF, UBYTE, UINT, RGBA_INTEGER, MAP_READ = (
    0x1908, 0x1406, 0x140B, 0x1401, 0x1405, 0x8D99, 0x0001,
)  # fmt: skip
UNITS = {"rgba8_float": 4, "rgba8_fixed16": 2}
FORMATS = {  # sized internal format, format and type of ES 3.0, and numpy's dtype
    "rgba32f": (0x8814, RGBA, FLOAT, np.float32),
    "rgba16f": (0x881A, RGBA, HALF, np.float16),
    "rgba32ui": (0x8D70, RGBA_INTEGER, UINT, np.uint32),
}
BYTES = (0x8058, RGBA, UBYTE, np.uint8)


def encoded(texels: Floats, kind: str, about: Range) -> npt.NDArray[Any]:
    """Return what a texture of `kind` holds for texels (n, 4), four numbers per physical texel."""
    if kind == "rgba32f":
        return texels
    if kind == "rgba16f":
        return texels.astype(np.float16)
    if kind == "rgba32ui":
        return texels.view(np.uint32)
    if kind == "rgba8_float":
        return np.ascontiguousarray(texels).view(np.uint8).reshape(-1, 4)
    if kind == "rgba8_fixed16":
        low, high = about
        step = (np.float64(high) - low) / 65535
        k = np.clip(np.rint((texels - low) / step), 0, 65535).astype("<u2")
        return k.view(np.uint8).reshape(-1, 4)
    return (texels + (128 if kind == "rgba8_s8" else 0)).astype(np.uint8)


def decoded(data: npt.NDArray[Any], kind: str, about: Range) -> Floats:
    """Undo `encoded`."""
    if kind in ("rgba32ui", "rgba8_float"):
        return np.ascontiguousarray(data).view(np.float32).reshape(-1, 4)
    if kind == "rgba8_fixed16":
        low, high = about
        step = (np.float64(high) - low) / 65535
        k = np.ascontiguousarray(data).view("<u2").astype(np.float64)
        return (low + step * k).astype(np.float32).reshape(-1, 4)
    return (data.astype(np.float32) - (128 if kind == "rgba8_s8" else 0)).reshape(-1, 4)


@dataclass
class Launch:
    """Everything one run of a kernel takes."""

    blob: KernelBlob
    tensors: Mapping[str, Floats]
    out: Extents
    specs: Mapping[str, Number] = field(default_factory=dict)
    params: Mapping[str, Number] = field(default_factory=dict)
    groups: tuple[int, int, int] | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)
    row: int = ROW


class GL:
    """A surfaceless context of one version of OpenGL ES."""

    def __init__(self, major: int, minor: int) -> None:
        self.version = (major, minor)
        self.layers, self.target = (1, TEXTURE_2D) if major == 2 else (4, TEXTURE_2D_ARRAY)
        self.egl = ctypes.CDLL("libEGL.so.1")
        self.egl.eglGetProcAddress.restype = ctypes.c_void_p
        for name in ("eglChooseConfig", "eglCreateContext"):
            getattr(self.egl, name).restype = ctypes.c_void_p
        display = self._display()
        self.egl.eglBindAPI(OPENGL_ES_API)
        bit = 0x4 if major == 2 else 0x40
        wanted = (ctypes.c_int * 5)(RENDERABLE_TYPE, bit, SURFACE_TYPE, 0, NONE)
        config, count = ctypes.c_void_p(), ctypes.c_int()
        self.egl.eglChooseConfig(display, wanted, ctypes.byref(config), 1, ctypes.byref(count))
        version = (ctypes.c_int * 5)(CLIENT_VERSION, major, MINOR_VERSION, minor, NONE)
        context = self.egl.eglCreateContext(display, config, None, version)
        if not context or not self.egl.eglMakeCurrent(
            display, None, None, ctypes.c_void_p(context)
        ):
            raise RuntimeError(f"no context of OpenGL ES {major}.{minor}")
        self.corner = self._triangle()

    def _display(self) -> ctypes.c_void_p:
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        get = kind(self.egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT"))
        display = ctypes.c_void_p(get(SURFACELESS, None, None))
        if not self.egl.eglInitialize(display, None, None):
            raise RuntimeError("no display")
        return display

    def __getattr__(self, name: str) -> Any:
        address = self.egl.eglGetProcAddress(f"gl{name}".encode())
        result = {"GetString": ctypes.c_char_p, "MapBufferRange": ctypes.c_void_p}.get(name)
        made = ctypes.CFUNCTYPE(result or ctypes.c_uint)(address)
        setattr(self, name, made)
        return made

    def _triangle(self) -> int:
        corners = np.array([-1, -1, 3, -1, -1, 3], np.float32)
        buffer = self._names("GenBuffers", 1)[0]
        self.BindBuffer(ARRAY_BUFFER, buffer)
        self.BufferData(
            ARRAY_BUFFER, ctypes.c_ssize_t(24), corners.ctypes.data_as(ctypes.c_void_p), STATIC_DRAW
        )
        self.EnableVertexAttribArray(0)
        self.VertexAttribPointer(0, 2, FLOAT, 0, 0, None)
        return buffer

    def _names(self, function: str, count: int) -> list[int]:
        made = (ctypes.c_uint * count)()
        getattr(self, function)(count, made)
        return list(made)

    # --- programs -------------------------------------------------------------------------------
    def _shader(self, kind: int, text: str) -> int:
        shader = self.CreateShader(kind)
        source = ctypes.c_char_p(text.encode())
        self.ShaderSource(shader, 1, ctypes.byref(source), None)
        self.CompileShader(shader)
        status, log = ctypes.c_int(), ctypes.create_string_buffer(4000)
        self.GetShaderiv(shader, 0x8B81, ctypes.byref(status))
        self.GetShaderInfoLog(shader, 4000, None, log)
        if not status.value:
            numbered = "\n".join(f"{i:4} {x}" for i, x in enumerate(text.splitlines(), 1))
            raise RuntimeError(f"{log.value.decode()}\n{numbered}")
        return int(shader)

    def program(self, text: str) -> int:
        """Compile and link a shader; a fragment shader with the vertex shader it needs."""
        made = self.CreateProgram()
        if "local_size_x" in text:
            self.AttachShader(made, self._shader(COMPUTE, text))
        else:
            corner = "attribute vec2 a;\nvoid main() { gl_Position = vec4(a, 0.0, 1.0); }"
            if self.version[0] > 2:
                corner = "#version 300 es\n" + corner.replace("attribute", "in")
            self.AttachShader(made, self._shader(VERTEX, corner))
            self.AttachShader(made, self._shader(FRAGMENT, text))
            self.BindAttribLocation(made, 0, b"a")
        self.LinkProgram(made)
        status, log = ctypes.c_int(), ctypes.create_string_buffer(4000)
        self.GetProgramiv(made, 0x8B82, ctypes.byref(status))
        self.GetProgramInfoLog(made, 4000, None, log)
        if not status.value:
            raise RuntimeError(log.value.decode())
        return int(made)

    def _uniform(self, program: int, name: str, values: Any, *, whole: bool) -> None:
        place = ctypes.c_int(self.GetUniformLocation(program, name.encode())).value
        whole = whole and self.version[0] > 2
        data = np.array(values, np.int32 if whole else np.float32)
        suffix = f"{data.size}{'i' if whole else 'f'}v"
        getattr(self, f"Uniform{suffix}")(place, 1, data.ctypes.data_as(ctypes.c_void_p))

    # --- runs -----------------------------------------------------------------------------------
    def run(self, job: Launch) -> dict[str, Floats]:
        """Run a kernel and return its outputs, of shape (N, S, H, W, 4)."""
        blob = job.blob
        program = self.program(blob.specialised(job.specs, {"ROW": job.row}))
        self.UseProgram(program)
        for arg in blob.push:
            if arg.type == "ivec4":
                self._uniform(program, f"d_{arg.name}", self._extents(job, arg.name), whole=True)
            else:
                value = job.params[arg.name]
                self._uniform(program, f"p_{arg.name}", [value], whole=arg.type == "int")
        found = self._compute(job) if blob.dialect == "essl310" else self._draw(job, program)
        self.DeleteProgram(program)
        error = self.GetError()
        if error:
            raise RuntimeError(f"GL error {error:#x}")
        w, h, s, n = job.out
        return {
            name: texels[: w * h * s * n].reshape(n, s, h, w, 4) for name, texels in found.items()
        }

    @staticmethod
    def _extents(job: Launch, name: str) -> Extents:
        if name not in job.tensors:
            return job.out
        n, s, h, w, _ = job.tensors[name].shape
        return w, h, s, n

    def _texture(self, kind: str, physical: int, data: npt.NDArray[Any] | None, row: int) -> int:
        sized, form, kept, dtype = FORMATS.get(kind, BYTES)
        width, height = self._size(physical, row)
        image = np.zeros((height * width * self.layers, 4), dtype)
        if data is not None:
            image[: len(data)] = data
        else:
            image.view(np.uint8)[...] = 0x5A  # what no kernel wrote must not look right
        # texel f lies in layer f % layers, at place f // layers
        image = np.ascontiguousarray(image.reshape(-1, self.layers, 4).transpose(1, 0, 2))
        texture = self._names("GenTextures", 1)[0]
        self.BindTexture(self.target, texture)
        for name, value in ((0x2800, 0x2600), (0x2801, 0x2600), (0x2802, 0x812F), (0x2803, 0x812F)):
            self.TexParameteri(self.target, name, value)
        pixels = image.ctypes.data_as(ctypes.c_void_p)
        if self.version[0] == 2:
            kept = 0x8D61 if kept == HALF else kept
            self.TexImage2D(TEXTURE_2D, 0, RGBA, width, height, 0, form, kept, pixels)
        else:
            size = (width, height, self.layers)
            self.TexImage3D(self.target, 0, sized, *size, 0, form, kept, pixels)
        return texture

    def _size(self, physical: int, row: int) -> tuple[int, int]:
        """Return width and height of a layer that holds its share of so many texels."""
        places = -(-physical // self.layers)
        return min(row, places), -(-places // row)

    def _draw(self, job: Launch, program: int) -> dict[str, Floats]:
        kinds = {x.name: x.storage for x in job.blob.tensors}
        name = next(x.name for x in job.blob.tensors if x.access == "write")
        made = []
        for read, array in job.tensors.items():
            data = encoded(array.reshape(-1, 4), kinds[read], job.ranges.get(read, (0, 0)))
            self.ActiveTexture(TEXTURE0 + len(made))
            made.append(self._texture(kinds[read], len(data), data, job.row))
            place = ctypes.c_int(self.GetUniformLocation(program, f"t_{read}".encode()))
            self.Uniform1i(place, len(made) - 1)
            self._about(job, program, read, len(data))
        w, h, s, n = job.out
        physical = w * h * s * n * UNITS.get(kinds[name], 1)
        self.ActiveTexture(TEXTURE0 + len(made))
        frame = self._names("GenFramebuffers", 1)[0]
        self.BindFramebuffer(FRAMEBUFFER, frame)
        made.append(self._texture(kinds[name], physical, None, job.row))
        for i in range(self.layers):
            if self.version[0] == 2:
                self.FramebufferTexture2D(FRAMEBUFFER, COLOR0, TEXTURE_2D, made[-1], 0)
            else:
                self.FramebufferTextureLayer(FRAMEBUFFER, COLOR0 + i, made[-1], 0, i)
        self._about(job, program, name, physical)
        self.BindTexture(self.target, 0)
        if self.CheckFramebufferStatus(FRAMEBUFFER) != COMPLETE:
            raise RuntimeError(f"{kinds[name]} cannot be drawn to")
        if self.version[0] > 2:
            targets = (ctypes.c_uint * self.layers)(*range(COLOR0, COLOR0 + self.layers))
            self.DrawBuffers(self.layers, targets)
        width, height = self._size(physical, job.row)
        self.Viewport(0, 0, width, height)
        self.Disable(0x0BD0)  # dither
        self.DrawArrays(4, 0, 3)
        _, form, kept, dtype = FORMATS.get(kinds[name], BYTES)
        if kept == HALF:
            kept, dtype = FLOAT, np.float32
        image = np.zeros((height * width, self.layers, 4), dtype)
        for i in range(self.layers):
            plane = np.zeros((height * width, 4), dtype)
            if self.version[0] > 2:
                self.ReadBuffer(COLOR0 + i)
            self.ReadPixels(0, 0, width, height, form, kept, plane.ctypes.data_as(ctypes.c_void_p))
            image[:, i] = plane
        texels = image.reshape(-1, 4)[:physical]
        found = {name: decoded(texels, kinds[name], job.ranges.get(name, (0, 0)))}
        self.DeleteTextures(len(made), (ctypes.c_uint * len(made))(*made))
        self.DeleteFramebuffers(1, (ctypes.c_uint * 1)(frame))
        return found

    def _about(self, job: Launch, program: int, name: str, physical: int) -> None:
        low, high = job.ranges.get(name, (0, 0))
        size = self._size(physical, job.row)
        about = (1 / size[0], 1 / size[1], low, (high - low) / 65535)
        self._uniform(program, f"i_{name}", about, whole=False)

    def _compute(self, job: Launch) -> dict[str, Floats]:
        w, h, s, n = job.out
        texels = np.full((w * h * s * n, 4), np.nan, np.float32)
        made = []
        for tensor in job.blob.tensors:
            data = job.tensors.get(tensor.name, texels)
            buffer = self._names("GenBuffers", 1)[0]
            made.append(buffer)
            self.BindBufferBase(STORAGE_BUFFER, tensor.binding, buffer)
            self.BufferData(
                STORAGE_BUFFER, ctypes.c_ssize_t(data.nbytes),
                np.ascontiguousarray(data).ctypes.data_as(ctypes.c_void_p), STATIC_DRAW,
            )  # fmt: skip
        given = {x.name: job.specs.get(x.name, x.default) for x in job.blob.specs}
        local = [int(given[f"L{axis}"]) for axis in "XYZ"]
        whole = (w, h, s * n)
        groups = job.groups or tuple(-(-a // b) for a, b in zip(whole, local, strict=True))
        self.DispatchCompute(*groups)
        self.MemoryBarrier(BARRIER_ALL)
        found = {}
        for tensor in job.blob.tensors:
            if tensor.access == "write":
                self.BindBuffer(STORAGE_BUFFER, made[tensor.binding])
                at = self.MapBufferRange(
                    STORAGE_BUFFER, ctypes.c_ssize_t(0), ctypes.c_ssize_t(texels.nbytes), MAP_READ
                )
                raw = ctypes.string_at(at, texels.nbytes)
                found[tensor.name] = np.frombuffer(raw, np.float32).reshape(-1, 4)
                self.UnmapBuffer(STORAGE_BUFFER)
        self.DeleteBuffers(len(made), (ctypes.c_uint * len(made))(*made))
        return found
