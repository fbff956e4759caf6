"""What a decision rests on: plain evidence in whole numbers, so that it replays exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import ConfigError, InputError
from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import plain
from gpuedge.decide.belief import Belief
from gpuedge.decide.policy import Policy

if TYPE_CHECKING:
    from gpuedge.probing.report import ProbeReport, ProbeRow

SCHEMA = "gpuedge.decision/4"
METHOD = "service/1"
"""The rules and constants that decide. Whoever changes one in a way that a record could come to
another choice changes this name, and records of the old one are refused, not reinterpreted."""

CPU = "cpu"
AUTO = "auto"
PHASES = ("", "closed", "opening", "late", "trial", "ready", "lost", "failed")
SOURCES = ("", "predicted", "measured", "earlier")
MOST = 10**18
"""Beyond any time in nanoseconds, size or count: thirty years."""

DEEP = 8
"""How deeply restrictions may be nested."""

_TEXTS = ("device", "code", "detail", "name", "source", "physical", "probe", "phase")
_COUNTS = ("served", "compared")
_WHOLE = ("memory_bytes", "predicted_ns", "startup_ns", "cpu_ns", "gpu_ns", "at_ns", "opens_after",
          "waited_ns", "retry_ns", *_COUNTS)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evidence:
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
    entries, restrictions : tuple of str, mapping
        Ids of the capability database's entries in force, and what they forbid.
    probe : str
        Digest of what probing found out about the device; may be empty.
    memory_bytes : int or None
        Device memory that the model's plan takes.
    predicted_ns, startup_ns : int or None
        One request as predicted without opening the device; what opening, compiling and warming up
        take, predicted or measured.
    source : {"", "predicted", "measured", "earlier"}
        Where the latencies are from: ``measured`` in this launch, or an ``earlier`` one.
    belief : Belief or None
        ln(latency on the GPU / on the CPU) of this model. Only one with windows was measured.
    cpu_ns, gpu_ns : int or None
        Median latency of a request on the CPU path and here, as compared. The CPU has `cpu_ns`.
    at_ns : int or None
        Latency at the policy's percentile, for its deadline; the median stands in where None.
    served, compared : int
        Requests of this launch that it answered, and (with ``decide="load"`` runs) that went into
        `belief`.
    phase : str
        Of a route to a GPU: ``closed`` (not worth opening yet), ``opening``, ``late`` (opening
        stalled, and is tried again), ``trial``, ``ready``, ``lost`` (measured, slower), ``failed``.
    opens_after : int or None
        Requests of this launch after which it is opened.
    waited_ns, retry_ns : int or None
        Of a ``late`` one: how long opening was waited for, and when it is tried again.
    """

    device: str
    code: str = "ok"
    detail: str = ""
    name: str = ""
    is_software: bool | None = None
    physical: str = ""
    entries: tuple[str, ...] = ()
    restrictions: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""
    memory_bytes: int | None = None
    predicted_ns: int | None = None
    startup_ns: int | None = None
    source: str = ""
    belief: Belief | None = None
    cpu_ns: int | None = None
    gpu_ns: int | None = None
    at_ns: int | None = None
    served: int = 0
    compared: int = 0
    phase: str = ""
    opens_after: int | None = None
    waited_ns: int | None = None
    retry_ns: int | None = None

    def __post_init__(self) -> None:
        for name in _TEXTS:
            object.__setattr__(self, name, _text(name, getattr(self, name)))
        for name, known in (("code", SENTENCES), ("phase", PHASES), ("source", SOURCES)):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}")
        if self.is_software is not None and type(self.is_software) is not bool:
            raise ValueError("is_software must be true, false or null")
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None or name in _COUNTS:
                whole(name, value)
        if not isinstance(self.restrictions, Mapping) or not _is_plain(self.restrictions):
            raise ValueError("restrictions must be a mapping of finite JSON values")
        if self.belief is not None and not isinstance(self.belief, Belief):
            raise ValueError("belief must be one, or null")
        object.__setattr__(self, "entries", tuple(_text("entries", e) for e in self.entries))

    @property
    def is_demoted(self) -> bool:
        """Whether the database puts it behind the others."""
        return self.restrictions.get("is_demoted") is True

    @property
    def is_measured(self) -> bool:
        """Whether it was compared with the CPU path, in this launch or an earlier one."""
        return self.belief is not None and self.belief.windows > 0

    @property
    def label(self) -> str:
        """Device string with the device's name where it is known."""
        return f"{self.device} ({self.name})" if self.name else self.device

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        known = self.belief
        return {n: getattr(self, n) for n in self.__dataclass_fields__} | {
            "entries": list(self.entries),
            "restrictions": dict(self.restrictions),
            "belief": None if known is None else [known.mean, known.var, known.windows],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evidence:
        """Rebuild from `to_dict`. Raises KeyError, TypeError or ValueError if it does not fit."""
        given = fields_of(cls, record)
        if not isinstance(given["entries"], list):
            raise TypeError("entries must be a list")
        given |= {"belief": belief_of(given["belief"]), "entries": tuple(given["entries"])}
        return cls(**given)


def belief_of(saved: Any) -> Belief | None:
    """Rebuild a belief that was saved as three numbers. Raises TypeError or ValueError."""
    if saved is None:
        return None
    mean, var, windows = saved
    return Belief(mean, var, windows)


def fields_of(cls: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a saved dataclass. Raises ValueError where they are others."""
    if not isinstance(record, Mapping) or set(record) != set(cls.__dataclass_fields__):
        raise ValueError(f"not the fields of a {cls.__name__}")
    return dict(record)


def _is_plain(value: Any, depth: int = DEEP) -> bool:
    """Tell whether a value can be written as JSON, and read again as the same."""
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_plain(v, depth - 1) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(v, depth - 1) for v in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return -MOST <= value <= MOST
    return value is None or isinstance(value, (str, bool))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text")
    return plain(value, None)


def whole(name: str, value: Any) -> int:
    """Return a number that times, sizes and counts can have. Raises ValueError for another."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"{name} must be a whole number from 0 to 10^18")
    return value


@dataclass(frozen=True, slots=True)
class Record:
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
    method: str = METHOD

    def __post_init__(self) -> None:
        for name in ("asked", "version", "database", "isolation", "method"):
            object.__setattr__(self, name, _text(name, getattr(self, name)))
        whole("requests", self.requests)
        for count in self.previous_requests:
            whole("previous_requests", count)
        if type(self.falls_back) is not bool:
            raise TypeError("falls_back must be true or false")
        if self.in_use is not None:
            object.__setattr__(self, "in_use", _text("in_use", self.in_use))
            if self.in_use not in {CPU, *(c.device for c in self.candidates)}:
                raise ValueError("in_use must be one of the candidates")

    @property
    def cpu(self) -> Evidence:
        """The CPU path's evidence; without any if it is not among the candidates."""
        return next((c for c in self.candidates if c.device == CPU), Evidence(CPU))

    def at_ns(self, candidate: Evidence) -> int | None:
        """Return the latency of a candidate that the deadline is held against."""
        median = candidate.cpu_ns if candidate.device == CPU else candidate.gpu_ns
        return candidate.at_ns or median

    @property
    def is_late(self) -> bool:
        """Whether the CPU path misses the deadline."""
        limit, at = self.policy.deadline_ns, self.at_ns(self.cpu)
        return limit is not None and at is not None and at > limit

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {n: getattr(self, n) for n in self.__dataclass_fields__} | {
            "policy": self.policy.to_dict(),
            "candidates": [c.to_dict() for c in self.candidates],
            "previous_requests": list(self.previous_requests),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Record:
        """Rebuild from `to_dict`.

        Raises
        ------
        InputError (GE-203)
            The record is not one, or holds something that no decision can rest on.
        """
        try:
            given = fields_of(cls, record)
            if given["method"] != METHOD:
                raise ValueError(f"decided by {given['method']!r}; this version has {METHOD!r}")
            for name in ("candidates", "previous_requests"):
                if not isinstance(given[name], list):
                    raise TypeError(f"{name} must be a list")
            given["policy"] = Policy.from_dict(given["policy"])
            given["candidates"] = tuple(map(Evidence.from_dict, given["candidates"]))
            given["previous_requests"] = tuple(given["previous_requests"])
            return cls(**given)
        except (
            AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError,
            ConfigError,
        ) as error:  # fmt: skip
            raise InputError(
                "This is not the record of a decision.",
                known=plain(f"{type(error).__name__}: {getattr(error, 'what', error)}", 300),
                hint="make one with Session.explain().to_json()",
            ) from None


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
        physical=row.physical, entries=entries, restrictions=dict(row.restrictions),
        probe=digest(row.evidence)[:16] if row.evidence else "",
    )  # fmt: skip


def digest(facts: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of JSON-ready facts."""
    text = json.dumps(dict(facts), sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
