"""Numbers of EGL and OpenGL ES, and the errors that their error numbers become.

Loads no library. The numbers are those of the Khronos registries (egl.xml, gl.xml).
"""

from __future__ import annotations

from gpuedge.backends import common
from gpuedge.core.errors import (
    DeviceError,
    DeviceLostError,
    DriverError,
    OutOfMemoryError,
)
from gpuedge.core.storage import HALF_TEXELS, TEXELS

# --- EGL ---------------------------------------------------------------------------------------
EGL_NONE = 0x3038
EGL_SURFACE_TYPE = 0x3033
EGL_PBUFFER_BIT = 0x0001
EGL_RENDERABLE_TYPE = 0x3040
EGL_ES2_BIT = 0x0004
EGL_ES3_BIT = 0x0040
EGL_OPENGL_BIT = 0x0008
EGL_EXTENSIONS = 0x3055
EGL_WIDTH = 0x3057
EGL_HEIGHT = 0x3056
EGL_DRAW = 0x3059
EGL_READ = 0x305A
EGL_OPENGL_ES_API = 0x30A0
EGL_OPENGL_API = 0x30A2
EGL_CONTEXT_MAJOR = 0x3098
EGL_CONTEXT_CLIENT_TYPE = 0x3097
EGL_CONTEXT_MINOR = 0x30FB
EGL_CONTEXT_PROFILE_MASK = 0x30FD
EGL_CORE_PROFILE = 0x0001
EGL_RESET_STRATEGY_EXT = 0x3138
EGL_LOSE_CONTEXT_ON_RESET = 0x31BF
EGL_PLATFORM_SURFACELESS = 0x31DD
EGL_PLATFORM_DEVICE = 0x313F
EGL_PLATFORM_ANGLE = 0x3202
EGL_ANGLE_TYPE = 0x3203
EGL_ANGLE_TYPE_VULKAN = 0x3450
EGL_ANGLE_DEVICE_TYPE = 0x3209
EGL_ANGLE_DEVICE_SWIFTSHADER = 0x3487
EGL_ANGLE_BACKWARDS_COMPATIBLE = 0x3483
EGL_SYNC_FENCE = 0x30F9
EGL_SYNC_FLUSH = 0x0001
EGL_TIMEOUT_EXPIRED = 0x30F5
EGL_CONDITION_SATISFIED = 0x30F6

# --- OpenGL ES ---------------------------------------------------------------------------------
TEXTURE_2D = 0x0DE1
TEXTURE_2D_ARRAY = 0x8C1A
TEXTURE_BUFFER = 0x8C2A
TEXTURE0 = 0x84C0
TEXTURE_MAG_FILTER = 0x2800
TEXTURE_MIN_FILTER = 0x2801
TEXTURE_WRAP_S = 0x2802
TEXTURE_WRAP_T = 0x2803
NEAREST = 0x2600
CLAMP_TO_EDGE = 0x812F
UNSIGNED_BYTE = 0x1401
UNSIGNED_INT = 0x1405
FLOAT = 0x1406
HALF_FLOAT = 0x140B
HALF_FLOAT_OES = 0x8D61
RGBA = 0x1908
RGBA_INTEGER = 0x8D99
RGBA8 = 0x8058
RGBA32F = 0x8814
RGBA16F = 0x881A
RGBA32UI = 0x8D70
TEXEL_FORMATS = {TEXELS: RGBA32F, HALF_TEXELS: RGBA16F}
"""Formats of what kernels read as a texel buffer."""
FRAMEBUFFER = 0x8D40
COLOR_ATTACHMENT0 = 0x8CE0
FRAMEBUFFER_COMPLETE = 0x8CD5
VERTEX_SHADER = 0x8B31
FRAGMENT_SHADER = 0x8B30
COMPUTE_SHADER = 0x91B9
COMPILE_STATUS = 0x8B81
LINK_STATUS = 0x8B82
INFO_LOG_LENGTH = 0x8B84
ARRAY_BUFFER = 0x8892
COPY_READ_BUFFER = 0x8F36
COPY_WRITE_BUFFER = 0x8F37
STATIC_DRAW = 0x88E4
DYNAMIC_DRAW = 0x88E8
DYNAMIC_READ = 0x88E9
DYNAMIC_COPY = 0x88EA
SHADER_STORAGE_BUFFER = 0x90D2
SHADER_STORAGE_BARRIER = 0x2000
TEXTURE_FETCH_BARRIER = 0x0008
BUFFER_UPDATE_BARRIER = 0x0200
MAP_READ = 0x0001
MAP_SHARED = MAP_READ | 0x0002 | 0x0040 | 0x0080
"""To read and write while the device works (persistent), without flushing (coherent)."""
DYNAMIC_STORAGE = 0x0100
TRIANGLES = 0x0004
SYNC_GPU_COMMANDS_COMPLETE = 0x9117
SYNC_FLUSH_COMMANDS = 0x0001
ALREADY_SIGNALED = 0x911A
TIMEOUT_EXPIRED = 0x911B
CONDITION_SATISFIED = 0x911C
HIGH_FLOAT = 0x8DF2
STATES_OFF = (0x0BD0, 0x0BE2, 0x0B71, 0x0C11, 0x0B44, 0x0B90, 0x809E, 0x80A0, 0x8037)
"""Dither, blend, depth and scissor test, face culling, stencil test, sample coverage by alpha and
by value, polygon offset: all that may change what a fragment stores."""

