"""What the user wants of a decision, as a small checked value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuedge.core.errors import ConfigError

STORAGES = ("float32", "float16", "fixed16")


@dataclass(frozen=True, slots=True)
class Policy:
    """When a GPU is worth using. The CPU is taken unless a GPU meets all of this.

    Parameters
    ----------
    min_speedup : float
        How many times faster than the CPU path a GPU must be, start-up included; 1 to 1000, kept
        to three decimals. With 1.0 the GPU must still be strictly faster.
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
    canary : float
        Share of a session's inferences on a GPU, 0 to 1, that are computed on the CPU as well and
        compared (docs/canaries.md); the first one is among them. 0 compares none.
    watchdog_s : float, optional
        Seconds that a run on a device may take, 0.001 to 86400, before the device counts as hung.
        By default ten times as long as its slowest runs so far, and at least 2 s.

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
    canary: float = 1 / 256
    watchdog_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_speedup", _real(self, "min_speedup", 1.0, 1000.0))
        object.__setattr__(self, "calibration_s", _real(self, "calibration_s", 0.0, 60.0))
        object.__setattr__(self, "canary", _checked(self, "canary", 0.0, 1.0))
        if self.watchdog_s is not None:
            wait_s = _checked(self, "watchdog_s", 0.001, 86400.0, " or None")
            object.__setattr__(self, "watchdog_s", wait_s)
        _whole(self, "percentile", 1, 99)
        _whole(self, "inferences", 1, 10**12)
        if not isinstance(self.allow_software, bool):
            raise _refused("allow_software", self.allow_software, "True or False")
        if not isinstance(self.storage, str) or self.storage not in STORAGES:
            raise _refused("storage", self.storage, f"one of {', '.join(STORAGES)}")
        if self.calibration is not None:
            object.__setattr__(self, "calibration", _feeds(self.calibration))

    @property
    def speedup_milli(self) -> int:
        """`min_speedup` in thousandths, so that comparing needs no floating point."""
        return round(self.min_speedup * 1000)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; `calibration` is left out."""
        return {n: getattr(self, n) for n in self.__dataclass_fields__ if n != "calibration"}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Policy:
        """Build a policy from `to_dict`'s form; missing fields take their defaults.

        Raises
        ------
        ConfigError (GE-101)
            A name is not a field, or a value is refused.
        """
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


def _whole(policy: Policy, name: str, low: int, high: int) -> None:
    value: Any = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _refused(name, value, f"a whole number from {low} to {high}")


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
