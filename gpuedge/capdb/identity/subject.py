"""Identifying a device, in the words of the database's entries, from whatever was reported of it.

Layers (ANGLE, MoltenVK, an emulator) are looked through, driver versions are decoded by the scheme
they are written in, and what cannot be told is None. Nothing here judges a device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuedge.capdb.identity import texts
from gpuedge.capdb.identity.host import host_facts
from gpuedge.capdb.identity.reading import Reading
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
        Those that it may be besides: what WebGPU runs on, where the record does not tell.
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
    process_bits : int or None
        32 or 64: what this process is built for.
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
    process_bits: int | None = None
    versions: Mapping[str, Version] = field(default_factory=dict)
    builds: frozenset[str] = frozenset()
    built: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def subject(
    record: Mapping[str, Any] | Identity,
    *,
    host: Mapping[str, Any] | None = None,
    place: Path | None = None,
) -> Subject:
    """Return who a device is. Never raises for what a record holds.

    Parameters
    ----------
    record : mapping or Identity
        A saved record with the keys of the fixtures, or what a backend reports of a device.
    host : mapping, optional
        Facts that drivers do not report (`host_facts`), for keys that the record lacks. By default
        they are this machine's where `record` is an Identity of its system, else none.
    place : Path, optional
        The folder whose tables of families and names are asked; the one in use where none is given.

    Raises
    ------
    DatabaseError (GE-600)
        The database's tables of families or names cannot be used.
    """
    raw = _raw(record, host)
    read = Reading(raw, place)
    told = [*read.gl_texts, *read.vulkan_texts]
    family, model = read.model
    return Subject(
        apis=read.apis,
        hidden_apis=read.hidden_apis,
        level=texts.LEVELS.get((texts.text(raw, "api") or "").casefold()),
        os=read.os,
        layers=read.layers,
        vendor=read.vendor,
        family=family,
        model=model,
        vendor_id=integer(raw.get("vendorID", raw.get("vendor"))),
        device_id=read.device_id,
        driver_id=read.driver.id if read.driver else None,
        is_mesa=read.is_mesa,
        name=read.name,
        soc=texts.text(raw, "soc"),
        brand=texts.text(raw, "brand"),
        device=texts.text(raw, "device"),
        android_sdk=integer(raw.get("android_sdk")),
        security_patch=texts.day(raw.get("security_patch")),
        process_bits=integer(raw.get("process_bits")),
        versions=read.versions,
        builds=texts.builds(told),
        built=texts.built(told) or texts.day(raw.get("build_date")),
        raw=raw,
        notes=read.notes(),
    )


def _raw(record: Mapping[str, Any] | Identity, host: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(record, Identity):
        return {**texts.reported(host), **texts.reported(record)}
    told = texts.reported(record.to_dict())
    if host is None:
        host = host_facts() if record.os == sys.platform else {}
    facts = texts.reported(host)
    # Python calls Android linux; the machine itself knows better
    return {**facts, **told, **({"os": facts["os"]} if "os" in facts else {})}
