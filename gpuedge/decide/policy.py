"""What the user wants of a decision, as a small checked value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuedge.core.errors import ConfigError

STORAGES = ("float32", "float16", "fixed16")
WISHES = ("latency", "energy")


@dataclass(frozen=True, slots=True)
class Policy:
    """When a GPU is worth using. The CPU is taken unless a GPU meets all of this.

    Parameters
    ----------
    min_speedup : float
        How many times faster than the CPU path a GPU must be, start-up included; 1 to 1000, kept
        to three decimals. It is the break-even against which losses are weighed: a GPU is taken
        where that is expected to lose less than staying on the CPU (docs/decision.md). With 1.0
        the GPU must still be expected to be faster.
    percentile : int
        Which percentile of latency is compared, 1 to 99.
    allow_software : bool
        Whether ``auto`` may consider software rasterisers, which are CPUs in disguise.
    inferences : int
        How many inferences the start-up of a GPU (open, compile) is spread over; at least 1.
    calibration_s : float
        Seconds that calibrating all devices together may take, 0 to 60. With 0 only calibrations
        that are already cached are used.
    storage : {"float32", "float16", "fixed16"}
        How a GPU keeps tensors. ``float32``: exactly, in whatever the device has for that.
        ``float16`` and ``fixed16`` (16-bit steps of each tensor's own range) take less memory and
        time where the device offers them, and give up exactness (docs/numerics.md); where it does
        not, tensors are kept exactly.
    calibration : sequence of mappings, optional
        Inputs of the model that stand for what it will see, each a mapping from name to array. For
        ``fixed16``, which takes the ranges of tensors from them; by default from the first inputs.
        It takes no part in comparisons and is not recorded.
    crosscheck : float
        Share of a session's inferences on a GPU, 0 to 1, that are computed on the CPU as well and
        compared (docs/service.md); the first one is among them. 0 compares none.
    watchdog_s : float, optional
        Seconds that a run on a device may take, 0.001 to 86400, before the device counts as hung.
        By default ten times as long as its slowest runs so far, and at least 2 s.
    deadline_s : float, optional
        Seconds that every inference has at the percentile, 0.000001 to 3600. Devices that miss it
        are out; where all miss it, the fastest is taken.
    max_memory_bytes : int, optional
        Most device memory that the model may take on a GPU; at least 1.
    prefer : {"latency", "energy"}
        ``energy`` takes the device that uses less of it for an inference and keeps the deadline.
        Where no meter says what they use, latency decides, and the decision says so.
    caution : float
        Most probability, 0.001 to 1, that a GPU may have of being more than a tenth dearer than
        the CPU path if it is to be taken.
    monitor : bool
        Whether a session watches its devices while it serves, and changes over if another one has
        clearly become faster.

    Raises
    ------
    ConfigError (GE-101)
        A field is out of range or of the wrong type; the message names it.
    """

    min_speedup: float = 1.2
    percentile: int = 90
    allow_software: bool = False
    inferences: int = 1000
    calibration_s: float = 2.0
    storage: str = "float32"
    calibration: Sequence[Mapping[str, Any]] | None = field(default=None, compare=False, repr=False)
    crosscheck: float = 1 / 256
    watchdog_s: float | None = None
    deadline_s: float | None = None
    max_memory_bytes: int | None = None
    prefer: str = "latency"
    caution: float = 0.3
    monitor: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_speedup", _real(self, "min_speedup", 1.0, 1000.0))
        object.__setattr__(self, "calibration_s", _real(self, "calibration_s", 0.0, 60.0))
        object.__setattr__(self, "crosscheck", _checked(self, "crosscheck", 0.0, 1.0))
        object.__setattr__(self, "caution", _real(self, "caution", 0.001, 1.0))
        for name, low, high in (("watchdog_s", 0.001, 86400.0), ("deadline_s", 1e-6, 3600.0)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _checked(self, name, low, high, " or None"))
        _whole(self, "percentile", 1, 99)
        _whole(self, "inferences", 1, 10**12)
        if self.max_memory_bytes is not None:
            _whole(self, "max_memory_bytes", 1, 2**63 - 1, " or None")
        for name in ("allow_software", "monitor"):
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, getattr(self, name), "True or False")
        for name, known in (("storage", STORAGES), ("prefer", WISHES)):
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in known:
                raise _refused(name, getattr(self, name), f"one of {', '.join(known)}")
        if self.calibration is not None:
            object.__setattr__(self, "calibration", _feeds(self.calibration))

    @property
    def speedup_milli(self) -> int:
        """`min_speedup` in thousandths, so that comparing needs no floating point."""
        return round(self.min_speedup * 1000)

    @property
    def caution_ppm(self) -> int:
        """`caution` in millionths."""
        return round(self.caution * 10**6)

    @property
    def deadline_ns(self) -> int | None:
        """`deadline_s` in whole nanoseconds."""
        return None if self.deadline_s is None else round(self.deadline_s * 10**9)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; `calibration` is left out."""
        return {n: getattr(self, n) for n in self.__dataclass_fields__ if n != "calibration"}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Policy:
        """Build a policy from `to_dict`'s form; missing fields take their defaults.

        Raises
        ------
        ConfigError (GE-101)
            It is no mapping, a name is not a field, or a value is refused.
        """
        if not isinstance(record, Mapping):
            raise ConfigError(
                f"A policy cannot be made of this {type(record).__name__}.",
                asked_by="Policy.from_dict(record)",
                known="a record maps names of fields to values, as Policy.to_dict() returns it",
                hint="Policy.from_dict({}) has all defaults",
            )
        for name in record:
            if name not in cls.__dataclass_fields__:
                raise _unknown(str(name), list(cls.__dataclass_fields__))
        return cls(**record)


def _feeds(value: Any) -> tuple[dict[str, Any], ...]:
    """Return the inputs of calibration; what they hold is checked against the model later."""
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_list or not len(value) or not all(isinstance(feed, Mapping) for feed in value):
        raise ConfigError(
            f"Policy.calibration cannot be this {type(value).__name__}.",
            asked_by="Policy(calibration=...)",
            known="calibration must be a list of dicts, each with every input of the model by name",
            hint="the default is None: the first inputs calibrate",
        )
    return tuple(dict(feed) for feed in value)


def _real(policy: Policy, name: str, low: float, high: float) -> float:
    return round(_checked(policy, name, low, high), 3)


def _checked(policy: Policy, name: str, low: float, high: float, also: str = "") -> float:
    value: Any = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _refused(name, value, f"a number from {low:g} to {high:g}{also}")
    return float(value)


def _whole(policy: Policy, name: str, low: int, high: int, also: str = "") -> None:
    value: Any = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _refused(name, value, f"a whole number from {low} to {high}{also}")


def _refused(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(
        f"Policy.{name} cannot be {value!r}.",
        asked_by=f"Policy({name}=...)",
        known=f"{name} must be {allowed}",
        hint=f"the default is {Policy.__dataclass_fields__[name].default!r}",
    )


def _unknown(name: str, known: list[str]) -> ConfigError:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return ConfigError(
        f"Policy has no field {name!r}.",
        asked_by=f"Policy({name}=...)",
        known=", ".join(known),
        hint=f"did you mean {near[0]!r}?" if near else None,
    )
