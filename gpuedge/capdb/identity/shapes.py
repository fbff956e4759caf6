"""What regular expressions of names are made of, read so that their cost can be counted.

Allowed: characters, ``.``, ``[...]``, the classes ``d w s`` and their opposites, ``^ $`` and word
bounds, groups and alternatives, looking round at something of fixed length, and ``? * + {m,n}``
after a single character or set; a group may carry ``?``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

Set: TypeAlias = frozenset[str]
"""Characters in lower case; `OTHER` stands for all that are not ASCII."""

OTHER: Final = "\x80"
EVERY: Final[Set] = frozenset(map(chr, range(128))) - frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ") | {
    OTHER
}
MAX_TIMES: Final = 300
MAX_DEPTH: Final = 8

NOT_ALLOWED: Final = "uses what patterns of names may not"

_QUANTITY = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}")
_OPEN = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
_LOOK = re.compile(r"\(\?<?[=!]")
_ODD = ("--", "&&", "||", "~~")
"""What may be an operation in sets of later versions of Python, which warn of it."""


@dataclass(frozen=True, slots=True)
class Look:
    """Something of no width, which takes `size` steps to look at."""

    size: int = 1


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A group: its branches, each a sequence of items."""

    branches: tuple[tuple[Item, ...], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item that may come again; `most` is None where there is no end."""

    item: Set | Alternatives
    least: int
    most: int | None


Item: TypeAlias = Set | Look | Alternatives | Repeat


def parsed(pattern: str) -> Alternatives:
    """Read a pattern. Raises ValueError for what is not allowed.

    Whether Python can compile what is read is not checked: it may warn of what is refused here.
    """
    reader = _Reader(pattern)
    try:
        found = reader.alternatives()
    except IndexError:
        raise ValueError("ends too early: unterminated") from None
    if reader.at < len(pattern):
        raise ValueError(NOT_ALLOWED)
    return found


def _classes() -> dict[str, Set]:
    digits = frozenset("0123456789")
    words = digits | frozenset("abcdefghijklmnopqrstuvwxyz_")
    found = {"d": digits, "w": words, "s": frozenset(" \t\n\r\f\v\x1c\x1d\x1e\x1f")}
    return {
        **{name: members | {OTHER} for name, members in found.items()},
        **{name.upper(): EVERY - members for name, members in found.items()},
    }


_CLASSES: Final = _classes()


def _member(character: str) -> Set:
    """Return a character as a set; some letters have their like beyond ASCII."""
    lower = character.lower()
    if len(lower) != 1 or lower >= OTHER:
        return frozenset({OTHER, "i", "k", "s"})
    return frozenset({lower, OTHER}) if lower in "iks" else frozenset({lower})


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._depth = 0

    def alternatives(self) -> Alternatives:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(NOT_ALLOWED)
        branches: list[list[Item]] = [[]]
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "|":
                self.at += 1
                branches.append([])
            else:
                branches[-1] += self._quantified(self._item())
        self._depth -= 1
        return Alternatives(tuple(map(tuple, branches)))

    def _item(self) -> Item:
        character = self.text[self.at]
        if character == "(":
            return self._group()
        self.at += 1
        if character in "^$":
            return Look()
        if character == ".":
            return EVERY - {"\n"}
        if character == "[":
            return self._set()
        if character == "\\":
            return self._escape()
        if character in "*+?{}":
            raise ValueError(NOT_ALLOWED)
        return _member(character)

    def _group(self) -> Item:
        looking = _LOOK.match(self.text, self.at)
        opening = looking or _OPEN.match(self.text, self.at)
        if opening is None:
            refers = self.text.startswith("(?P=", self.at)
            raise ValueError("refers to what it found before" if refers else NOT_ALLOWED)
        self.at = opening.end()
        inner = self.alternatives()
        if self.at == len(self.text):
            raise ValueError("has an unterminated group")
        self.at += 1
        if looking is None:
            return inner
        items = [item for branch in inner.branches for item in branch]
        if not all(isinstance(item, (frozenset, Look)) for item in items):
            raise ValueError("looks round at something that is no fixed text")
        return Look(1 + len(items))

    def _escape(self) -> Set | Look:
        character = self.text[self.at]
        self.at += 1
        if character in _CLASSES:
            return _CLASSES[character]
        if character in "bB":
            return Look()
        if character.isdigit():
            raise ValueError("refers to what it found before")
        if character.isalnum():
            raise ValueError(NOT_ALLOWED)
        return _member(character)

    def _set(self) -> Set:
        is_negated = self.text[self.at] == "^"
        self.at += is_negated
        start = self.at
        found: Set = frozenset()
        while self.text[self.at] != "]" or self.at == start:
            if self.text[self.at] in "[]" or self.text.startswith(_ODD, self.at):
                raise ValueError(NOT_ALLOWED)
            found |= self._range(self._one())
        self.at += 1
        return EVERY - (found - {OTHER}) if is_negated else found

    def _one(self) -> Set:
        character = self.text[self.at]
        self.at += 1
        if character != "\\":
            return _member(character)
        found = self._escape()
        if not isinstance(found, frozenset):
            raise ValueError(NOT_ALLOWED)
        return found

    def _range(self, first: Set) -> Set:
        if self.text[self.at] != "-" or self.text[self.at + 1] == "]":
            return first
        if self.text.startswith(_ODD, self.at):
            raise ValueError(NOT_ALLOWED)
        low = self.text[self.at - 1]
        self.at += 1
        self._one()
        high = self.text[self.at - 1]
        if max(low, high) >= OTHER:
            raise ValueError(NOT_ALLOWED)
        members = map(_member, map(chr, range(ord(low), ord(high) + 1)))
        return frozenset().union(*members)

    def _quantified(self, item: Item) -> list[Item]:
        least, most = self._quantity()
        if (least, most) == (1, 1):
            return [item]
        if isinstance(item, Look) or (isinstance(item, Alternatives) and most != 1):
            raise ValueError("repeats a group")
        if isinstance(item, Repeat):
            raise ValueError(NOT_ALLOWED)
        if least == most and isinstance(item, frozenset):
            return [item] * least
        return [Repeat(item, least, most)]

    def _quantity(self) -> tuple[int, int | None]:
        """Read how often an item comes."""
        character = self.text[self.at : self.at + 1]
        told = _QUANTITY.match(self.text, self.at)
        most: int | None
        if character and character in "?*+":
            least, most = int(character == "+"), 1 if character == "?" else None
            self.at += 1
        elif told is not None and (told[1] or told[3]):
            least = int(told[1] or 0)
            most = int(told[3]) if told[3] else None if told[2] else least
            self.at = told.end()
            if max(least, most or 0) > MAX_TIMES:
                raise ValueError(f"repeats more than {MAX_TIMES} times")
        else:
            return 1, 1
        if self.text.startswith("?", self.at):  # the fewest first: as many ways
            self.at += 1
        return least, most
