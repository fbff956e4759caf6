"""What a decision rests on: plain evidence in whole numbers, so that it replays exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.belief import Belief
from gpuedge.decide.policy import Policy
from gpuedge.decide.saved import Saved
from gpuedge.decide.sides import CPU

if TYPE_CHECKING:
    from gpuedge.probing.report import ProbeReport, ProbeRow

METHOD = "service/1"
"""The rules and constants that decide. Whoever changes one in a way that a record could come to
another choice changes this name, and records of the old one are refused, not reinterpreted."""

AUTO = "auto"
PHASES = ("", "closed", "opening", "late", "trial", "ready", "lost", "failed")


@dataclass(frozen=True, slots=True)
class Evidence(Saved):
    """What is known about one candidate; None is unknown.

    Attributes
    ----------
    device : str
        Device string; a backend's name where no device was reached.
    code, detail : str
        ``ok`` if it could be used, else the reason code of what rules it out, and its specifics.
    name : str
        What its driver calls it.
    is_software : bool or None
        True for a software rasteriser.
    physical : str
        The same text for all routes to one physical device (APIs that reach it); may be empty.
    entries : tuple of str
        Ids of the capability database's entries in force.
    is_demoted : bool
        Whether the database puts it behind the others.
    memory_bytes : int or None
        Device memory that the model's plan takes.
    predicted_ns, startup_ns : int or None
        One request as predicted without opening the device; what opening, compiling and warming up
        take, predicted or measured.
    belief : Belief or None
        ln(latency on the GPU / on the CPU) of this model. Only one with windows was measured.
    latency_ns : int or None
        Median of requests here, as measured in this launch; the CPU's also in earlier ones.
    at_ns : int or None
        Latency at the policy's percentile, for its deadline; the median stands in where None.
    served : int
        Requests of this launch that it answered.
    phase : str
        Of a route to a GPU: ``closed`` (not worth opening yet), ``opening``, ``late`` (opening
        stalled, and is tried again), ``trial``, ``ready``, ``lost`` (measured, slower), ``failed``.
    opens_after : int or None
        Requests of this launch after which it is opened.
    waited_ns, retry_ns : int or None
        Of a ``late`` one: how long opening was waited for, and when it is tried again.
    note : str
        What it does otherwise than the policy asks for, and why.
    """

    device: str
    code: str = "ok"
    detail: str = ""
    name: str = ""
    is_software: bool | None = None
    physical: str = ""
    entries: tuple[str, ...] = ()
    is_demoted: bool = False
    memory_bytes: int | None = None
    predicted_ns: int | None = None
    startup_ns: int | None = None
    belief: Belief | None = None
    latency_ns: int | None = None
    at_ns: int | None = None
    served: int = 0
    phase: str = ""
    opens_after: int | None = None
    waited_ns: int | None = None
    retry_ns: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        Saved.__post_init__(self)
        if self.code not in SENTENCES or self.phase not in PHASES:
            raise ValueError(f"unknown code or phase {self.code!r}, {self.phase!r}")

    @property
    def is_measured(self) -> bool:
        """Whether it was compared with the CPU path, in this launch or an earlier one."""
        return self.belief is not None and self.belief.windows > 0

    @property
    def is_remembered(self) -> bool:
        """Whether only earlier launches measured it."""
        return self.is_measured and self.latency_ns is None

    @property
    def tail_ns(self) -> int | None:
        """The latency that the deadline is held against."""
        return self.at_ns or self.latency_ns

    @property
    def label(self) -> str:
        """Device string with the device's name where it is known."""
        return f"{self.device} ({self.name})" if self.name else self.device


@dataclass(frozen=True, slots=True)
class Record(Saved):
    """Everything `decide` looks at, and nothing it does not.

    Attributes
    ----------
    asked : str
        ``auto`` or a device string.
    policy : Policy
    candidates : tuple of Evidence
        Best first, as probing ordered them; the CPU is one of them.
    version, database : str
        Those of gpuedge, and of the capability database that judged the devices; may be empty.
    requests, previous_requests : int, tuple of int
        Requests of this launch so far, and of earlier ones, oldest first.
    isolation : str
        ``inline`` or ``process``: where drivers live.
    falls_back : bool
        Whether the CPU is taken where a device asked for by name cannot be used (any more).
    in_use : str or None
        What answers at this moment under ``auto``: changing over takes a request, and is limited.
        None where nothing serves yet.
    held_ns : int
        For how long it cannot change to another open side (`Options.switches_per_minute`).
    method : str
        The rules and constants in force (`METHOD`).
    """

    asked: str
    policy: Policy
    candidates: tuple[Evidence, ...]
    version: str
    database: str = ""
    requests: int = 0
    previous_requests: tuple[int, ...] = ()
    isolation: str = "inline"
    falls_back: bool = False
    in_use: str | None = None
    held_ns: int = 0
    method: str = METHOD

    def __post_init__(self) -> None:
        Saved.__post_init__(self)
        if self.method != METHOD:
            raise ValueError(f"decided by {self.method!r}; this version has {METHOD!r}")
        if self.in_use not in {None, CPU, *(c.device for c in self.candidates)}:
            raise ValueError("in_use must be one of the candidates")

    @property
    def cpu(self) -> Evidence:
        """The CPU path's evidence; without any if it is not among the candidates."""
        return next((c for c in self.candidates if c.device == CPU), Evidence(CPU))

    @property
    def is_late(self) -> bool:
        """Whether the CPU path misses the deadline."""
        limit, at = self.policy.deadline_ns, self.cpu.tail_ns
        return limit is not None and at is not None and at > limit


def candidates_of(report: ProbeReport) -> list[tuple[Evidence, ProbeRow]]:
    """Return what probing found: usable devices, best first, then everything else it tried."""
    rows = [*report.devices, *(row for row in report.tried if row.status != "ok")]
    return [(_evidence(row), row) for row in rows if row.device != CPU]


def _evidence(row: ProbeRow) -> Evidence:
    code = "ok" if row.status == "ok" else row.code
    if code not in SENTENCES or (code == "ok") != (row.status == "ok"):
        code = "open-failed"  # a report of another version: its sentence still says what happened
    found = row.restrictions.get("entries") or row.evidence.get("entries")
    listed = [
        e if isinstance(e, Mapping) else {"id": e}
        for e in (found if isinstance(found, (list, tuple)) else ())
    ]
    # an entry that a probe showed not to apply is cleared; untested ones are in force
    entries = tuple(str(e["id"]) for e in listed if e.get("id") and e.get("outcome") != "cleared")
    return Evidence(
        row.device, code, "" if code == "ok" else row.reason, row.name, row.is_software,
        physical=row.physical, entries=entries,
        is_demoted=row.restrictions.get("is_demoted") is True,
    )  # fmt: skip
