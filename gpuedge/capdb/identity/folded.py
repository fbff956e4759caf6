"""Names of devices without their spelling, and conditions on them: equal, begins with, contains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_NAME: Final = 300
"""Characters of a name that are looked at; Vulkan's names have at most 255."""

MARKS: Final = re.compile(r"\((?:r|tm|c)\)", re.IGNORECASE)
"""Trade marks."""

_BETWEEN = re.compile(r"[^a-z0-9]+")


def folded(name: str) -> str:
    """Return a name as names are compared: words and numbers with single spaces between them.

    >>> folded("Mali-G52 MC2"), folded("adreno_(tm)_505")
    ('mali g52 mc2', 'adreno 505')
    """
    return _BETWEEN.sub(" ", MARKS.sub(" ", name[:MAX_NAME]).casefold()).strip()


@dataclass(frozen=True, slots=True)
class NameMatch:
    """Conditions on a folded name. Those that are given must all hold.

    It is one of `exact`, begins with one of `prefix`, has one of `contains` and all of
    `contains_all` somewhere in it, and one of `words` as whole words.
    """

    exact: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    contains_all: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> NameMatch:
        """Read the conditions in a record. Raises ValueError or TypeError for anything else."""
        if not record:
            raise ValueError("it asks for nothing")
        for name, texts in record.items():
            if not isinstance(texts, list) or not texts:
                raise ValueError(f"{name} must be a list of texts")
            if not all(
                isinstance(t, str) and t.strip() and t.strip(" ") == folded(t) for t in texts
            ):
                raise ValueError(f"{name} must hold lower-case words and numbers, single-spaced")
        return cls(**{name: tuple(texts) for name, texts in record.items()})

    def holds(self, name: str) -> bool:
        """Say whether a folded name is one of these."""
        return (
            (not self.exact or name in self.exact)
            and (not self.prefix or name.startswith(self.prefix))
            and (not self.contains or any(text in name for text in self.contains))
            and all(text in name for text in self.contains_all)
            and (not self.words or any(f" {word} " in f" {name} " for word in self.words))
        )
