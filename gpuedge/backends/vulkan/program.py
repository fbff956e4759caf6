"""Building kernels: shader modules, pipelines, shared layouts, one program per specialisation."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.backends.vulkan import conv
from gpuedge.backends.vulkan.api import Api
from gpuedge.backends.vulkan.queue import Queue
from gpuedge.core.caps import Caps
from gpuedge.core.errors import DriverError, InputError, KernelLimitError
from gpuedge.core.kernel import KernelBlob, Number, SpecArg

_AXES = ((0, "LX"), (1, "LY"), (2, "LZ"))
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
    """A pipeline; `users` counts how often it was handed out and not yet released."""

    blob: KernelBlob
    specs: tuple[Number, ...]
    pipeline: Any
    layout: Layout
    users: int = 1


class Programs:
    """The programs of one device."""

    def __init__(self, api: Api, device: Any, queue: Queue, caps: Caps, cache: Any) -> None:
        self._api = api
        self._device = device
        self._queue = queue
        self._caps = caps
        self._cache = cache
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._programs: dict[tuple[str, tuple[Number, ...]], VulkanProgram] = {}

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> tuple[VulkanProgram, bool]:
        """Return the program and whether it had to be compiled."""
        values = _values(blob, specs)
        key = (blob.digest, values)
        known = self._programs.get(key)
        if known is not None:
            known.users += 1
            return known, False
        check_limits(blob, values, self._caps)
        layout = self._layout(len(blob.tensors), blob.push_bytes)
        made = VulkanProgram(blob, values, self._pipeline(blob, values, layout), layout)
        self._programs[key] = made
        return made, True

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
                descriptorType=conv.DESCRIPTOR_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=conv.SHADER_STAGE_COMPUTE,
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
        ranges = api.make("VkPushConstantRange", stageFlags=conv.SHADER_STAGE_COMPUTE, size=size)
        info = api.make(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=sets,
            pushConstantRangeCount=1 if size else 0,
            pPushConstantRanges=ranges,
        )
        made = api.ffi.new("VkPipelineLayout *")
        result = api.lib.vkCreatePipelineLayout(self._device, info, null, made)
        if result != conv.SUCCESS:
            api.lib.vkDestroyDescriptorSetLayout(self._device, sets[0], null)
            self._queue.check(result, "vkCreatePipelineLayout")
        return Layout(sets[0], made[0], buffers, push_bytes)

    def _pipeline(self, blob: KernelBlob, values: tuple[Number, ...], layout: Layout) -> Any:
        api = self._api
        module = self._module(blob)
        try:
            stage = api.make(
                "VkPipelineShaderStageCreateInfo",
                stage=conv.SHADER_STAGE_COMPUTE,
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
            struct.pack(_FORMATS[spec.type], _coerced(spec, value))
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
        """Drop one use of a program; its pipeline goes with the last."""
        program.users -= 1
        if program.users == 0:
            self._programs.pop((program.blob.digest, program.specs), None)
            self._api.lib.vkDestroyPipeline(self._device, program.pipeline, self._api.ffi.NULL)

    def close(self) -> None:
        """Destroy all pipelines and layouts."""
        api = self._api
        null = api.ffi.NULL
        for program in self._programs.values():
            api.lib.vkDestroyPipeline(self._device, program.pipeline, null)
        for layout in self._layouts.values():
            api.lib.vkDestroyPipelineLayout(self._device, layout.pipeline_layout, null)
            api.lib.vkDestroyDescriptorSetLayout(self._device, layout.set_layout, null)
        self._programs.clear()
        self._layouts.clear()


def _coerced(spec: SpecArg, value: Number) -> Number:
    return float(value) if spec.type == "float" else int(value)


def _values(blob: KernelBlob, specs: Mapping[str, Number]) -> tuple[Number, ...]:
    names = {spec.name for spec in blob.specs}
    unknown = sorted(set(specs) - names)
    if unknown:
        raise InputError(
            f"Kernel {blob.name!r} has no specialisation constant {unknown[0]!r}.",
            known=f"it has: {', '.join(sorted(names)) or 'none'}",
        )
    return tuple(_coerced(spec, specs.get(spec.name, spec.default)) for spec in blob.specs)


def check_limits(blob: KernelBlob, values: tuple[Number, ...], caps: Caps) -> None:
    """Compare what a kernel needs with what a device offers, before any driver sees it.

    Raises
    ------
    KernelLimitError (GE-303)
        Too many invocations, buffers or push-constant bytes. Drivers need not report any of these
        and several crash instead.
    """
    by_name = {spec.name: int(v) for spec, v in zip(blob.specs, values, strict=True)}
    size = [by_name.get(axis, 1) for _, axis in _AXES]
    needs = [
        ("invocations per workgroup", size[0] * size[1] * size[2], caps.max_invocations),
        *((f"workgroup size {axis}", size[i], caps.max_local_size[i]) for i, axis in _AXES),
        ("storage buffers", len(blob.tensors), caps.max_storage_buffers),
        ("push-constant bytes", blob.push_bytes, caps.max_push_bytes),
    ]
    for what, needed, offered in needs:
        if needed > offered:
            raise KernelLimitError(
                f"Kernel {blob.name!r} needs {needed} {what}; this device offers {offered}.",
                known=f"workgroup size {size[0]}x{size[1]}x{size[2]}",
            )
    if min(size) < 1:
        raise KernelLimitError(f"Kernel {blob.name!r} has the workgroup size {size}.")
