"""Whether a condition holds wherever another one does; told only where it is certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuedge.capdb.entries import FAMILIES, DeviceIds, DriverMatch, Entry, Match, Range
from gpuedge.capdb.identity.texts import NameMatch
from gpuedge.capdb.restrict import Restrictions

MANY: Final = 1 << 12
"""Ids of a span that are tried one by one."""


def covers(wide: Entry, narrow: Entry) -> bool:
    """Say whether `wide` is certainly true of every device that `narrow` is true of."""
    return all(any(_implies(n, w) for w in wide.match) for n in narrow.match) and all(
        any(_implies(w, n) for n in narrow.exceptions) for w in wide.exceptions
    )


def is_void(entry: Entry) -> bool:
    """Say whether exceptions certainly take back everything that an entry matches."""
    return bool(entry.exceptions) and all(
        any(_implies(match, one) for one in entry.exceptions) for match in entry.match
    )


def _implies(narrow: Match, wide: Match) -> bool:
    for name, wanted in wide.items():
        if name in narrow and _IMPLIES[name](narrow[name], wanted):
            continue
        families = narrow.get("family") if name == "vendor" else None
        if families is None or not {FAMILIES[f] for f in families} <= wanted:
            return False
    return True


def _subset(narrow: frozenset[Any], wide: frozenset[Any]) -> bool:
    return narrow <= wide


def _inside(narrow: Range, wide: Range) -> bool:
    low = wide.low is None or (narrow.low is not None and wide.low <= narrow.low)
    return low and (wide.below is None or (narrow.below is not None and narrow.below <= wide.below))


def _name(narrow: NameMatch, wide: NameMatch) -> bool:
    if narrow == wide:
        return True
    return bool(narrow.exact) and all(wide.holds(name) for name in narrow.exact)


def _ids(narrow: DeviceIds, wide: DeviceIds) -> bool:
    if narrow == wide:
        return True
    sizes = sum(last - first + 1 for first, last in narrow.spans)
    if narrow.masks or sizes > MANY:
        return set(narrow.masks) <= set(wide.masks) and set(narrow.spans) <= set(wide.spans)
    return all(wide.holds(n) for first, last in narrow.spans for n in range(first, last + 1))


def _driver(narrow: DriverMatch, wide: DriverMatch) -> bool:
    if wide.built is not None and (narrow.built is None or not _inside(narrow.built, wide.built)):
        return False
    if not (wide.intervals or wide.builds):
        return True
    if not (narrow.intervals or narrow.builds):
        return False
    is_known = not narrow.intervals or narrow.scheme == wide.scheme
    spans = all(any(_inside(n, w) for w in wide.intervals) for n in narrow.intervals)
    return is_known and spans and narrow.builds <= wide.builds


_IMPLIES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    **dict.fromkeys(
        ("api", "level", "os", "layer", "soc", "brand", "device", "vendor", "driver_id", "family",
         "process_bits"), _subset,
    ),
    **dict.fromkeys(("android_sdk", "security_patch", "model"), _inside),
    "mesa": lambda narrow, wide: narrow is wide,
    "device_ids": _ids,
    "name": _name,
    "driver": _driver,
}  # fmt: skip


def is_as_strong(one: Restrictions, other: Restrictions) -> bool:
    """Say whether an action restricts all that another one does, for the devices of both."""
    if one.is_backend_off and not other.levels:
        return True
    return (
        one.is_backend_off >= other.is_backend_off
        and one.levels >= other.levels
        and one.features >= other.features
        and one.kernels >= other.kernels
        and one.storages >= other.storages
        and one.is_demoted >= other.is_demoted
        and all(one.limits.get(n, most + 1) <= most for n, most in other.limits.items())
    )


def overlap(one: Restrictions, other: Restrictions) -> list[str]:
    """Return what both actions restrict, in words."""
    found = ["the backend"] if one.is_backend_off and other.is_backend_off else []
    for name in ("levels", "features", "kernels", "storages"):
        found += sorted(getattr(one, name) & getattr(other, name))
    return found + sorted(one.limits.keys() & other.limits.keys())
