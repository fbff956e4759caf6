"""What the machine was like when something was decided: load, battery and heat, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

THERMAL = ("nominal", "warm", "throttling")

BUSY_MILLI = 700
"""Load from which a machine counts as busy."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The state of the machine; None where the system does not say.

    Attributes
    ----------
    load_milli : int or None
        Share of the processor's time that others use, in thousandths.
    battery_percent : int or None
        None also where there is no battery.
    is_on_battery : bool or None
    thermal : {"nominal", "warm", "throttling"} or None
    power_mw : int or None
        What the machine draws, where a meter exists.
    """

    load_milli: int | None = None
    battery_percent: int | None = None
    is_on_battery: bool | None = None
    thermal: str | None = None
    power_mw: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("load_milli", 10**6), ("battery_percent", 100), ("power_mw", 10**9)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 <= value <= most):
                raise ValueError(f"Conditions.{name} must be from 0 to {most} or None: {value!r}")
        if self.is_on_battery not in (None, True, False):
            raise ValueError("Conditions.is_on_battery must be true, false or null")
        if self.thermal is not None and self.thermal not in THERMAL:
            raise ValueError(f"Conditions.thermal must be one of {', '.join(THERMAL)}")

    @property
    def kind(self) -> tuple[bool | None, bool | None, str | None]:
        """What may change which device is faster: busy or not, on battery or not, how hot."""
        busy = None if self.load_milli is None else self.load_milli >= BUSY_MILLI
        return busy, self.is_on_battery, self.thermal

    def differ(self, other: Conditions) -> bool:
        """Say whether both are known to differ in `kind`; what is unknown differs from nothing."""
        pairs = zip(self.kind, other.kind, strict=True)
        return any(a is not None and b is not None and a != b for a, b in pairs)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Conditions:
        """Rebuild from `to_dict`. Raises TypeError or ValueError if it does not fit."""
        return cls(**record)


UNKNOWN = Conditions()
"""Nothing is known of the machine."""
