"""Place tensors in one arena: greedy by size over lifetimes.

The rule is the "greedy by size for offset calculation" of Pisarchyk and Lee, *Efficient Memory
Management for Deep Neural Net Inference* (2020, arXiv:2001.03288), section 5.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
    placed: list[tuple[int, Lifetime]] = []
    offsets: dict[str, int] = {}
    end = 0
    for tensor in sorted(tensors, key=lambda t: (-t.nbytes, t.first, t.name)):
        rivals = sorted(
            (offset, other.nbytes)
            for offset, other in placed
            if other.first <= tensor.last and tensor.first <= other.last
        )
        position = 0
        for offset, nbytes in rivals:
            if position + tensor.nbytes <= offset:
                break
            position = max(position, align(offset + nbytes, alignment))
        offsets[tensor.name] = position
        placed.append((position, tensor))
        end = max(end, position + tensor.nbytes)
    return offsets, align(end, alignment)


def align(value: int, alignment: int) -> int:
    """Round `value` up to a multiple of `alignment`."""
    return -(-value // alignment) * alignment
