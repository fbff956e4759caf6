"""What entries forbid on a device, and the one place where that changes its `Caps`.

Restrictions are unioned and limits take the least, so their order does not matter and one more
never gives anything back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpuedge.core.caps import Caps
from gpuedge.core.errors import DriverError
from gpuedge.core.record import read
from gpuedge.core.storage import HALF_BUFFER, KINDS

HALF: Final = frozenset({"fp16", "fp16-storage"})
FINITE: Final = "rgba8_float"
"""The storage kind of float32 that keeps infinities and NaN on some devices only."""

SETS: Final = ("levels", "features", "kernels", "storages")
"""Fields of `Restrictions` that are sets of names."""


@dataclass(frozen=True)
class Restrictions:
    """What is forbidden on one device: by one entry, its action, or by all that are in force.

    Attributes
    ----------
    levels : frozenset of str
        Levels that are not used.
    is_backend_off : bool
        The device is not used through this API at all.
    features : frozenset of str
        Features that are not used; `apply` brings those that `Caps` knows into it, backends see to
        the others (``DeviceInfo.disabled``).
    kernels, storages : frozenset of str
        Kernel variants and storage kinds that are not used.
    limits : mapping of str to int
        Upper bounds of fields of `Caps`.
    is_demoted : bool
        Another device or the CPU is preferred; forbids nothing.
    entries : tuple of str
        Ids of the entries in force, sorted.
    """

    IS_OPEN = True

    levels: frozenset[str] = frozenset()
    is_backend_off: bool = False
    features: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    storages: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    is_demoted: bool = False
    entries: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether any entry is in force."""
        return bool(self.entries)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; empty where no entry is in force."""
        if not self:
            return {}
        return {
            "levels": sorted(self.levels),
            "is_backend_off": self.is_backend_off,
            **{name: sorted(getattr(self, name)) for name in SETS[1:]},
            "limits": dict(sorted(self.limits.items())),
            "is_demoted": self.is_demoted,
            "entries": list(self.entries),
        }

    @property
    def forbids_a_level(self) -> bool:
        """Whether it takes a whole backend or level away."""
        return self.is_backend_off or bool(self.levels)

    @property
    def is_empty(self) -> bool:
        """Whether it only explains and restricts nothing."""
        return not (self.forbids_a_level or self._restricts)

    @property
    def _restricts(self) -> bool:
        return bool(
            self.features or self.kernels or self.storages or self.limits or self.is_demoted
        )

    def is_only_about_others(self, levels: Collection[str]) -> bool:
        """Whether all that it does is to take away levels other than these names of one."""
        is_about = self.is_backend_off or self._restricts or not self.levels.isdisjoint(levels)
        return bool(self.levels) and not is_about

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Restrictions:
        """Rebuild from `to_dict`; unknown keys are ignored. Raises UnfitError."""
        return read(cls, record)


def combine(actions: Iterable[Restrictions]) -> Restrictions:
    """Return what several entries forbid together."""
    ordered = sorted(actions, key=lambda action: action.entries)
    bounds = sorted({limit for action in ordered for limit in action.limits})
    return Restrictions(
        **{name: frozenset().union(*(getattr(a, name) for a in ordered)) for name in SETS},
        is_backend_off=any(action.is_backend_off for action in ordered),
        limits={n: min(a.limits[n] for a in ordered if n in a.limits) for n in bounds},
        is_demoted=any(action.is_demoted for action in ordered),
        entries=tuple(dict.fromkeys(name for action in ordered for name in action.entries)),
    )


def apply(caps: Caps, restrictions: Restrictions) -> Caps:
    """Return a device's capabilities under restrictions; they are never more than before.

    Whether the level is blocked as a whole is asked before (`Judgement.blocks`).

    Raises
    ------
    DriverError (GE-405)
        With the reason ``quirk``: no storage is left that keeps float32 as it is, so nothing can
        run on this level.
    """
    if not restrictions:
        return caps
    features, limits = restrictions.features, restrictions.limits
    sizes: dict[str, Any] = {
        name: _least(name, getattr(caps, name), most) for name, most in limits.items()
    }
    x, y, z = caps.max_local_size
    invocations = limits.get("max_invocations", max(x, y, z))
    caps = with_storages(caps, _storages(caps, restrictions))
    if "max_storage_buffer_bytes" in sizes:
        most = min(sizes["max_storage_buffer_bytes"], caps.max_storage_buffer_bytes)
        sizes["max_storage_buffer_bytes"] = most
    return replace(
        caps,
        **sizes,
        forms=caps.forms - ({"group"} if "group-kernels" in features else set()),
        max_local_size=(min(x, invocations), min(y, invocations), min(z, invocations)),
        has_fp16_storage=False if features & HALF else caps.has_fp16_storage,
        has_fp16_arithmetic=False if "fp16" in features else caps.has_fp16_arithmetic,
        has_int8_storage=False if "int8-storage" in features else caps.has_int8_storage,
        dot_products=0 if "dot-products" in features else caps.dot_products,
        has_suballocation=caps.has_suballocation and "suballocation" not in features,
        ruled_out=caps.ruled_out | restrictions.kernels,
    )


def with_storages(caps: Caps, kinds: tuple[str, ...]) -> Caps:
    """Return a device's capabilities where these storage kinds are on offer, the first one exact.

    Tensors are kept in the first kind: where its texels are larger fewer fit, and not every kind
    is sure to keep infinities.
    """
    now, before = KINDS[kinds[0]], KINDS[caps.storages[0]]
    most = caps.max_storage_buffer_bytes * before.units // max(before.units, now.units)
    return replace(
        caps,
        storages=kinds,
        max_storage_buffer_bytes=most,
        is_finite_only=caps.is_finite_only or now.name == FINITE != before.name,
    )


def _least(name: str, has: int | None, most: int) -> int | None:
    # A device without textures has no side of one to bound; a size that is not known has a bound.
    if has is None:
        return None if name == "max_texture_size" else most
    return min(has, most)


def _storages(caps: Caps, restrictions: Restrictions) -> tuple[str, ...]:
    gone = set(restrictions.storages)
    if restrictions.features & HALF:
        gone |= {"rgba16f", HALF_BUFFER}
    left = [kind for kind in caps.storages if kind not in gone]
    exact = [kind for kind in left if KINDS[kind].is_exact and KINDS[kind].low is None]
    if not exact:
        raise DriverError(
            f"The {caps.level} device is left without a storage for float32.",
            known=f"entries {', '.join(restrictions.entries)} of the capability database rule out "
            f"{', '.join(sorted(gone & set(caps.storages)))}",
            hint="GPUEDGE_IGNORE names entries to ignore; gpuedge db why shows what they say",
            reason="quirk",
        )
    # The first storage is what exact tensors are kept in.
    return (exact[0], *(kind for kind in left if kind != exact[0]))
