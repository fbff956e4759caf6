"""Whose a device is and what model, by its ids, its name under all layers, and its driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuedge.capdb.identity import values
from gpuedge.capdb.identity.families import Driver, Families, NameRow
from gpuedge.capdb.identity.folded import MAX_NAME
from gpuedge.capdb.identity.names import NameRules
from gpuedge.capdb.identity.versions import Version, integer

NAMES = ("GL_RENDERER", "deviceName", "name", "CL_DEVICE_NAME")
"""Keys of records that hold the device's name."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the name of a device and the layers round it texts."""

    layers: tuple[str, ...] = ()
    name: str | None = None
    row: NameRow | None = None
    model: int | None = None
    number: int | None = None
    vulkan: str | None = None
    drivers: tuple[str, ...] = ()


def look(raw: Mapping[str, Any], rules: NameRules, tables: Families) -> Found:
    """Look through the layers round a device's name, and find what the name is of."""
    name = values.text(raw, *NAMES)
    if name is None:
        # WebGPU may hide what WebGL tells; the layers under WebGL are not those of WebGPU
        other = values.text(raw, "webgl_renderer")
        known = None if other is None else look({"name": other}, rules, tables)
        return Found() if known is None else replace(known, layers=(), vulkan=None, drivers=())
    name = (values.canonical(name) or name)[:MAX_NAME].strip()
    layers = rules.peel(name)
    beneath = layers[-1].device if layers else name
    row, model = tables.named(beneath) or (None, None)
    return Found(
        layers=tuple(layer.kind for layer in layers),
        name=beneath or None,
        row=row,
        model=None if row is None or row.is_vague else model,
        number=next((integer(x.number) for x in reversed(layers) if x.number), None),
        vulkan=next((x.vulkan for x in reversed(layers) if x.vulkan), None),
        drivers=tuple(layer.driver for layer in layers if layer.driver),
    )


def gl_texts(raw: Mapping[str, Any], found: Found) -> list[str]:
    """Return the texts that versions of OpenGL's drivers stand in: the record's, the layers'."""
    apis = values.apis(values.text(raw, "api"), values.text(raw, "backend")) or ()
    # WebGPU over OpenGL puts GL_VERSION where it puts what Vulkan tells of the driver
    version = values.text(raw, "GL_VERSION", *(("driverInfo",) if "gles" in apis else ()))
    told = [] if version is None else [values.canonical(version) or version]
    return [*told, *found.drivers]


def vulkan_texts(raw: Mapping[str, Any]) -> list[str]:
    """Return the texts that versions of Vulkan's drivers stand in."""
    keys = ("driverVersionString", "driverInfo", "driver_info", "driver_version")
    return [t for key in keys if (t := values.text(raw, key))]


def driver(raw: Mapping[str, Any], found: Found, tables: Families) -> Driver | None:
    """Return the driver by its id, its name, what a layer calls it, or the device's name."""
    told = raw.get("driverID")
    word = told.upper().removeprefix("VK_DRIVER_ID_") if isinstance(told, str) else ""
    number = integer(told)
    if number is None:
        number = tables.driver_words.get(word)
    if number is not None:
        return tables.drivers.get(number)
    names = [t for key in ("driverName", "driver") if (t := values.text(raw, key))]
    for name in [*names, *(values.named_driver(t)[0] for t in found.drivers)]:
        if name in tables.driver_words:
            return tables.drivers[tables.driver_words[name]]
        if known := tables.driver_of(name):
            return known
    apis = values.apis(values.text(raw, "api"), values.text(raw, "backend"))
    is_vulkan = found.vulkan is not None or "vulkan" in (apis or ())
    return tables.signed(found.name) if found.name and is_vulkan else None


def vendor(
    raw: Mapping[str, Any],
    found: Found,
    driver: Driver | None,
    by_gl: Mapping[str, Version],
    tables: Families,
) -> tuple[str | None, list[str]]:
    """Return the maker, by the surest of what tells it, and what speaks against it."""
    named = found.row.vendor if found.row else None
    if found.row is not None and found.row.is_software:
        return named, []
    number = integer(raw.get("vendorID", raw.get("vendor")))
    by_id = tables.vendor_ids.get(number) if number is not None else None
    by_scheme = next((tables.speakers[s] for s in by_gl if s in tables.speakers), None)
    by_mark = tables.marked(values.text(raw, "GL_VERSION") or "")
    words = values.text(raw, "GL_VENDOR", "vendor")
    by_text = tables.vendor_of(values.inner_vendor(words)) if words else None
    soc = tables.socs.get((values.text(raw, "soc") or "").casefold())
    told = [by_id, named, driver.vendor if driver else None, by_mark]
    # where a list's author filled in the maker, the form of the version and the chip know better
    other = [by_scheme, soc[0] if soc else None]
    told += [*other, by_text] if raw.get("vendor_inferred") is True else [by_text, *other]
    makers = [maker for maker in told if maker]
    vendor = makers[0] if makers else None
    against = sorted({maker for maker in makers if maker != vendor})
    return vendor, [f"the record speaks of {vendor}, and of {m} too" for m in against]


def family(
    raw: Mapping[str, Any], found: Found, vendor: str | None, tables: Families
) -> tuple[str | None, int | None]:
    """Return the family and the model's number, by the name or else by the device's id."""
    family = model = None
    if found.row is not None and found.row.vendor == vendor:
        family, model = found.row.family, found.model
        if found.row.is_vague:
            return family, None
    number = device_id(raw, found)
    if vendor is None:
        return family, model
    if number is not None and (family is None or model is None):
        by_id = tables.numbered(vendor, number)
        if by_id is not None and family in (None, by_id.family):
            family = by_id.family
            model = by_id.number_of(number) if model is None else model
    soc = tables.socs.get((values.text(raw, "soc") or "").casefold())
    if family is None and soc is not None and soc[0] == vendor:
        return soc[1], soc[2]
    return family, model


def device_id(raw: Mapping[str, Any], found: Found) -> int | None:
    """Return the device's id, as reported or as a layer writes it beside the name."""
    told = raw.get("deviceID", raw.get("device"))
    # on Arm's OpenCL the "vendor" is what Vulkan calls the device
    told = raw.get("CL_DEVICE_VENDOR_ID") if told is None else told
    number = integer(told) if not isinstance(told, str) or told.startswith("0x") else None
    return found.number if number is None else number
