"""What a decision rests on: plain evidence, in whole nanoseconds, so that it replays exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuedge.core.errors import ConfigError, InputError
from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import plain
from gpuedge.decide.belief import Belief
from gpuedge.decide.conditions import UNKNOWN, Conditions
from gpuedge.decide.model import MOST_NS, Prediction, printable
from gpuedge.decide.policy import Policy
from gpuedge.decide.trial import Run

SCHEMA = "gpuedge.decision/3"
METHOD = "belief/1"
"""The rules and constants that decide. Whoever changes one in a way that a record could come to
another choice changes this name, and records of the old one are refused, not reinterpreted."""

CPU = "cpu"
AUTO = "auto"
BY_NAME = "not needed: the device was asked for by name"
"""How calibration went where a device was named: true of it even after that device failed."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about one candidate before choosing.

    Attributes
    ----------
    device : str
        Device string; a backend's name where no device was reached.
    code : str
        ``ok`` if it could be used, else the reason code of what rules it out.
    detail : str
        The specifics of that code, a sentence part.
    name : str
        The device's name as its driver reports it.
    is_software : bool or None
        True for a software rasteriser; None where no device was reached.
    prediction : Prediction or None
        Predicted latency; None where nothing was predicted.
    source : str
        Where the prediction comes from: ``measured``, ``cached``, or empty.
    physical : str
        The same text for all routes to one physical device (APIs that reach it); may be empty.
    entries : tuple of str
        Ids of the capability database's entries in force for this device.
    restrictions : mapping
        What they forbid, as `gpuedge.capdb` writes it; empty if nothing.
    probe : str
        Digest of what probing found out about the device; may be empty.
    memory_bytes : int or None
        Device memory that the model's plan takes.
    energy_uj : int or None
        Energy of one inference in microjoules, where a meter exists.
    belief : Belief or None
        What earlier launches came to believe; None where the prediction is all there is.
    base_ns : int or None
        Latency of the CPU path as those launches measured it.
    startup_ns : int or None
        What opening and compiling took, where this or an earlier launch did it.
    runs : tuple of Run
        This launch's trial.
    draw : int or None
        The number by which random exploration may have it tried although it is predicted to be
        slower.
    served : int
        Requests behind `belief`, where it was watched in service.
    """

    device: str
    code: str = "ok"
    detail: str = ""
    name: str = ""
    is_software: bool | None = None
    prediction: Prediction | None = None
    source: str = ""
    physical: str = ""
    entries: tuple[str, ...] = ()
    restrictions: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""
    memory_bytes: int | None = None
    energy_uj: int | None = None
    belief: Belief | None = None
    base_ns: int | None = None
    startup_ns: int | None = None
    runs: tuple[Run, ...] = ()
    draw: int | None = None
    served: int = 0

    def __post_init__(self) -> None:
        for name in ("device", "code", "detail", "name", "source", "physical", "probe"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ValueError(f"Evidence.{name} must be text, not {value!r}")
            object.__setattr__(self, name, printable(value))
        if self.code not in SENTENCES:
            raise ValueError(f"unknown reason code {self.code!r}")
        if self.is_software not in (None, True, False):
            raise ValueError("Evidence.is_software must be true, false or null")
        for name in ("memory_bytes", "energy_uj", "base_ns", "startup_ns", "draw", "served"):
            value = getattr(self, name)
            is_absent = value is None and name != "served"
            if not is_absent and (type(value) is not int or not 0 <= value <= MOST_NS):
                raise ValueError(f"Evidence.{name} must be a whole number, not {value!r}")
        if not isinstance(self.restrictions, Mapping) or not _is_plain(self.restrictions):
            raise ValueError("Evidence.restrictions must be a mapping of finite JSON values")
        if not all(isinstance(entry, str) for entry in self.entries):
            raise ValueError("Evidence.entries must be ids")
        object.__setattr__(self, "entries", tuple(map(printable, self.entries)))

    @property
    def is_demoted(self) -> bool:
        """Whether the database puts it behind the others."""
        return self.restrictions.get("is_demoted") is True

    @property
    def label(self) -> str:
        """Device string with the device's name where it is known."""
        return f"{self.device} ({self.name})" if self.name else self.device

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        record: dict[str, Any] = {n: getattr(self, n) for n in self.__dataclass_fields__}
        record["prediction"] = self.prediction.to_dict() if self.prediction else None
        record["entries"] = list(self.entries)
        record["restrictions"] = dict(self.restrictions)
        known = self.belief
        record["belief"] = None if known is None else [known.mean, known.var, known.windows]
        record["runs"] = [[r.alternative, r.block, r.ns, r.kept] for r in self.runs]
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evidence:
        """Rebuild from `to_dict`. Raises TypeError or ValueError if it does not fit."""
        fields = dict(record)
        prediction, belief = fields["prediction"], fields["belief"]
        fields["prediction"] = None if prediction is None else Prediction.from_dict(prediction)
        fields["belief"] = None if belief is None else Belief(*belief)
        fields["entries"] = tuple(fields["entries"])
        fields["runs"] = tuple(_run(*run) for run in fields["runs"])
        return cls(**fields)


