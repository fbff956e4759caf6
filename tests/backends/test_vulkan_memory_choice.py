"""Choosing and dividing memory: pure, against tables in the shape of real devices'."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuedge.backends.base import Usage
from gpuedge.backends.vulkan.memory import (
    DOWNLOAD,
    UPLOAD,
    Choice,
    FreeList,
    align_up,
    choose_memory,
    choose_staging,
)
from gpuedge.backends.vulkan.physical import MemoryHeap, MemoryType

GIB = 1 << 30
DEVICE, VISIBLE, COHERENT, CACHED, LAZY, PROTECTED = 1, 2, 4, 8, 16, 32
ALL = 0xFFFFFFFF


def types(*rows: tuple[int, int]) -> list[MemoryType]:
    return [MemoryType(*row) for row in rows]


RASTERISER = (types((0xF, 0)), [MemoryHeap(2 * GIB, 1)])
"""lavapipe and SwiftShader, as recorded."""
MOCK = (
    types((6, 0), (10, 0), (15, 1), (17, 1), (33, 1), (1, 1)),
    [MemoryHeap(8 * 10**9, 2), MemoryHeap(8 * 10**9, 1)],
)
"""The mock driver, as recorded."""
CARD = (
    types((0, 1), (1, 0), (6, 1), (14, 1), (7, 2)),
    [MemoryHeap(12 * GIB, 1), MemoryHeap(24 * GIB, 0), MemoryHeap(246 << 20, 1)],
)
"""A card with a small window into its memory."""
MAPPED_CARD = (types((0, 1), (1, 0), (6, 1), (14, 1), (7, 0)), CARD[1][:2])
"""A card whose memory is all visible (resizable BAR), uncached."""
PHONE = (
    types((7, 0), (15, 0), (11, 0), (DEVICE | LAZY, 0), (DEVICE | PROTECTED, 0)),
    [MemoryHeap(8 * GIB, 1)],
)
"""A phone's GPU: uncached, cached and coherent, cached only."""
OLD_PHONE = (types((1, 0), (7, 0), (11, 0)), [MemoryHeap(4 * GIB, 1)])
"""No type both cached and coherent."""
UNCACHED_BOARD = (types((7, 0)), [MemoryHeap(2 * GIB, 1)])
"""A board whose only memory is uncached."""
LAPTOP = (types((1, 0), (7, 0), (15, 0)), [MemoryHeap(16 * GIB, 1)])
"""An integrated GPU with a choice of cached and uncached."""
CONSTANT, INPUT, OUTPUT, SCRATCH = Usage


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            RASTERISER,
            {CONSTANT: (0, False), INPUT: (0, False), OUTPUT: (0, False), SCRATCH: (0, False)},
        ),
        (MOCK, {CONSTANT: (2, False), INPUT: (2, False), OUTPUT: (2, False), SCRATCH: (5, False)}),
        (CARD, {CONSTANT: (1, True), INPUT: (1, True), OUTPUT: (1, True), SCRATCH: (1, False)}),
        (
            MAPPED_CARD,
            {CONSTANT: (4, False), INPUT: (4, False), OUTPUT: (1, True), SCRATCH: (1, False)},
        ),
        (PHONE, {CONSTANT: (0, False), INPUT: (0, False), OUTPUT: (1, False), SCRATCH: (0, False)}),
        (
            OLD_PHONE,
            {CONSTANT: (1, False), INPUT: (1, False), OUTPUT: (2, False), SCRATCH: (0, False)},
        ),
        (UNCACHED_BOARD, dict.fromkeys(Usage, (0, False))),
        (
            LAPTOP,
            {CONSTANT: (1, False), INPUT: (1, False), OUTPUT: (2, False), SCRATCH: (0, False)},
        ),
    ],
    ids=["rasteriser", "mock", "card", "mapped", "phone", "old_phone", "uncached", "laptop"],
)
def test_choice(
    table: tuple[list[MemoryType], list[MemoryHeap]], expected: dict[Usage, tuple[int, bool]]
) -> None:
    assert {u: tuple(choose_memory(*table, u, allowed=ALL)) for u in Usage} == expected


