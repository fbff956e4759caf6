"""What a physical device says about itself, read once into plain data.

Does not open the device and does not judge it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gpuedge.backends.vulkan import conv
from gpuedge.backends.vulkan.instance import PROPERTIES2, Instance
from gpuedge.backends.vulkan.memory import MemoryHeap, MemoryType, is_unified
from gpuedge.core.caps import Caps
from gpuedge.core.errors import DriverError
from gpuedge.core.identity import Identity

STORAGE_CLASS = "VK_KHR_storage_buffer_storage_class"
DRIVER_PROPERTIES = "VK_KHR_driver_properties"
PORTABILITY_SUBSET = "VK_KHR_portability_subset"
STORAGE_16BIT = "VK_KHR_16bit_storage"
STORAGE_8BIT = "VK_KHR_8bit_storage"
FLOAT16_INT8 = "VK_KHR_shader_float16_int8"


@dataclass(frozen=True, slots=True)
class Features:
    """Optional features that kernels may use; None where the driver cannot be asked."""

    storage_16bit: bool | None = None
    storage_8bit: bool | None = None
    float16: bool | None = None
    int8: bool | None = None


@dataclass(frozen=True, slots=True)
class Physical:
    """A physical device: its handle and what it reports."""

    handle: Any
    index: int
    version: tuple[int, int]
    identity: Identity
    caps: Caps
    extensions: frozenset[str]
    features: Features
    memory_types: tuple[MemoryType, ...]
    memory_heaps: tuple[MemoryHeap, ...]
    queue_families: tuple[int, ...]
    cache_uuid: bytes
    max_allocations: int
    non_coherent_atom: int

    def compute_family(self) -> int | None:
        """Return the queue family to use: compute without graphics, else any compute."""
        able = [i for i, flags in enumerate(self.queue_families) if flags & conv.QUEUE_COMPUTE]
        alone = [i for i in able if not self.queue_families[i] & conv.QUEUE_GRAPHICS]
        return next(iter([*alone, *able]), None)


def describe(instance: Instance, handle: Any, index: int) -> Physical:
    """Ask a physical device everything that is needed here."""
    reader = _Reader(instance, handle)
    limits = reader.properties.limits
    types, heaps = reader.memory()
    return Physical(
        handle=handle,
        index=index,
        version=reader.version,
        identity=reader.identity(),
        caps=reader.caps(heaps),
        extensions=reader.extensions,
        features=reader.features,
        memory_types=types,
        memory_heaps=heaps,
        queue_families=reader.queue_families(),
        cache_uuid=bytes(reader.properties.pipelineCacheUUID),
        max_allocations=int(limits.maxMemoryAllocationCount),
        non_coherent_atom=max(1, int(limits.nonCoherentAtomSize)),
    )


class _Reader:
    def __init__(self, instance: Instance, handle: Any) -> None:
        self.instance = instance
        self.api = instance.api
        self.handle = handle
        found = self.api.listing(
            "VkExtensionProperties",
            self.api.lib.vkEnumerateDeviceExtensionProperties,
            handle,
            self.api.ffi.NULL,
        )
        self.extensions = frozenset(self.api.text(item.extensionName) for item in found)
        self.properties = self.api.ffi.new("VkPhysicalDeviceProperties *")
        self.api.lib.vkGetPhysicalDeviceProperties(handle, self.properties)
        self.version = min(conv.version_pair(self.properties.apiVersion), instance.version)
        self.features = self._features()

    def _has(self, version: tuple[int, int], extension: str) -> bool:
        return self.version >= version or extension in self.extensions

    def _query2(self, what: str, chain: list[Any]) -> bool:
        """Fill the structures of `chain` by vkGetPhysicalDevice<what>2; False if it is absent."""
        if self.version >= (1, 1):
            name = f"vkGetPhysicalDevice{what}2"
        elif PROPERTIES2 in self.instance.extensions:
            name = f"vkGetPhysicalDevice{what}2KHR"
        else:
            return False
        call = self.instance.function(name)
        if call is None:
            return False
        for one, after in pairwise(chain):
            one.pNext = after
        first = chain[0] if chain else None
        call(self.handle, self.api.make(f"VkPhysicalDevice{what}2", pNext=first))
        return True

    def _property(self, name: str, version: tuple[int, int], extension: str) -> Any:
        if not self._has(version, extension):
            return None
        made = self.api.make(name)
        return made if self._query2("Properties", [made]) else None

    def _features(self) -> Features:
        wanted = {
            "VkPhysicalDevice16BitStorageFeatures": self._has((1, 1), STORAGE_16BIT),
            "VkPhysicalDevice8BitStorageFeatures": self._has((1, 2), STORAGE_8BIT),
            "VkPhysicalDeviceShaderFloat16Int8Features": self._has((1, 2), FLOAT16_INT8),
        }
        made = {name: self.api.make(name) for name, there in wanted.items() if there}
        if not made or not self._query2("Features", list(made.values())):
            return Features()
        s16, s8, f16 = (made.get(name) for name in wanted)
        return Features(
            storage_16bit=bool(s16.storageBuffer16BitAccess) if s16 else False,
            storage_8bit=bool(s8.storageBuffer8BitAccess) if s8 else False,
            float16=bool(f16.shaderFloat16) if f16 else False,
            int8=bool(f16.shaderInt8) if f16 else False,
        )

    def identity(self) -> Identity:
        p = self.properties
        identity = Identity(
            api="vulkan",
            name=self.api.text(p.deviceName),
            os=sys.platform,
            vendorID=int(p.vendorID),
            deviceID=int(p.deviceID),
            driverVersion=int(p.driverVersion),
            apiVersion=conv.version_text(p.apiVersion),
            device_type=conv.DEVICE_TYPES.get(p.deviceType),
            deviceUUID=self._uuid(),
        )
        driver = self._property("VkPhysicalDeviceDriverProperties", (1, 2), DRIVER_PROPERTIES)
        if driver is None:
            return identity
        return replace(
            identity,
            driverID=int(driver.driverID) or None,
            driverName=self.api.text(driver.driverName) or None,
            driverInfo=self.api.text(driver.driverInfo) or None,
        )

    def _uuid(self) -> str | None:
        """Return what tells this device apart under other APIs too; None where nothing does."""
        found = self._property("VkPhysicalDeviceIDProperties", (1, 1), "-")
        uuid = bytes(found.deviceUUID) if found is not None else b""
        return uuid.hex() if any(uuid) else None

    def caps(self, heaps: tuple[MemoryHeap, ...]) -> Caps:
        limits = self.properties.limits
        subgroup = self._property("VkPhysicalDeviceSubgroupProperties", (1, 1), "-")
        third = self._property(
            "VkPhysicalDeviceMaintenance3Properties", (1, 1), "VK_KHR_maintenance3"
        )
        size, groups = limits.maxComputeWorkGroupSize, limits.maxComputeWorkGroupCount
        buffers = min(
            limits.maxPerStageDescriptorStorageBuffers,
            limits.maxDescriptorSetStorageBuffers,
            limits.maxPerStageResources,
        )
        return Caps(
            level="vulkan",
            dialect="spirv",
            forms=frozenset({"map", "group", "raw"}),
            is_software=self.properties.deviceType == conv.DEVICE_TYPE_CPU,
            max_invocations=int(limits.maxComputeWorkGroupInvocations),
            max_local_size=(int(size[0]), int(size[1]), int(size[2])),
            max_groups=(int(groups[0]), int(groups[1]), int(groups[2])),
            max_shared_bytes=int(limits.maxComputeSharedMemorySize),
            max_storage_buffers=int(buffers),
            max_storage_buffer_bytes=int(limits.maxStorageBufferRange),
            max_allocation_bytes=(int(third.maxMemoryAllocationSize) or None) if third else None,
            offset_alignment=max(1, int(limits.minStorageBufferOffsetAlignment)),
            max_push_bytes=int(limits.maxPushConstantsSize),
            subgroup_size=(int(subgroup.subgroupSize) or None) if subgroup else None,
            has_fp16_storage=self.features.storage_16bit,
            has_unified_memory=is_unified(heaps, self.properties.deviceType),
            max_outputs=int(buffers),
        )

    def memory(self) -> tuple[tuple[MemoryType, ...], tuple[MemoryHeap, ...]]:
        table = self.api.ffi.new("VkPhysicalDeviceMemoryProperties *")
        self.api.lib.vkGetPhysicalDeviceMemoryProperties(self.handle, table)
        _check_memory(table)
        types = tuple(
            MemoryType(int(t.propertyFlags), int(t.heapIndex))
            for t in table.memoryTypes[0 : table.memoryTypeCount]
        )
        heaps = tuple(
            MemoryHeap(int(h.size), int(h.flags))
            for h in table.memoryHeaps[0 : table.memoryHeapCount]
        )
        return types, heaps

    def queue_families(self) -> tuple[int, ...]:
        call = self.api.lib.vkGetPhysicalDeviceQueueFamilyProperties
        found = self.api.listing("VkQueueFamilyProperties", call, self.handle)
        return tuple(int(f.queueFlags) if f.queueCount else 0 for f in found)


def _check_memory(table: Any) -> None:
    """Raise DriverError for tables that choosing memory would stumble over."""
    types, heaps = int(table.memoryTypeCount), int(table.memoryHeapCount)
    known = f"{types} types and {heaps} heaps"
    is_sound = 0 < types <= len(table.memoryTypes) and 0 < heaps <= len(table.memoryHeaps)
    if is_sound:
        largest = max(int(t.heapIndex) for t in table.memoryTypes[0:types])
        is_sound, known = largest < heaps, f"{known}, and a type in heap {largest}"
    if not is_sound:
        raise DriverError("The Vulkan driver describes its memory wrongly.", known=known)


def clamp(caps: Caps, limits: Caps) -> Caps:
    """Return `caps` reduced to what `limits` allows, as if the device were that small."""

    def least(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
        return (min(a[0], b[0]), min(a[1], b[1]), min(a[2], b[2]))

    sizes = [s for s in (caps.max_allocation_bytes, limits.max_allocation_bytes) if s is not None]
    fp16 = caps.has_fp16_storage
    return replace(
        caps,
        forms=caps.forms & limits.forms,
        max_invocations=min(caps.max_invocations, limits.max_invocations),
        max_local_size=least(caps.max_local_size, limits.max_local_size),
        max_groups=least(caps.max_groups, limits.max_groups),
        max_shared_bytes=min(caps.max_shared_bytes, limits.max_shared_bytes),
        max_storage_buffers=min(caps.max_storage_buffers, limits.max_storage_buffers),
        max_storage_buffer_bytes=min(
            caps.max_storage_buffer_bytes, limits.max_storage_buffer_bytes
        ),
        max_allocation_bytes=min(sizes) if sizes else None,
        offset_alignment=max(caps.offset_alignment, limits.offset_alignment),
        max_push_bytes=min(caps.max_push_bytes, limits.max_push_bytes),
        max_outputs=min(caps.max_outputs, limits.max_outputs),
        has_fp16_storage=fp16 if limits.has_fp16_storage is not False else False,
    )
