"""What the tuner found, kept on disk and passed on to other machines: ``tunings.json``.

It is kept by device, driver, version of gpuedge and kernel texts: with another one of these there
is nothing. A file for other machines is the same sealed file, of one device. Reading and writing
the cache never raise; what is damaged or makes no sense reads as absent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from gpuedge import __version__
from gpuedge.core.errors import InputError
from gpuedge.core.identity import Identity
from gpuedge.core.record import UnfitError, fit, plain, read, read_each
from gpuedge.plan.library import texts, variants
from gpuedge.plan.tuned import TunedKernel, Tunings, one_line
from gpuedge.safety.paths import cache_dir, check_readable, save_named
from gpuedge.safety.store import load_sealed, sealed_bytes, update_sealed

SCHEMA = "gpuedge.tunings/1"
FILE = "tunings.json"

MAX_DEVICES = 16
"""Devices kept, newest last; older ones are forgotten."""

MAX_KERNELS = 1024
"""Kernels kept of each, in the same way; a network has 10 to 60, and each takes 600 bytes."""

MAX_KEY = 512
"""Characters of a kernel's key; longer ones are not kept. Those of gpuedge have 200 to 300."""

OWN = "deviceUUID"
"""What an identity says of one piece of hardware, and not of all that are alike."""

Short = Annotated[str, range(65), one_line]
Key = Annotated[str, range(MAX_KEY + 1)]


@dataclass(frozen=True, slots=True)
class DeviceTunings:
    """What was found on one kind of device.

    `identity` is what its driver says, `version` that of gpuedge, `shaders` the digest of kernel
    texts and variants, and `kernels` the records of `TunedKernel` by their keys, as JSON has them.
    """

    identity: Annotated[Mapping[str, Any], Identity]
    version: Short
    shaders: Short
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
    return _kernels(saved)


def keep(identity: Identity, kernels: Tunings, tried: Collection[str] = ()) -> bool:
    """Keep kernels of a device after older ones; False if the folder cannot be written.

    What is of other versions is forgotten. See `TunedKernel.after` for `tried`.
    """
    return _keep(_of(identity), kernels, tried)


def _keep(found: DeviceTunings, kernels: Tunings, tried: Collection[str] = ()) -> bool:
    def merged(body: dict[str, Any]) -> dict[str, Any]:
        same = found.version, found.shaders
        devices = {
            key: saved for key, saved in _devices(body).items()
            if (saved.get("version"), saved.get("shaders")) == same
        }  # fmt: skip
        old = _kernels(devices.pop(found.key, {}))
        new = {key: kernel.after(old.pop(key, None), tried) for key, kernel in kernels.items()}
        devices[found.key] = plain(replace(found, kernels=_newest({**old, **new})))
        return {"devices": dict([*devices.items()][-MAX_DEVICES:])}

    return update_sealed(cache_dir() / FILE, SCHEMA, merged)


def _kernels(saved: Mapping[str, Any]) -> dict[str, TunedKernel]:
    return _newest(read_each(TunedKernel, saved.get("kernels")))


def _newest(kernels: Tunings) -> dict[str, TunedKernel]:
    """Return the kernels that may be kept: as many, and with keys as long."""
    return dict([pair for pair in kernels.items() if len(pair[0]) <= MAX_KEY][-MAX_KERNELS:])


def export(identity: Identity, kernels: Tunings, path: Path, option: str) -> int:
    """Write kernels of a device to a file for others; return how many.

    Raises InputError (GE-203) where the file that `option` named cannot be written.
    """
    found = replace(_of(identity), kernels=plain(_newest(kernels)))
    body = json.dumps({"devices": {found.key: plain(found)}}, separators=(",", ":"))
    save_named(path, sealed_bytes(SCHEMA, body.encode()), option)
    return len(found.kernels)


@dataclass(frozen=True, slots=True)
class Imported:
    """A device of a file: its name, how many kernels were kept, and why none was.

    Where none was, `kernels` is how many the file has.
    """

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
    saved = (load_sealed(path, SCHEMA) or {}).get("devices")
    if not saved or not isinstance(saved, dict):
        raise InputError(
            f"{path} holds no results of tuning.",
            asked_by=option,
            known="it is another kind of file, damaged, or of another layout",
            hint="gpuedge tune MODEL --device D --out FILE writes one",
        )
    try:
        every = [read(DeviceTunings, each) for each in saved.values()]
        known = [
            {} if f.why_not else fit(dict(f.kernels), Mapping[Key, TunedKernel]) for f in every
        ]
    except UnfitError as error:
        raise InputError(f"{path} cannot be used.", asked_by=option, known=str(error)) from None
    whys = [_keep_imported(*each, here) for each in zip(every, known, strict=True)]
    kept_now = _devices(load_sealed(cache_dir() / FILE, SCHEMA))
    taken = []
    for found, kernels, why in zip(every, known, whys, strict=True):
        name = Identity.from_dict(found.identity).name
        count = len(kernels.keys() & _kernels(kept_now.get(found.key, {})).keys())
        if why or not count:
            none = f"no more than {MAX_DEVICES} devices are kept" if kernels else "it has no kernel"
            taken.append(Imported(name, len(found.kernels), why or none))
        else:
            taken.append(Imported(name, count, ""))
    return taken


def _keep_imported(found: DeviceTunings, kernels: Tunings, here: Identity | None) -> str:
    """Keep a device of a file; return why not, empty if it was."""
    why, identity = found.why_not, Identity.from_dict(found.identity)
    if not why and here is not None:
        apart = identity.differences(here, [name for name in identity._fields if name != OWN])
        why = f"made on another device or driver ({apart})" if apart else ""
    if not why and not _keep(found, kernels):
        why = "the cache folder cannot be written"
    return why


def _of(identity: Identity) -> DeviceTunings:
    known = {name: value for name, value in identity.to_dict().items() if name != OWN}
    return DeviceTunings(known, __version__, shaders())


def _devices(body: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    devices = (body or {}).get("devices")
    known = devices.items() if isinstance(devices, dict) else ()
    return {key: saved for key, saved in known if isinstance(saved, dict)}
