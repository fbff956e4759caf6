"""EGL by `ctypes`: one driver's library, its displays, a context of an exact version.

Does not judge a driver; `levels.py` does.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.backends.gles import names
from gpuedge.backends.gles.find import is_manifest, library_of
from gpuedge.backends.manifests import inspect_manifest
from gpuedge.core.errors import BackendUnavailableError

log = logging.getLogger("gpuedge.gles")

_pointer, _uint, _int = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, ...]] = {
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
    "QueryDeviceStringEXT": (ctypes.c_char_p, _pointer, _int),
    "QueryDevicesEXT": (_uint, _int, _pointer, _pointer),
    "QueryDisplayAttribEXT": (_uint, _pointer, _int, _pointer),
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
    return (_int * (len(flat) + 1))(*flat, names.EGL_NONE)


class Library:
    """A loaded libEGL: its functions without the prefix ``egl``.

    Attributes
    ----------
    path : str
    is_alone : bool
        Whether it is a driver's own, not the system's loader.
    extensions : frozenset of str
        Extensions that hold without a display.
    """

    def __init__(self, path: str, is_alone: bool) -> None:
        self.path = path
        self.is_alone = is_alone
        self._egl = ctypes.CDLL(path)
        self._gles = self._beside(path)
        for name, (result, *parameters) in _SIGNATURES.items():
            address = self._address(name)
            if address:
                setattr(self, name, ctypes.CFUNCTYPE(result, *parameters)(address))
        raw = self.QueryString(None, names.EGL_EXTENSIONS)
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
        return names.egl_error_name(self.GetError())

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

    Raises
    ------
    BackendUnavailableError
        ``no-loader`` where the system has no libEGL, ``missing-library`` where a named one cannot
        be loaded.
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
    """Return why the library that a manifest names is no EGL driver; None if it is one.

    The loader says nothing when it leaves a library out, so this looks again: within
    `backends.loading.driver_environment`, and only after the loader found no display.
    """
    path = inspect_manifest(candidate.key)[0] if is_manifest(candidate) else None
    if path is None:
        return None
    try:
        vendor = ctypes.CDLL(path)
    except OSError as error:
        return str(error)
    return None if hasattr(vendor, VENDOR_ENTRY) else f"{path} has no function {VENDOR_ENTRY}"


@dataclass(frozen=True, slots=True)
class Road:
    """A way to a display: the platform, its native object, attributes; platform 0 is the default.

    `device` is the EGL device it leads to, where that is known; `hint` is part of the name of the
    only device it can lead to.
    """

    name: str
    platform: int
    native: int | None = None
    attributes: tuple[tuple[int, int], ...] = ()
    device: int | None = None
    hint: str = ""


def roads(library: Library, candidate: Candidate) -> list[Road]:
    """List the ways to this library's displays, the one to try first at the front."""
    extensions, found = library.extensions, []
    if "EGL_MESA_platform_surfaceless" in extensions:
        found.append(Road("surfaceless", names.EGL_PLATFORM_SURFACELESS))
    for i, device in enumerate(_devices(library)):
        found.append(Road(f"device {i}", names.EGL_PLATFORM_DEVICE, device, (), device))
    if "EGL_ANGLE_platform_angle" in extensions:
        found.append(Road("angle", names.EGL_PLATFORM_ANGLE))
        found.append(_angle_swiftshader())
    if not is_manifest(candidate) or not found:
        found.append(Road("default", 0))
    return found


def _angle_swiftshader() -> Road:
    """Return the way to the rasteriser that ANGLE brings along; its default never leads there."""
    wanted = (
        (names.EGL_ANGLE_TYPE, names.EGL_ANGLE_TYPE_VULKAN),
        (names.EGL_ANGLE_DEVICE_TYPE, names.EGL_ANGLE_DEVICE_SWIFTSHADER),
    )
    return Road("angle swiftshader", names.EGL_PLATFORM_ANGLE, None, wanted, None, "SwiftShader")


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

    Raises
    ------
    BackendUnavailableError
        ``no-device``: this road leads to no display.
    """

    def __init__(self, library: Library, road: Road) -> None:
        self.library = library
        self.road = road
        handle = self._find(library, road)
        version = library.start(handle) if handle else None
        if not handle or version is None:
            raise BackendUnavailableError(
                "The driver offers no display.",
                known=f"{road.name}: {library.error()}",
                reason="no-device",
            )
        self.handle: int = handle
        self.version = version
        raw = library.QueryString(handle, names.EGL_EXTENSIONS) or b""
        self.extensions = frozenset(raw.decode("ascii", "replace").split())

    def _find(self, library: Library, road: Road) -> int | None:
        handle: int | None
        if road.platform and library.has("GetPlatformDisplayEXT"):
            wanted = attributes(*road.attributes) if road.attributes else None
            handle = library.GetPlatformDisplayEXT(road.platform, road.native, wanted)
        else:
            handle = library.GetDisplay(None)
        return handle

    @property
    def is_software(self) -> bool | None:
        """Whether the driver says that the CPU does the work; None if it does not say."""
        library = self.library
        if not library.has("QueryDisplayAttribEXT", "QueryDeviceStringEXT"):
            return None
        device = self.road.device or self._device()
        raw = library.QueryDeviceStringEXT(device, names.EGL_EXTENSIONS) if device else None
        library.GetError()
        return b"EGL_MESA_device_software" in raw.split() if raw else None

    def _device(self) -> int | None:
        value = ctypes.c_ssize_t(0)
        asked = self.library.QueryDisplayAttribEXT(
            self.handle, names.EGL_DEVICE, ctypes.byref(value)
        )
        return value.value if asked else None
