"""Give every tensor of a plan a place in a buffer, and find which passes depend on which."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gpuedge.core.caps import Caps
from gpuedge.core.storage import FLOAT32, Storage
from gpuedge.plan.memory import Lifetime, align, most_alive, place, share
from gpuedge.plan.plan import Plan, PlanTensor
from gpuedge.plan.storages import copied

ARENA = "arena"
CONSTANTS = "constants"


@dataclass(frozen=True, slots=True)
class Region:
    """A byte range of a named buffer."""

    buffer: str
    offset: int
    nbytes: int


Role = Literal["constant", "input", "output", "scratch"]
"""What a buffer is for, in the words of `gpuedge.backends.base.Usage`."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer: its size in bytes, what it is for, how it keeps texels."""

    nbytes: int
    role: Role
    storage: Storage = FLOAT32

    @property
    def device_nbytes(self) -> int:
        """Bytes that it takes on the device."""
        kind = self.storage.about
        return self.nbytes // self.storage.texel_bytes * kind.units * kind.unit_bytes


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where tensors lie.

    `regions` by tensor name (views included), `buffers` by name: ``arena`` and ``constants``, which
    many tensors share, and one each for those that have a buffer of their own. `depends` says for
    each pass whether it must wait for passes before it. `most_alive` is the largest sum of scratch
    tensors that are needed at the same time, in bytes: no plan takes less scratch memory. `copied`
    is how many bytes of some buffers kernels read of copies in textures.
    """

    regions: Mapping[str, Region]
    buffers: Mapping[str, BufferSpec]
    depends: tuple[bool, ...]
    most_alive: int
    copied: Mapping[str, int]

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of device memory by what they are for, copies in textures among them."""
        by_role = dict.fromkeys(get_args(Role), 0)
        for name, home in self.buffers.items():
            by_role[home.role] += home.device_nbytes + self.copied.get(name, 0)
        return by_role

    @property
    def inputs(self) -> tuple[str, ...]:
        """Buffers the host writes before every run."""
        return tuple(name for name, home in self.buffers.items() if home.role == "input")

    @property
    def outputs(self) -> tuple[str, ...]:
        """Buffers the host reads after every run."""
        return tuple(name for name, home in self.buffers.items() if home.role == "output")


def arrange_on(plan: Plan, caps: Caps) -> Arrangement:
    """Place the tensors of a plan on a device."""
    return arrange(
        plan, caps.offset_alignment, has_suballocation=caps.has_suballocation,
        most_bytes=caps.max_allocation_bytes, copies=copied(plan, caps),
    )  # fmt: skip


def arrange(
    plan: Plan,
    alignment: int,
    *,
    has_suballocation: bool = True,
    most_bytes: int | None = None,
    copies: Iterable[str] = (),
) -> Arrangement:
    """Place the tensors of `plan`.

    Parameters
    ----------
    plan : Plan
    alignment : int
        Offsets are multiples of it, bytes.
    has_suballocation : bool
        Whether constants, and tensors the host never sees, may share a buffer (`Caps`). Without,
        every tensor has a buffer of its own, which one of equal storage that is not larger takes
        over once no later pass reads it.
    most_bytes : int, optional
        Largest buffer. Constants take several where they have to; what passes hand to each other
        does as without suballocation.
    copies : iterable of str
        Tensors that kernels read of copies in textures.
    """
    nbytes: dict[str, int] = {}
    for tensor in plan.tensors.values():
        end = tensor.offset + tensor.nbytes
        nbytes[tensor.memory] = max(nbytes.get(tensor.memory, 0), end)
    lifetimes = _lifetimes(plan)
    kept_names = (*plan.outputs.values(), *plan.lows.values())
    results = {plan.tensors[name].memory for name in kept_names}
    regions: dict[str, Region] = {}
    buffers: dict[str, BufferSpec] = {}
    scratch: list[Lifetime] = []
    shared = CONSTANTS
    position = 0
    for memory in (m for m in nbytes if m in lifetimes):
        tensor, size = plan.tensors[memory], nbytes[memory]
        role = _role(tensor, results)
        if role == "scratch":
            scratch.append(Lifetime(memory, size, *lifetimes[memory]))
        elif role == "constant" and has_suballocation:
            if position and most_bytes is not None and position + size > most_bytes:
                shared, position = f"{CONSTANTS}.{len(buffers)}", 0
            regions[memory] = Region(shared, position, size)
            position = align(position + size, alignment)
            buffers[shared] = BufferSpec(position, "constant")
        else:
            regions[memory] = Region(memory, 0, size)
            buffers[memory] = BufferSpec(size, role, tensor.storage)
    offsets, total = place(scratch, alignment) if has_suballocation else ({}, 0)
    if has_suballocation and (most_bytes is None or total <= most_bytes):
        regions |= {t.name: Region(ARENA, offsets[t.name], t.nbytes) for t in scratch}
        buffers |= {ARENA: BufferSpec(total, "scratch")} if total else {}
    else:
        _place_whole(plan, scratch, regions, buffers)
    views = {
        t.name: Region(regions[t.memory].buffer, regions[t.memory].offset + t.offset, t.nbytes)
        for t in plan.tensors.values()
        if t.memory in regions
    }
    homes = (BufferSpec(t.nbytes, "scratch", plan.tensors[t.name].storage) for t in scratch)
    alive = [replace(t, nbytes=h.device_nbytes) for t, h in zip(scratch, homes, strict=True)]
    sizes: dict[str, int] = {}
    for region in (views[name] for name in copies):
        sizes[region.buffer] = max(sizes.get(region.buffer, 0), region.nbytes)
    return Arrangement(views, buffers, _dependences(plan, views), most_alive(alive), sizes)


