"""Tables of makers, drivers and models, read from ``families.json``.

Vendor ids, ranges of device ids and patterns of names are data; code here holds none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuedge.capdb.identity.tame import LENGTH, check_together, compile_tame
from gpuedge.capdb.identity.versions import SCHEMES
from gpuedge.capdb.place import bad, find_table, read_table

SCHEMA = "gpuedge.families/1"
FILE = "families.json"

_HEX = re.compile(r"0x[0-9a-f]{1,8}")

_KEYS: Mapping[str, tuple[set[str], set[str]]] = {
    "vendors": ({"vendor", "ids", "texts"}, {"is_software"}),
    "drivers": ({"id", "name", "is_mesa", "names"}, {"scheme", "vendor", "layer"}),
    "platforms": ({"vendor", "os", "scheme"}, set()),
    "names": ({"pattern"}, {"vendor", "family", "is_mesa", "is_software", "is_vague", "layer"}),
    "devices": ({"vendor", "first", "last", "family"}, {"model"}),
    "codes": ({"vendor", "family", "first", "last", "shifts"}, set()),
    "speakers": ({"scheme", "vendor"}, set()),
    "signs": ({"pattern", "driver"}, set()),
    "marks": ({"pattern", "vendor"}, set()),
    "socs": ({"soc", "vendor", "family", "model"}, set()),
    "spellings": ({"pattern", "with"}, set()),
}
"""The tables: keys that each row must have, and those it may have."""

_TYPES: Mapping[str, type] = {
    "ids": list, "texts": list, "names": list, "os": list, "shifts": list,
    "id": int, "model": int, "driver": int,
    "is_mesa": bool, "is_software": bool, "is_vague": bool,
}  # fmt: skip
"""Types of values that are not texts."""


@dataclass(frozen=True, slots=True)
class Driver:
    """One driver of Vulkan: a row of the registry of ``VkDriverId``.

    Attributes
    ----------
    id : int
    is_mesa : bool
    scheme : str or None
        Of its ``driverVersion``.
    vendor : str or None
        Maker of every GPU it drives, where that is one.
    layer : str or None
        What it is, where another driver does the work.
    names : tuple of Pattern
        Of ``driverName``.
    """

    id: int
    is_mesa: bool
    scheme: str | None
    vendor: str | None
    layer: str | None
    names: tuple[re.Pattern[str], ...]


@dataclass(frozen=True, slots=True)
class NameRow:
    """What the name of a device tells: the first row whose pattern fits decides."""

    pattern: re.Pattern[str]
    vendor: str | None = None
    family: str | None = None
    is_mesa: bool | None = None
    is_software: bool = False
    is_vague: bool = False
    layer: str | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """A range of device ids of one maker, both ends within it, and what they are.

    Where `shifts` are given, each byte so far up in the id is one digit of the model's number.
    """

    vendor: str
    first: int
    last: int
    family: str
    model: int | None = None
    shifts: tuple[int, ...] = ()

    def number_of(self, device_id: int) -> int | None:
        """Return the number of the model that an id of this range is of."""
        digits = [device_id >> shift & 0xFF for shift in self.shifts]
        if not digits or max(digits) > 9:
            return self.model
        return int("".join(map(str, digits)))


@dataclass(frozen=True, slots=True)
class Families:
    """The tables of ``families.json``, ready to be asked."""

    vendor_ids: Mapping[int, str] = field(default_factory=dict)
    software: frozenset[str] = frozenset()
    vendor_texts: tuple[tuple[str, str], ...] = ()
    drivers: Mapping[int, Driver] = field(default_factory=dict)
    driver_words: Mapping[str, int] = field(default_factory=dict)
    platforms: Mapping[tuple[str, str], str] = field(default_factory=dict)
    names: tuple[NameRow, ...] = ()
    devices: tuple[Numbers, ...] = ()
    speakers: Mapping[str, str] = field(default_factory=dict)
    signs: tuple[tuple[re.Pattern[str], int], ...] = ()
    marks: tuple[tuple[re.Pattern[str], str], ...] = ()
    socs: Mapping[str, tuple[str, str, int]] = field(default_factory=dict)
    spellings: tuple[tuple[re.Pattern[str], str], ...] = ()

    def patterns(self) -> Iterator[re.Pattern[str]]:
        """Return every pattern of the tables."""
        yield from (row.pattern for row in self.names)
        yield from (pattern for driver in self.drivers.values() for pattern in driver.names)
        for pairs in (self.signs, self.marks, self.spellings):
            yield from (pattern for pattern, _ in pairs)

    def spelled(self, name: str) -> str:
        """Return a name in the spelling of drivers."""
        for pattern, form in self.spellings:
            name = pattern.sub(form, name[:LENGTH])
        return name

    def vendor_of(self, text: str) -> str | None:
        """Return whose name a text such as ``GL_VENDOR`` begins with."""
        text = text.casefold()
        return next((v for start, v in self.vendor_texts if text.startswith(start)), None)

    def named(self, name: str) -> tuple[NameRow, re.Match[str]] | None:
        """Return the row that a device's name fits, with its match."""
        name = name[:LENGTH]
        return next(((row, m) for row in self.names if (m := row.pattern.fullmatch(name))), None)

    def driver_of(self, text: str) -> Driver | None:
        """Return the driver that a ``driverName`` is of."""
        text = text[:LENGTH]
        return next(
            (d for d in self.drivers.values() if any(p.fullmatch(text) for p in d.names)), None
        )

    def signed(self, name: str) -> Driver | None:
        """Return the driver of Vulkan that writes a device's name so: ``(RADV NAVI21)``."""
        name = name[:LENGTH]
        found = (number for pattern, number in self.signs if pattern.fullmatch(name))
        return self.drivers.get(next(found, 0))

    def marked(self, text: str) -> str | None:
        """Return whose mark stands in a text such as ``GL_VERSION``."""
        text = text[:LENGTH]
        return next((vendor for pattern, vendor in self.marks if pattern.fullmatch(text)), None)

    def numbered(self, vendor: str, number: int) -> Numbers | None:
        """Return the narrowest range of a maker's device ids that holds a number."""
        rows = [r for r in self.devices if r.vendor == vendor and r.first <= number <= r.last]
        return min(rows, key=lambda r: r.last - r.first, default=None)


