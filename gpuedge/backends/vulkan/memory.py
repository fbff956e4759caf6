"""Device memory: which type for which use, big blocks that stay mapped, buffers placed in them.

Freed memory is kept for the next buffer: touching fresh pages costs eight times a copy on a
software driver, and drivers limit how many allocations may exist (4096 on many).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuedge.backends import common
from gpuedge.backends.base import FLOAT32, Storage, Usage
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.physical import MemoryHeap, MemoryType, Physical
from gpuedge.backends.vulkan.queue import Queue
from gpuedge.backends.vulkan.record import Copy
from gpuedge.backends.vulkan.views import LEAST_ALIGNMENT
from gpuedge.core.errors import OutOfMemoryError

BLOCK_BYTES = 16 << 20
"""Of one allocation from the driver; larger buffers get one of their own."""
COPY_CHUNK = 16 << 20
"""Of one copy through a temporary staging buffer."""
_BUFFER_USES = c.USE_UNIFORM_TEXELS | c.USE_STORAGE | c.USE_TRANSFER_SRC | c.USE_TRANSFER_DST
_ORDINARY = c.DEVICE_LOCAL | c.HOST_VISIBLE | c.HOST_COHERENT | c.HOST_CACHED
"""Types with any other property (lazily allocated, protected, AMD's uncached) serve other ends."""

UPLOAD = (c.HOST_VISIBLE, c.HOST_COHERENT)
"""Memory of a buffer that the host writes copies into; what it must be and should be."""
DOWNLOAD = (c.HOST_VISIBLE, c.HOST_CACHED, c.HOST_COHERENT)
"""Memory of a buffer that the host reads; without the cache, reading is many times slower."""


class Choice(NamedTuple):
    """A memory type, and whether the host reaches the buffer only through a staging copy."""

    type_index: int
    needs_staging: bool


def choose_memory(
    types: Sequence[MemoryType],
    heaps: Sequence[MemoryHeap],
    usage: Usage,
    *,
    allowed: int,
    staging: bool = False,
) -> Choice:
    """Choose the memory of a buffer.

    Host-visible memory of the device's largest heap, cached for OUTPUT, else device memory with
    staging. The small window (256 MiB) that cards offer beside their main heap is left alone.

    `allowed` is a bit mask of types (``memoryTypeBits``); `staging` forces staging.
    """
    usable = _usable(types, allowed)
    seen = [i for i in usable if types[i].flags & c.HOST_VISIBLE]
    local = [i for i, heap in enumerate(heaps) if heap.flags & c.HEAP_DEVICE_LOCAL]
    if local:
        main = max(local, key=lambda i: heaps[i].size)
        direct = [i for i in seen if types[i].heap == main]
    else:
        direct = seen
    if usage is Usage.OUTPUT and any(types[i].flags & c.HOST_CACHED for i in seen):
        direct = [i for i in direct if types[i].flags & c.HOST_CACHED]
    if usage is Usage.SCRATCH or staging or not direct:
        best = _best(types, usable, (c.DEVICE_LOCAL,), c.HOST_VISIBLE)
        return Choice(best, usage is not Usage.SCRATCH)
    near = c.DEVICE_LOCAL | c.HOST_COHERENT
    if usage is Usage.OUTPUT:
        return Choice(_best(types, direct, (c.HOST_CACHED, near)), False)
    return Choice(_best(types, direct, (near,), c.HOST_CACHED), False)


def choose_staging(types: Sequence[MemoryType], wanted: tuple[int, ...], allowed: int) -> int:
    """Return the type of a staging buffer, `UPLOAD` or `DOWNLOAD`."""
    visible = [i for i in _usable(types, allowed) if types[i].flags & wanted[0]]
    return _best(types, visible, wanted[1:], c.DEVICE_LOCAL)


def _usable(types: Sequence[MemoryType], allowed: int) -> list[int]:
    every = [i for i in range(len(types)) if allowed >> i & 1]
    return [i for i in every if not types[i].flags & ~_ORDINARY] or every


def _best(
    types: Sequence[MemoryType], indices: list[int], wanted: tuple[int, ...], unwanted: int = 0
) -> int:
    """Return the first type with most of the first wanted flags, of the next, least unwanted."""

    def merit(i: int) -> list[int]:
        flags = types[i].flags
        return [*(_bits(flags & want) for want in wanted), -_bits(flags & unwanted)]

    return max(indices, key=merit)


def _bits(flags: int) -> int:
    return bin(flags).count("1")


def align_up(value: int, alignment: int) -> int:
    """Round up to a multiple of `alignment` (any positive number)."""
    return -(-value // alignment) * alignment


class FreeList:
    """First-fit division of ``size`` bytes, merging neighbours when they are given back."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._holes: list[tuple[int, int]] = [(0, size)]

    @property
    def is_empty(self) -> bool:
        """True if nothing is taken."""
        return self._holes == [(0, self.size)]

    def take(self, nbytes: int, alignment: int) -> int | None:
        """Return the offset of `nbytes` free bytes at a multiple of `alignment`, or None."""
        for index, (start, end) in enumerate(self._holes):
            offset = align_up(start, alignment)
            if offset + nbytes <= end:
                rest = [(start, offset), (offset + nbytes, end)]
                self._holes[index : index + 1] = [(a, b) for a, b in rest if a < b]
                return offset
        return None

    def give(self, offset: int, nbytes: int) -> None:
        """Give back what `take` returned."""
        start, end = offset, offset + nbytes
        index = bisect_left(self._holes, (start, end))
        if index < len(self._holes) and self._holes[index][0] == end:
            end = self._holes.pop(index)[1]
        if index and self._holes[index - 1][1] == start:
            start = self._holes.pop(index - 1)[0]
        insort(self._holes, (start, end))


# --- buffers ------------------------------------------------------------------------------------
@dataclass(slots=True)
class Block:
    """One VkDeviceMemory; `host` is its mapped address, None if the host cannot see it."""

    memory: Any
    nbytes: int
    type_index: int
    free: FreeList
    host: Any
    is_coherent: bool


@dataclass(slots=True, eq=False)
class VulkanBuffer:
    """A buffer bound to part of a block.

    `host` is the mapped address of its first byte or None. `staging` is the host-visible twin of
    an INPUT or OUTPUT buffer that the host cannot see.
    """

    nbytes: int
    usage: Usage
    handle: Any
    block: Block
    offset: int
    size: int
    host: Any = None
    staging: VulkanBuffer | None = None

    def copy_to(self, other: VulkanBuffer) -> Copy:
        """Return the copy of all bytes to a buffer of the same size."""
        return Copy(self.handle, other.handle, 0, 0, max(1, self.nbytes))


class Pool:
    """The buffers of one device; `copy` carries out a `Copy` and waits for it.

    `room` is how many bytes textures may take beyond the last buffer of a block.
    """

    def __init__(
        self, queue: Queue, physical: Physical, copy: Callable[[Copy], None], *, staging: bool,
        room: int = 0,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._api = queue.api
        self._physical = physical
        self._copy = copy
        self._staging = staging
        self._room = room
        self.blocks: list[Block] = []

    def alloc(self, nbytes: int, usage: Usage, _: Storage = FLOAT32) -> VulkanBuffer:
        """Make a buffer for `usage`, with its staging twin where it needs one."""
        buffer = self._place(nbytes, usage)
        if buffer.host is None and usage in (Usage.INPUT, Usage.OUTPUT):
            try:
                wanted = UPLOAD if usage is Usage.INPUT else DOWNLOAD
                buffer.staging = self._place(nbytes, usage, wanted)
            except BaseException:
                self.free(buffer)
                raise
        return buffer

    def _place(self, nbytes: int, usage: Usage, wanted: tuple[int, ...] = ()) -> VulkanBuffer:
        """Make a buffer: the device's own, or with `wanted` one for staging copies."""
        queue, api, physical = self._queue, self._api, self._physical
        most = max(heap.size for heap in physical.memory_heaps)
        common.check_size(queue.name, nbytes, most, "memory")
        handle = queue.create("Buffer", size=align_up(max(nbytes, 4), 4), usage=_BUFFER_USES)
        try:
            needs = api.ffi.new("VkMemoryRequirements *")
            api.lib.vkGetBufferMemoryRequirements(queue.device, handle, needs)
            types, allowed = physical.memory_types, needs.memoryTypeBits
            if wanted:
                chosen = Choice(choose_staging(types, wanted, allowed), False)
            else:
                chosen = choose_memory(
                    types, physical.memory_heaps, usage, allowed=allowed, staging=self._staging
                )
            block, offset, size = self._take(chosen.type_index, needs.size, needs.alignment)
        except BaseException:
            queue.destroy("Buffer", handle)
            raise
        buffer = VulkanBuffer(nbytes, usage, handle, block, offset, size)
        try:
            result = api.lib.vkBindBufferMemory(queue.device, handle, block.memory, offset)
            queue.check(result, "vkBindBufferMemory")
        except BaseException:
            self.free(buffer)
            raise
        if block.host is not None and not chosen.needs_staging:
            buffer.host = block.host + offset
        return buffer

    def _take(self, index: int, nbytes: int, alignment: int) -> tuple[Block, int, int]:
        flags = self._physical.memory_types[index].flags
        alignment = max(alignment, LEAST_ALIGNMENT)
        if flags & c.HOST_VISIBLE and not flags & c.HOST_COHERENT:
            # Flushing and invalidating work on whole atoms: no two buffers may share one.
            alignment = max(alignment, self._physical.non_coherent_atom)
        nbytes = align_up(nbytes, alignment)
        for block in self.blocks:
            if block.type_index == index:
                offset = block.free.take(nbytes, alignment)
                if offset is not None:
                    return block, offset, nbytes
        block = self._grow(index, nbytes)
        return block, block.free.take(nbytes, alignment) or 0, nbytes

    def _grow(self, index: int, nbytes: int) -> Block:
        """Allocate a block; where that fails, give unused ones back and ask for less."""
        heap = self._physical.memory_heaps[self._physical.memory_types[index].heap].size
        usual = min(BLOCK_BYTES, max(heap // 16, 1 << 20))
        try:
            return self._allocate(index, usual if nbytes <= usual // 2 else nbytes)
        except OutOfMemoryError:
            self.trim()
            return self._allocate(index, nbytes)

    def _allocate(self, index: int, size: int) -> Block:
        queue, api = self._queue, self._api
        flags = self._physical.memory_types[index].flags
        size = align_up(size + self._room, self._physical.non_coherent_atom)
        info = api.make("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=index)
        memory = api.ffi.new("VkDeviceMemory *")
        result = api.lib.vkAllocateMemory(queue.device, info, api.ffi.NULL, memory)
        queue.check(result, f"vkAllocateMemory of {size} bytes")
        host = None
        if flags & c.HOST_VISIBLE:
            place = api.ffi.new("void **")
            result = api.lib.vkMapMemory(queue.device, memory[0], 0, c.WHOLE_SIZE, 0, place)
            if result != c.SUCCESS:
                api.lib.vkFreeMemory(queue.device, memory[0], api.ffi.NULL)
                queue.check(result, "vkMapMemory")
            host = api.ffi.cast("char *", place[0])
        free, is_coherent = FreeList(size - self._room), bool(flags & c.HOST_COHERENT)
        block = Block(memory[0], size, index, free, host, is_coherent)
        self.blocks.append(block)
        return block

    def address(self, buffer: VulkanBuffer) -> int | None:
        """Return where the host sees a buffer without flushing or copying; None if it does not."""
        if buffer.host is None or not buffer.block.is_coherent:
            return None
        return int(self._api.ffi.cast("uintptr_t", buffer.host))

    # --- host and device ------------------------------------------------------------------------
    def write(self, buffer: VulkanBuffer, data: memoryview, offset: int) -> None:
        """Copy host bytes into a buffer; a staged INPUT takes them over with the next submit."""
        if buffer.host is not None:
            self._put(buffer, data, offset)
            return
        if buffer.staging is not None:
            self._put(buffer.staging, data, offset)
        if buffer.usage is Usage.INPUT:
            return
        flat = data.cast("B") if data.ndim != 1 or data.format != "B" else data
        for start in range(0, flat.nbytes, COPY_CHUNK):
            piece = flat[start : start + COPY_CHUNK]
            staging = self._place(piece.nbytes, buffer.usage, UPLOAD)
            self._put(staging, piece, 0)
            self._copy(Copy(staging.handle, buffer.handle, 0, offset + start, piece.nbytes))
            self.free(staging)

    def read(self, buffer: VulkanBuffer, into: memoryview, offset: int) -> None:
        """Copy a buffer's bytes to the host."""
        visible = buffer.staging or buffer
        if visible.host is not None:
            self._get(visible, into, offset)
        elif into.nbytes:
            staging = self._place(into.nbytes, buffer.usage, DOWNLOAD)
            self._copy(Copy(buffer.handle, staging.handle, offset, 0, into.nbytes))
            self._get(staging, into, 0)
            self.free(staging)

    def _put(self, target: VulkanBuffer, data: memoryview, offset: int) -> None:
        self._api.ffi.memmove(target.host + offset, data, data.nbytes)
        if not target.block.is_coherent:
            self._sync("vkFlushMappedMemoryRanges", target, offset, data.nbytes)

    def _get(self, source: VulkanBuffer, into: memoryview, offset: int) -> None:
        if not source.block.is_coherent:
            self._sync("vkInvalidateMappedMemoryRanges", source, offset, into.nbytes)
        self._api.ffi.memmove(into, source.host + offset, into.nbytes)

    def _sync(self, call: str, buffer: VulkanBuffer, offset: int, nbytes: int) -> None:
        atom = self._physical.non_coherent_atom
        start = (buffer.offset + offset) // atom * atom
        end = align_up(buffer.offset + offset + nbytes, atom)
        span = self._api.make(
            "VkMappedMemoryRange", memory=buffer.block.memory, offset=start, size=end - start
        )
        result = getattr(self._api.lib, call)(self._queue.device, 1, span)
        self._queue.check(result, call)

    # --- freeing --------------------------------------------------------------------------------
    def free(self, buffer: VulkanBuffer) -> None:
        """Destroy a buffer and its staging twin; their memory is kept for the next ones."""
        if buffer.staging is not None:
            self.free(buffer.staging)
        self._queue.destroy("Buffer", buffer.handle)
        buffer.block.free.give(buffer.offset, buffer.size)

    def trim(self) -> None:
        """Give blocks that hold nothing back to the driver."""
        for block in [known for known in self.blocks if known.free.is_empty]:
            self.blocks.remove(block)
            self._api.lib.vkFreeMemory(self._queue.device, block.memory, self._api.ffi.NULL)

    def close(self) -> None:
        """Free all memory, that of a copy which never ended as well."""
        for block in self.blocks:
            self._api.lib.vkFreeMemory(self._queue.device, block.memory, self._api.ffi.NULL)
        self.blocks.clear()
