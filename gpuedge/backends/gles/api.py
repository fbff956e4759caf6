"""EGL and OpenGL ES by `ctypes`: a driver's library, its displays, its functions.

One table each says how functions are called. A function that the driver lacks is not there: using
it raises an error, `has` asks first. Does not judge a driver; `physical.py` does.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

from gpuedge.backends.base import Candidate
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.candidates import is_manifest, library_of
from gpuedge.core.errors import BackendUnavailableError, DeviceLostError, DriverError
from gpuedge.core.system import is_android

log = logging.getLogger("gpuedge.gles")

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
"""Letters of the tables below: void, int, unsigned int, unsigned byte, float, ssize_t, uint64_t,
pointer, string."""

_EGL = {
    "ps": "GetProcAddress",  # first: it finds those that are not exported
    "i": "GetError",
    "ippiq": "ClientWaitSyncKHR",
    "p": "GetCurrentContext GetCurrentDisplay",
    "pi": "GetCurrentSurface",
    "pp": "GetDisplay",
    "pppp": "CreatePbufferSurface",
    "ppppp": "CreateContext",
    "ppup": "CreateSyncKHR",
    "pupp": "GetPlatformDisplayEXT",
    "spi": "QueryString",
    "u": "QueryAPI",
    "uipp": "QueryDevicesEXT",
    "upp": "DestroyContext DestroySurface DestroySyncKHR",
    "uppip": "QueryContext",
    "uppp": "Initialize",
    "upppip": "ChooseConfig",
    "upppp": "MakeCurrent",
    "uu": "BindAPI",
}
"""Functions of EGL without the prefix ``egl``, by result and parameters."""

_GL = {
    "bu": "UnmapBuffer",
    "ius": "GetUniformLocation",
    "puu": "FenceSync",
    "puzzu": "MapBufferRange",
    "su": "GetString",
    "suu": "GetStringi",
    "u": "CreateProgram GetError GetGraphicsResetStatusEXT GetGraphicsResetStatusKHR",
    "upuq": "ClientWaitSync",
    "uu": "CheckFramebufferStatus CreateShader",
    "v": "Finish Flush",
    "vif": "Uniform1f",
    "viffff": "Uniform4f",
    "vii": "Uniform1i",
    "viiii": "Viewport",
    "viiiii": "Uniform4i",
    "viiiiuup": "ReadPixels",
    "vip": "DeleteBuffers DeleteFramebuffers DeleteTextures DrawBuffers GenBuffers GenFramebuffers "
    "GenTextures",
    "vp": "DeleteSync",
    "vu": "ActiveTexture CompileShader DeleteProgram DeleteShader Disable EnableVertexAttribArray "
    "LinkProgram MemoryBarrier ReadBuffer UseProgram",
    "vuii": "DrawArrays",
    "vuiiiiiiiuup": "TexSubImage3D",
    "vuiiiiiiuup": "TexImage3D",
    "vuiiiiiuup": "TexImage2D TexSubImage2D",
    "vuipp": "GetProgramInfoLog GetShaderInfoLog ShaderSource",
    "vuiubip": "VertexAttribPointer",
    "vup": "GetInteger64v GetIntegerv",
    "vuu": "AttachShader BindBuffer BindFramebuffer BindTexture",
    "vuui": "TexParameteri",
    "vuup": "GetIntegeri_v GetProgramiv GetShaderiv GetUnsignedBytei_vEXT",
    "vuupp": "GetShaderPrecisionFormat",
    "vuus": "BindAttribLocation",
    "vuuu": "DispatchCompute",
    "vuuuii": "FramebufferTextureLayer",
    "vuuuui": "FramebufferTexture2D",
    "vuuuzz": "BindBufferRange TexBufferRange TexBufferRangeEXT TexBufferRangeOES",
    "vuuzzz": "CopyBufferSubData",
    "vuzpu": "BufferData BufferStorage",
    "vuzzp": "BufferSubData",
}
"""Functions of OpenGL ES without the prefix ``gl``, by result and parameters."""

_SUFFIXES = ("", "KHR", "EXT", "OES")

VENDOR_ENTRY = "__egl_Main"
"""The function that makes a library an EGL driver for the vendor-neutral loader."""

MAX_DEVICES = 16

MAX_EXTENSIONS = 4096
"""Extensions that are asked for, ten times what any driver has; the count may be anything."""

MAX_TEXT = 1 << 16
"""Bytes of a driver's string that are looked at."""


