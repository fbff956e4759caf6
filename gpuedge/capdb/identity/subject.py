"""Who a device is, in the words of the database's entries, from whatever was reported of it.

Layers (ANGLE, MoltenVK, an emulator) are looked through, driver versions are decoded by the scheme
they are written in, and what cannot be told is None. Nothing here judges a device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuedge.capdb.identity import drivers, makers, values
from gpuedge.capdb.identity.families import load_families
from gpuedge.capdb.identity.host import host_facts
from gpuedge.capdb.identity.names import load_names
from gpuedge.capdb.identity.versions import Version, integer
from gpuedge.core.identity import Identity


@dataclass(frozen=True, slots=True)
class Subject:
    """A device as entries speak of it. What is None, or absent from a mapping, is not known.

    Attributes
    ----------
    apis : frozenset of str or None
        Of ``vulkan``, ``gles``, ``metal``, ``d3d12``, ``wgpu``; WebGPU over Vulkan is two of them.
        Empty for APIs that no entry speaks of.
    hidden_apis : frozenset of str
        Those that it may be besides: what WebGPU runs on, where the record does not texts.
    level : str or None
        The level that is asked about: ``gles31``.
    os : str or None
        ``android``, ``linux``, ``windows``, ``macos``, ``ios`` or ``chromeos``.
    layers : tuple of str or None
        Between the caller and the driver of the GPU, the outermost first; () is native.
    vendor : str or None
        Maker of the GPU, such as ``arm``; of a software rasteriser, its own word.
    family : str or None
    model : int or None
    vendor_id, device_id, driver_id : int or None
        ``driver_id`` is the ``VkDriverId``.
    is_mesa : bool or None
        Whether a driver of Mesa does the work.
    name : str or None
        The device's name under all layers.
    soc, brand, device : str or None
    android_sdk : int or None
    security_patch : str or None
        An ISO date.
    device_type : str or None
        As Vulkan spells it: ``INTEGRATED_GPU``.
    api_version : tuple of int or None
        Of the API that the record is about.
    features : mapping of str to bool
        What the record says about features.
    versions : mapping of str to tuple of int
        The driver's version by every scheme it speaks.
    builds : frozenset of str
        Hashes and change ids of the driver's build.
    built : str or None
        ISO date of the build.
    raw : mapping
        The texts and numbers that all this was made from.
    notes : tuple of str
        What could not be told, and why.
    """

    apis: frozenset[str] | None = None
    hidden_apis: frozenset[str] = frozenset()
    level: str | None = None
    os: str | None = None
    layers: tuple[str, ...] | None = None
    vendor: str | None = None
    family: str | None = None
    model: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    driver_id: int | None = None
    is_mesa: bool | None = None
    name: str | None = None
    soc: str | None = None
    brand: str | None = None
    device: str | None = None
    android_sdk: int | None = None
    security_patch: str | None = None
    device_type: str | None = None
    api_version: Version | None = None
    features: Mapping[str, bool] = field(default_factory=dict)
    versions: Mapping[str, Version] = field(default_factory=dict)
    builds: frozenset[str] = frozenset()
    built: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def subject(
    record: Mapping[str, Any] | Identity, *, host: Mapping[str, Any] | None = None
) -> Subject:
    """Return who a device is. Never raises for what a record holds.

    Parameters
    ----------
    record : mapping or Identity
        A saved record with the keys of the fixtures, or what a backend reports of a device.
    host : mapping, optional
        Facts that drivers do not report (`host_facts`), for keys that the record lacks. By default
        they are this machine's where `record` is an Identity of its system, else none.

    Raises
    ------
    DatabaseError (GE-600)
        The database's tables of families or names cannot be used.
    """
    raw = _raw(record, host)
    tables = load_families()
    found = makers.look(raw, load_names(), tables)
    by_gl = values.gl_versions(makers.gl_texts(raw, found))
    driver = makers.driver(raw, found, tables)
    vendor, notes = makers.vendor(raw, found, driver, by_gl, tables)
    family, model = makers.family(raw, found, vendor, tables)
    system = values.system(values.text(raw, "os"))
    facts = drivers.Facts(
        raw=raw,
        found=found,
        driver=driver,
        apis=values.apis(values.text(raw, "api"), values.text(raw, "backend")),
        hidden_apis=values.hidden_apis(
            values.text(raw, "api"), values.text(raw, "backend"), system
        ),
        os=system,
        vendor=vendor,
        by_gl=by_gl,
    )
    layers = drivers.layers(facts, tables)
    versions = by_gl | drivers.versions(facts, layers, tables)
    kind = values.text(raw, "device_type")
    is_software = vendor in tables.software or (found.row is not None and found.row.is_software)
    texts = facts.texts()
    return Subject(
        apis=facts.apis,
        hidden_apis=facts.hidden_apis,
        level=values.LEVELS.get((values.text(raw, "api") or "").casefold()),
        os=facts.os,
        layers=layers,
        vendor=vendor,
        family=family,
        model=model,
        vendor_id=integer(raw.get("vendorID", raw.get("vendor"))),
        device_id=makers.device_id(raw, found),
        driver_id=driver.id if driver else None,
        is_mesa=drivers.is_mesa(facts, layers, versions),
        name=found.name,
        soc=values.text(raw, "soc"),
        brand=values.text(raw, "brand"),
        device=values.text(raw, "device"),
        android_sdk=integer(raw.get("android_sdk")),
        security_patch=values.day(raw.get("security_patch")),
        device_type=kind.upper() if kind else "CPU" if is_software else None,
        api_version=drivers.api_version(facts, versions),
        features=raw.get("features", {}),
        versions=versions,
        builds=values.builds(texts),
        built=values.built(texts) or values.day(raw.get("build_date")),
        raw=raw,
        notes=(*notes, *drivers.notes(facts, layers, versions)),
    )


def _raw(record: Mapping[str, Any] | Identity, host: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(record, Identity):
        return {**values.reported(host), **values.reported(record)}
    told = values.reported(record.to_dict())
    if host is None:
        host = host_facts() if record.os == sys.platform else {}
    facts = values.reported(host)
    # Python calls Android linux; the machine itself knows better
    return {**facts, **told, **({"os": facts["os"]} if "os" in facts else {})}
