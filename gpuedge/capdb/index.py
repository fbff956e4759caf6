"""Which entries can be about a device at all: sets of entries as the bits of whole numbers.

For each condition the index knows which entries do not ask for it and which ask for a value. What
it leaves out is certainly FALSE; what it leaves in is judged properly. So thousands of entries
about other devices cost a dozen operations together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gpuedge.capdb.entries import Entry
from gpuedge.capdb.fields import FAMILIES
from gpuedge.capdb.matching import is_stranger, soc_names

if TYPE_CHECKING:
    from gpuedge.capdb.identity.subject import Subject

FIELDS: Final = (
    "api", "level", "os", "layer", "soc", "brand", "device", "vendor", "driver_id", "family",
    "device_type",
)  # fmt: skip
"""Conditions that are sets of words or numbers."""

ANDROID: Final = ("android_sdk", "security_patch")
"""Conditions that cannot hold elsewhere."""

_KEPT = 1024
"""Sets that are remembered; a process asks about a handful of devices."""


class Index:
    """An index over entries, which are numbered in the order of the database."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._size: int = made["size"]
        self._free = {name: int(bits, 16) for name, bits in made["free"].items()}
        self._listed: dict[str, dict[str, list[int]]] = made["listed"]
        self._models: list[list[int | None]] = made["models"]
        self._sets: dict[tuple[str, Any], int] = {}

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Index:
        """Build the index of entries."""
        return cls(record(entries))

    def candidates(self, subject: Subject) -> list[int]:
        """Return the numbers of the entries that may be about a device, in order."""
        found = (1 << self._size) - 1
        for bits in self._sieves(subject):
            found &= bits
        return list(_bits(found))

    def _sieves(self, s: Subject) -> Iterator[int]:
        if s.apis is not None:
            yield self._asking("api", s.apis | s.hidden_apis)
        if s.layers is not None:
            yield self._asking("layer", s.layers or ("native",))
        if s.vendor is not None or is_stranger(s):
            yield self._asking("vendor", (s.vendor,))
            makers = [family for family, vendor in FAMILIES.items() if vendor == s.vendor]
            yield self._asking("family", makers if s.family is None else (s.family,))
        elif s.family is not None:
            yield self._asking("family", (s.family,))
        for name in ("level", "os", "driver_id", "device_type"):
            value = getattr(s, name)
            if value is not None:
                yield self._asking(name, (value,))
        is_elsewhere = s.os is not None and s.os != "android"
        for name in ("soc", "brand", "device"):
            text = getattr(s, name)
            if text:
                is_soc = name == "soc"
                yield self._asking(name, soc_names(text) if is_soc else (text.strip().casefold(),))
            elif text is None and is_elsewhere and name != "soc":
                yield self._asking(name, ())
        if is_elsewhere:
            yield from (self._free[n] for n in ANDROID if getattr(s, n) is None)
        if s.model is not None:
            yield self._of_model(s.model)

    def _asking(self, name: str, values: Iterable[Any]) -> int:
        """Return the entries that do not ask for `name`, or ask for one of the values."""
        found = self._free[name]
        for value in values:
            found |= self._set(name, str(value))
        return found

    def _set(self, name: str, value: str) -> int:
        key = (name, value)
        if key not in self._sets:
            self._remember(key, _number(self._listed[name].get(value, ()), self._size))
        return self._sets[key]

    def _of_model(self, model: int) -> int:
        key = ("model", model)
        if key not in self._sets:
            fits = (
                i
                for i, low, below in self._models
                if i is not None and (low is None or low <= model)
                if below is None or model < below
            )
            self._remember(key, self._free["model"] | _number(fits, self._size))
        return self._sets[key]

    def _remember(self, key: tuple[str, Any], bits: int) -> None:
        if len(self._sets) >= _KEPT:
            self._sets.clear()
        self._sets[key] = bits


def _number(positions: Iterable[int], size: int) -> int:
    bits = bytearray(size // 8 + 1)
    for i in positions:
        bits[i >> 3] |= 1 << (i & 7)
    return int.from_bytes(bits, "little")


def _bits(number: int) -> Iterator[int]:
    # Text is searched faster than bits are shifted out of a long number.
    text = f"{number:b}"[::-1]
    at = text.find("1")
    while at >= 0:
        yield at
        at = text.find("1", at + 1)


def record(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the JSON-ready record of the index of entries, which an `Index` is made of."""
    free: dict[str, list[int]] = {name: [] for name in (*FIELDS, *ANDROID, "model")}
    listed: dict[str, dict[str, list[int]]] = {name: {} for name in FIELDS}
    models: list[list[int | None]] = []
    for i, entry in enumerate(entries):
        for name, asking in free.items():
            if any(getattr(match, name) is None for match in entry.match):
                asking.append(i)
        for name, values in listed.items():
            asked = {v for match in entry.match for v in getattr(match, name) or ()}
            for value in sorted(asked, key=str):
                values.setdefault(str(value), []).append(i)
        spans = {match.model for match in entry.match if match.model is not None}
        models += [[i, span.low, span.below] for span in spans]
    return {
        "size": len(entries),
        "free": {name: f"{_number(asking, len(entries)):x}" for name, asking in free.items()},
        "listed": listed,
        "models": models,
    }
