"""What a decision rests on, in whole numbers, so that it can be made again from a file."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import plain
from gpuedge.decide.belief import UNKNOWN, Belief
from gpuedge.decide.options import DEFAULT, Count
from gpuedge.decide.policy import Policy

if TYPE_CHECKING:
    from gpuedge.probing.report import ProbeReport, ProbeRow

METHOD = f"service/2 {zlib.crc32(repr(DEFAULT).encode()):08x}"
"""The rules that decide, and a checksum of the constants. Whoever changes a rule so that a record
could come to another choice raises the number. Records of other methods are refused."""

AUTO = "auto"
CPU = "cpu"

Phase = Literal["", "closed", "opening", "late", "trial", "ready", "lost", "failed"]


def _line(text: str) -> str:
    if plain(text, None) != text:
        raise ValueError("it is not one line of text that prints")
    return text


Line = Annotated[str, _line]
"""Text of one line, where a record is read back that may come from anyone."""


@dataclass(slots=True)
class DeviceCandidate:
    """A device that may run the model: what probing found, what is believed, what it is doing.

    `gpuedge.decide.chooser.Chooser` keeps its beliefs and phases in candidates; a `DecisionRecord`
    holds copies of them. 0 is unknown in times and sizes.

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
    memory_bytes : int
        Device memory that the model's plan takes.
    predicted_ns : int
        One request, as predicted without opening the device; where nothing is, it is taken to be
        as fast as the CPU.
    startup_ns : int
        Opening, compiling and warming up: predicted, or measured in this launch or an earlier one.
    belief : Belief
        Of ln(latency on the GPU / on the CPU) of this model. Only one with windows was measured.
    phase : str
        Of a route to a GPU, else empty. ``closed``: not open, perhaps not yet worth it;
        ``opening``; ``late``: opening stalled, and is tried again; ``trial``: open, being compared
        or waiting for that; ``ready``: open and compared; ``lost``: compared, slower, and closed
        again; ``failed``: not to be used in this launch.
    since : int
        Requests served when its account of losses began.
    latency_ns : int
        Median of requests here, as measured in this launch; the CPU's also in earlier ones.
    at_ns : int
        Latency at the policy's percentile in this launch, for the deadline.
    served : int
        Requests of this launch that it answered.
    waited_ns, retry_ns : int
        Of a ``late`` one: how long opening was waited for, and when it is tried again.
    note : str
        What it does otherwise than the policy asks for, and why.
    """

    device: Line
    code: str = "ok"
    detail: Line = ""
    name: Line = ""
    is_software: bool | None = None
    physical: Line = ""
    entries: tuple[Line, ...] = ()
    is_demoted: bool = False
    memory_bytes: Count = 0
    predicted_ns: Count = 0
    startup_ns: Count = 0
    belief: Belief = UNKNOWN
    phase: Phase = ""
    since: Count = 0
    latency_ns: Count = 0
    at_ns: Count = 0
    served: Count = 0
    waited_ns: Count = 0
    retry_ns: Count = 0
    note: Line = ""

    def __post_init__(self) -> None:
        self.detail, self.name, self.note = (
            plain(text, None) for text in (self.detail, self.name, self.note)
        )  # drivers and models say parts of these
        if self.code not in SENTENCES:
            raise ValueError(f"unknown code {self.code!r}")
        if self.phase == "ready" and not self.is_measured:
            raise ValueError("a device is ready once it was compared with the CPU")

    @property
    def is_measured(self) -> bool:
        """Whether it was compared with the CPU path, in this launch or an earlier one."""
        return self.belief.windows > 0

    @property
    def is_remembered(self) -> bool:
        """Whether only earlier launches measured it."""
        return self.is_measured and not self.latency_ns

    @property
    def tail_ns(self) -> int:
        """The latency that the deadline is held against."""
        return self.at_ns or self.latency_ns

    @property
    def label(self) -> str:
        """Device string with the device's name where it is known."""
        return f"{self.device} ({self.name})" if self.name else self.device

    def ruled_out(self, policy: Policy) -> str:
        """Return the code of what speaks against it whatever its speed; empty if nothing does."""
        if self.code != "ok":
            return self.code
        if self.is_software and not policy.allow_software:
            return "software"
        limit = policy.max_memory_bytes
        return "too-much-memory" if limit is not None and self.memory_bytes > limit else ""


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """What a launch leaves for later ones about one model on one device.

    `startup_ns` is what opening and compiling took, `gpu_ns` the measured latency of a request and
    `predicted_ns` what had been predicted for it.
    """

    belief: Belief = UNKNOWN
    startup_ns: Count = 0
    gpu_ns: Count = 0
    predicted_ns: Count = 0


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Everything `decide` looks at, and nothing it does not.

    Attributes
    ----------
    asked : str
        ``auto`` or one of the candidates.
    policy : Policy
    candidates : tuple of DeviceCandidate
        Best first, as probing ordered them; the CPU is one of them.
    version, database : str
        Those of gpuedge, and of the capability database that judged the devices; may be empty.
    requests, previous_requests : int, tuple of int
        Requests of this launch so far, and of earlier ones, oldest first.
    isolation : str
        ``inline`` or ``process``: where drivers live.
    in_use : str
        What answers under ``auto``. It is left only for what is clearly better.
    has_switched : bool
        Whether what answers has changed before in this launch.
    waits_ns : int or None
        For how long what is in use goes on to answer whatever is chosen: 0 for one more request,
        None if it does not.
    method : str
        The rules and constants in force (`METHOD`).
    """

    asked: str
    policy: Policy
    candidates: tuple[DeviceCandidate, ...]
    version: Line
    database: Line = ""
    requests: Count = 0
    previous_requests: tuple[Count, ...] = ()
    isolation: Line = "inline"
    in_use: str = CPU
    has_switched: bool = False
    waits_ns: Count | None = None
    method: str = METHOD

    def __post_init__(self) -> None:
        if self.method != METHOD:
            raise ValueError(f"decided by {self.method!r}; this version has {METHOD!r}")
        devices = {AUTO, *(candidate.device for candidate in self.candidates)}
        if not {self.asked, self.in_use, CPU} <= devices:
            raise ValueError("the CPU, what was asked for and what is in use must be candidates")

    @property
    def cpu(self) -> DeviceCandidate:
        """The CPU path."""
        return next(c for c in self.candidates if c.device == CPU)

    @property
    def is_late(self) -> bool:
        """Whether the CPU path misses the deadline."""
        limit = self.policy.deadline_ns
        return limit is not None and self.cpu.tail_ns > limit


def candidates_of(report: ProbeReport) -> list[tuple[DeviceCandidate, ProbeRow]]:
    """Return what probing found: usable devices, best first, then everything else it tried."""
    rows = [*report.devices, *(row for row in report.tried if row.status != "ok")]
    return [(_candidate(row), row) for row in rows if row.device != CPU]


def _candidate(row: ProbeRow) -> DeviceCandidate:
    code = "ok" if row.status == "ok" else row.code
    if code not in SENTENCES or (code == "ok") != (row.status == "ok"):
        code = "open-failed"  # a report of another version: its sentence still says what happened
    entries = row.restrictions.get("entries") or row.evidence.get("entries")
    listed = [
        e if isinstance(e, Mapping) else {"id": e}
        for e in (entries if isinstance(entries, (list, tuple)) else ())
    ]
    # an entry that a probe showed not to apply is cleared; untested ones are in force
    in_force = tuple(str(e["id"]) for e in listed if e.get("id") and e.get("outcome") != "cleared")
    return DeviceCandidate(
        row.device, code, "" if code == "ok" else row.reason, row.name, row.is_software,
        physical=row.physical, entries=in_force,
        is_demoted=row.restrictions.get("is_demoted") is True,
    )  # fmt: skip
