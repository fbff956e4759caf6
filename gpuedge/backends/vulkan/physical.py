"""One Vulkan driver loaded alone, its devices, and what they say about themselves as plain data.

Does not open a device (`device.py` does) and does not judge it.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuedge.backends import common
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.backends.loading import driver_environment, keep_loaded, load_fault
from gpuedge.backends.manifests import require
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.api import Api, load
from gpuedge.core.caps import Caps
from gpuedge.core.errors import BackendUnavailableError, DeviceError, DriverError
from gpuedge.core.identity import Identity
from gpuedge.core.storage import BUFFER, KINDS, TEXTURE_ROW

log = logging.getLogger("gpuedge.vulkan")

PORTABILITY = "VK_KHR_portability_enumeration"
MAX_VERSION = (1, 3)
"""The newest Vulkan version this backend was written for; asking for more promises too much."""


class Instance:
    """A Vulkan instance with one driver loaded.

    The driver's environment is set while it is loaded. Raises BackendUnavailableError where there
    is no loader, or the candidate's driver cannot be loaded.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.api: Api = load()
        self.handle: Any = None
        self.version = (1, 0)
        with driver_environment(candidate):
            self._create()

    def _create(self) -> None:
        self.version = min(self._loader_version(), MAX_VERSION)
        wanted = [PORTABILITY] if PORTABILITY in self._offered() else []
        result = self._try(wanted)
        if result == c.INCOMPATIBLE_DRIVER and self.version > (1, 0):
            # A Vulkan 1.0 driver behind an old loader refuses any newer version (specification,
            # VkApplicationInfo): ask again for 1.0.
            self.version = (1, 0)
            result = self._try(wanted)
        if result != c.SUCCESS:
            raise self._refused(result)
        keep_loaded(self.candidate.key, self.api.ffi.dlopen, log)
        log.debug("instance %s for %s", self.version, self.candidate.key)

    def _refused(self, result: int) -> Exception:
        """Return the error for a failed vkCreateInstance, with the best guess at its cause."""
        known = f"vkCreateInstance returned {self.api.result_name(result)}"
        if result != c.INCOMPATIBLE_DRIVER:
            reason, what = "open-failed", "The Vulkan driver refuses to start."
        elif fault := load_fault(self.candidate.key):
            reason, what = "missing-library", "The Vulkan driver's library cannot be loaded."
            known = fault
        else:
            reason, what = "no-device", "The Vulkan driver loads but finds no device to drive."
        return BackendUnavailableError(
            what, asked_by=self.candidate.key, known=known, reason=reason
        )

    def _loader_version(self) -> tuple[int, int]:
        call = self.function("vkEnumerateInstanceVersion")
        if call is None:
            return (1, 0)
        version = self.api.ffi.new("uint32_t *")
        call(version)
        return c.version_pair(version[0])

    def _offered(self) -> set[str]:
        call = self.api.lib.vkEnumerateInstanceExtensionProperties
        try:
            offered = self.api.listing("VkExtensionProperties", call, self.api.ffi.NULL)
        except DeviceError as error:  # a broken driver: vkCreateInstance will say so properly
            log.debug("listing instance extensions: %s", error)
            return set()
        return {self.api.text(item.extensionName) for item in offered}

    def _try(self, extensions: list[str]) -> int:
        api = self.api
        application = api.make(
            "VkApplicationInfo",
            pApplicationName=api.ffi.new("char[]", b"gpuedge"),
            pEngineName=api.ffi.new("char[]", b"gpuedge"),
            apiVersion=c.pack_version(*self.version),
        )
        portable = PORTABILITY in extensions
        info = api.make(
            "VkInstanceCreateInfo",
            flags=c.INSTANCE_ENUMERATE_PORTABILITY if portable else 0,
            pApplicationInfo=application,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=api.strings(extensions),
        )
        handle = api.ffi.new("VkInstance *")
        result: int = api.lib.vkCreateInstance(info, api.ffi.NULL, handle)
        if result == c.SUCCESS:
            self.handle = handle[0]
        return result

    def devices(self) -> list[Physical]:
        """Describe the devices, in the driver's order.

        Raises BackendUnavailableError where there is none.
        """
        count = self.api.ffi.new("uint32_t *")
        call = self.api.lib.vkEnumeratePhysicalDevices
        result = call(self.handle, count, self.api.ffi.NULL)
        # Loaders answer with an error where no driver found its hardware.
        if result not in (c.INITIALIZATION_FAILED, c.INCOMPATIBLE_DRIVER) and (
            handles := list(self.api.listing("VkPhysicalDevice", call, self.handle))
        ):
            return [describe(self, handle) for handle in handles]
        raise BackendUnavailableError(
            "The Vulkan driver loads but offers no device.",
            asked_by=self.candidate.key,
            known=f"vkEnumeratePhysicalDevices returned {self.api.result_name(result)}",
            reason="no-device",
        )

    def function(self, name: str) -> Any:
        """Return a function of this instance by name, or None."""
        ffi = self.api.ffi
        address = self.api.lib.vkGetInstanceProcAddr(self.handle or ffi.NULL, name.encode())
        return None if address == ffi.NULL else ffi.cast(f"PFN_{name}", address)

    def close(self) -> None:
        """Destroy the instance; may be called twice."""
        if self.handle is None:
            return
        self.api.lib.vkDestroyInstance(self.handle, self.api.ffi.NULL)
        self.handle = None


