"""Calibrations on disk, so that a device is measured once and not at every start.

One sealed file, ``<cache folder>/calibration.json``. The key covers what changes the speed: the
device and its driver, gpuedge's version, what computes, and how many cores there are. A writer
merges with what is there under a lock (`gpuedge.safety.lock`) and replaces the file in one step;
where no lock is to be had a race can lose an entry (it is measured again) but never tear one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuedge.core.reasons import Reason
from gpuedge.decide.model import DeviceModel
from gpuedge.safety.store import load_sealed, update_sealed

SCHEMA = "gpuedge.calibration/2"
FILE = "calibration.json"
MAX_ENTRIES = 64
"""Calibrations kept, newest first; a machine has a handful."""

PATIENCE = 3
"""Calibrations that may end early before their partial model is taken for what this device is."""

MUCH = 1.5
"""A calibration that failed is tried again with this many times the budget."""


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def calibration_key(
    device: str, facts: Mapping[str, Any], kernel: str = "", cpus: int | None = None
) -> str:
    """Return the SHA-256 (hex) of everything that a calibration depends on.

    Parameters
    ----------
    device : str
        Device string.
    facts : mapping
        JSON-ready: the device's identity and its driver's fingerprint; empty for the CPU.
    kernel : str
        What computes, with its version, such as ``onnxruntime 1.20.1``.
    cpus : int, optional
        Usable cores; those of this process by default. They matter to GPUs too: recording,
        copying and software rasterisers use them.
    """
    import hashlib
    import platform

    from gpuedge import __version__

    parts = {
        "cpus": cores() if cpus is None else cpus,
        "device": device,
        "facts": dict(facts),
        "kernel": kernel,
        "machine": platform.machine(),
        "version": __version__,
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class CalibrationStore:
    """The calibrations in one folder. Neither reading nor writing ever raises.

    An instance also remembers what it found itself, partial models and failures included, so that
    one process does not try again for every model it loads: keep one per process.

    Parameters
    ----------
    folder : Path, optional
        By default gpuedge's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            from gpuedge.safety.paths import cache_dir

            folder = cache_dir()
        self.path = folder / FILE
        self._found: dict[str, DeviceModel] = {}
        self._failed: dict[str, tuple[Reason, float]] = {}

    def get(self, key: str) -> DeviceModel | None:
        """Return the model stored under `key`, or None if there is none that makes sense.

        A partial model (the budget ran out) is returned once `PATIENCE` attempts got no further:
        a machine that was busy gets another chance, a slow one does not pay at every start.
        """
        if key in self._found:
            return self._found[key]
        model, attempts = _find(load_sealed(self.path, SCHEMA) or {}, key)
        return model if model is not None and (model.complete or attempts >= PATIENCE) else None

    def put(self, key: str, model: DeviceModel) -> bool:
        """Store a model; False if the folder cannot be written."""
        self._found[key] = model

        def merged(body: dict[str, Any]) -> dict[str, Any]:
            _, attempts = _find(body, key)
            entries = [e for e in _entries(body) if e[0] != key]
            return {"entries": [*entries, [key, model.to_dict(), attempts + 1]][-MAX_ENTRIES:]}

        return update_sealed(self.path, SCHEMA, merged)

    def fail(self, key: str, reason: Reason, budget_s: float) -> None:
        """Remember in this process only that calibrating within `budget_s` failed."""
        self._failed[key] = (reason, budget_s)

    def failure(self, key: str, budget_s: float) -> Reason | None:
        """Return why calibrating failed before; None if it did not, or had much less time then.

        One that did not come back in time is left alone until it does, whatever the budget.
        """
        reason, before = self._failed.get(key, (None, 0.0))
        is_final = reason is not None and reason.code == "deadline"
        return reason if is_final or budget_s <= MUCH * before else None


def _entries(body: Mapping[str, Any]) -> list[list[Any]]:
    """Return [key, model, attempts], oldest first; an empty list if there are none."""
    entries = body.get("entries")
    if not isinstance(entries, list):
        return []
    return [e for e in entries if isinstance(e, list) and len(e) == 3]


def _find(body: Mapping[str, Any], key: str) -> tuple[DeviceModel | None, int]:
    for known, model, attempts in reversed(_entries(body)):
        if known == key and isinstance(attempts, int):
            try:
                return DeviceModel.from_dict(model), attempts
            except (AttributeError, TypeError, ValueError):
                break
    return None, 0
