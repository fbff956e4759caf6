"""What measuring found, kept on disk: each device's speed, and what launches saw of each model.

Two sealed files in the cache folder. ``calibration.json`` keeps what each device can do, so that it
is measured once and not at every start. ``launches.json`` keeps what earlier launches came to
believe of a model on a device: one window of two seconds is not enough to be sure, several at other
times are. A writer merges with what is there under a lock and replaces the file in one step; where
no lock is to be had a race can lose an entry (it is measured again) but never tear one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge import __version__
from gpuedge.core.reasons import Reason
from gpuedge.core.text import MOST
from gpuedge.decide.belief import Belief, Rule
from gpuedge.decide.model import MOST_NS, DeviceModel
from gpuedge.safety.paths import cache_dir
from gpuedge.safety.store import load_sealed, update_sealed

CALIBRATION_SCHEMA = "gpuedge.calibration/2"
CALIBRATION_FILE = "calibration.json"
MAX_CALIBRATIONS = 64
"""Calibrations kept, newest first; a machine has a handful."""

LAUNCH_SCHEMA = "gpuedge.launches/1"
LAUNCH_FILE = "launches.json"
MAX_LAUNCHES = 512
"""Models times devices, newest last; older ones are forgotten."""

APART_S = 600
"""Seconds between windows: one heat-up or one busy neighbour must not be met twice."""

MAX_WINDOWS = 10
"""Windows that are worth their time; after that the lasting error is what is left."""

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
            folder = cache_dir()
        self.path = folder / CALIBRATION_FILE
        self._found: dict[str, DeviceModel] = {}
        self._failed: dict[str, tuple[Reason, float]] = {}

    def get(self, key: str) -> DeviceModel | None:
        """Return the model stored under `key`, or None if there is none that makes sense.

        A partial model (the budget ran out) is returned once `PATIENCE` attempts got no further:
        a machine that was busy gets another chance, a slow one does not pay at every start.
        """
        if key in self._found:
            return self._found[key]
        model, attempts = _find(load_sealed(self.path, CALIBRATION_SCHEMA) or {}, key)
        return model if model is not None and (model.complete or attempts >= PATIENCE) else None

    def put(self, key: str, model: DeviceModel) -> bool:
        """Store a model; False if the folder cannot be written."""
        self._found[key] = model

        def merged(body: dict[str, Any]) -> dict[str, Any]:
            _, attempts = _find(body, key)
            entries = [e for e in _entries(body) if e[0] != key]
            return {"entries": [*entries, [key, model.to_dict(), attempts + 1]][-MAX_CALIBRATIONS:]}

        return update_sealed(self.path, CALIBRATION_SCHEMA, merged)

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


@dataclass(frozen=True, slots=True)
class PastLaunch:
    """What is known after the last window.

    Attributes
    ----------
    belief : Belief
    cpu_ns : int
        Latency of the CPU path at the policy's percentile.
    startup_ns : int
        What opening and compiling took.
    loss_ppm : int
        Expected loss of the choice that was made.
    at_s : int
        When, in seconds since the epoch.
    """

    belief: Belief
    cpu_ns: int
    startup_ns: int
    loss_ppm: int
    at_s: int

    def is_due(self, now_s: int, rule: Rule | None = None) -> bool:
        """Say whether another window is worth its time now. A clock set back does not forbid it."""
        eps = (rule or Rule()).eps_ppm
        is_apart = not 0 <= now_s - self.at_s < APART_S
        return is_apart and self.belief.windows < MAX_WINDOWS and self.loss_ppm >= eps


def launch_key(model: str, device: str, percentile: int) -> str:
    """Return the key of a model (its digest) on a device (its key, driver included)."""
    text = json.dumps([model, device, percentile])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class LaunchStore:
    """The beliefs in one folder. Neither reading nor writing ever raises.

    Parameters
    ----------
    folder : Path, optional
        By default gpuedge's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            folder = cache_dir()
        self.path = folder / LAUNCH_FILE

    def get(self, key: str) -> PastLaunch | None:
        """Return what is kept under `key`, None if nothing is that makes sense."""
        for known, fields in reversed(self._rows("launches")):
            if known == key:
                return _launch(fields)
        return None

    def put(self, key: str, launch: PastLaunch) -> bool:
        """Keep what a launch came to believe; False if the folder cannot be written."""
        known = launch.belief
        fields = [known.mean, known.var, known.windows,
                  launch.cpu_ns, launch.startup_ns, launch.loss_ppm, launch.at_s]  # fmt: skip
        return self._put("launches", key, fields)

    def previous(self, model: str, percentile: int) -> str:
        """Return the device that the last launch chose for a model; empty if there is none."""
        key = launch_key(model, "", percentile)
        for known, device in reversed(self._rows("picks")):
            if known == key and isinstance(device, str):
                return device if device.isprintable() and len(device) <= MOST else ""
        return ""

    def chose(self, model: str, percentile: int, device: str) -> bool:
        """Keep which device was chosen for a model."""
        if self.previous(model, percentile) == device:
            return True
        return self._put("picks", launch_key(model, "", percentile), device)

    def _rows(self, name: str) -> list[tuple[Any, Any]]:
        return _pairs(load_sealed(self.path, LAUNCH_SCHEMA) or {}, name)

    def _put(self, name: str, key: str, value: object) -> bool:
        def merged(body: dict[str, Any]) -> dict[str, Any]:
            rest = [[k, v] for k, v in _pairs(body, name) if k != key]
            made = {n: [[k, v] for k, v in _pairs(body, n)] for n in ("launches", "picks")}
            return {**made, name: [*rest, [key, value]][-MAX_LAUNCHES:]}

        return update_sealed(self.path, LAUNCH_SCHEMA, merged)


def _pairs(body: Mapping[str, Any], name: str) -> list[tuple[Any, Any]]:
    rows = body.get(name)
    if not isinstance(rows, list):
        return []
    return [(row[0], row[1]) for row in rows if isinstance(row, list) and len(row) == 2]


def _launch(fields: Any) -> PastLaunch | None:
    if not isinstance(fields, list) or len(fields) != 7:
        return None
    if not all(type(value) is int and abs(value) <= MOST_NS for value in fields):
        return None
    if fields[3] < 1 or min(fields[4:]) < 0:  # nothing takes no time
        return None
    try:
        return PastLaunch(Belief(*fields[:3]), *fields[3:])
    except ValueError:
        return None
