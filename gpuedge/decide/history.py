"""What earlier launches learnt of each model, kept on disk: ``launches.json``, a sealed file.

Of each model it holds how many requests its last launches had, the CPU path's latency, and what was
measured of each device. A writer merges with what is there under a lock: counts are kept by launch,
measurements by device, so what other processes wrote stays, and of one device the newest counts.
Reading and writing never raise; what is damaged or makes no sense reads as absent.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gpuedge import __version__
from gpuedge.core.record import UnfitError, plain, read
from gpuedge.decide.decision_record import DeviceHistory
from gpuedge.decide.options import Count
from gpuedge.safety.paths import cache_dir
from gpuedge.safety.store import load_sealed, update_sealed

_T = TypeVar("_T")

SCHEMA = "gpuedge.launches/3"
FILE = "launches.json"
MAX_MODELS = 512
"""Models kept, newest last; older ones are forgotten."""

MAX_DEVICES = 16
MAX_LAUNCHES = 8


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """What is known of one model: counts of requests by launch, devices by key; oldest first."""

    counts: Mapping[str, Count] = field(default_factory=dict)
    cpu_ns: Count | None = None
    devices: Mapping[str, DeviceHistory] = field(default_factory=dict)

    @property
    def requests(self) -> tuple[int, ...]:
        """Requests of its last launches."""
        return tuple(self.counts.values())


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
    given = {"cpus": cores, "device": device, "facts": dict(facts), "kernel": kernel,
             "machine": platform.machine(), "version": __version__}  # fmt: skip
    text = json.dumps(given, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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
        self._models: dict[str, Any] | None = None

    def of(self, model: str) -> ModelHistory:
        """Return what is kept of a model (its digest), this launch's own count left out."""
        self._models = _models(load_sealed(self.path, SCHEMA))
        known = _known(self._models, model)
        earlier = {launch: n for launch, n in known.counts.items() if launch != self._launch}
        return replace(known, counts=earlier)

    def keep(
        self,
        model: str,
        requests: int,
        cpu_ns: int | None = None,
        devices: Mapping[str, DeviceHistory] | None = None,
    ) -> bool:
        """Keep what this launch learnt of a model; False if the folder cannot be written.

        Its requests so far and the devices that it measured replace what is kept of them; `cpu_ns`
        None leaves the old one.
        """

        def merged(body: dict[str, Any]) -> dict[str, Any]:
            models = _models(body)
            old = _known(models, model)
            new = ModelHistory(
                _newest(old.counts, {self._launch: requests}, MAX_LAUNCHES),
                cpu_ns or old.cpu_ns,
                _newest(old.devices, devices or {}, MAX_DEVICES),
            )
            self._models = _newest(models, {model: plain(new)}, MAX_MODELS)
            return {"models": self._models}

        return update_sealed(self.path, SCHEMA, merged)

    def residual(self, device: str, besides: str = "") -> float:
        """Return the mean of ln(measured / predicted latency) on a device over its other models.

        `device` is its key, `besides` the model left out. 0.0 where nothing is known.
        """
        if self._models is None:
            self._models = _models(load_sealed(self.path, SCHEMA))
        logs = []
        for name, saved in self._models.items():
            with suppress(LookupError, TypeError, UnfitError):
                known = read(DeviceHistory, saved["devices"][device])
                if name != besides and known.gpu_ns and known.predicted_ns:
                    logs.append(math.log(known.gpu_ns / known.predicted_ns))
        return math.fsum(logs) / len(logs) if logs else 0.0


def _newest(old: Mapping[str, _T], new: Mapping[str, _T], most: int) -> dict[str, _T]:
    """Return both, what is new last, without the oldest that are too many."""
    both = {key: value for key, value in old.items() if key not in new} | dict(new)
    return dict(list(both.items())[-most:])


def _models(body: Mapping[str, Any] | None) -> dict[str, Any]:
    models = (body or {}).get("models")
    return models if isinstance(models, dict) else {}


def _known(models: Mapping[str, Any], model: str) -> ModelHistory:
    """Return what is kept of a model; a seal proves no author, so what does not fit is nothing."""
    try:
        return read(ModelHistory, models.get(model))
    except UnfitError:
        return ModelHistory()
