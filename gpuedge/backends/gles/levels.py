"""Whether a driver really has a level, and which: by trying, never by what its version says.

A context of the version must come up, a shader of the version must compile, fragment shaders must
compute with enough bits, and a texture must take what a shader stores and give it back.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.backends.gles import egl, formats, names, shaders
from gpuedge.backends.gles.context import Context, Want
from gpuedge.backends.gles.gl import Gl
from gpuedge.backends.gles.stack import Format
from gpuedge.backends.loading import driver_environment
from gpuedge.core.errors import BackendUnavailableError, DeviceError, DriverError
from gpuedge.core.identity import Identity

SOFTWARE = ("llvmpipe", "softpipe", "swiftshader", "swrast", "software rasterizer", "basic render")
"""Parts of GL_RENDERER, in lower case, of rasterisers that compute on the CPU. OpenGL ES has no
other way to say it but an EGL extension that only Mesa has."""

MIN_EXPONENT = 126
"""A float32 holds magnitudes from 2^-126 to under 2^128; drivers report 126 or 127 for either."""

MIN_BITS = 23
"""Bits of the mantissa of a float32, without the leading one."""


MAX_NAME = 256
"""Characters of a driver's names that are kept; Vulkan's are no longer."""


@dataclass(slots=True)
class Opened:
    """A context whose level was checked, with what is needed to use it."""

    display: egl.Display
    context: Context
    gl: Gl
    identity: Identity
    is_software: bool
    formats: dict[str, Format]

    def close(self) -> None:
        """Destroy the context; the display stays, as others may use it."""
        self.context.close()


def judge_precision(span: tuple[int, int], bits: int) -> str | None:
    """Return why a fragment shader's ``highp float`` is not good enough, or None if it is.

    Parameters
    ----------
    span : pair of int
        log2 of the least and of the greatest magnitude, as glGetShaderPrecisionFormat gives them;
        both are 0 where a device has no ``highp`` in fragment shaders.
    bits : int
        log2 of the relative precision, as a positive number.

    Notes
    -----
    A device without ``highp`` is refused: indices of texels alone need 24 bits, and the codec of
    float32 in bytes needs its whole range.

    >>> judge_precision((127, 127), 23)
    >>> judge_precision((15, 15), 10)
    'highp float has 10 bits and magnitudes to 2^15; 23 bits and 2^126 are needed'
    """
    if bits == 0 and span == (0, 0):
        return "it has no highp float"
    if bits < MIN_BITS or min(span) < MIN_EXPONENT:
        return (
            f"highp float has {bits} bits and magnitudes to 2^{min(span)}; "
            f"{MIN_BITS} bits and 2^{MIN_EXPONENT} are needed"
        )
    return None


def _check(gl: Gl, level: str) -> dict[str, Format]:
    """Return the texture formats that work in the current context.

    Raises BackendUnavailableError if it is not good for `level`.
    """
    gl.error()
    try:
        shaders.check_version(gl, level)
    except DriverError as error:
        raise BackendUnavailableError(error.what, known=error.known, reason="no-shaders") from None
    if level == "gles31":
        return {}
    low, high, bits = gl.precision(names.FRAGMENT_SHADER, names.HIGH_FLOAT)
    why = judge_precision((low, high), bits)
    if why:
        raise BackendUnavailableError(
            "Fragment shaders have no highp float.", known=why, reason="no-highp"
        )
    found, failures = formats.probe(gl, level)
    if not any(name in found for name in formats.NEEDED[level]):
        wanted = [failures[n] for n in formats.NEEDED[level] if n in failures]
        raise BackendUnavailableError(
            "No texture format can be rendered to and read back.",
            known=formats.described(failures),
            reason=next((c for e in wanted if (c := names.code_of(e, ""))), "no-format"),
        )
    return found


def identify(gl: Gl, want: Want) -> Identity:
    """Return who the driver of the current context says it is."""
    wanted = (names.GL_VENDOR, names.GL_RENDERER, names.GL_VERSION)
    texts = [gl.text(n)[:MAX_NAME] for n in wanted]
    vendor, renderer, version = texts
    return Identity(
        api=want.level,
        name=renderer or "unnamed",
        os=sys.platform,
        driverName=vendor or None,
        driverInfo=version or None,
        deviceUUID=_uuid(gl, gl.extensions(want.version[0])),
        GL_VENDOR=vendor or None,
        GL_RENDERER=renderer or None,
        GL_VERSION=version or None,
    )


def _uuid(gl: Gl, extensions: frozenset[str]) -> str | None:
    """Return the UUID that Vulkan gives the same device, where GL_EXT_memory_object has it."""
    if "GL_EXT_memory_object" not in extensions or not gl.has("GetUnsignedBytei_vEXT"):
        return None
    if gl.integer(names.NUM_DEVICE_UUIDS) != 1:
        return None
    raw = (ctypes.c_ubyte * names.UUID_BYTES)()
    gl.GetUnsignedBytei_vEXT(names.DEVICE_UUID, 0, raw)
    failed = gl.error()
    return bytes(raw).hex() if not failed and any(raw) else None


def open_road(library: egl.Library, road: egl.Road, want: Want) -> Opened:
    """Open a context on one road and check its level. Raises BackendUnavailableError."""
    display = egl.Display(library, road)
    context = Context(display, want)
    try:
        with context.turn():
            gl = Gl(library.lookup)
            identity = identify(gl, want)
            found = _check(gl, want.level)
        name = identity.name.lower()
        is_software = bool(display.is_software) or any(s in name for s in SOFTWARE)
        return Opened(display, context, gl, identity, is_software, found)
    except BaseException as error:
        context.close()
        if isinstance(error, DeviceError) and not isinstance(error, BackendUnavailableError):
            # A context that cannot even be made current once is no device that was lost.
            code = "open-failed" if context.is_gone else names.code_of(error, "open-failed")
            raise BackendUnavailableError(error.what, known=error.known, reason=code) from error
        raise


def wants(level: str) -> list[Want]:
    """Return what to ask for, in order: desktop OpenGL only where there is no OpenGL ES."""
    return [Want(level), Want(level, is_desktop=True)] if level == "gles31" else [Want(level)]


def enumerate_devices(candidate: Candidate, level: str) -> list[DeviceInfo]:
    """Open every road of a candidate, and return one entry per distinct device.

    Raises
    ------
    BackendUnavailableError
        No road leads to a device of this level; the reason is that of the road that came furthest.
    """
    failures: list[BackendUnavailableError] = []
    with driver_environment(candidate):
        library = egl.load(candidate)
        ways = egl.roads(library, candidate)
        for want in wants(level):
            found: dict[tuple[str | None, ...], DeviceInfo] = {}
            for road in ways:
                if found and road.name == "default":
                    break  # it leads to one of the devices that other roads lead to
                try:
                    opened = open_road(library, road, want)
                except BackendUnavailableError as error:
                    failures.append(error)
                else:
                    one = DeviceInfo(candidate, len(found), opened.identity, opened.is_software)
                    found.setdefault(_mark(opened.identity), one)
                    opened.close()
            if found:
                return list(found.values())
        raise _nothing(candidate, failures)


def _mark(identity: Identity) -> tuple[str | None, ...]:
    return identity.GL_VENDOR, identity.GL_RENDERER, identity.deviceUUID


def _nothing(
    candidate: Candidate, failures: list[BackendUnavailableError]
) -> BackendUnavailableError:
    """Return the error where no road leads to a device."""
    furthest = _furthest(failures)
    is_nothing = furthest.reason is not None and furthest.reason.code == "no-device"
    why = egl.vendor_problem(candidate) if is_nothing else None
    if why is None:
        return furthest
    return BackendUnavailableError(
        "The driver's library is none.",
        asked_by=candidate.key,
        known=why,
        reason="missing-library",
    )


def _furthest(failures: list[BackendUnavailableError]) -> BackendUnavailableError:
    """Return the failure that says most: one of a device that was reached before any other."""
    nothing = [e for e in failures if e.reason and e.reason.code == "no-device"]
    return next((e for e in failures if e not in nothing), failures[0])


def open_device(info: DeviceInfo, wanted: list[Want]) -> Opened:
    """Open the device of `info` again: the first road that leads to the same one.

    Raises
    ------
    DriverError (GE-405)
        The driver now leads to other devices.
    BackendUnavailableError
        No road leads anywhere any more.
    """
    expected = info.identity
    failures: list[BackendUnavailableError] = []
    others: list[str] = []
    with driver_environment(info.candidate):
        library = egl.load(info.candidate)
        ways = egl.roads(library, info.candidate)
        for want in wanted:
            for road in sorted(ways, key=lambda r: not r.hint or r.hint not in expected.name):
                try:
                    opened = open_road(library, road, want)
                except BackendUnavailableError as error:
                    failures.append(error)
                    continue
                if _is_same(opened.identity, expected, want):
                    return opened
                others.append(opened.identity.name)
                opened.close()
    if not others:
        raise _furthest(failures)
    raise DriverError(
        "The driver now leads to another device.",
        asked_by=f"{info.candidate.key} #{info.index}",
        known=f"expected {expected.name}, found {', '.join(dict.fromkeys(others))}",
    )


def _is_same(one: Identity, other: Identity, want: Want) -> bool:
    if want.is_webgl:  # such contexts leave the driver's version out of the name
        return one.name.rpartition(",")[0] == other.name.rpartition(",")[0]
    if None not in (one.deviceUUID, other.deviceUUID) and one.deviceUUID != other.deviceUUID:
        return False
    return _mark(one)[:2] == _mark(other)[:2]
