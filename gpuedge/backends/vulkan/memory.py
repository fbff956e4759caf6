"""Choosing memory and dividing it up: pure functions and data, no driver.

Does not allocate: `pool.py` does, with the choices made here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from gpuedge.backends.base import Usage
from gpuedge.backends.vulkan import conv

ALL_TYPES = 0xFFFFFFFF
_ORDINARY = conv.DEVICE_LOCAL | conv.HOST_VISIBLE | conv.HOST_COHERENT | conv.HOST_CACHED
"""Types with any other property (lazily allocated, protected, AMD's uncached) serve other ends."""


class MemoryType(NamedTuple):
    """VkMemoryType: property flags and the index of its heap."""

    flags: int
    heap: int


class MemoryHeap(NamedTuple):
    """VkMemoryHeap: size in bytes and flags."""

    size: int
    flags: int


class Choice(NamedTuple):
    """A memory type, and whether the host reaches the buffer only through a staging copy."""

    type_index: int
    needs_staging: bool


def _main_heap(heaps: Sequence[MemoryHeap]) -> int | None:
    local = [i for i, heap in enumerate(heaps) if heap.flags & conv.HEAP_DEVICE_LOCAL]
    return max(local, key=lambda i: heaps[i].size) if local else None


def is_unified(heaps: Sequence[MemoryHeap], device_type: int) -> bool:
    """Return True if host and device share one physical memory.

    Integrated GPUs and CPUs do; so does whatever lists no memory but its own. A card whose memory
    is all mapped (resizable BAR) does not: it lists the host's memory as another heap.
    """
    if device_type in conv.SHARING_TYPES:
        return True
    return all(heap.flags & conv.HEAP_DEVICE_LOCAL for heap in heaps)


def choose_memory(
    types: Sequence[MemoryType],
    heaps: Sequence[MemoryHeap],
    usage: Usage,
    *,
    allowed: int = ALL_TYPES,
    staging: bool | None = None,
) -> Choice:
    """Choose the memory of a buffer.

    Parameters
    ----------
    types, heaps
        The device's tables, in its order.
    usage : Usage
        What the buffer is for.
    allowed : int
        Bit mask of the types a buffer may use (``memoryTypeBits``).
    staging : bool, optional
        True forces staging, False forbids it where any host-visible type exists; None decides.

    Returns
    -------
    Choice
        Host-visible device memory where the host sees the device's largest heap (cached for
        OUTPUT: reading uncached memory is many times slower), else device memory with staging. The
        small window (256 MiB) that cards offer beside their main heap is left alone.

    Raises
    ------
    ValueError
        No allowed type exists; the specification forbids that.
    """
    usable = _usable(types, allowed)
    main = _main_heap(heaps)
    if usage is Usage.SCRATCH:
        return Choice(_best(types, usable, conv.DEVICE_LOCAL, conv.HOST_VISIBLE), False)
    direct = [i for i in usable if types[i].flags & conv.HOST_VISIBLE]
    if staging is not False and main is not None:
        direct = [i for i in direct if types[i].heap == main]
    if usage is Usage.OUTPUT and staging is None:
        direct = _readable(types, usable, direct)
    if staging or not direct:
        return Choice(_best(types, usable, conv.DEVICE_LOCAL, conv.HOST_VISIBLE), True)
    wanted = conv.DEVICE_LOCAL | conv.HOST_COHERENT
    if usage is Usage.OUTPUT:
        return Choice(_best(types, direct, conv.HOST_CACHED, 0, wanted), False)
    return Choice(_best(types, direct, wanted, conv.HOST_CACHED), False)


def choose_staging(types: Sequence[MemoryType], *, download: bool, allowed: int = ALL_TYPES) -> int:
    """Return the type of a staging buffer: cached for downloads, plain host memory for uploads."""
    visible = [i for i in _usable(types, allowed) if types[i].flags & conv.HOST_VISIBLE]
    if not visible:
        raise ValueError("no host-visible memory type")
    first = conv.HOST_CACHED if download else conv.HOST_COHERENT
    second = conv.HOST_COHERENT if download else 0
    return _best(types, visible, first, conv.DEVICE_LOCAL, second)


def _usable(types: Sequence[MemoryType], allowed: int) -> list[int]:
    every = [i for i in range(len(types)) if allowed >> i & 1]
    ordinary = [i for i in every if not types[i].flags & ~_ORDINARY]
    if not every:
        raise ValueError("no memory type is allowed")
    return ordinary or every


def _readable(types: Sequence[MemoryType], usable: list[int], direct: list[int]) -> list[int]:
    """Keep cached types; uncached ones only if nothing cached exists to stage into."""
    cached = [i for i in direct if types[i].flags & conv.HOST_CACHED]
    anywhere = any(
        types[i].flags & conv.HOST_CACHED and types[i].flags & conv.HOST_VISIBLE for i in usable
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
