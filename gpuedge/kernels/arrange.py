"""Give every tensor of a plan a place in a buffer, and find which passes depend on which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuedge.kernels.memory import Lifetime, align, place
from gpuedge.kernels.plan import Plan

ARENA = "arena"
CONSTANTS = "constants"


@dataclass(frozen=True, slots=True)
class Region:
    """A byte range of a named buffer."""

    buffer: str
    offset: int
    nbytes: int

    def overlaps(self, other: Region) -> bool:
        """Tell whether two regions share a byte."""
        return (
            self.buffer == other.buffer
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where tensors lie.

    `regions` by tensor name (views included), `sizes` in bytes by buffer name: ``arena``,
    ``constants``, and one per input and output storage. `depends` says for each pass whether it
    must wait for passes before it.
    """

    regions: Mapping[str, Region]
    sizes: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    depends: tuple[bool, ...]


def arrange(plan: Plan, alignment: int) -> Arrangement:
    """Place the tensors of `plan`; offsets are multiples of `alignment` bytes."""
    nbytes: dict[str, int] = {}
    for tensor in plan.tensors.values():
        nbytes[tensor.memory] = max(nbytes.get(tensor.memory, 0), tensor.layout.nbytes)
    lifetimes = _lifetimes(plan)
    used = {s: n for s, n in nbytes.items() if s in lifetimes}
    results = {plan.tensors[name].memory for name in plan.outputs.values()}
    regions: dict[str, Region] = {}
    sizes: dict[str, int] = {}
    inputs: list[str] = []
    outputs: list[str] = []
    scratch: list[Lifetime] = []
    position = 0
    for storage, size in used.items():
        tensor = plan.tensors[storage]
        if tensor.is_constant:
            regions[storage] = Region(CONSTANTS, position, size)
            position = align(position + size, alignment)
        elif tensor.host is not None or storage in results:
            (outputs if storage in results else inputs).append(storage)
            regions[storage] = Region(storage, 0, size)
            sizes[storage] = size
        else:
            scratch.append(Lifetime(storage, size, *lifetimes[storage]))
    offsets, total = place(scratch, alignment)
    for item in scratch:
        regions[item.name] = Region(ARENA, offsets[item.name], item.nbytes)
    sizes |= {name: size for name, size in ((ARENA, total), (CONSTANTS, position)) if size}
    views = {
        t.name: Region(regions[t.memory].buffer, regions[t.memory].offset, t.layout.nbytes)
        for t in plan.tensors.values()
        if t.memory in regions
    }
    return Arrangement(views, sizes, tuple(inputs), tuple(outputs), _dependences(plan, views))


def _lifetimes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return first and last pass of every storage that any pass touches."""
    spans: dict[str, tuple[int, int]] = {}
    for i, one in enumerate(plan.passes):
        for name in one.tensors.values():
            storage = plan.tensors[name].memory
            spans[storage] = (spans.get(storage, (i, i))[0], i)
    return spans


def _dependences(plan: Plan, regions: Mapping[str, Region]) -> tuple[bool, ...]:
    """Find passes that touch bytes written, or write bytes read, since the last barrier."""
    reads: list[Region] = []
    writes: list[Region] = []
    found = []
    for one in plan.passes:
        out = regions[one.output]
        ins = [regions[name] for name in one.tensors.values() if name != one.output]
        clash = any(r.overlaps(w) for w in writes for r in (*ins, out))
        clash = clash or any(out.overlaps(r) for r in reads)
        if clash:
            reads, writes = [], []
        reads += ins
        writes.append(out)
        found.append(clash)
    return tuple(found)
