"""Recording work once, to be submitted again and again: barriers, bindings, staging copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from gpuedge.backends.base import Binding, Dispatch
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.program import VulkanProgram, descriptor_type
from gpuedge.backends.vulkan.queue import Queue
from gpuedge.backends.vulkan.views import TexelBuffer, Texture, view_of, whole
from gpuedge.core.times import COPY_TIMEOUT_S

_WORK = c.STAGE_COMPUTE | c.STAGE_TRANSFER
_WRITES = c.ACCESS_SHADER_WRITE | c.ACCESS_TRANSFER_WRITE
_READS = c.ACCESS_SHADER_READ | c.ACCESS_TRANSFER_READ
_ANYTHING = (_WORK, _WRITES, _WORK, _READS | _WRITES)
_DISPATCHES = (
    c.STAGE_COMPUTE, c.ACCESS_SHADER_WRITE,
    c.STAGE_COMPUTE, c.ACCESS_SHADER_READ | c.ACCESS_SHADER_WRITE,
)  # fmt: skip
_HOST = (_WORK, _WRITES, c.STAGE_HOST, c.ACCESS_HOST_READ)
"""Barriers: the stages and writes that are waited for, by which stages and accesses."""


class Copy(NamedTuple):
    """Bytes that go from one VkBuffer to another."""

    source: Any
    target: Any
    source_offset: int
    target_offset: int
    nbytes: int


@dataclass(slots=True, eq=False)
class VulkanRecording:
    """A command buffer with what its dispatches are bound to, and the structure that submits it.

    `views` are texel buffers and textures, by the range of a buffer and the storage kind.
    """

    commands: Any = None
    descriptor_pool: Any = None
    views: dict[tuple[int, int, int, str], TexelBuffer | Texture] = field(default_factory=dict)
    submit_info: Any = None


class Recorder:
    """Makes recordings on one device; they share a command pool."""

    def __init__(self, queue: Queue, family: int) -> None:
        self._queue = queue
        self.submit = queue.submit
        self._api = queue.api
        self._pool = queue.create(
            "CommandPool", flags=c.COMMAND_POOL_RESET, queueFamilyIndex=family
        )

    def record(
        self, dispatches: Sequence[Dispatch], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> VulkanRecording:
        """Record dispatches, with the staging copies of `inputs` before and `outputs` after."""
        before = [b.staging.copy_to(b) for b in dict.fromkeys(inputs) if b.staging is not None]
        after = [b.copy_to(b.staging) for b in dict.fromkeys(outputs) if b.staging is not None]
        return self._record(before, dispatches, after)

    def copy_now(self, copy: Copy) -> None:
        """Copy and wait for it."""
        recording = self._record([copy], (), ())
        self._queue.wait(self.submit(recording), COPY_TIMEOUT_S)
        self.release(recording)

    def _record(
        self, before: Iterable[Copy], dispatches: Sequence[Dispatch], after: Iterable[Copy]
    ) -> VulkanRecording:
        recording = VulkanRecording()
        try:
            sets = self._sets(recording, dispatches)
            images = [v.image for v in recording.views.values() if isinstance(v, Texture)]
            if images:
                self._prepare(images)
            commands = recording.commands = self._begin()
            # Work submitted before this (an upload, the previous replay) must be done with the
            # buffers it shares with this one: one queue, but submissions overlap without it.
            self._barrier(commands, _ANYTHING)
            self._copies(commands, before)
            if before:
                self._barrier(commands, _ANYTHING)
            self._dispatches(commands, dispatches, sets)
            if after:
                self._barrier(commands, _ANYTHING)
            self._copies(commands, after)
            self._barrier(commands, _HOST)
            self._end(recording)
        except BaseException:
            self.release(recording)
            raise
        return recording

    def _begin(self) -> Any:
        api, queue = self._api, self._queue
        info = api.make("VkCommandBufferAllocateInfo", commandPool=self._pool, commandBufferCount=1)
        handle = api.ffi.new("VkCommandBuffer *")
        result = api.lib.vkAllocateCommandBuffers(queue.device, info, handle)
        queue.check(result, "vkAllocateCommandBuffers")
        # Simultaneous use: after a time-out the caller may submit again while the old run lives.
        begin = api.make("VkCommandBufferBeginInfo", flags=c.COMMAND_BUFFER_SIMULTANEOUS)
        queue.check(api.lib.vkBeginCommandBuffer(handle[0], begin), "vkBeginCommandBuffer")
        return handle[0]

    def _end(self, recording: VulkanRecording) -> None:
        commands = recording.commands
        self._queue.check(self._api.lib.vkEndCommandBuffer(commands), "vkEndCommandBuffer")
        buffers = self._api.array("VkCommandBuffer", [commands])
        recording.submit_info = self._api.make(
            "VkSubmitInfo", commandBufferCount=1, pCommandBuffers=buffers
        )

    def _prepare(self, images: Sequence[Any]) -> None:
        """Take new images to the general layout, which keeps what lies there, and wait for it."""
        once, api = VulkanRecording(commands=self._begin()), self._api
        barriers = [
            api.make(
                "VkImageMemoryBarrier", srcAccessMask=_WRITES, dstAccessMask=_READS | _WRITES,
                oldLayout=c.LAYOUT_PREINITIALIZED, newLayout=c.LAYOUT_GENERAL,
                srcQueueFamilyIndex=c.QUEUE_FAMILY_IGNORED,
                dstQueueFamilyIndex=c.QUEUE_FAMILY_IGNORED,
                image=image, subresourceRange=whole(self._queue)[0],
            )
            for image in images
        ]  # fmt: skip
        table, null = api.array("VkImageMemoryBarrier", barriers), api.ffi.NULL
        api.lib.vkCmdPipelineBarrier(
            once.commands, _WORK, _WORK, 0, 0, null, 0, null, len(barriers), table
        )
        self._end(once)
        self._queue.wait(self.submit(once), COPY_TIMEOUT_S)
        self.release(once)

    def _barrier(self, commands: Any, kind: tuple[int, int, int, int]) -> None:
        stages, writes, then_stages, then_access = kind
        memory = self._api.make("VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=then_access)
        null = self._api.ffi.NULL
        self._api.lib.vkCmdPipelineBarrier(
            commands, stages, then_stages, 0, 1, memory, 0, null, 0, null
        )

    def _copies(self, commands: Any, copies: Iterable[Copy]) -> None:
        for source, target, start, end, size in copies:
            region = self._api.make("VkBufferCopy", srcOffset=start, dstOffset=end, size=size)
            self._api.lib.vkCmdCopyBuffer(commands, source, target, 1, region)

    def _dispatches(self, commands: Any, dispatches: Sequence[Dispatch], sets: list[Any]) -> None:
        api = self._api
        lib = api.lib
        bound: Any = None
        for index, dispatch in enumerate(dispatches):
            program = cast(VulkanProgram, dispatch.program)
            layout = program.layout.pipeline_layout
            if dispatch.depends and index:
                self._barrier(commands, _DISPATCHES)
            if program.pipeline is not bound:
                lib.vkCmdBindPipeline(commands, c.BIND_POINT_COMPUTE, program.pipeline)
                bound = program.pipeline
            set_ = api.array("VkDescriptorSet", [sets[index]])
            lib.vkCmdBindDescriptorSets(
                commands, c.BIND_POINT_COMPUTE, layout, 0, 1, set_, 0, api.ffi.NULL
            )
            if dispatch.push:
                stage = c.SHADER_STAGE_COMPUTE
                data = api.ffi.from_buffer(dispatch.push)
                lib.vkCmdPushConstants(commands, layout, stage, 0, len(dispatch.push), data)
            lib.vkCmdDispatch(commands, *dispatch.groups)

    def _sets(self, recording: VulkanRecording, dispatches: Sequence[Dispatch]) -> list[Any]:
        """Return a descriptor set per dispatch; equal ones are shared.

        Each recording has a pool of exactly the right size, so releasing one frees everything and
        no pool can fragment.
        """
        keys = [_set_key(dispatch) for dispatch in dispatches]
        distinct = dict(zip(keys, dispatches, strict=True))
        if not distinct:
            return []
        layouts = (cast(VulkanProgram, one.program).layout for one in distinct.values())
        counts = Counter(descriptor_type(one) for layout in layouts for one in layout.storages)
        sizes = [
            self._api.make("VkDescriptorPoolSize", type=kind, descriptorCount=count)
            for kind, count in (counts or {c.DESCRIPTOR_STORAGE_BUFFER: 1}).items()
        ]
        recording.descriptor_pool = self._queue.create(
            "DescriptorPool", maxSets=len(distinct), poolSizeCount=len(sizes),
            pPoolSizes=self._api.array("VkDescriptorPoolSize", sizes),
        )  # fmt: skip
        sets = {key: self._set(recording, one) for key, one in distinct.items()}
        return [sets[key] for key in keys]

    def _set(self, recording: VulkanRecording, dispatch: Dispatch) -> Any:
        api, device = self._api, self._queue.device
        program = cast(VulkanProgram, dispatch.program)
        info = api.make(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=recording.descriptor_pool,
            descriptorSetCount=1,
            pSetLayouts=api.array("VkDescriptorSetLayout", [program.layout.set_layout]),
        )
        made = api.ffi.new("VkDescriptorSet *")
        result = api.lib.vkAllocateDescriptorSets(device, info, made)
        self._queue.check(result, "vkAllocateDescriptorSets")
        writes = [
            api.make(
                "VkWriteDescriptorSet",
                dstSet=made[0],
                dstBinding=i,
                descriptorCount=1,
                descriptorType=descriptor_type(storage),
                **self._bound(recording, storage, binding),
            )
            for i, (storage, binding) in enumerate(
                zip(program.layout.storages, dispatch.bindings, strict=True)
            )
        ]
        table = api.array("VkWriteDescriptorSet", writes)
        api.lib.vkUpdateDescriptorSets(device, len(writes), table, 0, api.ffi.NULL)
        return made[0]

    def _bound(self, recording: VulkanRecording, storage: str, binding: Binding) -> dict[str, Any]:
        """Return the field of a descriptor write that names what is bound."""
        buffer = cast(Any, binding.buffer)
        if storage not in c.DESCRIPTORS:
            return {"pBufferInfo": self._api.make(
                "VkDescriptorBufferInfo", buffer=buffer.handle, offset=binding.offset,
                range=binding.nbytes,
            )}  # fmt: skip
        key = (id(buffer), binding.offset, binding.nbytes, storage)
        if key not in recording.views:
            recording.views[key] = view_of(self._queue, storage, buffer, binding)
        return recording.views[key].field

    def release(self, recording: VulkanRecording) -> None:
        """Free a recording that is not in flight."""
        if recording.commands is not None:
            commands = self._api.array("VkCommandBuffer", [recording.commands])
            self._api.lib.vkFreeCommandBuffers(self._queue.device, self._pool, 1, commands)
        if recording.descriptor_pool is not None:
            self._queue.destroy("DescriptorPool", recording.descriptor_pool)
        for view in recording.views.values():
            view.close()

    def close(self) -> None:
        """Free the command pool."""
        self._queue.destroy("CommandPool", self._pool)


def _set_key(dispatch: Dispatch) -> tuple[Any, ...]:
    program = cast(VulkanProgram, dispatch.program)
    places = tuple((id(b.buffer), b.offset, b.nbytes) for b in dispatch.bindings)
    return (id(program.layout), places)
