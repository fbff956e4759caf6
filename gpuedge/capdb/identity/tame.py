"""Regular expressions of the database's tables that cannot search for long.

Tables of names may come with an update, and a pattern such as ``(a+)+b`` would hang whoever matches
it. Python's matcher tries one way after the other; so the ways are counted before a pattern is
compiled, for the worst name of `LENGTH` characters, and a pattern with too many is refused. A
repeat adds ways only where what follows could as well be one more of what is repeated: after
``[^,]*`` a comma leaves no choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import Final

from gpuedge.capdb.identity.shapes import EVERY, Alternatives, Item, Look, Repeat, Set, parsed

MAX_PATTERN: Final = 400
"""Characters of a pattern."""

LENGTH: Final = 300
"""Characters that a pattern is matched with, at most; whoever matches sees to that."""

MAX_STEPS: Final = 300_000
"""Steps that the worst text may cost. One takes up to 30 ns, so a text takes less than 10 ms."""

MAX_TOGETHER: Final = 12_000_000
"""Steps of all patterns of a file; each takes another text for its worst, so that is never met."""


def compile_tame(
    pattern: object, flags: re.RegexFlag, *, is_search: bool = False
) -> re.Pattern[str]:
    """Compile a pattern that passes `wildness`, without regard to case.

    Raises
    ------
    ValueError or re.error
        It cannot be used.
    """
    if not isinstance(pattern, str):
        raise ValueError("its pattern is no text")
    why = wildness(pattern, is_search=is_search)
    if why is not None:
        raise ValueError(f"the pattern {pattern[:MAX_PATTERN]!r} {why}")
    return re.compile(pattern, flags | re.IGNORECASE)


def wildness(pattern: str, *, is_search: bool = False) -> str | None:
    """Return why a pattern might search too long, None if it cannot.

    >>> wildness("(a+)+b")
    'repeats a group'
    """
    if len(pattern) > MAX_PATTERN:
        return f"has more than {MAX_PATTERN} characters"
    try:
        found = steps(pattern, is_search=is_search)
    except ValueError as error:
        return str(error)
    return f"may take {found} steps, more than {MAX_STEPS}" if found > MAX_STEPS else None


def check_together(patterns: Iterable[re.Pattern[str]]) -> None:
    """Refuse patterns of one file that may take too long together. Raises ValueError."""
    if sum(steps(pattern.pattern) for pattern in patterns) > MAX_TOGETHER:
        raise ValueError(f"its patterns may take more than {MAX_TOGETHER} steps together")


@lru_cache(maxsize=1024)
def steps(pattern: str, *, is_search: bool = False) -> int:
    """Return how many steps the worst text of `LENGTH` characters may cost, at most.

    Parameters
    ----------
    pattern : str
        The pattern.
    is_search : bool
        It may begin and end anywhere in a text, instead of being matched with the whole.

    Raises
    ------
    ValueError
        It is outside of what patterns of names may be.
    """
    whole = parsed(pattern)
    is_free = is_search and not pattern.startswith("^")
    count = _Count(opened=1 if is_free else 0)
    return round(_through(whole, EVERY if is_search else END, count).cost)


END: Final[Set] = frozenset({""})
"""What follows a pattern that is matched with a whole text: no character."""


@dataclass(frozen=True, slots=True)
class _Count:
    """Ways to come to a place in a pattern: `ways` times those of `opened` free repeats."""

    ways: float = 1.0
    opened: int = 0
    cost: float = 0.0

    def paid(self, each: float, scans: int = 0) -> _Count:
        """Add `each` step for every way, or that for each of the characters that are scanned."""
        number = self.ways * comb(LENGTH + self.opened + scans, self.opened + scans)
        return replace(self, cost=self.cost + each * number)


def _through(alternatives: Alternatives, after: Set, count: _Count) -> _Count:
    """Count the ways through alternatives, of which only those that look alike are added up."""
    found = [_along(branch, after, replace(count, cost=0.0)) for branch in alternatives.branches]
    ways = max(
        sum(
            other.ways
            for j, other in enumerate(found)
            if i == j or not _exclude(alternatives.branches[i], alternatives.branches[j])
        )
        for i in range(len(found))
    )
    cost = count.paid(len(found)).cost + sum(one.cost for one in found)
    return _Count(ways, max(one.opened for one in found), cost)


def _along(items: tuple[Item, ...], after: Set, count: _Count) -> _Count:
    for i, item in enumerate(items):
        rest = items[i + 1 :]
        follows = _first(rest, after)
        if isinstance(item, Repeat):
            count = _repeated(item, rest, follows, count)
        elif isinstance(item, Alternatives):
            count = _through(item, follows, count)
        else:
            count = count.paid(item.size if isinstance(item, Look) else 1)
    return count


def _repeated(item: Repeat, rest: tuple[Item, ...], follows: Set, count: _Count) -> _Count:
    inner = item.item
    if isinstance(inner, Alternatives):  # at most once: more is refused
        likely = [branch for branch in inner.branches if not _exclude(branch, rest)]
        has_choice = any(_first(branch, follows) & follows for branch in likely)
        through = _through(inner, follows, count)
        ways = through.ways + count.ways if has_choice else max(through.ways, count.ways)
        return replace(through, ways=ways)
    has_choice = bool(inner & follows)
    if item.most is None:
        count = count.paid(1, scans=1)
        return replace(count, opened=count.opened + 1) if has_choice else count
    count = count.paid(item.most + 1)
    options = item.most - item.least + 1
    return replace(count, ways=count.ways * options) if has_choice else count


def _first(items: tuple[Item, ...], after: Set) -> Set:
    """Return the characters that items may begin with; `after` too where all may be empty."""
    found: Set = frozenset()
    for item in items:
        if isinstance(item, frozenset):
            return found | item
        if isinstance(item, Repeat):
            inner = item.item
            found |= inner if isinstance(inner, frozenset) else _first((inner,), frozenset())
        elif isinstance(item, Alternatives):
            for branch in item.branches:
                found |= _first(branch, frozenset())
        if not _is_empty(item):
            return found
    return found | after


def _is_empty(item: Item) -> bool:
    """Say whether an item may match no character."""
    if isinstance(item, Repeat):
        return item.least == 0 or _is_empty(item.item)
    if isinstance(item, Alternatives):
        return any(all(map(_is_empty, branch)) for branch in item.branches)
    return isinstance(item, Look)


def _exclude(one: tuple[Item, ...], other: tuple[Item, ...]) -> bool:
    """Say whether no text can begin as two branches do."""
    return any(not a & b for a, b in zip(_start(one), _start(other), strict=False))


def _start(items: tuple[Item, ...]) -> list[Set]:
    """Return the sets that a branch begins with, as far as its length is fixed."""
    found: list[Set] = []
    for item in items:
        if isinstance(item, frozenset):
            found.append(item)
        elif not isinstance(item, Look):
            break
    return found
