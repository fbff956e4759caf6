"""What a decision may know beside probing and calibration: earlier launches, heat, meters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuedge.decide.conditions import UNKNOWN, Conditions
from gpuedge.decide.record import CPU, Evidence
from gpuedge.decide.visits import Visit


@dataclass(frozen=True, slots=True)
class Background:
    """What is known beside probing and calibration; everything may be left out.

    Attributes
    ----------
    database : str
        Version of the capability database that judged the devices.
    conditions : Conditions
        What the machine is like.
    previous : str
        The device an earlier launch chose for this model.
    visit_of : callable
        Device string to what earlier launches came to believe, None where they did not try it.
    coin_of : callable
        Device string to the coin of `gpuedge.decide.audit`, None where there are no audits.
    memory_of : callable
        Device string to the device memory that the model's plan takes, None where not known.
    energy_of : callable
        Device string to the microjoules of one inference, None where no meter exists.
    """

    database: str = ""
    conditions: Conditions = UNKNOWN
    previous: str = ""
    visit_of: Callable[[str], Visit | None] = lambda _: None
    coin_of: Callable[[str], int | None] = lambda _: None
    memory_of: Callable[[str], int | None] = lambda _: None
    energy_of: Callable[[str], int | None] = lambda _: None

    def added(self, e: Evidence) -> Evidence:
        """Return evidence with what is known of its device; a GPU that cannot be used stays so."""
        energy = self.energy_of(e.device)
        if e.device == CPU or e.code != "ok" or e.prediction is None:
            return replace(e, energy_uj=energy) if e.device == CPU else e
        visit = self.visit_of(e.device)
        made = replace(
            e, energy_uj=energy, memory_bytes=self.memory_of(e.device),
            audit=self.coin_of(e.device),
        )  # fmt: skip
        if visit is None:
            return made
        return replace(
            made, belief=visit.belief, base_ns=visit.cpu_ns, startup_ns=visit.startup_ns
        )  # fmt: skip


def restrictions_of(row: object) -> Mapping[str, Any]:
    """Return what the capability database forbids on a device; a row need not know of it."""
    found = getattr(row, "restrictions", None)
    return dict(found) if isinstance(found, Mapping) else {}


def digest_of(evidence: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 over what probing found, empty if nothing."""
    if not evidence:
        return ""
    import hashlib
    import json

    text = json.dumps(dict(evidence), sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
