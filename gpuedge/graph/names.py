"""How names from a model are written in messages: they may be a megabyte, or steer a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

MOST = 80
"""Characters of a name that a message shows."""

MOST_LISTED = 16
"""Names that a message lists."""


def shown(name: str, most: int = MOST) -> str:
    """Return a name in quotes: what does not print is escaped, the middle of a long one left out.

    >>> shown("conv1")
    "'conv1'"
    """
    half = most // 2
    clipped = name if len(name) <= most else f"{name[:half]}...{name[-half:]}"
    text = "".join(c if c.isprintable() else _escaped(c) for c in clipped)
    return f"'{text}'"


def listed(names: Iterable[str]) -> str:
    """Return the first names of a model's inputs, for a message."""
    first = [shown(name)[1:-1] for name in islice(names, MOST_LISTED + 1)]
    return "inputs: " + ", ".join([*first[:MOST_LISTED], "..."][: len(first)])


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
