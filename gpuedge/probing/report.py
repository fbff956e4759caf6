"""What `gpuedge.probe()` answers: one row per driver or device, and the report that holds them.

Plain data: nothing here starts a process, loads a driver or imports numpy.
"""

from __future__ import annotations

from gpuedge.core.errors import InputError
from gpuedge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from gpuedge.core.driver import DeviceInfo

SCHEMA = "gpuedge.probe/1"
KINDS = ("DISCRETE_GPU", "INTEGRATED_GPU", "VIRTUAL_GPU", "OTHER", "CPU")
"""Device types, best first. A type that is not listed (or not known) counts as ``OTHER``."""

HOW_TO_REFRESH = "cached; gpuedge.probe(refresh=True) tries it again"


class ProbeRow(Record):
    """The verdict on one device, or on one driver where no device was reached.

    Attributes
    ----------
    device : str
        Device string such as ``vulkan:0``; the backend's name where no device was reached.
    backend : str
    status : str
        One of `gpuedge.core.reasons.STATUSES`.
    code : str
        A key of `gpuedge.core.reasons.SENTENCES`.
    reason : str
        One sentence with the specifics of this case.
    name : str
        The device's name as its driver reports it, else the file name of the driver.
    identity : dict
        `Identity.to_dict()`; empty where no device was reached.
    is_software : bool or None
        True for a software rasteriser; None where no device was reached.
    caps : dict
        `Caps.to_dict()` with the tuning class filled in; empty where the device did not open.
    key, fingerprint : str
        Which driver this is and which state its files were in (see `Candidate`).
    env : dict of str to str
        Environment variables that select this driver while it is loaded.
    index : int or None
        Position among this driver's devices; None where no device was reached.
    seconds : float or None
        Time from open to close of this device (of the whole process where none was reached).
    evidence : dict
        What the verdict rests on: checks with their largest error, the step reached, the signal,
        the last lines the driver printed.
    is_cached : bool
        True if the verdict was read from disk and nothing was started.
    """

    device: str
    backend: str
    status: str
    code: str
    reason: str
    name: str = ""
    identity: Mapping[str, Any] = {}
    is_software: bool | None = None
    caps: Mapping[str, Any] = {}
    key: str = ""
    fingerprint: str = ""
    env: Mapping[str, str] = {}
    index: int | None = None
    seconds: float | None = None
    evidence: Mapping[str, Any] = {}
    is_cached: bool = False

    @property
    def is_usable(self) -> bool:
        """True if the device gave the right numbers."""
        return self.status == "ok"

    def info(self) -> DeviceInfo:
        """Return what a backend needs to open this device again.

        Raises
        ------
        InputError (GE-203)
            No device was reached, so there is nothing to open.
        """
        if self.index is None:
            raise InputError(f"{self.device} reached no device: {self.reason}.")
        from gpuedge.core.driver import Candidate, DeviceInfo
        from gpuedge.core.identity import Identity

        candidate = Candidate(self.backend, self.key, self.fingerprint, dict(self.env))
        identity = Identity.from_dict(dict(self.identity))
        return DeviceInfo(candidate, self.index, identity, bool(self.is_software))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return self.as_dict()

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ProbeRow:
        """Rebuild a row from `to_dict`; unknown keys are ignored. Raises InputError."""
        names = cls._fields
        try:
            row = cls(**{k: v for k, v in record.items() if k in names})
        except TypeError:
            raise InputError(
                "A row of the probe report lacks a field.",
                known=f"every row has: {', '.join(list(names)[:5])}",
            ) from None
        return row

    def __repr__(self) -> str:
        return f"<ProbeRow {self.device} {self.status} {self.name!r}>"


def _order(row: ProbeRow) -> tuple[bool, int]:
    kind = row.identity.get("device_type")
    rank = KINDS.index(kind if kind in KINDS else "OTHER")
    return bool(row.is_software), rank