def test_allowed_types_are_obeyed() -> None:
    assert choose_memory(*PHONE, OUTPUT, allowed=0b101) == Choice(2, False)
    assert choose_memory(*LAPTOP, INPUT, allowed=0b001) == Choice(0, True)
    assert choose_memory(*PHONE, SCRATCH, allowed=0b1000) == Choice(3, False)


def test_staging_can_be_forced() -> None:
    for table in (RASTERISER, MOCK, CARD, PHONE, LAPTOP):
        for usage in (CONSTANT, INPUT, OUTPUT):
            assert choose_memory(*table, usage, allowed=ALL, staging=True).needs_staging
        assert not choose_memory(*table, SCRATCH, allowed=ALL, staging=True).needs_staging


@pytest.mark.parametrize(
    ("table", "up", "down"),
    [
        (RASTERISER, 0, 0),
        (MOCK, 0, 2),
        (CARD, 2, 3),
        (MAPPED_CARD, 2, 3),
        (PHONE, 0, 1),
        (OLD_PHONE, 1, 2),
        (UNCACHED_BOARD, 0, 0),
    ],
)
def test_staging_type(table: tuple[list[MemoryType], list[MemoryHeap]], up: int, down: int) -> None:
    assert choose_staging(table[0], UPLOAD, ALL) == up
    assert choose_staging(table[0], DOWNLOAD, ALL) == down


@given(
    rows=st.lists(st.tuples(st.integers(0, 63), st.integers(0, 2)), min_size=1, max_size=8),
    flags=st.lists(st.integers(0, 1), min_size=3, max_size=3),
    usage=st.sampled_from(Usage),
    staging=st.booleans(),
    data=st.data(),
)
def test_any_table_gives_an_allowed_type_that_works(
    rows: list[tuple[int, int]],
    flags: list[int],
    usage: Usage,
    staging: bool,
    data: st.DataObject,
) -> None:
    table = types(*rows)
    heaps = [MemoryHeap((i + 1) * GIB, flag) for i, flag in enumerate(flags)]
    allowed = data.draw(st.integers(1, (1 << len(table)) - 1))
    chosen = choose_memory(table, heaps, usage, allowed=allowed, staging=staging)
    assert allowed >> chosen.type_index & 1
    if usage is not SCRATCH and not chosen.needs_staging:
        assert table[chosen.type_index].flags & VISIBLE


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_align_up(value: int, alignment: int) -> None:
    result = align_up(value, alignment)
    assert result % alignment == 0
    assert 0 <= result - value < alignment


class Division(RuleBasedStateMachine):
    """A free list against a plain list of what is taken."""

    SIZE = 4096

    def __init__(self) -> None:
        super().__init__()
        self.free = FreeList(self.SIZE)
        self.taken: list[tuple[int, int]] = []

    @rule(nbytes=st.integers(1, 700), power=st.integers(0, 8))
    def take(self, nbytes: int, power: int) -> None:
        """Take bytes; refusing is right only if no gap could hold them."""
        offset = self.free.take(nbytes, 1 << power)
        if offset is None:
            edges = [0, *(end for _, end in sorted(self.taken))]
            starts = [*(start for start, _ in sorted(self.taken)), self.SIZE]
            gaps = zip(edges, starts, strict=True)
            assert all(align_up(a, 1 << power) + nbytes > b for a, b in gaps)
            return
        assert offset % (1 << power) == 0
        assert 0 <= offset <= self.SIZE - nbytes
        assert all(offset + nbytes <= a or b <= offset for a, b in self.taken)
        self.taken.append((offset, offset + nbytes))

    @rule(pick=st.integers(0, 1 << 20))
    def give(self, pick: int) -> None:
        """Give something back."""
        if self.taken:
            start, end = self.taken.pop(pick % len(self.taken))
            self.free.give(start, end - start)

    @invariant()
    def counts_agree(self) -> None:
        """What is free and what is taken make up the whole."""
        used = sum(end - start for start, end in self.taken)
        assert sum(b - a for a, b in self.free._holes) == self.SIZE - used
        assert self.free.is_empty is not bool(self.taken)

    def teardown(self) -> None:
        """Everything given back is one hole again."""
        for start, end in self.taken:
            self.free.give(start, end - start)
        assert self.free.take(self.SIZE, 1) == 0


TestDivision = Division.TestCase
TestDivision.settings = settings(max_examples=30)
