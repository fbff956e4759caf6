"""Whether a driver really has a level: by trying, never by what its version says; and its limits.

A context of the version must come up, a shader of the version must compile, fragment shaders must
compute with enough bits, and a texture must take what a shader stores and give it back.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.backends.gles import api, formats
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Gl
from gpuedge.backends.gles.candidates import is_manifest, require
from gpuedge.backends.gles.memory import BYTES, TEXEL, Format, row_length
from gpuedge.backends.gles.program import link
from gpuedge.backends.gles.queue import GLContext, Want
from gpuedge.backends.loading import driver_environment, library_fault
from gpuedge.backends.manifests import read_manifest
from gpuedge.core.caps import Caps
from gpuedge.core.errors import BackendUnavailableError, DeviceError, DriverError
from gpuedge.core.identity import Identity
from gpuedge.core.storage import KINDS

SOFTWARE = ("llvmpipe", "softpipe", "swiftshader", "swrast", "software rasterizer", "basic render")
"""Parts of GL_RENDERER, in lower case, of rasterisers that compute on the CPU. OpenGL ES has no
other way to say it."""

MIN_EXPONENT = 126
"""A float32 holds magnitudes from 2^-126 to under 2^128; drivers report 126 or 127 for either."""

MIN_BITS = 23
"""Bits of the mantissa of a float32, without the leading one."""

MAX_NAME = 256
"""Characters of a driver's names that are kept; Vulkan's are no longer."""

COMPUTE = """\
#version 310 es
precision highp float;
layout(local_size_x = 1, local_size_y = 1, local_size_z = 1) in;
layout(std430, binding = 0) writeonly buffer B { highp vec4 b[]; };
void main() { b[gl_GlobalInvocationID.x] = vec4(gl_GlobalInvocationID.x); }
"""

TEXELS = """\
#version 310 es
#extension GL_EXT_texture_buffer : enable
#extension GL_OES_texture_buffer : enable
precision highp float;
layout(local_size_x = 1, local_size_y = 1, local_size_z = 1) in;
uniform highp samplerBuffer t;
layout(std430, binding = 0) writeonly buffer B { highp vec4 b[]; };
void main() { int i = int(gl_GlobalInvocationID.x); b[i] = texelFetch(t, i); }
"""


@dataclass(slots=True)
class Opened:
    """A context whose level was checked, with what is needed to use it."""

    context: GLContext
    gl: Gl
    identity: Identity
    is_software: bool
    formats: dict[str, Format]
    layers: int = 1


def judge_precision(span: tuple[int, int], bits: int) -> str | None:
    """Return why a fragment shader's ``highp float`` is not good enough, or None if it is.

    `span` has log2 of the least and of the greatest magnitude; all are 0 where there is no
    ``highp``. Indices of texels alone need 24 bits, the codec of float32 in bytes its whole range.
    """
    if bits >= MIN_BITS and min(span) >= MIN_EXPONENT:
        return None
    return (
        f"highp float has {bits} bits and magnitudes to 2^{min(span)}; "
        f"{MIN_BITS} bits and 2^{MIN_EXPONENT} are needed"
    )


def _check(gl: Gl, level: str) -> tuple[dict[str, Format], int]:
    """Return the texture formats that work in the current context, and the layers of textures.

    Raises BackendUnavailableError if it is not good for `level`.
    """
    gl.error()
    try:
        text = COMPUTE if level == "gles31" else formats.copy_text(level, BYTES, 1)
        gl.DeleteProgram(link(gl, level, text))
    except DriverError as error:
        raise BackendUnavailableError(error.what, known=error.known, reason="no-shaders") from None
    if level == "gles31":
        return {}, 1
    low, high, bits = gl.precision(c.FRAGMENT_SHADER, c.HIGH_FLOAT)
    why = judge_precision((low, high), bits)
    if why:
        raise BackendUnavailableError(
            "Fragment shaders have no highp float.", known=why, reason="no-highp"
        )
    needed = formats.NEEDED[level]
    drawable: dict[str, Format] = {}
    for layers in formats.LAYERS[level]:  # legacy SwiftShader draws to the first layer only
        drawable, failures = formats.probe(gl, level, layers)
        if any(name in drawable for name in needed):
            break
    else:
        codes = [c.reason_for(failures[name], "no-format") for name in needed]
        raise BackendUnavailableError(
            "No texture format can be rendered to and read back.",
            known=formats.described(failures),
            reason=next((code for code in codes if code != "no-format"), "no-format"),
        )
    return drawable, layers


def identify(gl: Gl, want: Want) -> Identity:
    """Return who the driver of the current context says it is."""
    wanted = (c.GL_VENDOR, c.GL_RENDERER, c.GL_VERSION)
    vendor, renderer, version = (gl.text(n)[:MAX_NAME] or None for n in wanted)
    return Identity(
        api=want.level,
        name=renderer or "unnamed",
        os=sys.platform,
        driverName=vendor,
        driverInfo=version,
        deviceUUID=_uuid(gl, gl.extensions(want.version[0])),
        GL_VENDOR=vendor,
        GL_RENDERER=renderer,
        GL_VERSION=version,
    )


def _uuid(gl: Gl, extensions: frozenset[str]) -> str | None:
    """Return the UUID that Vulkan gives the same device, where GL_EXT_memory_object has it."""
    if "GL_EXT_memory_object" not in extensions or not gl.has("GetUnsignedBytei_vEXT"):
        return None
    if gl.integer(c.NUM_DEVICE_UUIDS) != 1:
        return None
    raw = (ctypes.c_ubyte * c.UUID_BYTES)()
    gl.GetUnsignedBytei_vEXT(c.DEVICE_UUID, 0, raw)
    failed = gl.error()
    return bytes(raw).hex() if not failed and any(raw) else None


def open_display(display: api.Display, want: Want, share: int | None = None) -> Opened:
    """Open a context on a display and check its level; `share` is as for `GLContext`.

    Raises BackendUnavailableError.
    """
    context = GLContext(display, want, share)
    try:
        with context:
            gl = Gl(display.library.lookup)
            identity = identify(gl, want)
            checked = _check(gl, want.level)
        name = identity.name.lower()
        is_software = any(part in name for part in SOFTWARE)
        return Opened(context, gl, identity, is_software, *checked)
    except BaseException as error:
        context.close()
        if isinstance(error, DeviceError) and not isinstance(error, BackendUnavailableError):
            # A context that cannot even be made current once was not lost.
            code = "open-failed" if context.is_gone else c.reason_for(error, "open-failed")
            raise BackendUnavailableError(error.what, known=error.known, reason=code) from error
        raise


def _reachable(candidate: Candidate, want: Want) -> Iterator[Opened]:
    """Open the platforms of a candidate in turn; the caller closes what it is given.

    Raises BackendUnavailableError where none leads to a device, with the reason of the first one
    that reached a driver.
    """
    library = api.load(candidate)
    failures: list[BackendUnavailableError] = []
    is_any = False
    for platform in api.platforms(library, candidate):
        if is_any and platform.name == "default":
            return  # it leads to one of the devices that other platforms lead to
        try:
            opened = open_display(api.Display(library, platform), want)
        except BackendUnavailableError as error:
            failures.append(error)
        else:
            is_any = True
            yield opened
    if not is_any:
        reached = [e for e in failures if e.reason is None or e.reason.code != "no-device"]
        raise reached[0] if reached else _no_display(candidate, failures[0])


def _no_display(
    candidate: Candidate, otherwise: BackendUnavailableError
) -> BackendUnavailableError:
    """Return the error of a driver that offers no display.

    The loader says nothing when it leaves a library out, so this looks at the library again.
    """
    path = read_manifest(candidate.key).library if is_manifest(candidate) else None
    why = library_fault(path, (api.VENDOR_ENTRY,)) if path is not None else None
    if why is None:
        return otherwise
    return BackendUnavailableError(
        "This library is not an EGL driver.",
        asked_by=candidate.key,
        known=why,
        reason="missing-library",
    )


SAME = ("GL_VENDOR", "GL_RENDERER", "deviceUUID")
"""What tells devices of a driver apart. The UUID is not always known: Mesa gives it in contexts of
OpenGL ES 3.2 only, and which version one gets may hang on who used EGL first in this process."""


def enumerate_devices(candidate: Candidate) -> list[DeviceInfo]:
    """Open every platform of a candidate, and return one entry per distinct device.

    Raises BackendUnavailableError.
    """
    require(candidate)
    devices: dict[tuple[str | None, ...], DeviceInfo] = {}
    with driver_environment(candidate):
        for opened in _reachable(candidate, Want(candidate.backend)):
            device = DeviceInfo(candidate, len(devices), opened.identity, opened.is_software)
            mark = tuple(getattr(opened.identity, name) for name in SAME)
            devices.setdefault(mark, device)
            opened.context.close()
    return list(devices.values())


def open_device(info: DeviceInfo) -> Opened:
    """Open the device of `info` again: the first platform that leads to the same one.

    Raises DriverError where the driver now leads to other devices, BackendUnavailableError where
    it leads nowhere any more.
    """
    others: dict[str, None] = {}
    want = Want(info.candidate.backend, is_robust="robust-access" not in info.disabled)
    with driver_environment(info.candidate):
        for opened in _reachable(info.candidate, want):
            difference = info.identity.differences(opened.identity, SAME)
            if not difference:
                return opened
            others[difference] = None
            opened.context.close()
    raise DriverError(
        "The driver now leads to another device.",
        asked_by=f"{info.candidate.key} #{info.index}",
        known="; ".join(others),
        hint="a driver keeps the settings that the first user of EGL in this process had",
    )


# --- limits -------------------------------------------------------------------------------------
DIALECTS = {("gles20", 1): "essl100", ("gles30", 4): "essl300", ("gles30", 1): "essl300_single"}
"""Dialects by level and the layers that textures have, of levels that draw."""

VECTORS_PER_TENSOR = 2
"""Uniform vectors of one tensor at most: its extents, and its size and range."""

OTHER_VECTORS = 4
"""Uniform vectors kept for parameters."""

EXACT_INDEX_BYTES = 1 << 25
"""2^23 float32: OpenGL ES 2.0 counts in float32, where whole numbers above 2^24 are not all there.
Half of that leaves room for sums of indices, which compilers reorder (seen on softpipe and zink:
``a % b + t`` as ``(a + t) - b * (a / b)``)."""

MAX_BYTES = (1 << 31) - TEXEL
"""Larger buffers cannot be addressed by the signed 32-bit indices of the shaders."""

NO_LIMIT = (1 << 31) - 1
"""Of workgroups, where there are none: fragments are drawn, however a plan groups them."""

LEAST_SIDE = 64
"""Texels per side of the smallest texture limit that the specification allows."""

PUSH_BYTES = 16
"""Bytes of the block of values per tensor: its extents."""

MAX_ALIGNMENT = 4096
"""Alignments of parts of a buffer are 256 at most by the specification; such as these are a lie."""


def checked(name: str, value: int, least: int, most: int = NO_LIMIT) -> int:
    """Return a limit. Raises DriverError for one that no device of the specification can have."""
    if not least <= value <= most:
        raise DriverError(
            "The driver's limits cannot be.",
            known=f"GL_{name} is {value}; by the specification it is {least} to {most}",
        )
    return value


def fragment_caps(opened: Opened, most_side: int = NO_LIMIT) -> Caps:
    """Return the limits of a context that draws. Raises DriverError for limits that cannot be.

    Textures are at most `most_side` texels wide and high, whatever the driver says.
    """
    gl, level = opened.gl, opened.context.want.level
    kinds = formats.storages(opened.formats)
    size = min(gl.integer(c.MAX_TEXTURE_SIZE), *gl.integers(c.MAX_VIEWPORT_DIMS, 2))
    size = checked("MAX_TEXTURE_SIZE", min(size, max(LEAST_SIDE, most_side)), LEAST_SIDE)
    units = checked("MAX_TEXTURE_IMAGE_UNITS", gl.integer(c.MAX_TEXTURE_IMAGE_UNITS), 8)
    vectors = gl.integer(c.MAX_FRAGMENT_UNIFORM_VECTORS)
    checked("MAX_FRAGMENT_UNIFORM_VECTORS", vectors, 8)
    tensors = max(1, min(units + 1, (vectors - OTHER_VECTORS) // VECTORS_PER_TENSOR))
    layers = opened.layers
    largest = row_length(size, layers) * size * layers // KINDS[kinds[0]].units * TEXEL
    addressed = EXACT_INDEX_BYTES if level == "gles20" else MAX_BYTES
    return Caps(
        level=level,
        dialect=DIALECTS[level, layers],
        forms=frozenset({"map"}),
        is_software=opened.is_software,
        max_invocations=NO_LIMIT,
        max_local_size=(NO_LIMIT, NO_LIMIT, NO_LIMIT),
        max_groups=(NO_LIMIT, NO_LIMIT, NO_LIMIT),
        max_shared_bytes=0,
        max_storage_buffers=tensors,
        max_storage_buffer_bytes=min(largest, addressed),
        max_allocation_bytes=None,
        offset_alignment=TEXEL,
        max_push_bytes=max(128, tensors * PUSH_BYTES + 64),
        storages=kinds,
        has_suballocation=False,
        max_texture_size=size,
        is_finite_only=kinds[0] == "rgba8_float",
        map_texels=layers,
    )


def texel_limits(opened: Opened) -> tuple[int, int, int]:
    """Return how many texel buffers a kernel can read, their most texels, and their alignment.

    (0, 0, 1) where a context has none, or a driver refuses those that it lists. The function is
    called as the extension has it: ANGLE refuses the core name in contexts of OpenGL ES 3.1.
    Raises DeviceLostError, OutOfMemoryError.
    """
    gl, want = opened.gl, opened.context.want
    listed = gl.extensions(want.version[0])
    names = [f"TexBufferRange{s}" for s in ("EXT", "OES") if f"GL_{s}_texture_buffer" in listed]
    names += ["TexBufferRange"] if want.is_desktop else []
    name = next((name for name in names if gl.has(name)), None)
    places = (
        c.MAX_COMPUTE_TEXTURE_UNITS,
        c.MAX_TEXTURE_BUFFER_SIZE,
        c.TEXTURE_BUFFER_OFFSET_ALIGNMENT,
    )
    units, elements, alignment = (gl.integer(place) for place in places)
    gl.error()  # of limits that it does not know
    can_be = 1 <= alignment <= MAX_ALIGNMENT and alignment.bit_count() == 1
    if name is None or not (units and elements and can_be):
        return 0, 0, 1
    try:
        gl.DeleteProgram(link(gl, "gles31", TEXELS))
    except DriverError:
        return 0, 0, 1
    gl.tex_buffer_range = getattr(gl, name)
    return units, elements, alignment


def compute_caps(opened: Opened) -> Caps:
    """Return the limits of a compute context. Raises DriverError for limits that cannot be."""
    gl = opened.gl
    places = (c.MAX_COMPUTE_STORAGE_BLOCKS, c.MAX_COMBINED_STORAGE_BLOCKS, c.MAX_STORAGE_BINDINGS)
    blocks = min(gl.integer(place) for place in places)
    checked("MAX_SHADER_STORAGE_BUFFER_BINDINGS", blocks, 4)
    invocations = gl.integer(c.MAX_COMPUTE_INVOCATIONS)
    checked("MAX_COMPUTE_WORK_GROUP_INVOCATIONS", invocations, 128)
    texel_buffers, texel_elements, texel_alignment = texel_limits(opened)
    alignment = gl.integer(c.STORAGE_OFFSET_ALIGNMENT)
    checked("SHADER_STORAGE_BUFFER_OFFSET_ALIGNMENT", alignment, 1, MAX_ALIGNMENT)
    largest = ctypes.c_int64(0)
    gl.GetInteger64v(c.MAX_STORAGE_BLOCK_SIZE, ctypes.byref(largest))
    # Values go in as uniforms: four components a vector, some kept for parameters.
    components = gl.integer(c.MAX_COMPUTE_UNIFORM_COMPONENTS)
    return Caps(
        level="gles31",
        dialect="essl310",
        forms=frozenset({"map", "group"}),
        is_software=opened.is_software,
        max_invocations=invocations,
        max_local_size=gl.indexed(c.MAX_COMPUTE_SIZE),
        max_groups=gl.indexed(c.MAX_COMPUTE_GROUPS),
        max_shared_bytes=gl.integer(c.MAX_COMPUTE_SHARED_BYTES),
        max_storage_buffers=blocks,
        max_storage_buffer_bytes=min(largest.value, MAX_BYTES),
        max_allocation_bytes=None,
        offset_alignment=max(TEXEL, alignment, texel_alignment),  # all powers of two
        max_push_bytes=max(128, min(components * 4, blocks * PUSH_BYTES + 64)),
        has_fp16_storage=False,  # the language has no such types
        has_fp16_arithmetic=False,  # nor these; mediump is only a hint
        has_int8_storage=False,
        max_texel_buffers=texel_buffers,
        max_texel_elements=texel_elements,
        max_outputs=blocks,
    )
