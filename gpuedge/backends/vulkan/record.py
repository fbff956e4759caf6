"""Recording work once, to be submitted again and again: barriers, bindings, staging copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpuedge.backends.base import Buffer, Dispatch
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.api import Api
from gpuedge.backends.vulkan.memory import VulkanBuffer
from gpuedge.backends.vulkan.program import VulkanProgram
from gpuedge.backends.vulkan.queue import Queue

_WORK = c.STAGE_COMPUTE | c.STAGE_TRANSFER
_WRITES = c.ACCESS_SHADER_WRITE | c.ACCESS_TRANSFER_WRITE
_READS = c.ACCESS_SHADER_READ | c.ACCESS_TRANSFER_READ


@dataclass(slots=True, eq=False)
class VulkanRecording:
    """A command buffer with its descriptor sets, and the prebuilt structure that submits it."""

    commands: Any
    descriptor_pool: Any
    submit_info: Any
    is_released: bool = False


class Recorder:
    """Makes recordings on one device; they share a command pool."""

    def __init__(self, api: Api, device: Any, queue: Queue, family: int) -> None:
        self._api = api
        self._device = device
        self._queue = queue
        self._recordings: set[VulkanRecording] = set()
        flags = c.COMMAND_POOL_RESET
        info = api.make("VkCommandPoolCreateInfo", flags=flags, queueFamilyIndex=family)
        made = api.ffi.new("VkCommandPool *")
        result = api.lib.vkCreateCommandPool(device, info, api.ffi.NULL, made)
        queue.check(result, "vkCreateCommandPool")
        self._pool = made[0]

    def record(
        self, dispatches: Sequence[Dispatch], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> VulkanRecording:
        """Record dispatches, with the staging copies of `inputs` before and `outputs` after."""
        uploads = _staged(inputs)
        downloads = _staged(outputs)
        sets, pool = self._sets(dispatches)
        made = VulkanRecording(None, pool, None)
        self._recordings.add(made)
        try:
            made.commands = self._begin()
            # Work submitted before this (an upload, the previous replay) must be done with the
            # buffers it shares with this one: one queue, but submissions overlap without it.
            self._barrier(made.commands, _WORK, _WRITES, _WORK, _READS | _WRITES)
            for device in uploads:
                self._copy(made.commands, device.staging, device)
            if uploads:
                self._barrier(
                    made.commands,
                    c.STAGE_TRANSFER,
                    c.ACCESS_TRANSFER_WRITE,
                    c.STAGE_COMPUTE,
                    c.ACCESS_SHADER_READ | c.ACCESS_SHADER_WRITE,
                )
            self._dispatches(made.commands, dispatches, sets)
            self._finish(made.commands, downloads)
            self._end(made.commands)
            made.submit_info = self._queue.submit_info(made.commands)
        except BaseException:
            self.release(made)
            raise
        return made

    def copy_once(self, source: VulkanBuffer, target: VulkanBuffer, places: Any) -> VulkanRecording:
        """Record one copy; `places` is (source offset, target offset, bytes)."""
        made = VulkanRecording(self._begin(), None, None)
        self._recordings.add(made)
        self._barrier(made.commands, _WORK, _WRITES, _WORK, _READS | _WRITES)
        self._copy(made.commands, source, target, places)
        self._barrier(
            made.commands,
            c.STAGE_TRANSFER,
            c.ACCESS_TRANSFER_WRITE,
            _WORK | c.STAGE_HOST,
            _READS | _WRITES | c.ACCESS_HOST_READ,
        )
        self._end(made.commands)
        made.submit_info = self._queue.submit_info(made.commands)
        return made

    def _begin(self) -> Any:
        api = self._api
        info = api.make("VkCommandBufferAllocateInfo", commandPool=self._pool, commandBufferCount=1)
        made = api.ffi.new("VkCommandBuffer *")
        result = api.lib.vkAllocateCommandBuffers(self._device, info, made)
        self._queue.check(result, "vkAllocateCommandBuffers")
        # Simultaneous use: after a time-out the caller may submit again while the old run lives.
        begin = api.make("VkCommandBufferBeginInfo", flags=c.COMMAND_BUFFER_SIMULTANEOUS)
        self._queue.check(api.lib.vkBeginCommandBuffer(made[0], begin), "vkBeginCommandBuffer")
        return made[0]

    def _end(self, commands: Any) -> None:
        self._queue.check(self._api.lib.vkEndCommandBuffer(commands), "vkEndCommandBuffer")

    def _dispatches(self, commands: Any, dispatches: Sequence[Dispatch], sets: list[Any]) -> None:
        api = self._api
        lib = api.lib
        bound: Any = None
        for index, dispatch in enumerate(dispatches):
            program = cast(VulkanProgram, dispatch.program)
            layout = program.layout.pipeline_layout
            if dispatch.depends and index:
                self._barrier(
                    commands,
                    c.STAGE_COMPUTE,
                    c.ACCESS_SHADER_WRITE,
                    c.STAGE_COMPUTE,
                    c.ACCESS_SHADER_READ | c.ACCESS_SHADER_WRITE,
                )
            if program.pipeline is not bound:
                lib.vkCmdBindPipeline(commands, c.BIND_POINT_COMPUTE, program.pipeline)
                bound = program.pipeline
            one = api.array("VkDescriptorSet", [sets[index]])
            lib.vkCmdBindDescriptorSets(
                commands, c.BIND_POINT_COMPUTE, layout, 0, 1, one, 0, api.ffi.NULL
            )
            if dispatch.push:
                stage = c.SHADER_STAGE_COMPUTE
                data = api.ffi.from_buffer(dispatch.push)
                lib.vkCmdPushConstants(commands, layout, stage, 0, len(dispatch.push), data)
            lib.vkCmdDispatch(commands, *dispatch.groups)

    def _finish(self, commands: Any, downloads: list[VulkanBuffer]) -> None:
        """Copy staged outputs and make everything written visible to the host."""
        if downloads:
            self._barrier(
                commands,
                c.STAGE_COMPUTE,
                c.ACCESS_SHADER_WRITE,
                c.STAGE_TRANSFER,
                c.ACCESS_TRANSFER_READ,
            )
        for device in downloads:
            self._copy(commands, device, device.staging)
        self._barrier(commands, _WORK, _WRITES, c.STAGE_HOST, c.ACCESS_HOST_READ)

    def _barrier(
        self, commands: Any, stages: int, writes: int, then_stages: int, then_access: int
    ) -> None:
        memory = self._api.make("VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=then_access)
        null = self._api.ffi.NULL
        self._api.lib.vkCmdPipelineBarrier(
            commands, stages, then_stages, 0, 1, memory, 0, null, 0, null
        )

    def _copy(
        self,
        commands: Any,
        source: VulkanBuffer | None,
        target: VulkanBuffer | None,
        places: tuple[int, int, int] | None = None,
    ) -> None:
        if source is None or target is None:
            return
        start, end, size = places or (0, 0, min(source.nbytes, target.nbytes))
        if not size:
            return
        region = self._api.make("VkBufferCopy", srcOffset=start, dstOffset=end, size=size)
        self._api.lib.vkCmdCopyBuffer(commands, source.handle, target.handle, 1, region)

    def _sets(self, dispatches: Sequence[Dispatch]) -> tuple[list[Any], Any]:
        """Return a descriptor set per dispatch (equal ones shared) and the pool they live in.

        Each recording has a pool of exactly the right size, so releasing one frees everything and
        no pool can fragment.
        """
        keys = [_set_key(dispatch) for dispatch in dispatches]
        distinct = dict(zip(keys, dispatches, strict=True))
        if not distinct:
            return [], None
        pool = self._descriptor_pool(len(distinct), sum(len(d.bindings) for d in distinct.values()))
        try:
            made = {key: self._set(pool, dispatch) for key, dispatch in distinct.items()}
        except BaseException:
            self._api.lib.vkDestroyDescriptorPool(self._device, pool, self._api.ffi.NULL)
            raise
        return [made[key] for key in keys], pool

    def _descriptor_pool(self, sets: int, buffers: int) -> Any:
        api = self._api
        kind = c.DESCRIPTOR_STORAGE_BUFFER
        size = api.make("VkDescriptorPoolSize", type=kind, descriptorCount=max(1, buffers))
        info = api.make(
            "VkDescriptorPoolCreateInfo", maxSets=sets, poolSizeCount=1, pPoolSizes=size
        )
        made = api.ffi.new("VkDescriptorPool *")
        result = api.lib.vkCreateDescriptorPool(self._device, info, api.ffi.NULL, made)
        self._queue.check(result, "vkCreateDescriptorPool")
        return made[0]

    def _set(self, pool: Any, dispatch: Dispatch) -> Any:
        api = self._api
        program = cast(VulkanProgram, dispatch.program)
        info = api.make(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=pool,
            descriptorSetCount=1,
            pSetLayouts=api.array("VkDescriptorSetLayout", [program.layout.set_layout]),
        )
        made = api.ffi.new("VkDescriptorSet *")
        result = api.lib.vkAllocateDescriptorSets(self._device, info, made)
        self._queue.check(result, "vkAllocateDescriptorSets")
        writes = [
            api.make(
                "VkWriteDescriptorSet",
                dstSet=made[0],
                dstBinding=i,
                descriptorCount=1,
                descriptorType=c.DESCRIPTOR_STORAGE_BUFFER,
                pBufferInfo=api.make(
                    "VkDescriptorBufferInfo",
                    buffer=cast(VulkanBuffer, binding.buffer).handle,
                    offset=binding.offset,
                    range=binding.nbytes,
                ),
            )
            for i, binding in enumerate(dispatch.bindings)
        ]
        table = api.array("VkWriteDescriptorSet", writes)
        api.lib.vkUpdateDescriptorSets(self._device, len(writes), table, 0, api.ffi.NULL)
        return made[0]

    def release(self, recording: VulkanRecording) -> None:
        """Free a recording that is not in flight."""
        if recording.is_released:
            return
        recording.is_released = True
        self._recordings.discard(recording)
        api = self._api
        if recording.commands is not None:
            one = api.array("VkCommandBuffer", [recording.commands])
            api.lib.vkFreeCommandBuffers(self._device, self._pool, 1, one)
        if recording.descriptor_pool is not None:
            pool = recording.descriptor_pool
            api.lib.vkDestroyDescriptorPool(self._device, pool, api.ffi.NULL)

    def close(self) -> None:
        """Free all recordings and the command pool."""
        for recording in list(self._recordings):
            self.release(recording)
        self._api.lib.vkDestroyCommandPool(self._device, self._pool, self._api.ffi.NULL)


def _set_key(dispatch: Dispatch) -> tuple[Any, ...]:
    program = cast(VulkanProgram, dispatch.program)
    places = tuple((id(b.buffer), b.offset, b.nbytes) for b in dispatch.bindings)
    return (id(program.layout), places)


def _staged(buffers: Sequence[Buffer]) -> list[VulkanBuffer]:
    concrete = [cast(VulkanBuffer, buffer) for buffer in buffers]
    return [buffer for buffer in dict.fromkeys(concrete) if buffer.staging is not None]
