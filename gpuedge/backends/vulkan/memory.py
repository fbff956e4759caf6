"""Device memory: which type for which use, big blocks that stay mapped, buffers placed in them.

Freed memory is kept for the next buffer: touching fresh pages costs eight times a copy on a
software driver, and drivers limit how many allocations may exist (4096 on many).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuedge.backends.base import Usage
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.api import Api
from gpuedge.backends.vulkan.physical import MemoryHeap, MemoryType, Physical
from gpuedge.core.errors import OutOfMemoryError

FIRST_BLOCK = 16 << 20
LARGEST_BLOCK = 128 << 20
_CACHE_LINE = 64
_BUFFER_USES = c.USE_STORAGE | c.USE_TRANSFER_SRC | c.USE_TRANSFER_DST
ALL_TYPES = 0xFFFFFFFF
_ORDINARY = c.DEVICE_LOCAL | c.HOST_VISIBLE | c.HOST_COHERENT | c.HOST_CACHED
"""Types with any other property (lazily allocated, protected, AMD's uncached) serve other ends."""


class Choice(NamedTuple):
    """A memory type, and whether the host reaches the buffer only through a staging copy."""

    type_index: int
    needs_staging: bool


def _main_heap(heaps: Sequence[MemoryHeap]) -> int | None:
    local = [i for i, heap in enumerate(heaps) if heap.flags & c.HEAP_DEVICE_LOCAL]
    return max(local, key=lambda i: heaps[i].size) if local else None


def choose_memory(
    types: Sequence[MemoryType],
    heaps: Sequence[MemoryHeap],
    usage: Usage,
    *,
    allowed: int = ALL_TYPES,
    staging: bool | None = None,
) -> Choice:
    """Choose the memory of a buffer.

    Host-visible device memory where the host sees the device's largest heap (cached for OUTPUT:
    reading uncached memory is many times slower), else device memory with staging. The small window
    (256 MiB) that cards offer beside their main heap is left alone.

    `allowed` is a bit mask of types (``memoryTypeBits``); ValueError if there is none, which the
    specification forbids. `staging` True forces staging, False forbids it where any host-visible
    type exists; None decides.
    """
    usable = _usable(types, allowed)
    main = _main_heap(heaps)
    if usage is Usage.SCRATCH:
        return Choice(_best(types, usable, c.DEVICE_LOCAL, c.HOST_VISIBLE), False)
    direct = [i for i in usable if types[i].flags & c.HOST_VISIBLE]
    if staging is not False and main is not None:
        direct = [i for i in direct if types[i].heap == main]
    if usage is Usage.OUTPUT and staging is None:
        direct = _readable(types, usable, direct)
    if staging or not direct:
        return Choice(_best(types, usable, c.DEVICE_LOCAL, c.HOST_VISIBLE), True)
    wanted = c.DEVICE_LOCAL | c.HOST_COHERENT
    if usage is Usage.OUTPUT:
        return Choice(_best(types, direct, c.HOST_CACHED, 0, wanted), False)
    return Choice(_best(types, direct, wanted, c.HOST_CACHED), False)


def choose_staging(types: Sequence[MemoryType], *, download: bool, allowed: int = ALL_TYPES) -> int:
    """Return the type of a staging buffer: cached for downloads, plain host memory for uploads."""
    visible = [i for i in _usable(types, allowed) if types[i].flags & c.HOST_VISIBLE]
    if not visible:
        raise ValueError("no host-visible memory type")
    first = c.HOST_CACHED if download else c.HOST_COHERENT
    second = c.HOST_COHERENT if download else 0
    return _best(types, visible, first, c.DEVICE_LOCAL, second)


def _usable(types: Sequence[MemoryType], allowed: int) -> list[int]:
    every = [i for i in range(len(types)) if allowed >> i & 1]
    ordinary = [i for i in every if not types[i].flags & ~_ORDINARY]
    if not every:
        raise ValueError("no memory type is allowed")
    return ordinary or every


def _readable(types: Sequence[MemoryType], usable: list[int], direct: list[int]) -> list[int]:
    """Keep cached types; uncached ones only if nothing cached exists to stage into."""
    cached = [i for i in direct if types[i].flags & c.HOST_CACHED]
    anywhere = any(
        types[i].flags & c.HOST_CACHED and types[i].flags & c.HOST_VISIBLE for i in usable
    )
    return cached if anywhere else direct


def _best(
    types: Sequence[MemoryType], indices: list[int], want: int, avoid: int, also: int = 0
) -> int:
    """Return the index with most of `want`, then most of `also`, then least of `avoid`."""

    def merit(i: int) -> tuple[int, int, int, int]:
        flags = types[i].flags
        return (_bits(flags & want), _bits(flags & also), -_bits(flags & avoid), -i)

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
        self.free_bytes = size
        self._holes: list[tuple[int, int]] = [(0, size)]

    @property
    def is_empty(self) -> bool:
        """True if nothing is taken."""
        return self.free_bytes == self.size

    def take(self, nbytes: int, alignment: int) -> int | None:
        """Return the offset of `nbytes` free bytes at a multiple of `alignment`, or None."""
        if nbytes > self.free_bytes:
            return None
        for index, (start, end) in enumerate(self._holes):
            offset = align_up(start, alignment)
            if offset + nbytes <= end:
                rest = [(start, offset), (offset + nbytes, end)]
                self._holes[index : index + 1] = [(a, b) for a, b in rest if a < b]
                self.free_bytes -= nbytes
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
        self.free_bytes += nbytes


# --- buffers ------------------------------------------------------------------------------------
@dataclass(slots=True)
class Block:
    """One VkDeviceMemory; `host` is its mapped address, None if the host cannot see it."""

    memory: Any
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
    is_freed: bool = False


class Pool:
    """All memory of one device."""

    def __init__(self, api: Api, device: Any, physical: Physical, staging: bool | None) -> None:
        self._api = api
        self._device = device
        self._physical = physical
        self._staging = staging
        self._buffers: dict[int, VulkanBuffer] = {}
        self.blocks: list[Block] = []

    def buffer(self, nbytes: int, usage: Usage) -> VulkanBuffer:
        """Make a buffer for `usage`, with its staging twin where it needs one."""
        made = self._place(nbytes, usage, None)
        if made.host is None and usage in (Usage.INPUT, Usage.OUTPUT):
            try:
                made.staging = self.host_buffer(nbytes, download=usage is Usage.OUTPUT)
            except BaseException:
                self.free(made)
                raise
        return made

    def host_buffer(self, nbytes: int, *, download: bool) -> VulkanBuffer:
        """Make a host-visible buffer to copy through."""
        return self._place(nbytes, Usage.OUTPUT if download else Usage.INPUT, download)

    def _place(self, nbytes: int, usage: Usage, download: bool | None) -> VulkanBuffer:
        """Make a buffer; `download` is None for the device's own, else the staging direction."""
        largest = max(heap.size for heap in self._physical.memory_heaps)
        if nbytes > largest:
            raise OutOfMemoryError(
                f"A buffer of {nbytes} bytes does not fit on {self._physical.identity.name}.",
                known=f"its largest memory has {largest} bytes",
            )
        size = align_up(max(nbytes, 4), 4)
        handle, needs = self._create(size)
        try:
            kinds = self._physical.memory_types
            if download is None:
                index, is_staged = choose_memory(
                    kinds,
                    self._physical.memory_heaps,
                    usage,
                    allowed=needs.memoryTypeBits,
                    staging=self._staging,
                )
            else:
                index = choose_staging(kinds, download=download, allowed=needs.memoryTypeBits)
                is_staged = False
            block, offset, size = self._take(index, int(needs.size), int(needs.alignment))
        except BaseException:
            self._api.lib.vkDestroyBuffer(self._device, handle, self._api.ffi.NULL)
            raise
        made = VulkanBuffer(nbytes, usage, handle, block, offset, size)
        self._buffers[id(made)] = made
        result = self._api.lib.vkBindBufferMemory(self._device, handle, block.memory, offset)
        if result != c.SUCCESS:
            self.free(made)
            raise self._error(result, "vkBindBufferMemory")
        if block.host is not None and not is_staged:
            made.host = block.host + offset
        return made

    def _create(self, size: int) -> tuple[Any, Any]:
        api = self._api
        info = api.make("VkBufferCreateInfo", size=size, usage=_BUFFER_USES)
        handle = api.ffi.new("VkBuffer *")
        result = api.lib.vkCreateBuffer(self._device, info, api.ffi.NULL, handle)
        if result != c.SUCCESS:
            raise self._error(result, "vkCreateBuffer")
        needs = api.ffi.new("VkMemoryRequirements *")
        api.lib.vkGetBufferMemoryRequirements(self._device, handle[0], needs)
        return handle[0], needs

    def _take(self, index: int, nbytes: int, alignment: int) -> tuple[Block, int, int]:
        flags = self._physical.memory_types[index].flags
        alignment = max(alignment, _CACHE_LINE)
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
        offset = block.free.take(nbytes, alignment)
        if offset is None:
            raise OutOfMemoryError("A new memory block is too small.", known=f"{nbytes} bytes")
        return block, offset, nbytes

    def _grow(self, index: int, nbytes: int) -> Block:
        count = sum(block.type_index == index for block in self.blocks)
        heap = self._physical.memory_heaps[self._physical.memory_types[index].heap].size
        step = min(FIRST_BLOCK << min(count, 8), LARGEST_BLOCK, max(heap // 16, 1 << 20))
        sizes = [nbytes] if nbytes > step // 2 else [step, nbytes]
        result = c.SUCCESS
        for size in sizes:
            for _attempt in range(2):
                if len(self.blocks) >= self._physical.max_allocations:
                    self.trim()
                block, result = self._allocate(index, size)
                if block is not None:
                    self.blocks.append(block)
                    return block
                self.trim()
        raise self._error(result, f"vkAllocateMemory of {nbytes} bytes")

    def _allocate(self, index: int, size: int) -> tuple[Block | None, int]:
        api = self._api
        flags = self._physical.memory_types[index].flags
        size = align_up(size, self._physical.non_coherent_atom)
        info = api.make("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=index)
        memory = api.ffi.new("VkDeviceMemory *")
        result: int = api.lib.vkAllocateMemory(self._device, info, api.ffi.NULL, memory)
        if result != c.SUCCESS:
            return None, result
        host = None
        if flags & c.HOST_VISIBLE:
            place = api.ffi.new("void **")
            whole = c.WHOLE_SIZE
            result = api.lib.vkMapMemory(self._device, memory[0], 0, whole, 0, place)
            if result != c.SUCCESS:
                api.lib.vkFreeMemory(self._device, memory[0], api.ffi.NULL)
                return None, result
            host = api.ffi.cast("char *", place[0])
        coherent = bool(flags & c.HOST_COHERENT)
        return Block(memory[0], index, FreeList(size), host, coherent), result

    def flush(self, buffer: VulkanBuffer, offset: int, nbytes: int) -> None:
        """Make host writes to `buffer` reach the device."""
        if not buffer.block.is_coherent:
            call = self._api.lib.vkFlushMappedMemoryRanges
            self._ranges(call, "vkFlushMappedMemoryRanges", buffer, offset, nbytes)

    def invalidate(self, buffer: VulkanBuffer, offset: int, nbytes: int) -> None:
        """Make device writes to `buffer` reach the host."""
        if not buffer.block.is_coherent:
            call = self._api.lib.vkInvalidateMappedMemoryRanges
            self._ranges(call, "vkInvalidateMappedMemoryRanges", buffer, offset, nbytes)

    def _ranges(self, call: Any, name: str, buffer: VulkanBuffer, offset: int, nbytes: int) -> None:
        atom = self._physical.non_coherent_atom
        start = (buffer.offset + offset) // atom * atom
        end = align_up(buffer.offset + offset + nbytes, atom)
        span = self._api.make(
            "VkMappedMemoryRange", memory=buffer.block.memory, offset=start, size=end - start
        )
        result = call(self._device, 1, span)
        if result != c.SUCCESS:
            raise self._error(result, name)

    def free(self, buffer: VulkanBuffer) -> None:
        """Destroy a buffer and its staging twin; their memory is kept for the next ones."""
        if buffer.is_freed:
            return
        if buffer.staging is not None:
            self.free(buffer.staging)
        buffer.is_freed = True
        buffer.host = None
        self._buffers.pop(id(buffer), None)
        self._api.lib.vkDestroyBuffer(self._device, buffer.handle, self._api.ffi.NULL)
        buffer.block.free.give(buffer.offset, buffer.size)

    def trim(self) -> None:
        """Give blocks that hold nothing back to the driver."""
        kept = []
        for block in self.blocks:
            if block.free.is_empty:
                self._api.lib.vkFreeMemory(self._device, block.memory, self._api.ffi.NULL)
            else:
                kept.append(block)
        self.blocks = kept

    def close(self) -> None:
        """Destroy every buffer and free all memory."""
        for buffer in list(self._buffers.values()):
            self.free(buffer)
        self.trim()

    def _error(self, result: int, call: str) -> Exception:
        return c.error_for(result, call, self._physical.identity.name)
