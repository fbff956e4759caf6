"""Tables of makers, drivers and models, read from ``families.json``.

Vendor ids, ranges of device ids and names are data; code here holds none. The tables are checked
against their schema where a database is made or installed; here they are only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge.capdb.identity.texts import NameMatch, folded
from gpuedge.capdb.place import table


@dataclass(frozen=True, slots=True)
class DriverRow:
    """One driver of Vulkan: a row of the registry of ``VkDriverId``.

    `scheme` is that of its ``driverVersion``, `vendor` the maker of every GPU it drives where that
    is one, `layer` what it is where another driver does the work; `exact` and `prefix` are folded
    forms of ``driverName``, whole and how it begins.
    """

    id: int
    name: str
    is_mesa: bool
    scheme: str | None = None
    vendor: str | None = None
    layer: str | None = None
    exact: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NameRow:
    """What the name of a device tells: the first row whose conditions hold decides.

    Where `models` are given, one of these numbers must follow the prefix; it is the model's.
    """

    name: NameMatch
    vendor: str | None = None
    family: str | None = None
    model: int | None = None
    models: range | frozenset[int] | None = None
    is_mesa: bool | None = None
    is_software: bool = False
    is_vague: bool = False
    layer: str | None = None

    def fits(self, name: str) -> tuple[bool, int | None]:
        """Say whether a folded name fits, and return the number of the model if it tells one."""
        if not self.name.holds(name):
            return False, None
        if self.models is None:
            return True, self.model
        starts = (p for p in self.name.prefix if name.startswith(p))
        digits = (re.match("[0-9]+", name[len(p) :]) for p in starts)
        numbers = (int(digits_found[0]) for digits_found in digits if digits_found)
        number = next((n for n in numbers if n in self.models), None)
        return number is not None, number


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

    vendor_ids: Mapping[int, str]
    vendor_texts: tuple[tuple[str, str], ...]
    drivers: Mapping[int, DriverRow]
    driver_words: Mapping[str, int]
    platforms: Mapping[tuple[str, str], str]
    brands: tuple[str, ...]
    names: tuple[NameRow, ...]
    devices: tuple[Numbers, ...]
    speakers: Mapping[str, str]
    signs: tuple[tuple[NameMatch, int], ...]
    marks: tuple[tuple[NameMatch, str], ...]
    socs: Mapping[str, tuple[str, str, int]]

    def vendor_of(self, text: str) -> str | None:
        """Return whose name a text such as ``GL_VENDOR`` begins with."""
        text = text.casefold()
        return next((v for start, v in self.vendor_texts if text.startswith(start)), None)

    def named(self, name: str) -> tuple[NameRow | None, int | None]:
        """Return the row that a device's name fits, with or without its brand, and the model."""
        whole = bare = folded(name)
        for brand in self.brands:
            bare = bare.removeprefix(brand)
        forms = (whole,) if bare == whole else (whole, bare)
        for row in self.names:
            for form in forms:
                is_fit, number = row.fits(form)
                if is_fit:
                    return row, number
        return None, None

    def driver_of(self, text: str) -> DriverRow | None:
        """Return the driver that a ``driverName`` is of."""
        name = folded(text)
        fits = (d for d in self.drivers.values() if name in d.exact or name.startswith(d.prefix))
        return next(fits, None)

    def signed(self, name: str) -> DriverRow | None:
        """Return the driver of Vulkan that writes a device's name so: ``(RADV NAVI21)``."""
        name = folded(name)
        return self.drivers.get(next((n for sign, n in self.signs if sign.holds(name)), 0))

    def marked(self, text: str) -> str | None:
        """Return whose mark stands in a text such as ``GL_VERSION``."""
        text = folded(text)
        return next((vendor for mark, vendor in self.marks if mark.holds(text)), None)

    def numbered(self, vendor: str, number: int) -> Numbers | None:
        """Return the narrowest range of a maker's device ids that holds a number."""
        rows = [r for r in self.devices if r.vendor == vendor and r.first <= number <= r.last]
        return min(rows, key=lambda r: r.last - r.first, default=None)


def load_families(place: Path | None = None) -> Families:
    """Read ``families.json`` of a database, the one in use by default. Raises DatabaseError.

    A database without that file has the packaged one.
    """
    return table("families.json", _families, place)


def _families(document: Mapping[str, Any]) -> Families:
    vendors, drivers = document["vendors"], document["drivers"]
    return Families(
        vendor_ids={int(i, 16): row["vendor"] for row in vendors for i in row["ids"]},
        vendor_texts=tuple((t.casefold(), row["vendor"]) for row in vendors for t in row["texts"]),
        drivers={row["id"]: DriverRow(**_frozen(row)) for row in drivers},
        driver_words={row["name"]: row["id"] for row in drivers},
        platforms={(r["vendor"], os): r["scheme"] for r in document["platforms"] for os in r["os"]},
        brands=tuple(document["brands"]),
        names=tuple(_name(row) for row in document["names"]),
        devices=tuple(_numbers(row) for row in (*document["devices"], *document["codes"])),
        speakers={row["scheme"]: row["vendor"] for row in document["speakers"]},
        signs=tuple((NameMatch.of(row["name"]), row["driver"]) for row in document["signs"]),
        marks=tuple((NameMatch.of(row["name"]), row["vendor"]) for row in document["marks"]),
        socs={
            r["soc"].casefold(): (r["vendor"], r["family"], r["model"]) for r in document["socs"]
        },
    )


def _frozen(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}


def _name(row: Mapping[str, Any]) -> NameRow:
    told = {**row, "name": NameMatch.of(row["name"])}
    if isinstance(models := row.get("models"), dict):
        told["models"] = range(models["from"], models["below"])
    elif models is not None:
        told["models"] = frozenset(models)
    return NameRow(**told)


def _numbers(row: Mapping[str, Any]) -> Numbers:
    return Numbers(**{**_frozen(row), "first": int(row["first"], 16), "last": int(row["last"], 16)})
