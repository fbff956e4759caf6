"""Place tensors in memory by their lifetimes: in one arena, or in objects that take turns.

An arena is filled by "greedy by size for offset calculation" of Pisarchyk and Lee, *Efficient
Memory Management for Deep Neural Net Inference* (2020, arXiv:2001.03288), section 5.2, and where
that leaves gaps by size times lifetime, too. Objects (textures) hold one tensor at a time; they are
shared as in section 4, in three orders. The best of what was tried is taken.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor's size in bytes and the first and last pass that touch it."""

    name: str
    nbytes: int
    first: int
    last: int


def place(tensors: Iterable[Lifetime], alignment: int) -> tuple[dict[str, int], int]:
    """Return offsets by name, and the arena's size in bytes.

    Offsets are multiples of `alignment`; tensors whose lifetimes overlap never share a byte.
    """
    known = _by_size(tensors)
    placed = _placed(known, alignment)
    if placed[1] <= align(most_alive(known), alignment):
        return placed
    lasting = sorted(known, key=lambda t: -t.nbytes * (t.last - t.first + 1))
    return min(placed, _placed(lasting, alignment), key=lambda option: option[1])


def _placed(order: Sequence[Lifetime], alignment: int) -> tuple[dict[str, int], int]:
    """Give each tensor, in this order, the lowest gap among those it meets."""
    passes = 1 + max((t.last for t in order), default=0)
    begun: list[list[tuple[int, int]]] = [[] for _ in range(passes)]  # offsets and sizes
    alive: list[list[tuple[int, int]]] = [[] for _ in range(passes)]  # with what began before
    offsets: dict[str, int] = {}
    end = 0
    for tensor in order:
        later = range(tensor.first + 1, tensor.last + 1)
        rivals = sorted(chain(alive[tensor.first], *(begun[i] for i in later)))
        position = 0
        for offset, nbytes in rivals:
            if position + tensor.nbytes <= offset:
                break
            position = max(position, align(offset + nbytes, alignment))
        offsets[tensor.name] = position
        taken = (position, tensor.nbytes)
        begun[tensor.first].append(taken)
        for i in range(tensor.first, tensor.last + 1):
            alive[i].append(taken)
        end = max(end, position + tensor.nbytes)
    return offsets, align(end, alignment)


def share(tensors: Iterable[Lifetime]) -> tuple[dict[str, int], list[int]]:
    """Return the number of each tensor's object by name, and the objects' sizes in bytes.

    Tensors whose lifetimes overlap never share an object. An object holds any tensor that is not
    larger than it.
    """
    known = _by_size(tensors)
    assigned = _assigned(known)
    if sum(assigned[1]) <= most_alive(known):
        return assigned
    others = sorted(known, key=lambda t: t.first), sorted(known, key=lambda t: -t.last)
    return min(assigned, *map(_assigned, others), key=lambda option: sum(option[1]))


def most_alive(tensors: Iterable[Lifetime]) -> int:
    """Return the largest sum of sizes of tensors that are needed at the same time, in bytes."""
    changes: dict[int, int] = {}
    for tensor in tensors:
        changes[tensor.first] = changes.get(tensor.first, 0) + tensor.nbytes
        changes[tensor.last + 1] = changes.get(tensor.last + 1, 0) - tensor.nbytes
    most = now = 0
    for at in sorted(changes):
        now += changes[at]
        most = max(most, now)
    return most


def align(value: int, alignment: int) -> int:
    """Round `value` up to a multiple of `alignment`."""
    return -(-value // alignment) * alignment


def _by_size(tensors: Iterable[Lifetime]) -> list[Lifetime]:
    return sorted(tensors, key=lambda t: (-t.nbytes, t.first, t.name))


@dataclass(slots=True)
class _Object:
    """Memory that holds one tensor at a time; `busy` are the first and last passes of each."""

    nbytes: int = 0
    busy: list[tuple[int, int]] = field(default_factory=list)

    def idle(self, tensor: Lifetime) -> int | None:
        """Return the least number of passes before or after `tensor`; None where it is busy."""
        at = bisect_left(self.busy, (tensor.first, tensor.last))
        before = tensor.first - self.busy[at - 1][1] if at else tensor.last
        after = self.busy[at][0] - tensor.last if at < len(self.busy) else tensor.last
        return min(before, after) if before > 0 and after > 0 else None


def _assigned(order: Sequence[Lifetime]) -> tuple[dict[str, int], list[int]]:
    """Give each tensor, in this order, the free object that grows least and was idle shortest."""
    objects: list[_Object] = []
    homes: dict[str, int] = {}
    for tensor in order:
        best: tuple[int, int, int, int] | None = None
        for number, shared in enumerate(objects):
            idle = shared.idle(tensor)
            if idle is not None:
                waste = shared.nbytes - tensor.nbytes
                key = (max(-waste, 0), idle, waste, number)
                best = key if best is None else min(best, key)
        if best is None:
            objects.append(_Object())
        home = len(objects) - 1 if best is None else best[3]
        shared = objects[home]
        shared.nbytes = max(shared.nbytes, tensor.nbytes)
        insort(shared.busy, (tensor.first, tensor.last))
        homes[tensor.name] = home
    return homes, [shared.nbytes for shared in objects]
