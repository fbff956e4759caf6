"""What earlier launches came to believe about a model on a device, kept on disk.

One launch can spare two seconds, and one window of two seconds is not enough; several, at other
times, are. So a belief is kept, and while much is still at stake a later launch adds a window.

One sealed file, ``<cache folder>/visits.json``; it is written as `gpuedge.decide.store` is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge.core.text import MOST
from gpuedge.decide.belief import Belief, Rule
from gpuedge.decide.model import MOST_NS
from gpuedge.safety.store import load_sealed, update_sealed

SCHEMA = "gpuedge.visits/1"
FILE = "visits.json"
MAX_ENTRIES = 512
"""Models times devices, newest last; older ones are forgotten."""

APART_S = 600
"""Seconds between windows: one heat-up or one busy neighbour must not be met twice."""

MAX_VISITS = 10
"""Windows that are worth their time; after that the lasting error is what is left."""


@dataclass(frozen=True, slots=True)
class Visit:
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
        return is_apart and self.belief.visits < MAX_VISITS and self.loss_ppm >= eps


def visit_key(model: str, device: str, percentile: int) -> str:
    """Return the key of a model (its digest) on a device (its key, driver included)."""
    import hashlib

    text = json.dumps([model, device, percentile])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class VisitStore:
    """The beliefs in one folder. Neither reading nor writing ever raises.

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

    def get(self, key: str) -> Visit | None:
        """Return what is kept under `key`, None if nothing is that makes sense."""
        for known, fields in reversed(self._rows("visits")):
            if known == key:
                return _visit(fields)
        return None

    def put(self, key: str, visit: Visit) -> bool:
        """Keep a visit; False if the folder cannot be written."""
        known = visit.belief
        fields = [known.mean, known.var, known.visits,
                  visit.cpu_ns, visit.startup_ns, visit.loss_ppm, visit.at_s]  # fmt: skip
        return self._put("visits", key, fields)

    def previous(self, model: str, percentile: int) -> str:
        """Return the device that the last launch chose for a model; empty if there is none."""
        key = visit_key(model, "", percentile)
        for known, device in reversed(self._rows("picks")):
            if known == key and isinstance(device, str):
                return device if device.isprintable() and len(device) <= MOST else ""
        return ""

    def chose(self, model: str, percentile: int, device: str) -> bool:
        """Keep which device was chosen for a model."""
        if self.previous(model, percentile) == device:
            return True
        return self._put("picks", visit_key(model, "", percentile), device)

    def _rows(self, name: str) -> list[tuple[Any, Any]]:
        return _pairs(load_sealed(self.path, SCHEMA) or {}, name)

    def _put(self, name: str, key: str, value: object) -> bool:
        def merged(body: dict[str, Any]) -> dict[str, Any]:
            rest = [[k, v] for k, v in _pairs(body, name) if k != key]
            made = {n: [[k, v] for k, v in _pairs(body, n)] for n in ("visits", "picks")}
            return {**made, name: [*rest, [key, value]][-MAX_ENTRIES:]}

        return update_sealed(self.path, SCHEMA, merged)


def _pairs(body: Mapping[str, Any], name: str) -> list[tuple[Any, Any]]:
    rows = body.get(name)
    if not isinstance(rows, list):
        return []
    return [(row[0], row[1]) for row in rows if isinstance(row, list) and len(row) == 2]


def _visit(fields: Any) -> Visit | None:
    if not isinstance(fields, list) or len(fields) != 7:
        return None
    if not all(type(value) is int and abs(value) <= MOST_NS for value in fields):
        return None
    if fields[3] < 1 or min(fields[4:]) < 0:  # nothing takes no time
        return None
    try:
        return Visit(Belief(*fields[:3]), *fields[3:])
    except ValueError:
        return None
