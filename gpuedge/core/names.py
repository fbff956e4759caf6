"""How names from a model are written in messages: they may be a megabyte, or steer a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from gpuedge.core.text import MOST, plain

MOST_LISTED = 16
"""Names that a message lists."""


def shown(name: str, most: int = MOST) -> str:
    """Return a name in quotes: what does not print is escaped, the middle of a long one left out.

    >>> shown("conv1")
    "'conv1'"
    """
    return f"'{plain(name, most)}'"


def listed(names: Iterable[str]) -> str:
    """Return the first names of a model's inputs, for a message."""
    first = [shown(name)[1:-1] for name in islice(names, MOST_LISTED + 1)]
    return "inputs: " + ", ".join([*first[:MOST_LISTED], "..."][: len(first)])
