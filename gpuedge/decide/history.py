"""What earlier launches learnt of each model, kept on disk: ``launches.json``, a sealed file.

Of each model it holds how many requests its last launches had, the CPU path's latency, and what was
measured of each device. A writer merges with what is there under a lock: counts are kept by launch,
measurements by device, so what other processes wrote stays, and of one device the newest counts.
Reading and writing never raise; what is damaged or makes no sense reads as absent.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gpuedge import __version__
from gpuedge.decide.belief import Belief
from gpuedge.decide.record import MOST, belief_of, digest
from gpuedge.safety.paths import cache_dir
from gpuedge.safety.store import load_sealed, update_sealed

_T = TypeVar("_T")

SCHEMA = "gpuedge.launches/2"
FILE = "launches.json"
MAX_MODELS = 512
"""Models kept, newest last; older ones are forgotten."""

MAX_DEVICES = 16
MAX_LAUNCHES = 8
MAX_KEY = 128
"""Characters of a key: a digest has 64."""


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """What was measured of one model on one device; None is unknown.

    `startup_ns` is what opening and compiling took, `gpu_ns` the measured latency of a request and
    `predicted_ns` what had been predicted for it; `at_s` is when, in seconds since the epoch.
    """

    belief: Belief | None = None
    startup_ns: int | None = None
    gpu_ns: int | None = None
    predicted_ns: int | None = None
    at_s: int = 0


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """What is known of one model; `requests` of its last launches, oldest first."""

    requests: tuple[int, ...] = ()
    cpu_ns: int | None = None
    devices: Mapping[str, DeviceHistory] = field(default_factory=dict)


def device_key(device: str, facts: Mapping[str, Any], kernel: str = "") -> str:
    """Return the SHA-256 (hex) of everything that measurements on a device depend on.

    Parameters
    ----------
    device : str
        Device string.
    facts : mapping
        JSON-ready: the device's identity, its driver's fingerprint and what is forbidden on it.
    kernel : str
        What computes beside it, with its version, such as ``onnxruntime 1.20.1``.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return digest(
        {"cpus": cores, "device": device, "facts": dict(facts), "kernel": kernel,
         "machine": platform.machine(), "version": __version__}
    )  # fmt: skip


def is_due(requests: int) -> bool:
    """Say whether a count is to be kept now: powers of two, so that a kill loses at most half."""
    return requests > 0 and requests & (requests - 1) == 0


class History:
    """The history in one folder, as seen by one launch of a model.

    Parameters
    ----------
    folder : Path, optional
        By default gpuedge's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (cache_dir() if folder is None else folder) / FILE
        self._launch = os.urandom(8).hex()
        self._models: dict[str, _Kept] | None = None

    def of(self, model: str) -> ModelHistory:
        """Return what is kept of a model (its digest), this launch's own count left out."""
        self._models = _models(load_sealed(self.path, SCHEMA))
        found = self._models.get(model, _Kept({}))
        counts = tuple(n for launch, n in found.counts.items() if launch != self._launch)
        return ModelHistory(counts, found.cpu_ns, found.devices)

    def keep(self, model: str, update: ModelHistory) -> bool:
        """Keep what this launch learnt of a model; False if the folder cannot be written.

        Parameters
        ----------
        model : str
        update : ModelHistory
            `requests` holds one number: those of this launch so far. It and the devices that this
            launch measured replace what is kept of them; `cpu_ns` None leaves the old one.
        """

        def merged(body: dict[str, Any]) -> dict[str, Any]:
            models = _models(body)
            old = models.pop(model, _Kept({}))
            mine = {self._launch: update.requests[-1]} if update.requests else {}
            models[model] = _Kept(
                _newest(old.counts, mine, MAX_LAUNCHES),
                update.cpu_ns or old.cpu_ns,
                _newest(old.devices, update.devices, MAX_DEVICES),
            )
            self._models = dict(list(models.items())[-MAX_MODELS:])
            return {"models": [[name, _saved(kept)] for name, kept in self._models.items()]}

        return update_sealed(self.path, SCHEMA, merged)

    def residual(self, device: str, besides: str = "") -> float:
        """Return the mean of ln(measured / predicted latency) on a device over its other models.

        `device` is its key, `besides` the model left out. 0.0 where nothing is known.
        """
        if self._models is None:
            self._models = _models(load_sealed(self.path, SCHEMA))
        known = [kept.devices.get(device, DeviceHistory())
                 for name, kept in self._models.items() if name != besides]  # fmt: skip
        logs = [math.log(d.gpu_ns / d.predicted_ns) for d in known if d.gpu_ns and d.predicted_ns]
        return math.fsum(logs) / len(logs) if logs else 0.0


class _Kept(NamedTuple):
    """A model as the file has it: requests by launch."""

    counts: Mapping[str, int]
    cpu_ns: int | None = None
    devices: Mapping[str, DeviceHistory] = {}


def _newest(old: Mapping[str, _T], new: Mapping[str, _T], most: int) -> dict[str, _T]:
    """Return both, what is new last, without the oldest that are too many."""
    both = {key: value for key, value in old.items() if key not in new} | dict(new)
    return dict(list(both.items())[-most:])


def _saved(kept: _Kept) -> list[Any]:
    devices = []
    for key, d in kept.devices.items():
        belief = None if d.belief is None else [d.belief.mean, d.belief.var, d.belief.windows]
        devices.append([key, [belief, d.startup_ns, d.gpu_ns, d.predicted_ns, d.at_s]])
    return [[list(pair) for pair in kept.counts.items()], kept.cpu_ns, devices]


# -- reading: a seal proves no author, so every field is checked -----------------------------------


def _models(body: Mapping[str, Any] | None) -> dict[str, _Kept]:
    return {name: _kept(fields) for name, fields in _pairs((body or {}).get("models"))}


def _pairs(rows: Any) -> list[tuple[str, Any]]:
    """Return the rows that are a key and something."""
    return [
        (row[0], row[1]) for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, list) and len(row) == 2
        and isinstance(row[0], str) and 0 < len(row[0]) <= MAX_KEY
    ]  # fmt: skip


def _kept(fields: Any) -> _Kept:
    is_one = isinstance(fields, list) and len(fields) == 3
    counts, cpu_ns, devices = fields if is_one else (None, None, None)
    known = {launch: n for launch, value in _pairs(counts) if (n := _number(value))}
    found = {key: _device(row) for key, row in _pairs(devices)}
    return _Kept(_newest({}, known, MAX_LAUNCHES), _number(cpu_ns), _newest({}, found, MAX_DEVICES))


def _device(fields: Any) -> DeviceHistory:
    if not isinstance(fields, list) or len(fields) != 5:
        return DeviceHistory()
    belief, *numbers = fields
    try:
        known = belief_of(belief)
    except (TypeError, ValueError):
        known = None
    startup, gpu, predicted, at_s = map(_number, numbers)
    return DeviceHistory(known, startup, gpu, predicted, at_s or 0)


def _number(value: Any) -> int | None:
    """Return a time or count that can be, None for anything else: nothing takes no time."""
    return value if type(value) is int and 0 < value <= MOST else None
