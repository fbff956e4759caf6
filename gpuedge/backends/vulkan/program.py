"""Building kernels: shader modules, pipelines, shared layouts, one program per specialisation."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.pipeline_cache import PipelineCache
from gpuedge.backends.vulkan.queue import Queue
from gpuedge.core.kernel import KernelBlob, Number

_FORMATS = {"int": "<i", "float": "<f", "bool": "<I"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Descriptor-set and pipeline layout of an interface: what is bound, so many push bytes.

    `storages` are those of the kernel's tensors, which say how each is bound.
    """

    storages: tuple[str, ...]

    set_layout: Any
    pipeline_layout: Any


def descriptor_type(storage: str) -> int:
    """Return what a tensor of a kernel is bound as."""
    return c.DESCRIPTORS.get(storage, c.DESCRIPTOR_STORAGE_BUFFER)


@dataclass(slots=True, eq=False)
class VulkanProgram:
    """A kernel's pipeline."""

    blob: KernelBlob
    pipeline: Any
    layout: Layout


class Programs:
    """The programs of one device, and its pipeline cache."""

    def __init__(self, queue: Queue, cache: PipelineCache) -> None:
        self.cache = cache
        self._queue = queue
        self._api = queue.api
        self._layouts: dict[tuple[tuple[str, ...], int], Layout] = {}

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> VulkanProgram:
        """Compile a kernel. Raises DriverError."""
        key = (tuple(tensor.storage for tensor in blob.tensors), blob.push_bytes)
        if key not in self._layouts:
            self._layouts[key] = self._layout(*key)
        layout = self._layouts[key]
        program = VulkanProgram(blob, self._pipeline(blob, blob.values(specs), layout), layout)
        self.cache.added()
        return program

    def _layout(self, storages: tuple[str, ...], push_bytes: int) -> Layout:
        api, queue = self._api, self._queue
        bindings = [
            api.make(
                "VkDescriptorSetLayoutBinding",
                binding=i,
                descriptorType=descriptor_type(storage),
                descriptorCount=1,
                stageFlags=c.SHADER_STAGE_COMPUTE,
            )
            for i, storage in enumerate(storages)
        ]
        table = api.array("VkDescriptorSetLayoutBinding", bindings)
        set_layout = queue.create(
            "DescriptorSetLayout", bindingCount=len(storages), pBindings=table
        )
        try:
            pipeline_layout = queue.create(
                "PipelineLayout",
                setLayoutCount=1,
                pSetLayouts=api.array("VkDescriptorSetLayout", [set_layout]),
                pushConstantRangeCount=1 if push_bytes else 0,
                pPushConstantRanges=api.make(
                    "VkPushConstantRange", stageFlags=c.SHADER_STAGE_COMPUTE, size=push_bytes
                ),
            )
        except BaseException:
            queue.destroy("DescriptorSetLayout", set_layout)
            raise
        return Layout(storages, set_layout, pipeline_layout)

    def _pipeline(self, blob: KernelBlob, values: tuple[Number, ...], layout: Layout) -> Any:
        api, queue = self._api, self._queue
        size = len(blob.code) // 4 * 4
        words = api.ffi.new("uint32_t[]", max(1, size // 4))
        api.ffi.memmove(words, blob.code, size)
        module = queue.create("ShaderModule", codeSize=size, pCode=words)
        try:
            stage = api.make(
                "VkPipelineShaderStageCreateInfo",
                stage=c.SHADER_STAGE_COMPUTE,
                module=module,
                pName=api.ffi.new("char[]", blob.entry.encode()),
                pSpecializationInfo=self._specialisation(blob, values),
            )
            info = api.make(
                "VkComputePipelineCreateInfo",
                stage=stage[0],
                layout=layout.pipeline_layout,
                basePipelineIndex=-1,
            )
            handle = api.ffi.new("VkPipeline *")
            result = api.lib.vkCreateComputePipelines(
                queue.device, self.cache.handle, 1, info, api.ffi.NULL, handle
            )
            del stage
            queue.check(result, "vkCreateComputePipelines")
            return handle[0]
        finally:
            queue.destroy("ShaderModule", module)

    def _specialisation(self, blob: KernelBlob, values: tuple[Number, ...]) -> Any:
        api = self._api
        data = b"".join(
            struct.pack(_FORMATS[spec.type], value)
            for spec, value in zip(blob.specs, values, strict=True)
        )
        entries = [
            api.make("VkSpecializationMapEntry", constantID=spec.spec_id, offset=i * 4, size=4)
            for i, spec in enumerate(blob.specs)
        ]
        return api.make(
            "VkSpecializationInfo",
            mapEntryCount=len(entries),
            pMapEntries=api.array("VkSpecializationMapEntry", entries),
            dataSize=len(data),
            pData=api.ffi.new("char[]", data),
        )

    def release(self, program: VulkanProgram) -> None:
        """Destroy a program."""
        self._queue.destroy("Pipeline", program.pipeline)

    def close(self) -> None:
        """Destroy all layouts, and save the cache."""
        self.cache.close(is_lost=self._queue.lost is not None)
        for layout in self._layouts.values():
            self._queue.destroy("PipelineLayout", layout.pipeline_layout)
            self._queue.destroy("DescriptorSetLayout", layout.set_layout)
        self._layouts.clear()
