"""Who a device says it is. Strings and numbers exactly as reported; judged by capdb, not here."""

from __future__ import annotations

from gpuedge.core.record import Record, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class Identity(Record):
    """Identity of one device under one API, with the keys used by the capability database.

    Attributes hold what the driver reports; a field is None where the API has no such notion.
    """

    IS_OPEN = True

    api: str
    name: str
    os: str
    vendorID: int | None = None  # noqa: N815  (spelling of the Vulkan specification)
    deviceID: int | None = None  # noqa: N815
    driverVersion: int | None = None  # noqa: N815
    apiVersion: str | None = None  # noqa: N815
    driverID: int | None = None  # noqa: N815
    driverName: str | None = None  # noqa: N815
    driverInfo: str | None = None  # noqa: N815
    device_type: str | None = None
    deviceUUID: str | None = None  # noqa: N815
    GL_VENDOR: str | None = None
    GL_RENDERER: str | None = None
    GL_VERSION: str | None = None
    backend: str | None = None  # the API that WebGPU runs on

    def differences(self, now: Identity, fields: Sequence[str]) -> str:
        """Return which of `fields` differ from those found `now`, with both values; "" for none.

        A value that either side does not know is no difference: what a driver tells depends on the
        context that it is asked through.
        """
        pairs = ((name, getattr(self, name), getattr(now, name)) for name in fields)
        return ", ".join(
            f"{name}: expected {old!r}, found {new!r}"
            for name, old, new in pairs
            if old is not None and new is not None and old != new
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary without the unknown fields."""
        return {k: v for k, v in self.as_dict().items() if v is not None}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Identity:
        """Rebuild an identity from `to_dict`; unknown keys are ignored. Raises UnfitError."""
        return read(cls, record)
