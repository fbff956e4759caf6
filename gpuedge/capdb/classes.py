"""Tuning classes: which family of devices an identity belongs to, decided by rows of data.

Does not judge whether a driver is good; a class only chooses where tuning starts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge.capdb.identity.names import load_names
from gpuedge.capdb.place import bad, folder, read_table
from gpuedge.core.errors import ConfigError, DatabaseError
from gpuedge.core.identity import Identity

SCHEMA = "gpuedge.classes/1"
FILE = "classes.json"

DEVICE_CLASSES = (
    "mali",
    "adreno",
    "powervr",
    "intel",
    "apple",
    "amd",
    "nvidia",
    "cpu-llvm",
    "cpu-subzero",
    "generic",
)
"""The tuning classes that rows of `variants.toml` may name."""

UNKNOWN = "generic"
"""The class of a device that no row matches."""

FAMILIES = {
    "gles": ("gles", "gl", "webgl"),
    "wgpu": ("wgpu", "webgpu", "metal", "dx12"),
}
"""Families of APIs that rows speak of, and how the names of their members begin."""

_MATCH_KEYS = {"api", "vendorID", "driverID", "device_type", "name_prefix", "vendor_prefix"}
_DEVICE_TYPES = {"DISCRETE_GPU", "INTEGRATED_GPU", "VIRTUAL_GPU", "CPU", "OTHER"}


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
    found = (name for name, starts in FAMILIES.items() if api.startswith(starts))
    return next(found, api)


def load(place: Path | None = None) -> tuple[ClassRow, ...]:
    """Read and check the rows of ``classes.json``, in order.

    Parameters
    ----------
    place : Path, optional
        The database's folder; `folder` where none is given.

    Raises
    ------
    DatabaseError (GE-600)
        The file is missing, is not JSON, or holds a row that breaks its schema.
    """
    try:
        path = (place or folder()) / FILE
    except ConfigError as error:
        if error.asked_by:  # the setting itself is unusable: its own message is the better one
            raise
        raise DatabaseError(error.what, known=error.known, hint=error.hint) from None
    document = read_table(path, SCHEMA)
    records = document.get("rows")
    if not isinstance(records, list) or not records:
        raise bad(path, "it has no rows")
    rows = tuple(_row(path, i, record) for i, record in enumerate(records))
    ids = [row.id for row in rows]
    for name in ids:
        if ids.count(name) > 1:
            raise bad(path, f"the id {name!r} is used twice")
    return rows


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
    found = (row.device_class for row in known if row.matches(identity, beneath))
    return next(found, UNKNOWN)


def _row(path: Path, index: int, record: Any) -> ClassRow:
    def fail(why: str) -> DatabaseError:
        return bad(path, f"row {index}: {why}")

    if not isinstance(record, dict) or set(record) != {"id", "match", "device_class"}:
        raise fail("it must have exactly id, match and device_class")
    name, match, device_class = record["id"], record["match"], record["device_class"]
    if not isinstance(name, str) or not name:
        raise fail("its id is no text")
    if device_class not in DEVICE_CLASSES:
        raise fail(f"{device_class!r} is no tuning class")
    if not isinstance(match, dict) or set(match) - _MATCH_KEYS:
        raise fail(f"match may have {', '.join(sorted(_MATCH_KEYS))}")
    apis = match.get("api")
    if not isinstance(apis, list) or not apis or not all(isinstance(a, str) for a in apis):
        raise fail("match.api must list APIs")
    if len(match) == 1:
        raise fail("it would match every device of an API")
    kind, driver = match.get("device_type"), match.get("driverID")
    prefixes = {key: match.get(key) for key in ("name_prefix", "vendor_prefix")}
    for key, prefix in prefixes.items():
        if prefix is not None and (not isinstance(prefix, str) or not prefix):
            raise fail(f"match.{key} must be text")
    if kind is not None and kind not in _DEVICE_TYPES:
        raise fail(f"match.device_type must be one of {', '.join(sorted(_DEVICE_TYPES))}")
    if driver is not None and (not isinstance(driver, int) or isinstance(driver, bool)):
        raise fail("match.driverID must be a number")
    try:
        vendor = _hex(match.get("vendorID"))
    except ValueError as error:
        raise fail(f"match.vendorID {error}") from None
    return ClassRow(name, device_class, tuple(apis), vendor, driver, kind, **prefixes)


def _hex(text: Any) -> int | None:
    if text is None:
        return None
    if not isinstance(text, str) or not text.startswith("0x"):
        raise ValueError("must be a hexadecimal text such as '0x1002'")
    return int(text, 16)