DEEP = 8
"""How deeply restrictions may be nested."""


def _is_plain(value: Any, depth: int = DEEP) -> bool:
    """Tell whether a value can be written as JSON, and read again as the same."""
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_plain(v, depth - 1) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(v, depth - 1) for v in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return -MOST_NS <= value <= MOST_NS
    return value is None or isinstance(value, (str, bool))


def _run(alternative: Any, block: Any, ns: Any, kept: Any) -> Run:
    is_whole = type(block) is int and type(ns) is int and 0 <= ns <= MOST_NS
    if alternative not in ("cpu", "gpu") or not is_whole or type(kept) is not bool:
        raise ValueError(f"not a run of a trial: {alternative!r}, {block!r}, {ns!r}, {kept!r}")
    return Run(alternative, block, ns, kept)


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
    version : str
        The gpuedge version that gathered the evidence.
    calibration : str
        One sentence: why and how calibration was or was not done.
    database : str
        Version of the capability database that judged the devices; may be empty.
    conditions : Conditions
        What the machine was like.
    previous : str
        The device an earlier launch chose for this model, empty where that is not known.
    method : str
        The rules and constants in force (`METHOD`).
    """

    asked: str
    policy: Policy
    candidates: tuple[Evidence, ...]
    version: str
    calibration: str = ""
    database: str = ""
    conditions: Conditions = UNKNOWN
    previous: str = ""
    method: str = METHOD

    def __post_init__(self) -> None:
        for name in ("asked", "version", "calibration", "database", "previous", "method"):
            object.__setattr__(self, name, printable(getattr(self, name)))

    @property
    def is_by_name(self) -> bool:
        """Whether a device was asked for by name, which may have failed since."""
        return self.asked != AUTO or self.calibration == BY_NAME

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "asked": self.asked,
            "calibration": self.calibration,
            "candidates": [c.to_dict() for c in self.candidates],
            "conditions": self.conditions.to_dict(),
            "database": self.database,
            "method": self.method,
            "policy": self.policy.to_dict(),
            "previous": self.previous,
            "version": self.version,
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
            made = cls(
                asked=_text(record, "asked"),
                policy=Policy.from_dict(record["policy"]),
                candidates=tuple(Evidence.from_dict(c) for c in record["candidates"]),
                version=_text(record, "version"),
                calibration=_text(record, "calibration"),
                database=_text(record, "database"),
                conditions=Conditions.from_dict(record["conditions"]),
                previous=_text(record, "previous"),
                method=_text(record, "method"),
            )
            if made.method != METHOD:
                raise ValueError(f"it was decided by {made.method!r}; this version has {METHOD!r}")
        except (
            AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError,
            ConfigError,
        ) as error:  # fmt: skip
            raise InputError(
                "This is not the record of a decision.",
                known=plain(f"{type(error).__name__}: {getattr(error, 'what', error)}", 300),
                hint="make one with Session.explain().to_json()",
            ) from None
        return made


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text")
    return value
