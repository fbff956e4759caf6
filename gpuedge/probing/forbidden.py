"""Whether what a row says of restrictions can be meant so: rows come from disk and from children.

Imported only where a row has restrictions, which most have not. Plain data, nothing of
`gpuedge.capdb`: a cached probe does not import that.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LIMITS = frozenset(
    {
        "max_invocations", "max_shared_bytes", "max_storage_buffers", "max_storage_buffer_bytes",
        "max_allocation_bytes", "max_push_bytes", "max_texture_size", "max_outputs",
    }
)  # fmt: skip
"""Fields of `Caps` that an entry can bound."""

MOST_WORDS, MOST_LETTERS = 1024, 200
MOST = 1 << 64

_LISTS = ("levels", "features", "kernels", "storages", "entries")
_FLAGS = ("is_backend_off", "is_demoted")


def is_sound(record: Mapping[str, Any]) -> bool:
    """Say whether a record has the fields of `Restrictions.to_dict`, each of its kind.

    >>> is_sound({}), is_sound({"limits": {"max_push_bytes": -1}})
    (True, False)
    """
    if not record:
        return True
    if set(record) != {*_LISTS, *_FLAGS, "limits"}:
        return False
    lists = all(are_words(record[name]) for name in _LISTS)
    flags = all(isinstance(record[name], bool) for name in _FLAGS)
    return lists and flags and bool(record["entries"]) and _are_limits(record["limits"])


def are_words(value: object) -> bool:
    """Say whether a value is a list of words of bounded length, such as ids of entries."""
    if not isinstance(value, list) or len(value) > MOST_WORDS:
        return False
    return all(isinstance(word, str) and 0 < len(word) <= MOST_LETTERS for word in value)


def _are_limits(value: object) -> bool:
    if not isinstance(value, dict) or not value.keys() <= LIMITS:
        return False
    return all(type(most) is int and 0 < most <= MOST for most in value.values())


def is_day(text: object) -> bool:
    """Say whether a text is an ISO date, or empty.

    >>> is_day(""), is_day("2027-11-21"), is_day("soon")
    (True, True, False)
    """
    if not isinstance(text, str) or not text:
        return text == ""
    parts = text.split("-")
    digits = all(part.isascii() and part.isdigit() for part in parts)
    return digits and [len(part) for part in parts] == [4, 2, 2]
