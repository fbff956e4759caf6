"""Building kernels: shader modules, pipelines, shared layouts, one program per specialisation."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.api import Api
from gpuedge.backends.vulkan.queue import Queue
from gpuedge.core.errors import DriverError
from gpuedge.core.kernel import KernelBlob, Number, SpecArg

_FORMATS = {"int": "<i", "float": "<f", "bool": "<I"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Descriptor-set and pipeline layout of an interface: so many buffers, so many push bytes."""

    set_layout: Any
    pipeline_layout: Any
    buffers: int
    push_bytes: int


@dataclass(slots=True, eq=False)
class VulkanProgram:
    """A kernel's pipeline."""

    blob: KernelBlob
    pipeline: Any
    layout: Layout


class Programs:
    """The programs of one device."""

    def __init__(self, api: Api, device: Any, queue: Queue, cache: Any) -> None:
        self._api = api
        self._device = device
        self._queue = queue
        self._cache = cache
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._programs: set[VulkanProgram] = set()

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> VulkanProgram:
        """Compile a kernel. Raises DriverError."""
        layout = self._layout(len(blob.tensors), blob.push_bytes)
        made = VulkanProgram(blob, self._pipeline(blob, blob.values(specs), layout), layout)
        self._programs.add(made)
        return made

    def _layout(self, buffers: int, push_bytes: int) -> Layout:
        key = (buffers, push_bytes)
        if key not in self._layouts:
            self._layouts[key] = self._new_layout(buffers, push_bytes)
        return self._layouts[key]

    def _new_layout(self, buffers: int, push_bytes: int) -> Layout:
        api = self._api
        null = api.ffi.NULL
        bindings = [
            api.make(
                "VkDescriptorSetLayoutBinding",
                binding=i,
                descriptorType=c.DESCRIPTOR_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=c.SHADER_STAGE_COMPUTE,
            )
            for i in range(buffers)
        ]
        info = api.make(
            "VkDescriptorSetLayoutCreateInfo",
            bindingCount=buffers,
            pBindings=api.array("VkDescriptorSetLayoutBinding", bindings),
        )
        sets = api.ffi.new("VkDescriptorSetLayout[1]")
        result = api.lib.vkCreateDescriptorSetLayout(self._device, info, null, sets)
        self._queue.check(result, "vkCreateDescriptorSetLayout")
        size = push_bytes
        ranges = api.make("VkPushConstantRange", stageFlags=c.SHADER_STAGE_COMPUTE, size=size)
        info = api.make(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=sets,
            pushConstantRangeCount=1 if size else 0,
            pPushConstantRanges=ranges,
        )
        made = api.ffi.new("VkPipelineLayout *")
        result = api.lib.vkCreatePipelineLayout(self._device, info, null, made)
        if result != c.SUCCESS:
            api.lib.vkDestroyDescriptorSetLayout(self._device, sets[0], null)
            self._queue.check(result, "vkCreatePipelineLayout")
        return Layout(sets[0], made[0], buffers, push_bytes)

    def _pipeline(self, blob: KernelBlob, values: tuple[Number, ...], layout: Layout) -> Any:
        api = self._api
        module = self._module(blob)
        try:
            stage = api.make(
                "VkPipelineShaderStageCreateInfo",
                stage=c.SHADER_STAGE_COMPUTE,
                module=module,
                pName=api.ffi.new("char[]", blob.entry.encode()),
                pSpecializationInfo=self._specialisation(blob.specs, values),
            )
            info = api.make(
                "VkComputePipelineCreateInfo",
                stage=stage[0],
                layout=layout.pipeline_layout,
                basePipelineIndex=-1,
            )
            made = api.ffi.new("VkPipeline *")
            result = api.lib.vkCreateComputePipelines(
                self._device, self._cache, 1, info, api.ffi.NULL, made
            )
            del stage
            self._check(result, "vkCreateComputePipelines", blob)
            return made[0]
        finally:
            api.lib.vkDestroyShaderModule(self._device, module, api.ffi.NULL)

    def _module(self, blob: KernelBlob) -> Any:
        api = self._api
        size = len(blob.code)
        words = api.ffi.new("uint32_t[]", max(1, size // 4))
        api.ffi.memmove(words, blob.code, size // 4 * 4)
        info = api.make("VkShaderModuleCreateInfo", codeSize=size, pCode=words)
        made = api.ffi.new("VkShaderModule *")
        result = api.lib.vkCreateShaderModule(self._device, info, api.ffi.NULL, made)
        self._check(result, "vkCreateShaderModule", blob)
        return made[0]

    def _check(self, result: int, call: str, blob: KernelBlob) -> None:
        try:
            self._queue.check(result, f"{call} for kernel {blob.name!r}")
        except DriverError as error:
            error.hint = "report it with the output of: gpuedge info --json"
            raise

    def _specialisation(self, specs: tuple[SpecArg, ...], values: tuple[Number, ...]) -> Any:
        if not specs:
            return None
        api = self._api
        data = b"".join(
            struct.pack(_FORMATS[spec.type], value)
            for spec, value in zip(specs, values, strict=True)
        )
        entries = [
            api.make("VkSpecializationMapEntry", constantID=spec.spec_id, offset=i * 4, size=4)
            for i, spec in enumerate(specs)
        ]
        return api.make(
            "VkSpecializationInfo",
            mapEntryCount=len(specs),
            pMapEntries=api.array("VkSpecializationMapEntry", entries),
            dataSize=len(data),
            pData=api.ffi.new("char[]", data),
        )

    def release(self, program: VulkanProgram) -> None:
        """Destroy a program; doing it twice does nothing."""
        if program in self._programs:
            self._programs.discard(program)
            self._api.lib.vkDestroyPipeline(self._device, program.pipeline, self._api.ffi.NULL)

    def close(self) -> None:
        """Destroy all pipelines and layouts."""
        api = self._api
        null = api.ffi.NULL
        for program in self._programs:
            api.lib.vkDestroyPipeline(self._device, program.pipeline, null)
        for layout in self._layouts.values():
            api.lib.vkDestroyPipelineLayout(self._device, layout.pipeline_layout, null)
            api.lib.vkDestroyDescriptorSetLayout(self._device, layout.set_layout, null)
        self._programs.clear()
        self._layouts.clear()