class ProbeReport(Record):
    """Every driver that was tried and what came of it.

    Attributes
    ----------
    tried : tuple of ProbeRow
        One row per device reached and per driver that reached none, in the order of discovery.
    version : str
        The gpuedge version that made the report.
    seconds : float
        How long `probe()` took.
    """

    tried: tuple[ProbeRow, ...]
    version: str
    seconds: float = 0.0

    @property
    def devices(self) -> tuple[ProbeRow, ...]:
        """Usable devices, best first: hardware before software, discrete before integrated."""
        return tuple(sorted((r for r in self.tried if r.is_usable), key=_order))

    @property
    def best(self) -> ProbeRow | None:
        """The first usable device, None if there is none."""
        return next(iter(self.devices), None)

    def find(self, device: str) -> ProbeRow | None:
        """Return the row of a device string; a bare backend name means its best device.

        Where a backend has no usable device the first row of it is returned, which says why.
        """
        exact = [r for r in self.tried if r.device == device and r.index is not None]
        rows = [r for r in self.tried if r.backend == device]
        usable = [r for r in self.devices if r.backend == device]
        return next(iter(exact or usable or rows), None)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; ``best`` and ``devices`` hold device strings."""
        best = self.best
        return {
            "schema": SCHEMA,
            "version": self.version,
            "seconds": round(self.seconds, 6),
            "best": best.device if best else None,
            "devices": [r.device for r in self.devices],
            "tried": [r.to_dict() for r in self.tried],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text."""
        import json

        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, sort_keys=False)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ProbeReport:
        """Rebuild a report from `to_dict`.

        Raises
        ------
        InputError (GE-203)
            The record is not a probe report, or of a version this gpuedge does not read.
        """
        rows = record.get("tried")
        if record.get("schema") != SCHEMA or not isinstance(rows, list):
            raise InputError(
                "This is not a probe report.",
                known=f"its schema is {record.get('schema')!r}; this version reads {SCHEMA!r}",
                hint="make one with: gpuedge probe --json > report.json",
            )
        tried = tuple(ProbeRow.from_dict(r) for r in rows)
        return cls(tried, str(record.get("version", "")), float(record.get("seconds", 0.0)))

    def _headline(self) -> str:
        if not self.tried:
            return "No GPU driver was tried: no backend is switched on."
        best, usable = self.best, len(self.devices)
        if best is None:
            return f"No usable GPU: {len(self.tried)} tried, none gave the right numbers."
        kind = ", a software rasteriser" if best.is_software else ""
        name = _clean(best.name, 80)
        return f"{usable} of {len(self.tried)} usable; the best is {best.device} ({name}{kind})."

    def __str__(self) -> str:
        if not self.tried:
            return self._headline()
        cells = [("device", "name", "status", "reason")]
        cells += [(r.device, _clean(r.name, 44), r.status, _clean(r.reason)) for r in self.tried]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = [
            "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]])
            for row in cells
        ]
        return "\n".join([self._headline(), "", *lines])

    def __repr__(self) -> str:
        best = self.best
        text = f"best {best.device}" if best else "no usable device"
        return f"<ProbeReport {len(self.devices)} of {len(self.tried)} usable, {text}>"

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{t}</th>" for t in ("device", "name", "status", "reason"))
        rows = "".join(
            "<tr>"
            + "".join(f"<td>{escape(t)}</td>" for t in (r.device, r.name, r.status, r.reason))
            + "</tr>"
            for r in self.tried
        )
        return f"<p>{escape(self._headline())}</p><table><tr>{head}</tr>{rows}</table>"


def _clean(text: str, limit: int = 400) -> str:
    """Make driver text safe for a terminal: one line, no control characters, bounded."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def number(rows: Iterable[ProbeRow]) -> tuple[ProbeRow, ...]:
    """Give rows their device strings, counting the reached devices of each backend.

    Where a backend's loader is missing every driver of it fails alike: one row says so.
    """
    counts: dict[str, int] = {}
    numbered: list[ProbeRow] = []
    without_loader: set[str] = set()
    for row in rows:
        if row.index is not None:
            count = counts.get(row.backend, 0)
            counts[row.backend] = count + 1
            numbered.append(row.replace(device=f"{row.backend}:{count}"))
        elif row.code != "no-loader":
            numbered.append(row.replace(device=row.backend))
        elif row.backend not in without_loader:
            without_loader.add(row.backend)
            numbered.append(row.replace(device=row.backend, name=""))
    return tuple(numbered)
