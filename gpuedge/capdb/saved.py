"""Saved identities of devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.files import bad, contents
from gpuedge.core.identity import Identity
from gpuedge.safety import paths

IDENTITIES: Final = "fixtures/identities.json"

KEYS: Final = (
    *Identity.__dataclass_fields__, "deviceName", "webgl_renderer", "CL_DEVICE_NAME",
    "CL_DEVICE_VENDOR_ID", "vendor", "vendor_inferred", "device", "model", "brand", "soc",
    "driver", "driver_info", "driver_version", "driverVersionString", "apiVersionRaw",
    "build_date", "android_sdk", "security_patch", "process_bits", "linux-kernel",
    "kernel_version", "macos", "macos_version", "darwin_version",
)  # fmt: skip
"""Keys of a record about a device."""

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
        found = {str(record["id"]): record for record in records}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise bad(path, f"it is not a list of identities: {error!r}") from None
    if len(found) < len(records):
        raise bad(path, "an id is there twice")
    return found


def title(record: Mapping[str, Any]) -> str:
    """Return what a record calls its device."""
    found = [t for key in _NAMES if isinstance(t := record.get(key), str) and t]
    other = (record.get(key) for key in ("soc", "device", "GL_VERSION"))
    return next(iter(found), ", ".join(t for t in other if isinstance(t, str) and t) or "-")