class _Functions:
    """Functions of a driver as attributes."""

    def _bind(self, table: Mapping[str, str], address_of: Lookup) -> None:
        for signature, names in table.items():
            result, *parameters = (_TYPES[letter] for letter in signature)
            for name in names.split():
                address = address_of(name)
                if address:
                    setattr(self, name, ctypes.CFUNCTYPE(result, *parameters)(address))

    def has(self, *functions: str) -> bool:
        """Say whether there is an address for each function."""
        return all(f in self.__dict__ for f in functions)

    @staticmethod
    def ready(call: Any, *args: Any) -> Callable[[], Any]:
        """Return a call with its arguments, to be made many times: it takes a third of the time.

        They are converted to C here, not in each call; integers of 32 bits may stay as they are.
        """
        plain = ctypes.CFUNCTYPE(call.restype)(ctypes.cast(call, ctypes.c_void_p).value or 0)
        pairs = zip(call.argtypes, args, strict=True)
        small = ctypes.c_int, ctypes.c_uint
        return partial(plain, *(v if kind in small else kind(v) for kind, v in pairs))


def _symbol(library: Any, name: str) -> int:
    """Return the address of an exported function, 0 if there is none."""
    function = getattr(library, name, None)
    return (ctypes.cast(function, ctypes.c_void_p).value or 0) if function is not None else 0


def attributes(*pairs: tuple[int, int]) -> Any:
    """Return a list of attributes as EGL takes it."""
    flat = [value for pair in pairs for value in pair]
    return (ctypes.c_int * (len(flat) + 1))(*flat, c.EGL_NONE)


class Library(_Functions):
    """A loaded libEGL; `extensions` are those that hold without a display."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._egl = ctypes.CDLL(path)
        self._bind(_EGL, self._address)
        raw = self.QueryString(None, c.EGL_EXTENSIONS)
        self.GetError()  # libraries without client extensions leave an error behind
        self.extensions = frozenset((raw or b"").decode("ascii", "replace").split())

    def __getattr__(self, name: str) -> Any:
        raise BackendUnavailableError(
            "The EGL library is not complete.",
            asked_by=self.path,
            known=f"it has no function egl{name}",
            reason="missing-library",
        )

    @cached_property
    def _gles(self) -> Any:
        """The libGLESv2 that belongs to it: beside a path, the system's for a name; may be None."""
        here = Path(self.path)
        other = here.with_name(here.name.replace("libEGL", "libGLESv2"))
        # The numbers of the two differ: libEGL.so.1 comes with libGLESv2.so.2.
        name = str(other) if here.name != self.path else other.name.replace(".so.1", ".so.2")
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            log.debug("%s: %s", other, error)
            return None

    def _address(self, name: str) -> int:
        exported = _symbol(self._egl, f"egl{name}")
        return exported or self.GetProcAddress(f"egl{name}".encode()) or 0

    def lookup(self, name: str) -> int:
        """Return the address of an OpenGL function, 0 if there is none."""
        # EGL 1.4 need not know core functions.
        return self.GetProcAddress(name.encode()) or _symbol(self._gles, name)

    def error(self) -> str:
        """Return the name of the last error."""
        return c.error_name(self.GetError())


_libraries: dict[str, Library] = {}
"""Loaded libraries by path: none is ever unloaded, and a loader reads its manifests only once."""


def load(candidate: Candidate) -> Library:
    """Load the EGL library of a candidate; call it within `backends.loading.driver_environment`.

    Raises BackendUnavailableError: ``no-loader`` where the system has no libEGL,
    ``missing-library`` where a named one cannot be loaded.
    """
    path = library_of(candidate)
    if path not in _libraries:
        try:
            _libraries[path] = Library(path)
        except OSError as error:
            is_named = path == candidate.key
            way = "install it, for example: apt install libegl1"
            way = "in Termux: pkg install libglvnd mesa" if is_android() else way
            raise BackendUnavailableError(
                f"The library {Path(path).name} cannot be loaded.",
                asked_by=candidate.key,
                known=str(error),
                hint=None if is_named else way,
                reason="missing-library" if is_named else "no-loader",
            ) from None
    return _libraries[path]


@dataclass(frozen=True, slots=True)
class Platform:
    """An EGL platform that leads to a display, with its native object; number 0 is the default."""

    name: str
    number: int
    native: int | None = None
    attributes: tuple[tuple[int, int], ...] = ()


_ANGLE_SWIFTSHADER = (
    (c.EGL_ANGLE_TYPE, c.EGL_ANGLE_TYPE_VULKAN),
    (c.EGL_ANGLE_DEVICE_TYPE, c.EGL_ANGLE_DEVICE_SWIFTSHADER),
)
"""What leads to ANGLE's own rasteriser; its default display never does."""


def platforms(library: Library, candidate: Candidate) -> list[Platform]:
    """List the platforms of this library, the one to try first at the front."""
    platforms = []
    if "EGL_MESA_platform_surfaceless" in library.extensions:
        platforms.append(Platform("surfaceless", c.EGL_PLATFORM_SURFACELESS))
    for i, device in enumerate(_devices(library)):
        platforms.append(Platform(f"device {i}", c.EGL_PLATFORM_DEVICE, device))
    if "EGL_ANGLE_platform_angle" in library.extensions:
        platforms.append(Platform("angle", c.EGL_PLATFORM_ANGLE))
        name = "angle swiftshader"
        platforms.append(Platform(name, c.EGL_PLATFORM_ANGLE, None, _ANGLE_SWIFTSHADER))
    if not is_manifest(candidate) or not platforms:
        platforms.append(Platform("default", 0))
    return platforms