def enumerate_devices(candidate: Candidate) -> list[DeviceInfo]:
    """Load a driver and list its devices. Raises BackendUnavailableError."""
    require(candidate)
    return common.infos(Instance(candidate))


# --- devices ------------------------------------------------------------------------------------
STORAGE_CLASS = "VK_KHR_storage_buffer_storage_class"
PORTABILITY_SUBSET = "VK_KHR_portability_subset"
STORAGE_8BIT = "VK_KHR_8bit_storage"
FLOAT16 = "VK_KHR_shader_float16_int8"
DOT_PRODUCT = "VK_KHR_shader_integer_dot_product"
_DRIVER_PROPERTIES = "VK_KHR_driver_properties"


class MemoryType(NamedTuple):
    """VkMemoryType: property flags and the index of its heap."""

    flags: int
    heap: int


class MemoryHeap(NamedTuple):
    """VkMemoryHeap: size in bytes and flags."""

    size: int
    flags: int


@dataclass(frozen=True, slots=True)
class Physical(common.Found):
    """A physical device."""

    version: tuple[int, int]
    extensions: frozenset[str]
    memory_types: tuple[MemoryType, ...]
    memory_heaps: tuple[MemoryHeap, ...]
    queue_families: tuple[int, ...]
    cache_uuid: bytes
    non_coherent_atom: int

    def compute_family(self) -> int:
        """Return the queue family to use: compute without graphics, else any compute.

        Raises BackendUnavailableError where there is none.
        """
        able = [i for i, flags in enumerate(self.queue_families) if flags & c.QUEUE_COMPUTE]
        alone = [i for i in able if not self.queue_families[i] & c.QUEUE_GRAPHICS]
        for family in (*alone, *able):
            return family
        raise BackendUnavailableError(
            f"{self.identity.name} has no compute queue.", reason="no-compute"
        )


def describe(instance: Instance, handle: Any) -> Physical:
    """Ask a physical device everything that is needed here."""
    reader = _Reader(instance, handle)
    families = instance.api.listing(
        "VkQueueFamilyProperties",
        instance.api.lib.vkGetPhysicalDeviceQueueFamilyProperties,
        handle,
    )
    types, heaps = _memory(instance, handle)
    return Physical(
        handle=handle,
        version=reader.version,
        identity=reader.identity(),
        caps=reader.caps(),
        extensions=reader.extensions,
        memory_types=types,
        memory_heaps=heaps,
        queue_families=tuple(int(f.queueFlags) if f.queueCount else 0 for f in families),
        cache_uuid=bytes(reader.properties.pipelineCacheUUID),
        non_coherent_atom=max(1, int(reader.properties.limits.nonCoherentAtomSize)),
    )


