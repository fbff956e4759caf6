"""WebGPU instances: one API and one driver loaded alone, and the adapters found there.

Does not open anything: `device.py` does.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Any

from gpuedge.backends import common
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.backends.loading import driver_environment, keep_loaded, load_fault
from gpuedge.backends.manifests import require
from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.api import Api, load
from gpuedge.backends.wgpu.candidates import api_of
from gpuedge.core.caps import Caps
from gpuedge.core.errors import BackendUnavailableError
from gpuedge.core.identity import Identity
from gpuedge.core.storage import TEXTURE_ROW

log = logging.getLogger("gpuedge.wgpu")


@dataclass(frozen=True, slots=True)
class Adapter(common.Found):
    """An adapter."""

    limits: Any
    uniform_alignment: int
    has_subgroups: bool


class Instance:
    """A WebGPU instance over one API and one driver.

    Raises BackendUnavailableError where the package or the candidate's driver is missing.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.api: Api = load()
        self.handle: Any = None
        self._adapters: list[Any] = []
        api_name = api_of(candidate)
        if api_name == "vulkan":
            require(candidate)
        with driver_environment(candidate):
            extras = self.api.make("WGPUInstanceExtras", backends=c.INSTANCE_BACKENDS[api_name])
            extras.chain.sType = c.INSTANCE_EXTRAS
            chain = self.api.chain(extras)
            about = self.api.make("WGPUInstanceDescriptor", nextInChain=chain)
            self.handle = self.api.lib.wgpuCreateInstance(about)
            del extras
            if self.handle == self.api.ffi.NULL:
                raise self._unavailable("WebGPU refuses to start.", "open-failed")
            if api_name == "vulkan":
                keep_loaded(candidate.key, self.api.ffi.dlopen, log)
            null = self.api.ffi.NULL
            listing = self.api.lib.wgpuInstanceEnumerateAdapters
            places = self.api.empty("WGPUAdapter", listing(self.handle, null, null))
            count = listing(self.handle, null, places)
            self._adapters = [places[i] for i in range(count)]
        log.debug("instance for %s with %d adapters", candidate.key, len(self._adapters))

    def _unavailable(self, what: str, reason: str, known: str | None = None) -> Exception:
        return BackendUnavailableError(
            what, asked_by=self.candidate.key, known=known, reason=reason
        )

    def devices(self) -> list[Adapter]:
        """Describe the adapters, in the order of the API underneath.

        Raises BackendUnavailableError where there is none.
        """
        if not self._adapters:
            is_vulkan = api_of(self.candidate) == "vulkan"
            if is_vulkan and (fault := load_fault(self.candidate.key)):
                what = "The Vulkan driver's library cannot be loaded."
                raise self._unavailable(what, "missing-library", fault)
            raise self._unavailable("WebGPU finds no adapter there.", "no-device")
        return [describe(self.api, handle) for handle in self._adapters]

    def close(self) -> None:
        """Give the adapters and the instance back; may be called twice."""
        if self.handle is None:
            return
        for handle in self._adapters:
            self.api.lib.wgpuAdapterRelease(handle)
        self._adapters = []
        self.api.lib.wgpuInstanceRelease(self.handle)
        self.handle = None


def enumerate_devices(candidate: Candidate) -> list[DeviceInfo]:
    """Load a driver and list its adapters. Raises BackendUnavailableError."""
    return common.infos(Instance(candidate))


def describe(api: Api, handle: Any) -> Adapter:
    """Ask an adapter everything that is needed here."""
    about = api.make("WGPUAdapterInfo")
    api.lib.wgpuAdapterGetInfo(handle, about)
    limits = api.make("WGPULimits")
    api.lib.wgpuAdapterGetLimits(handle, limits)
    identity = Identity(
        api="wgpu",
        name=api.text(about.device),
        os=sys.platform,
        vendorID=int(about.vendorID) or None,
        deviceID=int(about.deviceID) or None,
        driverName=api.text(about.vendor) or None,
        driverInfo=api.text(about.description) or None,
        device_type=c.DEVICE_TYPES.get(about.adapterType),
        backend=c.BACKEND_TYPES.get(about.backendType),
    )
    kind, has_half = int(about.adapterType), api.lib.wgpuAdapterHasFeature(handle, c.SHADER_F16)
    # On other kinds of device subgroups may be larger in one pipeline than in the next.
    has_subgroups = kind == c.TYPE_CPU and bool(api.lib.wgpuAdapterHasFeature(handle, c.SUBGROUPS))
    api.lib.wgpuAdapterInfoFreeMembers(about[0])
    alignment = int(limits.minUniformBufferOffsetAlignment)
    caps = _caps(limits, kind, has_half=bool(has_half))
    return Adapter(handle, identity, caps, limits, alignment, has_subgroups)


def _caps(limits: Any, kind: int, *, has_half: bool) -> Caps:
    """Map WebGPU's limits; one binding of a kernel's group is the block of its extents."""
    buffers = min(limits.maxStorageBuffersPerShaderStage, limits.maxBindingsPerBindGroup - 1)
    groups = int(limits.maxComputeWorkgroupsPerDimension)
    largest = int(limits.maxBufferSize)
    side = int(limits.maxTextureDimension2D)
    textures = limits.maxSampledTexturesPerShaderStage, limits.maxStorageTexturesPerShaderStage
    copies = min(textures) if side >= TEXTURE_ROW else 0
    return Caps(
        level="wgpu",
        dialect="wgsl",
        forms=frozenset({"map", "group"}),
        is_software=kind == c.TYPE_CPU,
        max_invocations=int(limits.maxComputeInvocationsPerWorkgroup),
        max_local_size=(
            int(limits.maxComputeWorkgroupSizeX),
            int(limits.maxComputeWorkgroupSizeY),
            int(limits.maxComputeWorkgroupSizeZ),
        ),
        max_groups=(groups, groups, groups),
        max_shared_bytes=int(limits.maxComputeWorkgroupStorageSize),
        max_storage_buffers=int(buffers),
        max_storage_buffer_bytes=min(int(limits.maxStorageBufferBindingSize), largest),
        max_allocation_bytes=largest,
        offset_alignment=max(1, int(limits.minStorageBufferOffsetAlignment)),
        max_push_bytes=int(limits.maxUniformBufferBindingSize),
        has_fp16_storage=False,  # kernels that users bring do not run here
        has_int8_storage=False,
        has_fp16_arithmetic=has_half,
        has_suballocation=False,
        max_texture_copies=int(copies),
        max_copied_elements=TEXTURE_ROW * side,
        dot_products=1,  # part of WGSL; nothing says whether hardware has them
        max_outputs=int(buffers),
    )
