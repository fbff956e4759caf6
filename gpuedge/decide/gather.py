"""What a probe report says about candidates, as the evidence that a decision begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.background import digest_of, restrictions_of
from gpuedge.decide.record import CPU, Evidence


class Row(Protocol):
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
        """The same text for all roads to one physical device."""


class Report(Protocol):
    """What is needed of a probe report."""

    @property
    def devices(self) -> Sequence[Row]:
        """Usable devices, best first."""

    @property
    def tried(self) -> Sequence[Row]:
        """Every candidate."""


def gather(report: Report) -> list[tuple[Evidence, Row]]:
    """Return usable devices, best first, then everything else that was tried."""
    usable = list(report.devices)
    rest = [r for r in report.tried if r.status != "ok"]
    return [(_evidence(r), r) for r in usable + rest if r.device != CPU]


def _evidence(row: Row) -> Evidence:
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


def _in_force(row: Row, restrictions: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the entries in force: those that restrict, or blocked the device."""
    names = restrictions.get("entries")
    if names:
        return tuple(name for name in names if isinstance(name, str))
    found = getattr(row, "evidence", {}).get("entries")
    listed = found if isinstance(found, (list, tuple)) else ()
    rows = [e if isinstance(e, Mapping) else {"id": e} for e in listed]
    ids = [e.get("id") for e in rows if e.get("outcome") != _CLEARED]
    return tuple(name for name in ids if isinstance(name, str))


def facts_of(row: Row | None) -> dict[str, Any]:
    """Return what identifies a device and its driver; the CPU has no row."""
    if row is None:
        return {}
    facts = {"identity": dict(row.identity), "fingerprint": row.fingerprint}
    restrictions = restrictions_of(row)
    return {**facts, "restrictions": restrictions} if restrictions else facts  # they cost speed
