"""Tuning classes: which family of devices an identity belongs to, decided by rows of data.

Does not judge whether a driver is good; a class only chooses where tuning starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge.capdb.identity.names import load_names
from gpuedge.capdb.place import table
from gpuedge.core.identity import Identity

DEVICE_CLASSES = (
    "mali", "adreno", "powervr", "intel", "apple", "amd", "nvidia", "cpu-llvm", "cpu-subzero",
    "generic",
)  # fmt: skip
"""The tuning classes that rows of `variants.toml` may name."""

FAMILIES = {
    "gles": ("gles", "gl", "webgl"),
    "wgpu": ("wgpu", "webgpu", "metal", "dx12"),
}
"""Families of APIs that rows speak of, and how the names of their members begin."""


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One row of ``classes.json``. A condition that is None is not asked; all others must hold.

    Attributes
    ----------
    id : str
    device_class : str
        One of `DEVICE_CLASSES`.
    api : tuple of str
        APIs, or `FAMILIES` of them, under which the row holds.
    vendorID, driverID : int or None
    device_type : str or None
        In the spelling of the Vulkan specification, such as ``INTEGRATED_GPU``.
    name_prefix : str or None
        Start of the device's name, as reported or as it is under the layers of ``names.json``.
    vendor_prefix : str or None
        Start of what the driver says of its maker (``GL_VENDOR``).
    """

    id: str
    device_class: str
    api: tuple[str, ...]
    vendorID: int | None = None  # noqa: N815  (spelling of the Vulkan specification)
    driverID: int | None = None  # noqa: N815
    device_type: str | None = None
    name_prefix: str | None = None
    vendor_prefix: str | None = None

    def matches(self, identity: Identity, beneath: str = "") -> bool:
        """Say whether every condition holds; what the identity does not know never holds.

        `beneath` is the device's name under layers, where it has another.
        """
        names = (identity.name, beneath)
        vendor = getattr(identity, "GL_VENDOR", None) or identity.driverName or ""
        return (
            not {identity.api, family(identity.api)}.isdisjoint(self.api)
            and self.vendorID in (None, identity.vendorID)
            and self.driverID in (None, identity.driverID)
            and self.device_type in (None, identity.device_type)
            and (self.name_prefix is None or any(n.startswith(self.name_prefix) for n in names))
            and (self.vendor_prefix is None or vendor.startswith(self.vendor_prefix))
        )


def family(api: str) -> str:
    """Return the family of an API, itself if it is of none: ``gles31`` is of ``gles``."""
    families = (name for name, starts in FAMILIES.items() if api.startswith(starts))
    return next(families, api)


def load(place: Path | None = None) -> tuple[ClassRow, ...]:
    """Read the rows of ``classes.json``, in order.

    Parameters
    ----------
    place : Path, optional
        The database's folder; the one in use where none is given.

    Raises
    ------
    DatabaseError (GE-600)
        The file is missing, is not JSON, or holds a row that cannot be used.
    """
    return table("classes.json", _rows, place)


def _rows(document: Mapping[str, Any]) -> tuple[ClassRow, ...]:
    return tuple(_row(record) for record in document["rows"])


def _row(record: Mapping[str, Any]) -> ClassRow:
    match = dict(record["match"])
    if "vendorID" in match:
        match["vendorID"] = int(match["vendorID"], 16)
    return ClassRow(record["id"], record["device_class"], tuple(match.pop("api")), **match)


def classify(identity: Identity, rows: tuple[ClassRow, ...] | None = None) -> str:
    """Return the tuning class of a device: that of the first row that matches, else ``generic``.

    Parameters
    ----------
    identity : Identity
    rows : tuple of ClassRow, optional
        Rows from `load`; read from disk where none are given.

    Raises
    ------
    DatabaseError (GE-600)
        As from `load`.
    """
    known = load() if rows is None else rows
    beneath = load_names().beneath(identity.name)
    classes = (row.device_class for row in known if row.matches(identity, beneath))
    return next(classes, "generic")
