"""The evidence a decision begins with: the probe report, earlier launches, the machine, meters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.conditions import UNKNOWN, Conditions
from gpuedge.decide.record import CPU, Evidence
from gpuedge.decide.store import PastLaunch


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
    launch_of : callable
        Device string to what earlier launches came to believe, None where they did not try it.
    draw_of : callable
        Device string to the number of `draw` in `gpuedge.decide.belief`, None without random
        exploration.
    memory_of : callable
        Device string to the device memory that the model's plan takes, None where not known.
    energy_of : callable
        Device string to the microjoules of one inference, None where no meter exists.
    """

    database: str = ""
    conditions: Conditions = UNKNOWN
    previous: str = ""
    launch_of: Callable[[str], PastLaunch | None] = lambda _: None
    draw_of: Callable[[str], int | None] = lambda _: None
    memory_of: Callable[[str], int | None] = lambda _: None
    energy_of: Callable[[str], int | None] = lambda _: None

    def added(self, e: Evidence) -> Evidence:
        """Return evidence with what is known of its device; a GPU that cannot be used stays so."""
        energy = self.energy_of(e.device)
        if e.device == CPU or e.code != "ok" or e.prediction is None:
            return replace(e, energy_uj=energy) if e.device == CPU else e
        past = self.launch_of(e.device)
        made = replace(
            e, energy_uj=energy, memory_bytes=self.memory_of(e.device),
            draw=self.draw_of(e.device),
        )  # fmt: skip
        if past is None:
            return made
        return replace(
            made, belief=past.belief, base_ns=past.cpu_ns, startup_ns=past.startup_ns
        )  # fmt: skip


def restrictions_of(row: object) -> Mapping[str, Any]:
    """Return what the capability database forbids on a device; a row need not know of it."""
    found = getattr(row, "restrictions", None)
    return dict(found) if isinstance(found, Mapping) else {}


def digest_of(evidence: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 over what probing found, empty if nothing."""
    if not evidence:
        return ""
    text = json.dumps(dict(evidence), sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class CandidateEvidence(Protocol):
    """What is needed of a row of a probe report (`gpuedge.probing.report.ProbeRow` has it)."""

    @property
    def device(self) -> str:
        """Device string, or the backend's name where no device was reached."""

    @property
    def status(self) -> str:
        """``ok`` or why not."""

    @property
    def code(self) -> str:
        """Reason code."""

    @property
    def reason(self) -> str:
        """One sentence."""

    @property
    def name(self) -> str:
        """What the driver calls the device."""

    @property
    def is_software(self) -> bool | None:
        """True for a software rasteriser."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Who the device says it is."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the driver's files change."""

    @property
    def physical(self) -> str:
        """The same text for all routes to one physical device."""


class Report(Protocol):
    """What is needed of a probe report."""

    @property
    def devices(self) -> Sequence[CandidateEvidence]:
        """Usable devices, best first."""

    @property
    def tried(self) -> Sequence[CandidateEvidence]:
        """Every candidate."""


def gather(report: Report) -> list[tuple[Evidence, CandidateEvidence]]:
    """Return usable devices, best first, then everything else that was tried."""
    usable = list(report.devices)
    rest = [r for r in report.tried if r.status != "ok"]
    return [(_evidence(r), r) for r in usable + rest if r.device != CPU]


def _evidence(row: CandidateEvidence) -> Evidence:
    code = "ok" if row.status == "ok" else row.code
    detail = "" if code == "ok" else row.reason
    if code not in SENTENCES or (code == "ok") != (row.status == "ok"):
        code = "open-failed"  # a report of another version: its sentence still says what happened
    restrictions = restrictions_of(row)
    return Evidence(
        row.device, code, detail, row.name, row.is_software, physical=row.physical,
        entries=_in_force(row, restrictions), restrictions=restrictions,
        probe=digest_of(getattr(row, "evidence", {})),
    )  # fmt: skip


_CLEARED = "cleared"
"""Outcome of an entry that a probe showed not to apply (`gpuedge.probing.quirks`); every other one
is in force, not yet tested ones included."""


def _in_force(row: CandidateEvidence, restrictions: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the entries in force: those that restrict, or blocked the device."""
    names = restrictions.get("entries")
    if names:
        return tuple(name for name in names if isinstance(name, str))
    found = getattr(row, "evidence", {}).get("entries")
    listed = found if isinstance(found, (list, tuple)) else ()
    rows = [e if isinstance(e, Mapping) else {"id": e} for e in listed]
    ids = [e.get("id") for e in rows if e.get("outcome") != _CLEARED]
    return tuple(name for name in ids if isinstance(name, str))


def facts_of(row: CandidateEvidence | None) -> dict[str, Any]:
    """Return what identifies a device and its driver; the CPU has no row."""
    if row is None:
        return {}
    facts = {"identity": dict(row.identity), "fingerprint": row.fingerprint}
    restrictions = restrictions_of(row)
    return {**facts, "restrictions": restrictions} if restrictions else facts  # they cost speed
