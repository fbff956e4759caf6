"""EGL and OpenGL ES by `ctypes`: a driver's library, its displays, its functions.

One table each says how functions are called. A function that the driver lacks is not there: using
it raises an error, `has` asks first. Does not judge a driver; `physical.py` does.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.candidates import is_manifest, library_of
from gpuedge.backends.loading import library_fault
from gpuedge.backends.manifests import inspect_manifest
from gpuedge.core.errors import BackendUnavailableError, DriverError

log = logging.getLogger("gpuedge.gles")

_pointer, _uint, _int = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int
_EGL_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "BindAPI": (_uint, _uint),
    "ChooseConfig": (_uint, _pointer, _pointer, _pointer, _int, _pointer),
    "ClientWaitSyncKHR": (_int, _pointer, _pointer, _int, ctypes.c_uint64),
    "CreateContext": (_pointer, _pointer, _pointer, _pointer, _pointer),
    "CreatePbufferSurface": (_pointer, _pointer, _pointer, _pointer),
    "CreateSyncKHR": (_pointer, _pointer, _uint, _pointer),
    "DestroyContext": (_uint, _pointer, _pointer),
    "DestroySurface": (_uint, _pointer, _pointer),
    "DestroySyncKHR": (_uint, _pointer, _pointer),
    "GetCurrentContext": (_pointer,),
    "GetCurrentDisplay": (_pointer,),
    "GetCurrentSurface": (_pointer, _int),
    "GetDisplay": (_pointer, _pointer),
    "GetError": (_int,),
    "GetPlatformDisplayEXT": (_pointer, _uint, _pointer, _pointer),
    "GetProcAddress": (_pointer, ctypes.c_char_p),
    "Initialize": (_uint, _pointer, _pointer, _pointer),
    "MakeCurrent": (_uint, _pointer, _pointer, _pointer, _pointer),
    "QueryAPI": (_uint,),
    "QueryContext": (_uint, _pointer, _pointer, _int, _pointer),
    "QueryDevicesEXT": (_uint, _int, _pointer, _pointer),
    "QueryString": (ctypes.c_char_p, _pointer, _int),
}
VENDOR_ENTRY = "__egl_Main"
"""The function that makes a library an EGL driver for the vendor-neutral loader."""

MAX_DEVICES = 16
_lock = threading.RLock()
_libraries: dict[str, Library] = {}
"""Loaded libraries by path: none is ever unloaded, and a loader reads its manifests only once."""


def attributes(*pairs: tuple[int, int]) -> Any:
    """Return a list of attributes as EGL takes it."""
    flat = [value for pair in pairs for value in pair]
    return (_int * (len(flat) + 1))(*flat, c.EGL_NONE)


class Library:
    """A loaded libEGL: its functions without the prefix ``egl``.

    `is_alone` says whether it is a driver's own, not the system's loader; `extensions` are those
    that hold without a display.
    """

    def __init__(self, path: str, is_alone: bool) -> None:
        self.path = path
        self.is_alone = is_alone
        self._egl = ctypes.CDLL(path)
        self._gles = self._beside(path)
        for name, (result, *parameters) in _EGL_SIGNATURES.items():
            address = self._address(name)
            if address:
                setattr(self, name, ctypes.CFUNCTYPE(result, *parameters)(address))
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

    def _beside(self, path: str) -> Any:
        """Load the libGLESv2 that lies beside a library given by its path."""
        here = Path(path)
        other = here.with_name(here.name.replace("libEGL", "libGLESv2"))
        try:
            return ctypes.CDLL(str(other)) if here.name != path and other.is_file() else None
        except OSError as error:
            log.debug("%s: %s", other, error)
            return None

    def _address(self, name: str) -> int:
        try:
            return ctypes.cast(getattr(self._egl, f"egl{name}"), _pointer).value or 0
        except AttributeError:
            get = getattr(self._egl, "eglGetProcAddress", None)
        if get is None:
            raise BackendUnavailableError(
                "The EGL library is an empty shell.",
                asked_by=self.path,
                known="it has no function eglGetProcAddress",
                reason="missing-library",
            )
        get.restype, get.argtypes = _pointer, (ctypes.c_char_p,)
        return get(f"egl{name}".encode()) or 0

    def has(self, *functions: str) -> bool:
        """Say whether the library has these functions."""
        return all(f in self.__dict__ for f in functions)

    def lookup(self, name: str) -> int:
        """Return the address of an OpenGL function, 0 if there is none."""
        address: int = self.GetProcAddress(name.encode()) or 0
        if address == 0 and self._gles is not None:  # EGL 1.4 need not know core functions
            found = getattr(self._gles, name, None)
            address = (ctypes.cast(found, _pointer).value or 0) if found is not None else 0
        return address

    def error(self) -> str:
        """Return the name of the last error."""
        return c.egl_error_name(self.GetError())

    def start(self, handle: int) -> tuple[int, int] | None:
        """Initialise a display, or find it initialised; None if that fails.

        Nothing terminates it again: a display is the same for everybody in this process, and
        `eglTerminate` would end the application's contexts on it, too, however often it was
        initialised. Only the application knows whether it still uses it.
        """
        with _lock:
            major, minor = _int(0), _int(0)
            if not self.Initialize(handle, ctypes.byref(major), ctypes.byref(minor)):
                return None
            return major.value, minor.value


def load(candidate: Candidate) -> Library:
    """Load the EGL library of a candidate; call it within `backends.loading.driver_environment`.

    Raises BackendUnavailableError: ``no-loader`` where the system has no libEGL,
    ``missing-library`` where a named one cannot be loaded.
    """
    path = library_of(candidate)
    with _lock:
        known = _libraries.get(path)
        if known is None:
            try:
                known = _libraries[path] = Library(path, path == candidate.key)
            except OSError as error:
                named = path == candidate.key
                raise BackendUnavailableError(
                    f"The library {Path(path).name} cannot be loaded.",
                    asked_by=candidate.key,
                    known=str(error),
                    hint=None if named else "install it, for example: apt install libegl1",
                    reason="missing-library" if named else "no-loader",
                ) from None
        return known


def vendor_problem(candidate: Candidate) -> str | None:
    """Return why the library that a manifest names is not an EGL driver; None if it is.

    The loader says nothing when it leaves a library out, so this looks again: within
    `backends.loading.driver_environment`, and only after the loader found no display.
    """
    path = inspect_manifest(candidate.key)[0] if is_manifest(candidate) else None
    return None if path is None else library_fault(path, (VENDOR_ENTRY,))


@dataclass(frozen=True, slots=True)
class Platform:
    """An EGL platform that leads to a display, with its native object; number 0 is the default.

    `hint` is part of the name of the only device it can lead to.
    """

    name: str
    number: int
    native: int | None = None
    attributes: tuple[tuple[int, int], ...] = ()
    hint: str = ""


def platforms(library: Library, candidate: Candidate) -> list[Platform]:
    """List the platforms of this library, the one to try first at the front."""
    extensions, found = library.extensions, []
    if "EGL_MESA_platform_surfaceless" in extensions:
        found.append(Platform("surfaceless", c.EGL_PLATFORM_SURFACELESS))
    for i, device in enumerate(_devices(library)):
        found.append(Platform(f"device {i}", c.EGL_PLATFORM_DEVICE, device))
    if "EGL_ANGLE_platform_angle" in extensions:
        found.append(Platform("angle", c.EGL_PLATFORM_ANGLE))
        found.append(_angle_swiftshader())
    if not is_manifest(candidate) or not found:
        found.append(Platform("default", 0))
    return found


def _angle_swiftshader() -> Platform:
    """Return the platform of ANGLE's own rasteriser; its default one never leads there."""
    wanted = (
        (c.EGL_ANGLE_TYPE, c.EGL_ANGLE_TYPE_VULKAN),
        (c.EGL_ANGLE_DEVICE_TYPE, c.EGL_ANGLE_DEVICE_SWIFTSHADER),
    )
    return Platform("angle swiftshader", c.EGL_PLATFORM_ANGLE, None, wanted, "SwiftShader")


