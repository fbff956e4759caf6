"""Patterns of names: a small anchored subset of regular expressions, matched in linear time.

Regular expressions of Python go back and try again, which a pattern from a file can make take for
ever. These cannot: a pattern becomes a set of positions that is advanced once per character
(Glushkov's construction), whatever the pattern and whatever the name.

Allowed between ``^`` and ``$``: characters, ``.``, ``[...]``, escaped punctuation, one level of
``(a|b)``, and ``? * +`` after a single item; a group may carry ``?``. Case does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

MAX_PATTERN = 200
"""Characters of a pattern."""

MAX_TEXT = 300
"""Characters of a name that are looked at; a longer name matches nothing."""

MAX_STATES = 4096
"""Steps that a pattern remembers before it forgets them all."""

_SPECIAL = set("^$\\.[]()?*+|{}")


@dataclass(frozen=True, slots=True)
class _Atom:
    """One character of the text: any of `members`, or any but those."""

    members: frozenset[str]
    is_negated: bool
    repeat: str = ""

    def takes(self, character: str) -> bool:
        return (character in self.members) is not self.is_negated


@dataclass(frozen=True, slots=True)
class _Group:
    """Alternatives, each a sequence of atoms; `repeat` is empty or ``?``."""

    branches: tuple[tuple[_Atom, ...], ...]
    repeat: str = ""


class _Reader:
    """Reads the text between the anchors. Raises ValueError for what is not allowed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> tuple[_Atom | _Group, ...]:
        items: list[_Atom | _Group] = []
        while self._at < len(self._text):
            items.append(self._group() if self._peek() == "(" else self._atom())
        _refuse_adjacent(items)
        return tuple(items)

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _next(self) -> str:
        character = self._peek()
        self._at += 1
        return character

    def _group(self) -> _Group:
        self._at += 1
        branches: list[list[_Atom]] = [[]]
        while (character := self._peek()) != ")":
            if not character:
                raise ValueError("a group is not closed")
            if character == "(":
                raise ValueError("groups may not be nested")
            if character == "|":
                self._at += 1
                branches.append([])
            else:
                branches[-1].append(self._atom())
        self._at += 1
        for branch in branches:
            _refuse_adjacent(branch)
        if not all(branches):
            raise ValueError("an alternative is empty")
        repeat = self._repeat()
        if repeat in {"*", "+"}:
            raise ValueError("a group may not be repeated")
        return _Group(tuple(tuple(branch) for branch in branches), repeat)

    def _atom(self) -> _Atom:
        character = self._next()
        if character == ".":
            return _Atom(frozenset(), True, self._repeat())
        if character == "[":
            members, is_negated = self._members()
            return _Atom(members, is_negated, self._repeat())
        if character == "\\":
            character = self._escaped()
        elif character in _SPECIAL:
            raise ValueError(f"{character!r} has nothing to do there; escape it")
        return _Atom(frozenset(character.lower()[:1]), False, self._repeat())

    def _escaped(self) -> str:
        character = self._next()
        if not character or character.isalnum() or not character.isprintable():
            raise ValueError("only punctuation may be escaped")
        return character

    def _repeat(self) -> str:
        if self._peek() not in {"?", "*", "+"}:
            return ""
        repeat = self._next()
        if self._peek() in {"?", "*", "+"}:
            raise ValueError("a repeat may not be repeated")
        return repeat

    def _members(self) -> tuple[frozenset[str], bool]:
        is_negated = self._peek() == "^"
        self._at += is_negated
        members: set[str] = set()
        while (character := self._next()) != "]":
            if not character:
                raise ValueError("a set [...] is not closed")
            if character == "[":
                raise ValueError("'[' inside a set must be escaped")
            first = self._escaped() if character == "\\" else character
            members |= self._range(first)
        if not members:
            raise ValueError("a set [...] is empty")
        return frozenset(members), is_negated

    def _range(self, first: str) -> set[str]:
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in {"]", ""}:
            return {first.lower()[:1]}
        self._at += 1
        last = self._next()
        last = self._escaped() if last == "\\" else last
        if not (first.isascii() and last.isascii() and ord(first) <= ord(last)):
            raise ValueError(f"the range {first}-{last} runs backwards or beyond ASCII")
        return {chr(code).lower() for code in range(ord(first), ord(last) + 1)}


