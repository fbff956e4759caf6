"""Identities kept in files: those that entries are tested on, and those that users saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.files import bad, contents
from gpuedge.capdb.identity.versions import integer
from gpuedge.core.identity import Identity
from gpuedge.safety import paths

IDENTITIES: Final = "fixtures/identities.json"

KEYS: Final = (
    *Identity._fields, "deviceName", "webgl_renderer", "CL_DEVICE_NAME",
    "CL_DEVICE_VENDOR_ID", "vendor", "vendor_inferred", "device", "model", "brand", "soc",
    "driver", "driver_info", "driver_version", "driverVersionString", "apiVersionRaw",
    "build_date", "android_sdk", "security_patch", "process_bits", "linux-kernel",
    "kernel_version", "macos", "macos_version", "darwin_version",
)  # fmt: skip
"""Keys of a record about a device."""

WHOLE: Final = frozenset(
    {"vendorID", "deviceID", "CL_DEVICE_VENDOR_ID", "android_sdk", "process_bits"}
)
"""Keys whose values are whole numbers, as such or as decimal or hexadecimal texts."""

EITHER: Final = frozenset(
    {"vendor", "device", "driverID", "driverVersion", "apiVersion", "apiVersionRaw"}
)
"""Keys whose values are whole numbers or any texts."""


def unfit(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a key whose value no driver reports, and what it may be; None where all are sound.

    Null is the value of what is not known.
    """
    for key in (key for key in KEYS if record.get(key) is not None):
        value = record[key]
        is_text, is_whole = isinstance(value, str), integer(value) is not None
        if key == "vendor_inferred":
            is_sound, wanted = isinstance(value, bool), "true or false"
        elif key in WHOLE:
            is_sound, wanted = is_whole, 'a whole number of 32 bits, such as 5143 or "0x1417"'
        elif key in EITHER:
            is_sound, wanted = is_whole or is_text, "a whole number of 32 bits or a text"
        else:
            is_sound, wanted = is_text, "a text"
        if not is_sound:
            return key, wanted
    return None


_NAMES: Final = ("GL_RENDERER", "deviceName", "webgl_renderer", "name", "CL_DEVICE_NAME")


def identities(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the saved identities that entries are tested on, by id.

    An installed update carries none; those of the packaged database stand in. Raises DatabaseError
    where the file cannot be read, or an identity has no id of its own.
    """
    own = folder / IDENTITIES
    path = own if own.exists() else paths.data_dir("capability_db") / IDENTITIES
    try:
        records = json.loads(contents(path))
        by_id = {str(record["id"]): record for record in records}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise bad(path, f"it is not a list of identities: {error!r}") from None
    if len(by_id) < len(records):
        raise bad(path, "an id is there twice")
    return by_id


def title(record: Mapping[str, Any]) -> str:
    """Return what a record calls its device."""
    texts = [t for key in _NAMES if isinstance(t := record.get(key), str) and t]
    other = (record.get(key) for key in ("soc", "device", "GL_VERSION"))
    return next(iter(texts), ", ".join(t for t in other if isinstance(t, str) and t) or "-")