def _role(tensor: PlanTensor, results: set[str]) -> Role:
    if tensor.is_constant:
        return "constant"
    if tensor.name in results:
        return "output"
    return "scratch" if tensor.host is None else "input"


def _place_whole(
    plan: Plan, scratch: list[Lifetime], regions: dict[str, Region], buffers: dict[str, BufferSpec]
) -> None:
    """Give each tensor a buffer, one that others have too if they are kept alike, in turn."""
    kinds: dict[Storage, list[Lifetime]] = {}
    for item in scratch:
        kinds.setdefault(plan.tensors[item.name].storage, []).append(item)
    for storage, items in kinds.items():
        homes, sizes = share(items)
        first: dict[int, str] = {}  # by number of the object: the tensor it is named after
        for item in items:
            buffer = first.setdefault(homes[item.name], item.name)
            buffers[buffer] = BufferSpec(sizes[homes[item.name]], "scratch", storage)
            regions[item.name] = Region(buffer, 0, item.nbytes)


def _lifetimes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return first and last pass of every storage that any pass touches."""
    spans: dict[str, tuple[int, int]] = {}
    for i, launch in enumerate(plan.passes):
        for name in launch.tensors.values():
            storage = plan.tensors[name].memory
            spans[storage] = (spans.get(storage, (i, i))[0], i)
    return spans


class _Touched:
    """Bytes of buffers, as ranges that do not meet."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[tuple[int, int]]] = {}

    def meets(self, region: Region) -> bool:
        """Tell whether any byte of a region is among them."""
        known = self._ranges.get(region.buffer, [])
        at = bisect_left(known, (region.offset + region.nbytes,))
        return at > 0 and known[at - 1][1] > region.offset

    def add(self, region: Region) -> None:
        """Add the bytes of a region."""
        known = self._ranges.setdefault(region.buffer, [])
        start, end = region.offset, region.offset + region.nbytes
        while (at := bisect_left(known, (end,))) > 0 and known[at - 1][1] > start:
            low, high = known.pop(at - 1)
            start, end = min(start, low), max(end, high)
        insort(known, (start, end))


def _dependences(plan: Plan, regions: Mapping[str, Region]) -> tuple[bool, ...]:
    """Find passes that touch bytes written, or write bytes read, since the last barrier."""
    reads, writes = _Touched(), _Touched()
    clashes = []
    for launch in plan.passes:
        outs = [regions[name] for name in launch.outputs]
        ins = [regions[name] for name in launch.tensors.values() if name not in launch.outputs]
        clash = any(map(writes.meets, (*ins, *outs))) or any(map(reads.meets, outs))
        if clash:
            reads, writes = _Touched(), _Touched()
        for touched, new in ((reads, ins), (writes, outs)):
            for region in new:
                touched.add(region)
        clashes.append(clash)
    return tuple(clashes)
