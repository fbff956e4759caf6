"""What entries are made of: conditions, actions, probes. `gpuedge.capdb.entries` reads them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Final

from gpuedge.capdb.fields import DeviceIds, Range
from gpuedge.capdb.patterns import Pattern

NATIVE: Final = frozenset({"native"})


@dataclass(frozen=True, slots=True)
class DriverMatch:
    """Condition on a driver's version: (an interval or a build) and the date of the build."""

    scheme: str
    intervals: tuple[Range, ...] = ()
    builds: frozenset[str] = frozenset()
    built: Range | None = None


@dataclass(frozen=True)
class Match:
    """Conditions that must all hold; one that is None is not asked. `layer` is always asked."""

    api: frozenset[str] | None = None
    level: frozenset[str] | None = None
    os: frozenset[str] | None = None
    android_sdk: Range | None = None
    security_patch: Range | None = None
    layer: frozenset[str] = NATIVE
    soc: frozenset[str] | None = None
    brand: frozenset[str] | None = None
    device: frozenset[str] | None = None
    vendor: frozenset[str] | None = None
    driver_id: frozenset[int] | None = None
    mesa: bool | None = None
    family: frozenset[str] | None = None
    model: Range | None = None
    device_ids: DeviceIds | None = None
    renderer: Pattern | None = None
    driver: DriverMatch | None = None
    without_feature: frozenset[str] | None = None
    device_type: frozenset[str] | None = None

    @cached_property
    def asked(self) -> tuple[tuple[str, Any], ...]:
        """The conditions that are asked, with what each asks for; equal ones are one object."""
        found = ((name, getattr(self, name)) for name in _CONDITIONS)
        return tuple(_condition(name, wanted) for name, wanted in found if wanted is not None)


_CONDITIONS: Final = tuple(f.name for f in fields(Match))


@lru_cache(maxsize=1 << 14)
def _condition(name: str, wanted: Any) -> tuple[str, Any]:
    return name, wanted


@dataclass(frozen=True, slots=True)
class Action:
    """What an entry asks for when it applies."""

    disable_backend: bool = False
    disable_levels: frozenset[str] = frozenset()
    disable_features: frozenset[str] = frozenset()
    disable_kernels: frozenset[str] = frozenset()
    disable_storages: frozenset[str] = frozenset()
    limits: tuple[tuple[str, int], ...] = ()
    demote: bool = False
    note: str = ""

    @property
    def blocks(self) -> bool:
        """Whether it takes a whole backend or level away."""
        return self.disable_backend or bool(self.disable_levels)

    def is_only_about_others(self, levels: Collection[str]) -> bool:
        """Whether all that it does is to take away levels other than these names of one."""
        return (
            bool(self.disable_levels)
            and self.disable_levels.isdisjoint(levels)
            and not (self.disable_backend or self._restricts)
        )

    @property
    def is_empty(self) -> bool:
        """Whether it only explains and restricts nothing."""
        return not (self.blocks or self._restricts)

    @property
    def _restricts(self) -> bool:
        return bool(
            self.disable_features
            or self.disable_kernels
            or self.disable_storages
            or self.limits
            or self.demote
        )


@dataclass(frozen=True, slots=True)
class Probe:
    """The tests that may confirm an entry, or clear a device of it."""

    tests: tuple[str, ...]
    runs: int
    may: str


@dataclass(frozen=True, slots=True)
class Demand:
    """A probe that an entry asks for on this device before it is used.

    Attributes
    ----------
    entry : str
        Id of the entry.
    tests : tuple of str
        Of ``standard``, ``kernels``, ``half``, ``storages``, ``large``, ``repeat``.
    runs : int
        How often each test is run.
    may_clear : bool
        Whether passing removes the entry's action; failing always makes it apply.
    """

    entry: str
    tests: tuple[str, ...]
    runs: int
    may_clear: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "entry": self.entry,
            "tests": list(self.tests),
            "runs": self.runs,
            "may_clear": self.may_clear,
        }


@dataclass(frozen=True, slots=True)
class Review:
    """Who answers for an entry, and until when it is believed."""

    owner: str
    added: str
    review_by: str
    on_expiry: str
    last_reproduced: str | None = None
