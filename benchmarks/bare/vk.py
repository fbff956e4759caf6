"""Vulkan with nothing in between but the package `vulkan`: recorded once, submitted often.

As a script it prints what the first device says of itself as one JSON document:
``VK_DRIVER_FILES=FILE python benchmarks/bare/vk.py``. Needs `glslangValidator`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from array import array
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import vulkan as vk

COPY = """#version 450
layout(local_size_x = 4) in;
layout(std430, binding = 0) readonly buffer A { vec4 a[]; };
layout(std430, binding = 1) writeonly buffer B { vec4 b[]; };
void main() { b[gl_GlobalInvocationID.x] = a[gl_GlobalInvocationID.x]; }
"""
VALUES = 16
SIZE = 4 * VALUES
SECOND_NS = 1_000_000_000


@lru_cache
def assembled(text: str) -> bytes:
    """Return the SPIR-V of a compute shader."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "copy.comp"), Path(folder, "copy.spv")
        source.write_text(text, encoding="utf-8")
        command = ["glslangValidator", "-V", "-S", "comp", str(source), "-o", str(result)]
        subprocess.run(command, check=True, capture_output=True)
        return result.read_bytes()


class BareVulkan:
    """A device of the first driver that the loader finds."""

    def __init__(self) -> None:
        application = vk.VkApplicationInfo(apiVersion=vk.VK_API_VERSION_1_0)
        self.instance = vk.vkCreateInstance(
            vk.VkInstanceCreateInfo(pApplicationInfo=application), None
        )
        self.physical = vk.vkEnumeratePhysicalDevices(self.instance)[0]
        families = vk.vkGetPhysicalDeviceQueueFamilyProperties(self.physical)
        self.family = next(
            i for i, f in enumerate(families) if f.queueFlags & vk.VK_QUEUE_COMPUTE_BIT
        )
        queues = [vk.VkDeviceQueueCreateInfo(queueFamilyIndex=self.family, pQueuePriorities=[1.0])]
        self.device = vk.vkCreateDevice(
            self.physical, vk.VkDeviceCreateInfo(pQueueCreateInfos=queues), None
        )
        self.queue = vk.vkGetDeviceQueue(self.device, self.family, 0)
        self._cleanup: list[Callable[[], None]] = []

    def facts(self) -> dict[str, Any]:
        """Return name and versions."""
        about = vk.vkGetPhysicalDeviceProperties(self.physical)
        return {
            "renderer": about.deviceName,
            "version": str(about.driverVersion),
            "vendor": f"{about.vendorID:#x}",
        }

    def _made(self, kind: str, thing: Any) -> Any:
        destroy = getattr(vk, f"vkDestroy{kind}")
        self._cleanup.append(lambda: destroy(self.device, thing, None))
        return thing

    def _buffer(self) -> tuple[Any, Any]:
        """Return a storage buffer and its mapped memory."""
        info = vk.VkBufferCreateInfo(size=SIZE, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT)
        buffer = self._made("Buffer", vk.vkCreateBuffer(self.device, info, None))
        needs = vk.vkGetBufferMemoryRequirements(self.device, buffer)
        flags = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        memories = vk.vkGetPhysicalDeviceMemoryProperties(self.physical)
        kind = next(
            i
            for i in range(memories.memoryTypeCount)
            if needs.memoryTypeBits >> i & 1
            and memories.memoryTypes[i].propertyFlags & flags == flags
        )
        allocate = vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=kind)
        memory = vk.vkAllocateMemory(self.device, allocate, None)
        self._cleanup.append(lambda: vk.vkFreeMemory(self.device, memory, None))
        vk.vkBindBufferMemory(self.device, buffer, memory, 0)
        return buffer, vk.vkMapMemory(self.device, memory, 0, SIZE, 0)

    def _pipeline(self, layouts: Any) -> tuple[Any, Any]:
        """Return the pipeline of the copy, and its layout."""
        code = assembled(COPY)
        module = self._made(
            "ShaderModule",
            vk.vkCreateShaderModule(
                self.device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None
            ),
        )
        layout = self._made(
            "PipelineLayout",
            vk.vkCreatePipelineLayout(
                self.device, vk.VkPipelineLayoutCreateInfo(pSetLayouts=layouts), None
            ),
        )
        stage = vk.VkPipelineShaderStageCreateInfo(
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName="main"
        )
        info = vk.VkComputePipelineCreateInfo(stage=stage, layout=layout)
        (pipeline,) = vk.vkCreateComputePipelines(self.device, None, 1, [info], None)
        return self._made("Pipeline", pipeline), layout

    def _bound(self, buffers: list[Any]) -> tuple[Any, Any]:
        """Return a descriptor set of storage buffers, and its layout."""
        kind, stage = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, vk.VK_SHADER_STAGE_COMPUTE_BIT
        slots = [vk.VkDescriptorSetLayoutBinding(i, kind, 1, stage) for i in range(len(buffers))]
        info = vk.VkDescriptorSetLayoutCreateInfo(pBindings=slots)
        layout = self._made(
            "DescriptorSetLayout", vk.vkCreateDescriptorSetLayout(self.device, info, None)
        )
        sizes = [vk.VkDescriptorPoolSize(kind, len(buffers))]
        pools = vk.VkDescriptorPoolCreateInfo(maxSets=1, pPoolSizes=sizes)
        pool = self._made("DescriptorPool", vk.vkCreateDescriptorPool(self.device, pools, None))
        want = vk.VkDescriptorSetAllocateInfo(descriptorPool=pool, pSetLayouts=[layout])
        bound = vk.vkAllocateDescriptorSets(self.device, want)[0]
        writes = [
            vk.VkWriteDescriptorSet(
                dstSet=bound,
                dstBinding=i,
                descriptorType=kind,
                pBufferInfo=[vk.VkDescriptorBufferInfo(buffer, 0, SIZE)],
            )
            for i, buffer in enumerate(buffers)
        ]
        vk.vkUpdateDescriptorSets(self.device, len(writes), writes, 0, None)
        return bound, layout

    def _recorded(self, pipeline: Any, layout: Any, bound: Any) -> Any:
        """Return a command buffer with one dispatch."""
        pools = vk.VkCommandPoolCreateInfo(queueFamilyIndex=self.family)
        pool = self._made("CommandPool", vk.vkCreateCommandPool(self.device, pools, None))
        want = vk.VkCommandBufferAllocateInfo(
            commandPool=pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
        )
        commands = vk.vkAllocateCommandBuffers(self.device, want)[0]
        vk.vkBeginCommandBuffer(commands, vk.VkCommandBufferBeginInfo())
        compute = vk.VK_PIPELINE_BIND_POINT_COMPUTE
        vk.vkCmdBindPipeline(commands, compute, pipeline)
        vk.vkCmdBindDescriptorSets(commands, compute, layout, 0, 1, [bound], 0, None)
        vk.vkCmdDispatch(commands, 1, 1, 1)
        vk.vkEndCommandBuffer(commands)
        return commands

    def work(self) -> Callable[[], bytes]:
        """Set up a copy of 16 values; calling the result submits, waits and reads them back."""
        (source, given), (target, mapped) = self._buffer(), self._buffer()
        given[:SIZE] = array("f", range(VALUES)).tobytes()
        bound, layouts = self._bound([source, target])
        pipeline, layout = self._pipeline([layouts])
        commands = self._recorded(pipeline, layout, bound)
        fence = self._made("Fence", vk.vkCreateFence(self.device, vk.VkFenceCreateInfo(), None))
        submits, fences = [vk.VkSubmitInfo(pCommandBuffers=[commands])], [fence]

        def run() -> bytes:
            vk.vkQueueSubmit(self.queue, 1, submits, fence)
            vk.vkWaitForFences(self.device, 1, fences, vk.VK_TRUE, 10 * SECOND_NS)
            vk.vkResetFences(self.device, 1, fences)
            return bytes(mapped[:SIZE])

        return run

    def close(self) -> None:
        """Destroy everything."""
        vk.vkDeviceWaitIdle(self.device)
        while self._cleanup:
            self._cleanup.pop()()
        vk.vkDestroyDevice(self.device, None)
        vk.vkDestroyInstance(self.instance, None)


def main() -> None:
    """Print what the device says of itself, and whether its smallest work is right."""
    bare = BareVulkan()
    works = bare.work()() == array("f", range(VALUES)).tobytes()
    print(json.dumps(bare.facts() | {"works": works}))
    bare.close()


if __name__ == "__main__":
    main()