def _devices(library: Library) -> Sequence[int]:
    extensions = library.extensions
    listed = {"EGL_EXT_device_base", "EGL_EXT_device_enumeration"} & extensions
    if not listed or "EGL_EXT_platform_device" not in extensions:
        return ()
    if not library.has("QueryDevicesEXT"):
        return ()
    devices, count = (_pointer * MAX_DEVICES)(), _int(0)
    if not library.QueryDevicesEXT(MAX_DEVICES, devices, ctypes.byref(count)):
        library.GetError()
        return ()
    return [d for d in devices[: count.value] if d]


class Display:
    """An initialised display, which stays so until the process ends; see `Library.start`.

    `handle` is the display where the application has it already. Raises BackendUnavailableError
    (``no-device``) where the platform leads to none.
    """

    def __init__(self, library: Library, platform: Platform, handle: int | None = None) -> None:
        self.library = library
        self.platform = platform
        handle = handle or self._find(library, platform)
        version = library.start(handle) if handle else None
        if not handle or version is None:
            raise BackendUnavailableError(
                "The driver offers no display.",
                known=f"{platform.name}: {library.error()}",
                reason="no-device",
            )
        self.handle: int = handle
        self.version = version
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


# --- OpenGL ES ----------------------------------------------------------------------------------
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
    "CopyBufferSubData": "vuuzzz",
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

    EGL gives addresses of functions that the driver lacks, too, so a function being there proves
    nothing about the driver.
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
        for _ in range(8):  # one per kind of error; a lost context repeats its own forever
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
