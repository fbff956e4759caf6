"""What the tuner found, kept on disk and passed on to other machines: ``tunings.json``.

It is kept by device, driver, version of gpuedge and kernel texts: with another one of these there
is nothing. A file for other machines is the same sealed file, of one device. Reading and writing
the cache never raise; what is damaged or makes no sense reads as absent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from gpuedge import __version__
from gpuedge.core.errors import InputError
from gpuedge.core.identity import Identity
from gpuedge.core.record import UnfitError, fit, plain, read, read_each
from gpuedge.plan.library import texts, variants
from gpuedge.plan.tuned import TunedKernel, Tunings
from gpuedge.safety.paths import cache_dir, check_readable, save_named
from gpuedge.safety.store import load_sealed, sealed_bytes, update_sealed

SCHEMA = "gpuedge.tunings/1"
FILE = "tunings.json"

MAX_DEVICES = 16
"""Devices kept, newest last; older ones are forgotten."""

MAX_KERNELS = 1024
"""Kernels kept of each, in the same way; a network has 10 to 60, and each takes 600 bytes."""

OWN = "deviceUUID"
"""What an identity says of one piece of hardware, and not of all that are alike."""


@dataclass(frozen=True, slots=True)
class DeviceTunings:
    """What was found on one kind of device.

    `identity` is what its driver says, `version` that of gpuedge, `shaders` the digest of kernel
    texts and variants, and `kernels` the records of `TunedKernel` by their keys, as JSON has them.
    """

    identity: Annotated[Mapping[str, Any], Identity]
    version: str
    shaders: str
    kernels: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The SHA-256 (hex) of all that measurements depend on."""
        text = json.dumps([dict(self.identity), self.version, self.shaders], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def why_not(self) -> str:
        """Why they say nothing here, whatever the device; empty if they do."""
        if self.version != __version__:
            return f"made by gpuedge {self.version}, and this is {__version__}"
        return "" if self.shaders == shaders() else "made with other kernel texts"


@lru_cache(maxsize=1)
def shaders() -> str:
    """Return a digest of the kernel texts and the rows of ``variants.toml``."""
    given = repr((sorted(texts().items()), variants()))
    return hashlib.sha256(given.encode()).hexdigest()[:16]


def kept(identity: Identity) -> dict[str, TunedKernel]:
    """Return what is known of the kernels on a device, for this version."""
    saved = _devices(load_sealed(cache_dir() / FILE, SCHEMA)).get(_of(identity).key, {})
    return read_each(TunedKernel, saved.get("kernels"))


def keep(identity: Identity, kernels: Tunings) -> bool:
    """Keep kernels of a device, in place of older ones; False if the folder cannot be written.

    What is of other versions is forgotten.
    """
    return _keep(_of(identity, kernels))


def _keep(found: DeviceTunings) -> bool:
    def merged(body: dict[str, Any]) -> dict[str, Any]:
        same = found.version, found.shaders
        devices = {
            key: saved for key, saved in _devices(body).items()
            if (saved.get("version"), saved.get("shaders")) == same
        }  # fmt: skip
        old = read_each(TunedKernel, devices.pop(found.key, {}).get("kernels"))
        kernels = {key: plain(kernel) for key, kernel in old.items() if key not in found.kernels}
        kernels = dict([*kernels.items(), *found.kernels.items()][-MAX_KERNELS:])
        devices[found.key] = {**plain(found), "kernels": kernels}
        return {"devices": dict([*devices.items()][-MAX_DEVICES:])}

    return update_sealed(cache_dir() / FILE, SCHEMA, merged)


def export(identity: Identity, path: Path, option: str) -> int:
    """Write all that is kept of a device to a file for others; return of how many kernels.

    Raises InputError (GE-203) where the file that `option` named cannot be written.
    """
    found = _of(identity, kept(identity))
    body = json.dumps({"devices": {found.key: plain(found)}}, separators=(",", ":"))
    save_named(path, sealed_bytes(SCHEMA, body.encode()), option)
    return len(found.kernels)


@dataclass(frozen=True, slots=True)
class Imported:
    """A device of a file: its name, how many kernels are known of it, and why they are not kept."""

    name: str
    kernels: int
    why_not: str


def take(path: str, option: str, here: Identity | None = None) -> list[Imported]:
    """Keep what is in a file of another machine, as far as it says something here.

    Parameters
    ----------
    path : str
    option : str
        What named the file.
    here : Identity, optional
        The device that it is to be for; others are not kept.

    Raises
    ------
    InputError (GE-203)
        There is no such file, it is of another kind or damaged, or names an unknown variant.
    """
    check_readable(path, "file", option)
    devices = _devices(load_sealed(path, SCHEMA)).values()
    if not devices:
        raise InputError(
            f"{path} holds no results of tuning.",
            asked_by=option,
            known="it is another kind of file, damaged, or of another layout",
            hint="gpuedge tune MODEL --device D --out FILE writes one",
        )
    try:
        every = [read(DeviceTunings, saved) for saved in devices]
        for found in every:
            if not found.why_not:
                fit(dict(found.kernels), Mapping[str, TunedKernel])
    except UnfitError as error:
        raise InputError(f"{path} cannot be used.", asked_by=option, known=str(error)) from None
    return [_taken(found, here) for found in every]


def _taken(found: DeviceTunings, here: Identity | None) -> Imported:
    why, identity = found.why_not, Identity.from_dict(found.identity)
    if not why and here is not None:
        apart = identity.differences(here, [name for name in identity._fields if name != OWN])
        why = f"made on another device or driver ({apart})" if apart else ""
    if not why and not _keep(found):
        why = "the cache folder cannot be written"
    return Imported(identity.name, len(found.kernels), why)


def _of(identity: Identity, kernels: Tunings | None = None) -> DeviceTunings:
    known = {name: value for name, value in identity.to_dict().items() if name != OWN}
    return DeviceTunings(known, __version__, shaders(), plain(kernels or {}))


def _devices(body: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    devices = (body or {}).get("devices")
    known = devices.items() if isinstance(devices, dict) else ()
    return {key: saved for key, saved in known if isinstance(saved, dict)}
