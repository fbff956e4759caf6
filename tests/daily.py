"""Which part of a long test runs today: another one each day; `make test-long` runs all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from datetime import date
from typing import Any

import pytest

SHIFTED = 12
"""Days after which turns are shifted by one: else a test that has its `day` every second day would
take every second turn only."""


def today() -> int:
    """Return the number of the day (`date.toordinal`), or of the one that TESTS_DAY names."""
    return int(os.environ.get("TESTS_DAY") or date.today().toordinal())


def turn(count: int) -> int:
    """Return today's number below `count`: each comes up on one of so many days."""
    return (today() + today() // SHIFTED) % count


def memory(configuration: str) -> str:
    """Return what kernels of a configuration of the driver farm read and write."""
    return "textures" if configuration.startswith(("gles20", "gles30")) else "buffers"


def level(configuration: str) -> str:
    """Return the level of a configuration of the driver farm."""
    return configuration.partition("-")[0]


def of_each(names: Iterable[str], kind: Callable[[str], str]) -> list[str]:
    """Return today's name of each kind."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind(name), []).append(name)
    return [alike[turn(len(alike))] for alike in kinds.values()]


def of_today(configurations: Iterable[str]) -> list[str]:
    """Return today's driver with buffers and the one with textures; slow ones have no turn."""
    from farm import FARM

    return of_each((name for name in configurations if not FARM[name].is_slow), memory)


def mark(is_of_today: bool) -> pytest.MarkDecorator:
    """Return what a test is marked with that has its turn today, or has not."""
    return pytest.mark.in_turn if is_of_today else pytest.mark.long


def day(number: int, *, of: int) -> pytest.MarkDecorator:
    """Return what tests are marked with that run on one of so many days, counted from 0."""
    return mark(today() % of == number)


def some(values: Iterable[Any], days: int = 3) -> list[Any]:
    """Return a test's parameters: each runs on one of so many days, and on each day one does."""
    values = list(values)
    days = min(days, len(values))
    return others_long(values, values[turn(days) :: days])


def others_long(values: Iterable[Any], today: Collection[Any]) -> list[Any]:
    """Return a test's parameters, values or tuples of them: those not of today make it long."""
    rows = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    return [pytest.param(*row, marks=mark(value in today)) for value, row in rows]


def in_turn(configurations: Collection[str]) -> list[Any]:
    """Return a test's parameters: it runs on the drivers `of_today`."""
    return others_long(configurations, of_today(configurations))
