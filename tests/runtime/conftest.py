"""What tests of the runtime share: gates, and sessions that take devices of a faulty pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from faulty import FaultyPool, Gate


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is open when the test ends."""
    made = Gate()
    yield made
    made.open.set()


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FaultyPool], FaultyPool]]:
    """Have the sessions of a test take devices of a pool, and close that at the end."""
    pools: list[FaultyPool] = []

    def taken(pool: FaultyPool) -> FaultyPool:
        pool.serve(monkeypatch)
        pools.append(pool)
        return pool

    yield taken
    for pool in pools:
        pool.close()