def _refuse_adjacent(items: list[_Atom | _Group] | list[_Atom]) -> None:
    for one, other in pairwise(items):
        if {one.repeat, other.repeat} <= {"*", "+"}:
            raise ValueError("two repeats stand beside each other")


class Pattern:
    """A pattern that was read; see `compile`.

    Attributes
    ----------
    text : str
        As it was given.
    prefix : str
        What every name that matches begins with, in lower case.
    """

    def __init__(self, text: str) -> None:
        if not (len(text) >= 3 and text[0] == "^" and text[-1] == "$") or text.endswith("\\$"):
            raise ValueError("it is not anchored by ^ and $")
        if len(text) > MAX_PATTERN:
            raise ValueError(f"it is longer than {MAX_PATTERN} characters")
        if not text.isprintable():
            raise ValueError("it holds what does not print")
        self.text = text
        items = _Reader(text[1:-1]).read()
        self.prefix = _prefix(items)
        self._atoms: list[_Atom] = []
        self._follow: dict[int, set[int]] = {}
        self._build(items)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def _build(self, items: tuple[_Atom | _Group, ...]) -> None:
        # The positions that the next item may follow; -1 is the start of the text.
        ends = {-1}
        for item in items:
            branches = item.branches if isinstance(item, _Group) else ((item,),)
            after = set(ends) if isinstance(item, _Group) and item.repeat else set()
            for branch in branches:
                inner = set(ends)
                for atom in branch:
                    inner = self._place(atom, inner)
                after |= inner
            ends = after
        self._accepting = frozenset(ends)

    def _place(self, atom: _Atom, ends: set[int]) -> set[int]:
        position = len(self._atoms)
        self._atoms.append(atom)
        for end in ends:
            self._follow.setdefault(end, set()).add(position)
        if atom.repeat in {"*", "+"}:
            self._follow.setdefault(position, set()).add(position)
        return {position} | (ends if atom.repeat in {"?", "*"} else set())

    def matches(self, text: str) -> bool:
        """Say whether the whole of `text` matches, whatever its case."""
        text = text.lower()
        if len(text) > MAX_TEXT or not text.startswith(self.prefix):
            return False
        steps = self._steps
        state = frozenset((-1,))
        for character in text:
            key = (state, character)
            found = steps.get(key)
            state = self._step(key) if found is None else found
            if not state:
                return False
        return not state.isdisjoint(self._accepting)

    def _step(self, key: tuple[frozenset[int], str]) -> frozenset[int]:
        state, character = key
        reached = {p for at in state for p in self._follow.get(at, ())}
        after = frozenset(p for p in reached if self._atoms[p].takes(character))
        if len(self._steps) >= MAX_STATES:
            self._steps.clear()
        self._steps[key] = after
        return after


def _prefix(items: tuple[_Atom | _Group, ...]) -> str:
    start = ""
    for item in items:
        if isinstance(item, _Group) or item.is_negated or item.repeat or len(item.members) > 1:
            break
        start += next(iter(item.members))
    return start


@lru_cache(maxsize=4096)
def compile(text: str) -> Pattern:
    """Read a pattern.

    Raises
    ------
    ValueError
        It is outside the subset; the message says why.
    """
    return Pattern(text)


def check(text: str) -> str | None:
    """Return why a pattern cannot be used, or None.

    >>> check("^adreno.*$")
    >>> check("adreno.*")
    'it is not anchored by ^ and $'
    """
    try:
        Pattern(text)
    except ValueError as error:
        return str(error)
    return None
