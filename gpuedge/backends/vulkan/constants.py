"""Pure tables of the Vulkan backend: structure types, flags, results, versions.

Imports neither the Vulkan package nor a loader, so everything here is testable without a driver.
Numbers are those of the Vulkan specification (its registry, vk.xml); its ABI keeps them.
"""

from __future__ import annotations

from gpuedge.core.storage import COPIED_AS, HALF_TEXELS, KINDS, READ_AS, TEXELS

UINT64_MAX = (1 << 64) - 1
WHOLE_SIZE = UINT64_MAX

# VkQueueFlagBits
QUEUE_GRAPHICS = 1
QUEUE_COMPUTE = 2

# VkBufferUsageFlagBits
USE_TRANSFER_SRC = 0x01
USE_TRANSFER_DST = 0x02
USE_UNIFORM_TEXELS = 0x04
USE_STORAGE = 0x20

# VkMemoryPropertyFlagBits, VkMemoryHeapFlagBits
DEVICE_LOCAL = 0x01
HOST_VISIBLE = 0x02
HOST_COHERENT = 0x04
HOST_CACHED = 0x08
HEAP_DEVICE_LOCAL = 0x01

# VkPipelineStageFlagBits, VkAccessFlagBits
STAGE_COMPUTE = 0x0800
STAGE_TRANSFER = 0x1000
STAGE_HOST = 0x4000
ACCESS_SHADER_READ = 0x0020
ACCESS_SHADER_WRITE = 0x0040
ACCESS_TRANSFER_READ = 0x0800
ACCESS_TRANSFER_WRITE = 0x1000
ACCESS_HOST_READ = 0x2000

DESCRIPTOR_SAMPLED_IMAGE = 2
DESCRIPTOR_UNIFORM_TEXEL_BUFFER = 4
DESCRIPTOR_STORAGE_BUFFER = 7
SHADER_STAGE_COMPUTE = 0x20
SUBGROUP_BASIC = 0x01  # VkSubgroupFeatureFlagBits
SUBGROUP_SHUFFLE = 0x10
BIND_POINT_COMPUTE = 1
COMMAND_POOL_RESET = 2
COMMAND_BUFFER_SIMULTANEOUS = 4
INSTANCE_ENUMERATE_PORTABILITY = 1

IMAGE_2D = 1  # VkImageType, VkImageViewType
TILING_LINEAR = 1
USE_SAMPLED = 0x04  # VkImageUsageFlagBits
LAYOUT_GENERAL = 1
LAYOUT_PREINITIALIZED = 8
ASPECT_COLOR = 1
QUEUE_FAMILY_IGNORED = 0xFFFFFFFF

TEXEL_FORMATS = {TEXELS: 109, HALF_TEXELS: 97}
"""VkFormat of what kernels read as a texel buffer: four float32, four float16."""
TEXTURE_FORMATS = {COPIED_AS[kind]: TEXEL_FORMATS[READ_AS[kind]] for kind in READ_AS}
"""VkFormat of what they read as a texture."""
TEXTURE_BYTES = {COPIED_AS[kind]: KINDS[kind].unit_bytes for kind in READ_AS}
"""Bytes of a texel of it."""
DESCRIPTORS = {
    **dict.fromkeys(TEXEL_FORMATS, DESCRIPTOR_UNIFORM_TEXEL_BUFFER),
    **dict.fromkeys(TEXTURE_FORMATS, DESCRIPTOR_SAMPLED_IMAGE),
}
"""VkDescriptorType by storage kind, where it is no storage buffer."""

STRUCTURE_TYPES = {
    "VkApplicationInfo": 0,
    "VkInstanceCreateInfo": 1,
    "VkDeviceQueueCreateInfo": 2,
    "VkDeviceCreateInfo": 3,
    "VkSubmitInfo": 4,
    "VkMemoryAllocateInfo": 5,
    "VkMappedMemoryRange": 6,
    "VkFenceCreateInfo": 8,
    "VkBufferCreateInfo": 12,
    "VkBufferViewCreateInfo": 13,
    "VkImageCreateInfo": 14,
    "VkImageViewCreateInfo": 15,
    "VkShaderModuleCreateInfo": 16,
    "VkPipelineCacheCreateInfo": 17,
    "VkPipelineShaderStageCreateInfo": 18,
    "VkComputePipelineCreateInfo": 29,
    "VkPipelineLayoutCreateInfo": 30,
    "VkDescriptorSetLayoutCreateInfo": 32,
    "VkDescriptorPoolCreateInfo": 33,
    "VkDescriptorSetAllocateInfo": 34,
    "VkWriteDescriptorSet": 35,
    "VkCommandPoolCreateInfo": 39,
    "VkCommandBufferAllocateInfo": 40,
    "VkCommandBufferBeginInfo": 42,
    "VkImageMemoryBarrier": 45,
    "VkMemoryBarrier": 46,
    "VkPhysicalDeviceFeatures2": 1000059000,
    "VkPhysicalDeviceProperties2": 1000059001,
    "VkPhysicalDevice16BitStorageFeatures": 1000083000,
    "VkPhysicalDevice8BitStorageFeatures": 1000177000,
    "VkPhysicalDeviceShaderFloat16Int8Features": 1000082000,
    "VkPhysicalDeviceSubgroupProperties": 1000094000,
    "VkPhysicalDeviceMaintenance3Properties": 1000168000,
    "VkPhysicalDeviceDriverProperties": 1000196000,
    "VkPhysicalDeviceShaderIntegerDotProductFeatures": 1000280000,
    "VkPhysicalDeviceShaderIntegerDotProductProperties": 1000280001,
    "VkPhysicalDeviceIDProperties": 1000071004,
}
"""``sType`` of every structure used here."""

SUCCESS = 0
TIMEOUT = 2
INCOMPLETE = 5
INITIALIZATION_FAILED = -3
DEVICE_LOST = -4
INCOMPATIBLE_DRIVER = -9
MEMORY_RESULTS = {
    -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    -5: "VK_ERROR_MEMORY_MAP_FAILED",
    -10: "VK_ERROR_TOO_MANY_OBJECTS",
    -12: "VK_ERROR_FRAGMENTED_POOL",
    -1000069000: "VK_ERROR_OUT_OF_POOL_MEMORY",
}
"""VkResults that mean exhausted memory."""

DEVICE_TYPES = {
    0: "OTHER",
    1: "INTEGRATED_GPU",
    2: "DISCRETE_GPU",
    3: "VIRTUAL_GPU",
    4: "CPU",
}
"""VkPhysicalDeviceType."""

DEVICE_TYPE_CPU = 4


def version_text(version: int) -> str:
    """Return a packed Vulkan API version as ``major.minor.patch``."""
    return f"{(version >> 22) & 0x7F}.{(version >> 12) & 0x3FF}.{version & 0xFFF}"


def version_pair(version: int) -> tuple[int, int]:
    """Return (major, minor) of a packed Vulkan API version."""
    return (version >> 22) & 0x7F, (version >> 12) & 0x3FF


def pack_version(major: int, minor: int) -> int:
    """Return a packed Vulkan API version with patch 0."""
    return major << 22 | minor << 12
