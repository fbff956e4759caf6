"""The header of results: which device, on which machine, with which versions; and hiding that."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuedge.capdb.identity.names import model
from gpuedge.capdb.judgement import lookup
from gpuedge.conformance import SCHEMA
from gpuedge.conformance.bench import Row, versions
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.identity import Identity
from gpuedge.core.text import utc_now
from gpuedge.safety import machine

NAMES = ("name", "GL_RENDERER", "deviceUUID")
"""Fields of an identity that name the device."""

PRODUCT = ("model", "product", "device")
"""What a machine says of its kind (`gpuedge.safety.machine.description`)."""

LEAST = 4
"""Letters of a name that is replaced within other text, too."""

DIGITS = 12

KEPT = frozenset({
    "schema", "device", "profile", "shard", "only", "versions",
    "id", "op", "dtype", "shape", "data", "storage", "variant", "status", "code", "kind", "bits",
    "map", "again", "after", "kernels", "storages",
})  # fmt: skip
"""Keys whose values stay: gpuedge's own words, what a device is called here, names of cases."""

FOREIGN = frozenset({"labels", "python"})
"""Keys of what users and machines name, under which no key is gpuedge's own."""


class Redaction:
    """Replaces texts by hashes, wherever they stand.

    The same text always gives the same hash, so that results of one device can still be told from
    those of another. Who guesses a name can check it.
    """

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        self._hashes: dict[str, str] = {}
        # the longest first: a name may be part of another
        for text in sorted(filter(None, secrets), key=len, reverse=True):
            said = f"gpuedge {text}".encode("utf-8", "surrogatepass")
            if not text.startswith("redacted-"):
                self._hashes[text] = f"redacted-{hashlib.sha256(said).hexdigest()[:DIGITS]}"

    def __call__(self, value: Any, kept: Collection[str] = KEPT) -> Any:
        """Return a value of JSON with all texts replaced; keys stay, and the values of `kept`."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {
                k: each if k in kept else self(each, () if k in FOREIGN else kept)
                for k, each in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self(each, kept) for each in value]
        return value

    def _text(self, text: str) -> str:
        if text in self._hashes:
            return self._hashes[text]
        for secret, shown in self._hashes.items():
            if len(secret) >= LEAST:
                text = text.replace(secret, shown)
        return text


def secrets(identities: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> list[str | None]:
    """Return what `--redact` hides.

    That is host, serial number, values of labels, names of devices and of what they are in, and the
    folder of whoever runs it.
    """
    here = machine.description()
    texts = [platform.node(), machine.serial(), *labels.values(), *map(here.get, PRODUCT)]
    texts += [os.path.expanduser("~")]  # noqa: PTH111  a path raises where there is none
    for identity in identities:
        texts += [identity.get(name) for name in NAMES]
        try:
            name = model(Identity.from_dict(identity))
        except (GpuEdgeError, ValueError):
            continue
        # of a rasteriser the name of the driver, which stays
        texts += [name] if name not in (identity.get("driverName"), None) else []
    return texts


def header(device: str, identity: Mapping[str, Any], **more: Any) -> Row:
    """Return the header of results of a device that are about to be made; `more` is added."""
    return {
        "schema": SCHEMA,
        "device": device,
        "identity": dict(identity),
        "host": platform.node() or None,
        "serial": machine.serial(),
        "database": _database(identity),
        "versions": versions(),
        "started": utc_now(),
        **more,
    }


def _database(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return which capability database is in use, and what it has about a device."""
    try:
        said = lookup(Identity.from_dict(identity))
    except (GpuEdgeError, ValueError):  # none can be used, which the doctor says
        return {"version": 0, "digest": "", "entries": []}
    names = ("id", "becomes", "summary")
    return {
        "version": said.database.version,
        "digest": said.database.digest,
        "entries": [
            {name: getattr(finding, name) for name in names}
            for finding in said.relevant
            if finding.becomes != "none"
        ],
    }
