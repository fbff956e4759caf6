"""One Vulkan driver loaded alone, its devices, and what they say about themselves as plain data.

Does not open a device (`device.py` does) and does not judge it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from gpuedge.backends.base import Candidate
from gpuedge.backends.loading import driver_environment, keep_loaded, load_fault
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.api import Api, load
from gpuedge.core.caps import Caps
from gpuedge.core.errors import BackendUnavailableError, DriverError
from gpuedge.core.identity import Identity

log = logging.getLogger("gpuedge.vulkan")

PROPERTIES2 = "VK_KHR_get_physical_device_properties2"
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
        offered = self._offered()
        wanted = [PORTABILITY] if PORTABILITY in offered else []
        if self.version < (1, 1) and PROPERTIES2 in offered:
            wanted.append(PROPERTIES2)
        self.extensions = frozenset(wanted)
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
        known = f"vkCreateInstance returned {c.result_name(result)}"
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
        call = self.api.function(self.api.ffi.NULL, "vkEnumerateInstanceVersion")
        if call is None:
            return (1, 0)
        version = self.api.ffi.new("uint32_t *")
        call(version)
        return c.version_pair(version[0])

    def _offered(self) -> set[str]:
        call = self.api.lib.vkEnumerateInstanceExtensionProperties
        try:
            found = self.api.listing("VkExtensionProperties", call, self.api.ffi.NULL)
        except Exception as error:  # a broken driver: vkCreateInstance will say so properly
            log.debug("listing instance extensions: %s", error)
            return set()
        return {self.api.text(item.extensionName) for item in found}

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
        made = api.ffi.new("VkInstance *")
        result: int = api.lib.vkCreateInstance(info, api.ffi.NULL, made)
        if result == c.SUCCESS:
            self.handle = made[0]
        return result

    def physical_devices(self) -> list[Any]:
        """Return the handles of the devices, in the driver's order.

        Raises BackendUnavailableError where there is none.
        """
        call = self.api.lib.vkEnumeratePhysicalDevices
        try:
            found = list(self.api.listing("VkPhysicalDevice", call, self.handle))
            known = None
        except DriverError as error:
            # Loaders answer VK_ERROR_INITIALIZATION_FAILED where no driver found its hardware.
            if not (error.known or "").endswith(c.NO_HARDWARE):
                raise
            found, known = [], error.known
        if not found:
            raise BackendUnavailableError(
                "The Vulkan driver loads but offers no device.",
                asked_by=self.candidate.key,
                known=known,
                reason="no-device",
            )
        return found

    def function(self, name: str) -> Any:
        """Return a function of this instance by name, or None."""
        return self.api.function(self.handle, name)

    def close(self) -> None:
        """Destroy the instance; may be called twice."""
        if self.handle is None:
            return
        self.api.lib.vkDestroyInstance(self.handle, self.api.ffi.NULL)
        self.handle = None


# --- devices ------------------------------------------------------------------------------------
STORAGE_CLASS = "VK_KHR_storage_buffer_storage_class"
DRIVER_PROPERTIES = "VK_KHR_driver_properties"
PORTABILITY_SUBSET = "VK_KHR_portability_subset"
STORAGE_16BIT = "VK_KHR_16bit_storage"
STORAGE_8BIT = "VK_KHR_8bit_storage"
FLOAT16_INT8 = "VK_KHR_shader_float16_int8"


class MemoryType(NamedTuple):
    """VkMemoryType: property flags and the index of its heap."""

    flags: int
    heap: int


class MemoryHeap(NamedTuple):
    """VkMemoryHeap: size in bytes and flags."""

    size: int
    flags: int


def is_unified(heaps: Sequence[MemoryHeap], device_type: int) -> bool:
    """Return True if host and device share one physical memory.

    Integrated GPUs and CPUs do; so does whatever lists no memory but its own. A card whose memory
    is all mapped (resizable BAR) does not: it lists the host's memory as another heap.
    """
    if device_type in c.SHARING_TYPES:
        return True
    return all(heap.flags & c.HEAP_DEVICE_LOCAL for heap in heaps)


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
        able = [i for i, flags in enumerate(self.queue_families) if flags & c.QUEUE_COMPUTE]
        alone = [i for i in able if not self.queue_families[i] & c.QUEUE_GRAPHICS]
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
        self.version = min(c.version_pair(self.properties.apiVersion), instance.version)
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
            apiVersion=c.version_text(p.apiVersion),
            device_type=c.DEVICE_TYPES.get(p.deviceType),
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
            is_software=self.properties.deviceType == c.DEVICE_TYPE_CPU,
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
            has_int8_storage=self.features.storage_8bit,
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
