"""Tables: the numbers of WebGPU's C interface, and which error of ours each of its errors becomes.

Numbers are those of webgpu.h and of wgpu.h, the additions of wgpu-native. Flags are constants that
a library opened at run time does not export, so they have to be written down.
"""

from __future__ import annotations

from gpuedge.backends import common
from gpuedge.core.errors import DeviceError, DriverError
from gpuedge.core.storage import BUFFER, COPIED_AS, HALF_BUFFER, KINDS, LOADED_AS

MAP_READ, MAP_WRITE, COPY_SRC, COPY_DST = 0x1, 0x2, 0x4, 0x8
"""WGPUBufferUsage; the first two are also the WGPUMapMode."""
UNIFORM, STORAGE = 0x40, 0x80
SHADER_STAGE_COMPUTE = 0x4
BINDING_UNIFORM, BINDING_STORAGE, BINDING_READ_ONLY = 2, 3, 4
TEXTURE_COPY_DST, TEXTURE_BINDING, STORAGE_BINDING = 0x2, 0x4, 0x8
"""WGPUTextureUsage."""
UNFILTERABLE_FLOAT = 3
"""WGPUTextureSampleType: what all devices have of 32-bit floats."""
ACCESS_READ_ONLY = 3  # WGPUStorageTextureAccess_ReadOnly
DIMENSION_2D = 2  # WGPUTextureDimension_2D, WGPUTextureViewDimension_2D
_FORMATS = {BUFFER: 0x29, HALF_BUFFER: 0x28}  # RGBA32Float and RGBA16Float
_COPIES = (*COPIED_AS.items(), *LOADED_AS.items())
TEXTURE_FORMATS = {copy: _FORMATS[kind] for kind, copy in _COPIES}
"""WGPUTextureFormat by storage kind."""
TEXEL_BYTES = {copy: KINDS[kind].unit_bytes for kind, copy in _COPIES}
CALLBACK_ALLOW_SPONTANEOUS = 3

INSTANCE_EXTRAS = 0x00030004  # WGPUSType_InstanceExtras
SHADER_F16 = 0xB  # WGPUFeatureName_ShaderF16
SUBGROUPS = 0x00030021  # WGPUNativeFeature_Subgroup
SOURCE_WGSL = "WGPUSType_ShaderSourceWGSL"
CHECK_BOUNDS = 0x1  # WGPUShaderRuntimeChecks_BoundsChecks
INSTANCE_BACKENDS = {"vulkan": 1, "gl": 2, "metal": 4, "dx12": 8}
"""WGPUInstanceBackend by the API underneath."""

DEVICE_TYPES = {1: "DISCRETE_GPU", 2: "INTEGRATED_GPU", 3: "CPU", 4: "OTHER"}
"""WGPUAdapterType in the spelling of the Vulkan specification."""
TYPE_CPU = 3
BACKEND_TYPES = {
    4: "Direct3D 12", 5: "Metal", 6: "Vulkan", 7: "OpenGL", 8: "OpenGL ES",
}  # fmt: skip
"""WGPUBackendType."""

SUCCESS = 1
"""Of every status: requesting a device, mapping, work done."""
ERROR_OUT_OF_MEMORY = 3
_LOST, NO_MEMORY = "device is lost", "Not enough memory"
"""What wgpu-core writes in errors that it reports as mistakes of the caller."""


def error_for(kind: int, message: str, call: str, device: str) -> DeviceError:
    """Return the error that an uncaptured WebGPU error becomes (not raised here)."""
    known = f"{call}: {message}" if message else call
    if _LOST in message:
        return common.lost_error(device, known)
    if kind == ERROR_OUT_OF_MEMORY or NO_MEMORY in message:
        return common.memory_error(device, known)
    return DriverError(f"WebGPU refused a call on {device}.", known=known)
