"""Opening a Vulkan device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuedge.backends import common
from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.vulkan.memory import Pool
from gpuedge.backends.vulkan.physical import (
    DOT_PRODUCT,
    FLOAT16,
    PORTABILITY_SUBSET,
    STORAGE_8BIT,
    STORAGE_CLASS,
    Instance,
    Physical,
)
from gpuedge.backends.vulkan.pipeline_cache import PipelineCache
from gpuedge.backends.vulkan.program import Programs
from gpuedge.backends.vulkan.queue import Queue
from gpuedge.backends.vulkan.record import Recorder
from gpuedge.backends.vulkan.views import room_for_textures
from gpuedge.core.caps import Caps
from gpuedge.core.errors import DriverError


def open_device(info: DeviceInfo) -> OpenDevice:
    """Open a device. Raises DeviceError."""
    instance = Instance(info.candidate)
    api = instance.api
    handle: Any = None

    parts: list[Any] = []

    def destroy() -> None:
        for part in reversed(parts):
            part.close()
        if handle is not None:
            api.lib.vkDestroyDevice(handle, api.ffi.NULL)
        instance.close()

    try:
        physical = common.found_again(info, instance.devices())
        family = physical.compute_family()
        handle = _create(instance, physical, family, info.disabled)
        queue = Queue(api, handle, family, physical.identity.name)
        recorder = Recorder(queue, family)
        is_staged = "mapped-device-memory" in info.disabled
        caps, room = _with_textures(physical, queue)
        memory = Pool(queue, physical, recorder.copy_now, staging=is_staged, room=room)
        cache = PipelineCache(queue, physical, is_off="pipeline-cache" in info.disabled)
        queue.on_work = cache.settle
        programs = Programs(queue, cache)
        parts += [queue, memory, programs, recorder]
        return OpenDevice(info, caps, (queue, memory, programs, recorder), destroy)
    except BaseException:
        destroy()
        raise


def _with_textures(physical: Physical, queue: Queue) -> tuple[Caps, int]:
    """Return what a device offers, and the room for textures at the end of its memory."""
    caps = physical.caps
    room = room_for_textures(queue, physical) if caps.max_texture_copies else None
    if room is None:
        return replace(caps, max_texture_copies=0, max_copied_elements=0), 0
    most = caps.max_allocation_bytes
    most = None if most is None else most - room
    return replace(caps, has_texture_views=True, max_allocation_bytes=most), room


def _create(instance: Instance, physical: Physical, family: int, off: frozenset[str]) -> Any:
    api = instance.api
    queue = api.make(
        "VkDeviceQueueCreateInfo",
        queueFamilyIndex=family,
        queueCount=1,
        pQueuePriorities=api.ffi.new("float[1]", [1.0]),
    )
    extensions = _extensions(physical)
    info = api.make(
        "VkDeviceCreateInfo",
        pNext=_features(instance, physical, off),
        queueCreateInfoCount=1,
        pQueueCreateInfos=queue,
        enabledExtensionCount=len(extensions),
        ppEnabledExtensionNames=api.strings(extensions),
    )
    handle = api.ffi.new("VkDevice *")
    result = api.lib.vkCreateDevice(physical.handle, info, api.ffi.NULL, handle)
    api.check(result, "vkCreateDevice", physical.identity.name)
    return handle[0]


def _extensions(physical: Physical) -> list[str]:
    """Return what to enable: only what an older API version lacks in its core."""
    wanted = [PORTABILITY_SUBSET]
    if physical.version < (1, 1):
        if STORAGE_CLASS not in physical.extensions:
            raise DriverError(
                f"{physical.identity.name} is a Vulkan 1.0 device without {STORAGE_CLASS}.",
                known="kernels keep their tensors in that storage class",
            )
        wanted.append(STORAGE_CLASS)
    else:
        wanted += [STORAGE_8BIT, FLOAT16] if physical.version < (1, 2) else []
        wanted += [DOT_PRODUCT] if physical.version < (1, 3) else []
    return [name for name in wanted if name in physical.extensions]


def _features(instance: Instance, physical: Physical, off: frozenset[str]) -> Any:
    """Return the chain that enables float16, products of packed bytes and small elements.

    Storage of small elements is for kernels that users bring.

    A feature that is disabled is not even asked for: enabling it may be what goes wrong.
    """
    chain: Any = None
    if physical.caps.has_fp16_storage and "fp16-storage" not in off:
        name = "VkPhysicalDevice16BitStorageFeatures"
        chain = instance.api.make(name, pNext=chain, storageBuffer16BitAccess=1)
    if physical.caps.has_int8_storage and "int8-storage" not in off:
        name = "VkPhysicalDevice8BitStorageFeatures"
        chain = instance.api.make(name, pNext=chain, storageBuffer8BitAccess=1)
    if physical.caps.has_fp16_arithmetic and "fp16" not in off:
        name = "VkPhysicalDeviceShaderFloat16Int8Features"
        chain = instance.api.make(name, pNext=chain, shaderFloat16=1)
    if physical.caps.dot_products and "dot-products" not in off:
        name = "VkPhysicalDeviceShaderIntegerDotProductFeatures"
        chain = instance.api.make(name, pNext=chain, shaderIntegerDotProduct=1)
    return chain