def load_families(place: Path | None = None) -> Families:
    """Read and check ``families.json``; a database without that file has the packaged one.

    Parameters
    ----------
    place : Path, optional
        The database's folder; the one in use where none is given.

    Raises
    ------
    DatabaseError (GE-600)
        The file is missing, too large, is not JSON, or holds a row that cannot be used.
    """
    return _read(*find_table(FILE, place))


@lru_cache(maxsize=2)
def _read(path: Path, changed: int) -> Families:
    """Read the file; `changed` makes an edited one be read again."""
    document = read_table(path, SCHEMA)
    if set(document) != {"schema", *_KEYS}:
        raise bad(path, f"it must have exactly {', '.join(_KEYS)}")
    try:
        for table, rows in document.items():
            if table != "schema":
                _check(table, rows)
        made = _made(document)
        check_together(made.patterns())
        return made
    except (ValueError, TypeError, re.error, RecursionError) as error:
        raise bad(path, str(error)) from None


def _check(table: str, rows: Any) -> None:
    """Check the rows of a table. Raises ValueError, saying which is wrong."""
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{table}: it must be a list of rows")
    must, may = _KEYS[table]
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not must <= set(row) <= must | may:
            raise ValueError(f"{table} {i}: it must have {', '.join(sorted(must))}")
        for key, value in row.items():
            kind = _TYPES.get(key, str)
            if type(value) is not kind:
                raise ValueError(f"{table} {i}: {key} must be of type {kind.__name__}")
            item = int if key == "shifts" else str
            listed: Any = value if kind is list else ()
            if not all(type(v) is item for v in listed):
                raise ValueError(f"{table} {i}: {key} must list {item.__name__}")
        if row.get("scheme", SCHEMES[0]) not in SCHEMES:
            raise ValueError(f"{table} {i}: {row['scheme']!r} is no scheme of versions")


def _made(document: dict[str, Any]) -> Families:
    vendors, drivers = document["vendors"], document["drivers"]
    return Families(
        vendor_ids={_hex(i): row["vendor"] for row in vendors for i in row["ids"]},
        software=frozenset(row["vendor"] for row in vendors if row.get("is_software")),
        vendor_texts=tuple((t.casefold(), row["vendor"]) for row in vendors for t in row["texts"]),
        drivers={row["id"]: _driver(row) for row in drivers},
        driver_words={row["name"]: row["id"] for row in drivers},
        platforms={(r["vendor"], os): r["scheme"] for r in document["platforms"] for os in r["os"]},
        names=tuple(NameRow(_rx(r["pattern"]), **_rest(r, "pattern")) for r in document["names"]),
        devices=tuple(map(_numbers, [*document["devices"], *document["codes"]])),
        speakers={row["scheme"]: row["vendor"] for row in document["speakers"]},
        signs=tuple((_rx(row["pattern"]), row["driver"]) for row in document["signs"]),
        marks=tuple((_rx(row["pattern"]), row["vendor"]) for row in document["marks"]),
        socs={
            r["soc"].casefold(): (r["vendor"], r["family"], r["model"]) for r in document["socs"]
        },
        spellings=tuple(_spelling(row) for row in document["spellings"]),
    )


def _driver(row: dict[str, Any]) -> Driver:
    return Driver(
        id=row["id"],
        is_mesa=row["is_mesa"],
        scheme=row.get("scheme"),
        vendor=row.get("vendor"),
        layer=row.get("layer"),
        names=tuple(map(_rx, row["names"])),
    )


def _numbers(row: dict[str, Any]) -> Numbers:
    first, last = _hex(row["first"]), _hex(row["last"])
    shifts = tuple(row.get("shifts", ()))
    return Numbers(row["vendor"], first, last, row["family"], row.get("model"), shifts)


def _spelling(row: dict[str, str]) -> tuple[re.Pattern[str], str]:
    pattern = compile_tame(row["pattern"], re.ASCII, is_search=True)
    pattern.sub(row["with"], "")  # which refuses a form that speaks of groups that are not there
    return pattern, row["with"]


def _rest(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def _rx(pattern: str) -> re.Pattern[str]:
    return compile_tame(pattern, re.ASCII)


def _hex(text: str) -> int:
    if not _HEX.fullmatch(text):
        raise ValueError(f"{text!r} is no hexadecimal number such as '0x1002'")
    return int(text, 16)