def _memory(
    instance: Instance, handle: Any
) -> tuple[tuple[MemoryType, ...], tuple[MemoryHeap, ...]]:
    """Return the memory types and heaps. Raises DriverError for a table that contradicts itself."""
    table = instance.api.ffi.new("VkPhysicalDeviceMemoryProperties *")
    instance.api.lib.vkGetPhysicalDeviceMemoryProperties(handle, table)
    kinds, homes = int(table.memoryTypeCount), int(table.memoryHeapCount)
    if 0 < kinds <= len(table.memoryTypes) and 0 < homes <= len(table.memoryHeaps):
        types = [MemoryType(t.propertyFlags, t.heapIndex) for t in table.memoryTypes[0:kinds]]
        heaps = [MemoryHeap(h.size, h.flags) for h in table.memoryHeaps[0:homes]]
        if all(type_.heap < homes for type_ in types):
            return tuple(types), tuple(heaps)
    raise DriverError(
        "The Vulkan driver describes its memory wrongly.",
        known=f"{kinds} types and {homes} heaps, or a type in a heap that is not there",
    )


class _Reader:
    def __init__(self, instance: Instance, handle: Any) -> None:
        self.instance = instance
        self.api = instance.api
        self.handle = handle
        call = self.api.lib.vkEnumerateDeviceExtensionProperties
        offered = self.api.listing("VkExtensionProperties", call, handle, self.api.ffi.NULL)
        self.extensions = frozenset(self.api.text(item.extensionName) for item in offered)
        self.properties = self.api.ffi.new("VkPhysicalDeviceProperties *")
        self.api.lib.vkGetPhysicalDeviceProperties(handle, self.properties)
        self.version = min(c.version_pair(self.properties.apiVersion), instance.version)

    def _ask(
        self, what: str, name: str, version: tuple[int, int] = (1, 1), extension: str = ""
    ) -> Any:
        """Return a structure filled by vkGetPhysicalDevice<what>2, or None if it is not known.

        It is known since a Vulkan version, before that by an extension; the call itself since 1.1.
        """
        call = self.instance.function(f"vkGetPhysicalDevice{what}2")
        known = self.version >= version or extension in self.extensions
        if self.version < (1, 1) or not known or call is None:
            return None
        answer = self.api.make(f"VkPhysicalDevice{name}")
        call(self.handle, self.api.make(f"VkPhysicalDevice{what}2", pNext=answer))
        return answer

    def identity(self) -> Identity:
        p = self.properties
        same = self._ask("Properties", "IDProperties")
        driver = self._ask("Properties", "DriverProperties", (1, 2), _DRIVER_PROPERTIES)
        uuid = bytes(same.deviceUUID) if same is not None else b""
        return Identity(
            api="vulkan",
            name=self.api.text(p.deviceName),
            os=sys.platform,
            vendorID=int(p.vendorID),
            deviceID=int(p.deviceID),
            driverVersion=int(p.driverVersion),
            apiVersion=c.version_text(p.apiVersion),
            device_type=c.DEVICE_TYPES.get(p.deviceType),
            deviceUUID=uuid.hex() if any(uuid) else None,
            driverID=(int(driver.driverID) or None) if driver else None,
            driverName=(self.api.text(driver.driverName) or None) if driver else None,
            driverInfo=(self.api.text(driver.driverInfo) or None) if driver else None,
        )

    def caps(self) -> Caps:
        limits = self.properties.limits
        largest = self._ask("Properties", "Maintenance3Properties")
        half = self._ask("Features", "16BitStorageFeatures")
        byte = self._ask("Features", "8BitStorageFeatures", (1, 2), STORAGE_8BIT)
        small = self._ask("Features", "ShaderFloat16Int8Features", (1, 2), FLOAT16)
        subgroup = self._ask("Properties", "SubgroupProperties")
        dots, speeds = (
            self._ask(what, f"ShaderIntegerDotProduct{what}", (1, 3), DOT_PRODUCT)
            for what in ("Features", "Properties")
        )
        is_asked = self.version >= (1, 1)
        size, groups = limits.maxComputeWorkGroupSize, limits.maxComputeWorkGroupCount
        buffers = min(
            limits.maxPerStageDescriptorStorageBuffers,
            limits.maxDescriptorSetStorageBuffers,
            limits.maxPerStageResources,
        )
        sampled = min(
            limits.maxPerStageDescriptorSampledImages, limits.maxDescriptorSetSampledImages
        )
        rows = self._texture_rows()
        textures = sampled // 2 if rows else 0  # one limit for texel buffers and these
        alignments = (limits.minStorageBufferOffsetAlignment, limits.minTexelBufferOffsetAlignment)
        return Caps(
            level="vulkan",
            dialect="spirv",
            forms=frozenset({"map", "group", "raw"}),
            is_software=self.properties.deviceType == c.DEVICE_TYPE_CPU,
            max_invocations=int(limits.maxComputeWorkGroupInvocations),
            max_local_size=(int(size[0]), int(size[1]), int(size[2])),
            max_groups=(int(groups[0]), int(groups[1]), int(groups[2])),
            max_shared_bytes=int(limits.maxComputeSharedMemorySize),
            max_storage_buffers=int(buffers),
            max_storage_buffer_bytes=int(limits.maxStorageBufferRange),
            max_allocation_bytes=int(largest.maxMemoryAllocationSize) or None if largest else None,
            offset_alignment=max(1, *map(int, alignments)),  # both are powers of two
            max_push_bytes=int(limits.maxPushConstantsSize),
            has_fp16_storage=bool(half and half.storageBuffer16BitAccess) if is_asked else None,
            has_int8_storage=bool(byte and byte.storageBuffer8BitAccess) if is_asked else None,
            has_fp16_arithmetic=bool(small and small.shaderFloat16) if is_asked else None,
            max_texel_buffers=int(sampled - textures),
            max_texel_elements=int(limits.maxTexelBufferElements),
            max_texture_copies=int(textures),
            max_copied_elements=TEXTURE_ROW * rows,
            subgroup_lanes=_lanes(subgroup) if subgroup else 0,
            dot_products=_dot_products(dots, speeds) if dots and speeds else 0,
            max_outputs=int(buffers),
        )

    def _texture_rows(self) -> int:
        """Return how many rows textures may have that share the memory of buffers; 0 for none."""
        about, most = self.api.ffi.new("VkImageFormatProperties *"), 1 << 16
        call = self.api.lib.vkGetPhysicalDeviceImageFormatProperties
        for texture_format in c.TEXEL_FORMATS.values():
            result = call(self.handle, texture_format, c.IMAGE_2D, c.TILING_LINEAR,
                          c.USE_SAMPLED, 0, about)  # fmt: skip
            if result != c.SUCCESS or about.maxExtent.width < TEXTURE_ROW:
                return 0
            row_bytes = TEXTURE_ROW * KINDS[BUFFER].unit_bytes
            most = min(most, about.maxExtent.height, about.maxResourceSize // row_bytes)
        return int(most)


def _dot_products(features: Any, properties: Any) -> int:
    """Return what `Caps.dot_products` says of products of packed signed bytes."""
    is_fast = properties.integerDotProduct4x8BitPackedSignedAccelerated
    return (1 + bool(is_fast)) * bool(features.shaderIntegerDotProduct)


def _lanes(subgroup: Any) -> int:
    """Return how large subgroups are, if compute shaders may take values from a lane of them."""
    wanted = c.SUBGROUP_BASIC | c.SUBGROUP_SHUFFLE
    has_all = subgroup.supportedOperations & wanted == wanted
    is_there = has_all and subgroup.supportedStages & c.SHADER_STAGE_COMPUTE
    return int(subgroup.subgroupSize) if is_there else 0
