"""What a decision rests on: plain evidence, in whole nanoseconds, so that it replays exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.core.errors import ConfigError, InputError
from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.model import Prediction
from gpuedge.decide.policy import Policy

SCHEMA = "gpuedge.decision/1"
CPU = "cpu"
AUTO = "auto"
BY_NAME = "not needed: the device was asked for by name"
"""How calibration went where a device was named: true of it even after that device failed."""

LATER = ("canary", "watchdog_s")
"""Fields of a policy that say how a device is watched, not which one is chosen."""


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
        The same text for all roads to one physical device (APIs that reach it); may be empty.
    """

    device: str
    code: str = "ok"
    detail: str = ""
    name: str = ""
    is_software: bool | None = None
    prediction: Prediction | None = None
    source: str = ""
    physical: str = ""

    def __post_init__(self) -> None:
        for name in ("device", "code", "detail", "name", "source", "physical"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ValueError(f"Evidence.{name} must be text, not {value!r}")
            # Driver strings reach terminals and one-line records: no control characters.
            text = "".join(c if c.isprintable() else " " for c in value)
            object.__setattr__(self, name, text)
        if self.code not in SENTENCES:
            raise ValueError(f"unknown reason code {self.code!r}")
        if self.is_software not in (None, True, False):
            raise ValueError("Evidence.is_software must be true, false or null")

    @property
    def label(self) -> str:
        """Device string with the device's name where it is known."""
        return f"{self.device} ({self.name})" if self.name else self.device

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        record: dict[str, Any] = {n: getattr(self, n) for n in self.__dataclass_fields__}
        record["prediction"] = self.prediction.to_dict() if self.prediction else None
        if not self.physical:  # records of before this field was there replay to the same bytes
            del record["physical"]
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evidence:
        """Rebuild from `to_dict`. Raises TypeError or ValueError if it does not fit."""
        fields = dict(record)
        prediction = fields.pop("prediction", None)
        made = Prediction.from_dict(prediction) if prediction is not None else None
        return cls(**fields, prediction=made)


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
    """

    asked: str
    policy: Policy
    candidates: tuple[Evidence, ...]
    version: str
    calibration: str = ""

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
            "policy": _of_choice(self.policy),
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
            )
        except (AttributeError, KeyError, TypeError, ValueError, ConfigError) as error:
            raise InputError(
                "This is not the record of a decision.",
                known=f"{type(error).__name__}: {getattr(error, 'what', error)}",
                hint="make one with Session.explain().to_json()",
            ) from None
        return made


def _of_choice(policy: Policy) -> dict[str, Any]:
    """Return a policy without the fields that choose nothing, where they are at their defaults.

    Records of before these fields were there replay to the same bytes.
    """
    usual = Policy().to_dict()
    rules = policy.to_dict()
    later = [name for name in LATER if rules[name] == usual[name]]
    return {name: value for name, value in rules.items() if name not in later}


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text")
    return value