GL_VENDOR = 0x1F00
GL_RENDERER = 0x1F01
GL_VERSION = 0x1F02
GL_EXTENSIONS = 0x1F03
NUM_EXTENSIONS = 0x821D
MAX_TEXTURE_SIZE = 0x0D33
MAX_VIEWPORT_DIMS = 0x0D3A
MAX_TEXTURE_IMAGE_UNITS = 0x8872
MAX_FRAGMENT_UNIFORM_VECTORS = 0x8DFD
MAX_COMPUTE_STORAGE_BLOCKS = 0x90DB
MAX_COMBINED_STORAGE_BLOCKS = 0x90DC
MAX_STORAGE_BINDINGS = 0x90DD
MAX_STORAGE_BLOCK_SIZE = 0x90DE
STORAGE_OFFSET_ALIGNMENT = 0x90DF
MAX_TEXTURE_BUFFER_SIZE = 0x8C2B
TEXTURE_BUFFER_OFFSET_ALIGNMENT = 0x919F
MAX_COMPUTE_TEXTURE_UNITS = 0x91BC
MAX_COMPUTE_UNIFORM_COMPONENTS = 0x8263
MAX_COMPUTE_SHARED_BYTES = 0x8262
MAX_COMPUTE_INVOCATIONS = 0x90EB
MAX_COMPUTE_GROUPS = 0x91BE
MAX_COMPUTE_SIZE = 0x91BF
NUM_DEVICE_UUIDS = 0x9596
DEVICE_UUID = 0x9597
UUID_BYTES = 16

RESETS = {
    0x8253: "this context caused a reset",
    0x8254: "another context caused a reset",
    0x8255: "the device was reset for an unknown reason",
}
"""Answers of glGetGraphicsResetStatus other than "no reset"."""

# --- errors ------------------------------------------------------------------------------------
OUT_OF_MEMORY, EGL_BAD_ALLOC = 0x0505, 0x3003
CONTEXT_LOST, EGL_CONTEXT_LOST = 0x0507, 0x300E
ERRORS = {
    0x0500: "GL_INVALID_ENUM",
    0x0501: "GL_INVALID_VALUE",
    0x0502: "GL_INVALID_OPERATION",
    OUT_OF_MEMORY: "GL_OUT_OF_MEMORY",
    0x0506: "GL_INVALID_FRAMEBUFFER_OPERATION",
    CONTEXT_LOST: "GL_CONTEXT_LOST",
    0x3000: "EGL_SUCCESS",
    0x3001: "EGL_NOT_INITIALIZED",
    0x3002: "EGL_BAD_ACCESS",
    EGL_BAD_ALLOC: "EGL_BAD_ALLOC",
    0x3004: "EGL_BAD_ATTRIBUTE",
    0x3005: "EGL_BAD_CONFIG",
    0x3006: "EGL_BAD_CONTEXT",
    0x3008: "EGL_BAD_DISPLAY",
    0x3009: "EGL_BAD_MATCH",
    0x300C: "EGL_BAD_PARAMETER",
    0x300D: "EGL_BAD_SURFACE",
    EGL_CONTEXT_LOST: "EGL_CONTEXT_LOST",
}
"""Names of the error numbers of OpenGL ES and EGL, which do not overlap."""

EGL_GONE = frozenset({0x3001, 0x3006, 0x3008})
"""What eglMakeCurrent says of a context whose display was terminated: EGL_NOT_INITIALIZED,
EGL_BAD_CONTEXT (the display was initialised again) or EGL_BAD_DISPLAY, by driver."""


def error_name(code: int) -> str:
    """Return what an error number is called."""
    return ERRORS.get(code, f"error {code:#06x}")


def error_for(code: int, call: str, device: str = "the device") -> DeviceError:
    """Return the error that an error number after `call` becomes (not raised here)."""
    known = f"{call}: {error_name(code)}"
    if code in (CONTEXT_LOST, EGL_CONTEXT_LOST):
        return common.lost_error(device, known)
    if code in (OUT_OF_MEMORY, EGL_BAD_ALLOC):
        return common.memory_error(device, known)
    return DriverError(f"The OpenGL ES driver of {device} refused a call.", known=known)


def reason_for(error: DeviceError, otherwise: str) -> str:
    """Return the reason code that the class of an error stands for."""
    if isinstance(error, DeviceLostError):
        return "device-lost"
    return "out-of-memory" if isinstance(error, OutOfMemoryError) else otherwise