def _devices(library: Library) -> Sequence[int]:
    listed = {"EGL_EXT_device_base", "EGL_EXT_device_enumeration"} & library.extensions
    if not listed or "EGL_EXT_platform_device" not in library.extensions:
        return ()
    if not library.has("QueryDevicesEXT"):
        return ()
    devices, count = (ctypes.c_void_p * MAX_DEVICES)(), ctypes.c_int(0)
    if not library.QueryDevicesEXT(MAX_DEVICES, devices, ctypes.byref(count)):
        library.GetError()
        return ()
    return [d for d in devices[: count.value] if d]


class Display:
    """An initialised display; `handle` is given where the application has it already.

    Nothing terminates it: a display is the same for everybody in this process, and `eglTerminate`
    would end the application's contexts on it, too, however often it was initialised.

    Raises BackendUnavailableError (``no-device``) where the platform leads to none.
    """

    def __init__(self, library: Library, platform: Platform, handle: int | None = None) -> None:
        self.library = library
        handle = handle or self._find(library, platform)
        major, minor = ctypes.c_int(0), ctypes.c_int(0)
        if not handle or not library.Initialize(handle, ctypes.byref(major), ctypes.byref(minor)):
            raise BackendUnavailableError(
                "The driver offers no display.",
                known=f"{platform.name}: {library.error()}",
                reason="no-device",
            )
        self.handle: int = handle
        self.version = major.value, minor.value
        raw = library.QueryString(handle, c.EGL_EXTENSIONS) or b""
        self.extensions = frozenset(raw.decode("ascii", "replace").split())

    def _find(self, library: Library, platform: Platform) -> int | None:
        handle: int | None
        if platform.number and library.has("GetPlatformDisplayEXT"):
            wanted = attributes(*platform.attributes) if platform.attributes else None
            handle = library.GetPlatformDisplayEXT(platform.number, platform.native, wanted)
        else:
            handle = library.GetDisplay(None)
        return handle


class Gl(_Functions):
    """The functions of OpenGL ES, without the prefix: ``gl.BindTexture(target, name)``.

    EGL gives addresses of functions that the driver lacks, too, so a function being there proves
    nothing about the driver. `device` names the device in errors.
    """

    device = "the device"
    lost: DeviceLostError | None = None
    """Set once the driver reports a lost device."""
    tex_buffer_range: Callable[..., Any] | None = None
    """glTexBufferRange by the name that holds in this context; None: it has no texel buffers."""

    def __init__(self, lookup: Lookup) -> None:
        self._bind(
            _GL, lambda name: next((a for s in _SUFFIXES if (a := lookup(f"gl{name}{s}"))), 0)
        )

    def __getattr__(self, name: str) -> Any:
        raise DriverError(f"The driver has no function gl{name}.")

    def error(self) -> int:
        """Return the first error since the last call of this, 0 for none."""
        first: int = self.GetError()
        further = first
        for _ in range(8):  # one per kind of error; a lost context repeats its own forever
            if further == 0:
                break
            further = self.GetError()
        return first

    def check(self, what: str) -> None:
        """Raise the error of the calls since the last check, if there was one."""
        if code := self.GetError():
            self.fail(code, what)

    def fail(self, code: int, what: str) -> NoReturn:
        """Raise the error that `GetError` has told of."""
        self.error()
        error = c.error_for(code, what, self.device)
        if isinstance(error, DeviceLostError):
            self.lost = error
        raise error

    def integer(self, name: int) -> int:
        """Return an implementation limit; 0 if the driver does not know it."""
        return max(0, self.integers(name, 1)[0])

    def integers(self, name: int, count: int) -> tuple[int, ...]:
        """Return a limit of several numbers."""
        values = (ctypes.c_int * count)()
        self.GetIntegerv(name, values)
        return tuple(values)

    def indexed(self, name: int) -> tuple[int, int, int]:
        """Return a limit that is asked for by index 0, 1 and 2."""
        values = (ctypes.c_int * 3)()
        for index in range(3):
            self.GetIntegeri_v(
                name, index, ctypes.byref(values, index * ctypes.sizeof(ctypes.c_int))
            )
        return max(0, values[0]), max(0, values[1]), max(0, values[2])

    def text(self, name: int) -> str:
        """Return a string of the driver, or its beginning; stray bytes are replaced."""
        raw: bytes | None = self.GetString(name)
        return (raw or b"")[:MAX_TEXT].decode("utf-8", "replace")

    def extensions(self, major: int) -> frozenset[str]:
        """Return the names of the extensions of the current context."""
        if major < 3:
            return frozenset(self.text(c.GL_EXTENSIONS).split())
        count = min(self.integer(c.NUM_EXTENSIONS), MAX_EXTENSIONS)
        raw = (self.GetStringi(c.GL_EXTENSIONS, i) or b"" for i in range(count))
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
