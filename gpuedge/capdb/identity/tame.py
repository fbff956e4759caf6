"""Regular expressions of the database's tables that cannot search for ever.

Tables of names may come with an update, and a pattern such as ``(a+)+b`` would hang whoever matches
it. The names that they are matched with are short, so bounds on the pattern bound the work.
"""

from __future__ import annotations

import re

MAX_PATTERN = 400
"""Characters of a pattern."""

MAX_REPEATS = 5
"""Repeats without an end in one pattern."""

MAX_WILD = 3
"""Of these, repeats of what nearly any character is: the work grows with this power."""

_TOKEN = re.compile(
    r"""
    (?P<back>\\[1-9]|\(\?P=)
  | (?P<wild>\\[wWSDB]|\[\^(?:\\.|[^\]\\])(?:\\.|[^\]\\])*\]|\.)
  | (?P<open>\(\?P<\w+>|\(\?[:=!]|\(\?<[=!]|\((?!\?))
  | (?P<close>\))
  | (?P<repeat>[*+]|\{\d*(?:,\d*)?\})
  | (?P<plain>\\.|\[(?!\^)(?:\\.|[^\]\\])(?:\\.|[^\]\\])*\]|[^\\\[(])
    """,
    re.VERBOSE | re.DOTALL,
)


def compile_tame(pattern: object, flags: re.RegexFlag) -> re.Pattern[str]:
    """Compile a pattern that passes `wildness`. Raises ValueError or re.error for others."""
    if not isinstance(pattern, str):
        raise ValueError("its pattern is no text")
    compiled = re.compile(pattern, flags)
    why = wildness(pattern)
    if why is not None:
        raise ValueError(f"the pattern {pattern[:MAX_PATTERN]!r} {why}")
    return compiled


def wildness(pattern: str) -> str | None:
    """Return why a pattern might search too long, None if it cannot.

    >>> wildness("(a+)+b")
    'repeats a group'
    """
    if len(pattern) > MAX_PATTERN:
        return f"has more than {MAX_PATTERN} characters"
    place, before = 0, ""
    repeats: list[str] = []
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        if token is None or token.lastgroup is None:
            return "uses what patterns of names may not"
        kind, place = token.lastgroup, token.end()
        if kind == "back":
            return "refers to what it found before"
        if kind == "repeat":
            if before == "close":
                return "repeats a group"
            if token[0] in "*+" or token[0].endswith(",}"):
                repeats.append(before)
        before = kind
    if len(repeats) > MAX_REPEATS or repeats.count("wild") > MAX_WILD:
        return f"has more than {MAX_REPEATS} repeats without an end, or {MAX_WILD} of anything"
    return None
