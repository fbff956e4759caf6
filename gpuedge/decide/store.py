"""Calibrations on disk, so that a device is measured once and not at every start.

One sealed file, ``<cache folder>/calibration.json``. The key covers what changes the speed: the
device and its driver, gpuedge's version, what computes, and how many cores there are. There is no
lock: a writer merges with what is there and replaces the file in one step, so a race can lose an
entry (it is measured again) but never tear one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuedge.core.store import load_sealed, save_sealed
from gpuedge.decide.model import DeviceModel

SCHEMA = "gpuedge.calibration/1"
FILE = "calibration.json"
MAX_ENTRIES = 64
"""Calibrations kept, newest first; a machine has a handful."""


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

    Parameters
    ----------
    folder : Path, optional
        By default gpuedge's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            from gpuedge.core.paths import cache_dir

            folder = cache_dir()
        self.path = folder / FILE

    def _entries(self) -> list[list[Any]]:
        """Return [key, model] pairs, oldest first; an empty list if the file is not intact."""
        entries = (load_sealed(self.path, SCHEMA) or {}).get("entries")
        if not isinstance(entries, list):
            return []
        return [e for e in entries if isinstance(e, list) and len(e) == 2]

    def get(self, key: str) -> DeviceModel | None:
        """Return the model stored under `key`, or None if there is none that makes sense."""
        for known, model in reversed(self._entries()):
            if known == key:
                try:
                    return DeviceModel.from_dict(model)
                except (AttributeError, TypeError, ValueError):
                    return None
        return None

    def put(self, key: str, model: DeviceModel) -> bool:
        """Store a complete model; False if it is partial or the folder cannot be written.

        A partial model (the budget ran out) is good for one decision, not for all to come.
        """
        if not model.complete:
            return False
        entries = [e for e in self._entries() if e[0] != key]
        entries = [*entries, [key, model.to_dict()]][-MAX_ENTRIES:]
        return save_sealed(self.path, SCHEMA, {"entries": entries})
