"""Entries about drivers: frozen records, and reading them.

What a good entry is, ``entries.schema.json`` says; it is checked where databases are made and where
updates are installed. Reading checks no more than that nothing can be misunderstood: types, and
words that decide what happens. What breaks that is a ValueError, never an entry read in part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

from gpuedge.capdb.identity.texts import NameMatch
from gpuedge.capdb.restrict import SETS, Restrictions
from gpuedge.core.record import MOST_WHOLE, fit, read, shown

_MADE: Final = {
    "qualcomm": "adreno",
    "arm": "mali-utgard mali-midgard mali-bifrost mali-valhall mali-5thgen",
    "imagination": "powervr-sgx powervr-rogue powervr-volcanic",
    "nvidia": "tegra geforce",
    "broadcom": "v3d videocore4",
    "samsung": "xclipse",
    "huawei": "maleoon",
    "intel": "intel-gen7 intel-gen8 intel-gen9 intel-gen11 intel-xe intel-xe2",
    "amd": "rdna1 rdna2 rdna3 rdna4 gcn",
    "apple": "apple-m apple-a",
}
FAMILIES: Final = {family: vendor for vendor, made in _MADE.items() for family in made.split()}
"""Families of GPUs, and the vendor whose name each belongs to."""

LIMITS: Final = {
    **dict.fromkeys((
        "max_invocations", "max_shared_bytes", "max_storage_buffers", "max_storage_buffer_bytes",
        "max_allocation_bytes", "max_push_bytes", "max_texture_size", "max_outputs",
    ), 1),
    **dict.fromkeys((
        "max_texel_buffers", "max_texel_elements", "max_texture_copies", "max_copied_elements",
        "subgroup_lanes",
    ), 0),
}  # fmt: skip
"""Limits that an action may lower, and how far: fields of `gpuedge.core.caps.Caps`, and the
invocations. A device can do without texel buffers, copies in textures and lanes of subgroups."""

TESTS: Final = ("standard", "kernels", "storages", "large", "repeat")
"""Tests that an entry may ask for."""

STATES: Final = frozenset({"canary", "active"})

SEVERE: Final = frozenset({"crash_at_load", "crash", "hang", "corrupt_pipeline_cache"})
"""Effects that no probe may be risked for: their entries apply at once."""

MAX_RUNS: Final = 1024
DEFAULT_TESTS: Final = ("standard", "kernels")
DEFAULT_RUNS: Final = 16
"""The probe of an entry that names none, or no number of runs."""

SOME: Final = range(1, 1 << 20)
"""How much lists and texts hold: something."""

Text: TypeAlias = Annotated[str, SOME]
Texts: TypeAlias = Annotated[frozenset[Text], SOME]
Lowered: TypeAlias = Annotated[frozenset[Annotated[Text, str.casefold]], SOME]


@dataclass(frozen=True, slots=True)
class Range:
    """``low <= x < below`` over whole numbers, versions or dates; None leaves a side open."""

    low: Any = None
    below: Any = None

    def holds(self, value: Any) -> bool:
        """Say whether a value lies in the range."""
        return (self.low is None or self.low <= value) and (
            self.below is None or value < self.below
        )


@dataclass(frozen=True, slots=True)
class DeviceIds:
    """Ids of devices: ``first <= x <= last``, or ``x & mask == value``."""

    spans: tuple[tuple[int, int], ...] = ()
    masks: tuple[tuple[int, int], ...] = ()

    def holds(self, number: int) -> bool:
        """Say whether an id is one of these."""
        return any(first <= number <= last for first, last in self.spans) or any(
            number & mask == value for value, mask in self.masks
        )


@dataclass(frozen=True, slots=True)
class DriverMatch:
    """Condition on a driver's version: (an interval or a build) and the date of the build."""

    scheme: str
    intervals: tuple[Range, ...] = ()
    builds: frozenset[str] = frozenset()
    built: Range | None = None


Match: TypeAlias = Mapping[str, Any]
"""Conditions that must all hold: names of `CONDITIONS`, in that order, and what each asks."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The tests that may confirm an entry, or clear a device of it."""

    IS_OPEN = True

    tests: Annotated[tuple[Annotated[str, TESTS], ...], SOME]
    may: Annotated[str, ("confirm", "confirm_and_clear")]
    runs: Annotated[int, range(2, MOST_WHOLE), lambda runs: min(runs, MAX_RUNS)] = DEFAULT_RUNS


@dataclass(frozen=True, slots=True)
class Demand:
    """A probe that an entry, by its id, asks for on this device: tests, each run so often."""

    entry: str
    tests: tuple[str, ...]
    runs: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the database. `source` is the record as it was read."""

    id: str
    state: str
    effect: str
    summary: str
    match: tuple[Match, ...]
    exceptions: tuple[Match, ...]
    on_unknown: str
    action: Restrictions
    probe: Probe | None
    review_by: str
    on_expiry: str
    api: str
    source: Mapping[str, Any]

    @property
    def is_severe(self) -> bool:
        """Whether the effect is a crash, a hang or a cache that ruins later starts."""
        return self.effect in SEVERE

    @property
    def demand(self) -> Demand:
        """The probe that it asks for where it asks for one."""
        if self.probe is None:
            return Demand(self.id, DEFAULT_TESTS, DEFAULT_RUNS)
        return Demand(self.id, self.probe.tests, self.probe.runs)

    @property
    def if_true(self) -> str:
        """What it comes to on a device that it is about."""
        if self.state == "canary":
            return "probe"
        may_clear = self.probe is not None and self.probe.may == "confirm_and_clear"
        is_sure = self.is_severe or self.effect == "slow" or not may_clear
        return "applies" if is_sure else "probe"

    @property
    def if_unknown(self) -> str:
        """What it comes to on a device of a known maker that it may or may not be about."""
        if self.on_unknown == "skip":
            return "skipped"
        if self.on_unknown == "apply":
            return self.if_true
        # A device need not be tested for what it hardly costs to leave out.
        is_cheap = self.probe is None and not self.action.forbids_a_level and self.state != "canary"
        return "applies" if is_cheap else "probe"


def may_match(record: Any, api: str, known: Mapping[str, frozenset[str]]) -> bool:
    """Say whether a record can be about devices of which these conditions are known.

    It costs a tenth of `parse`. What is no entry can be about anything.
    """
    try:
        return any(_meets(match, api, known) for match in record["match"])
    except (AttributeError, KeyError, TypeError):
        return True


def _meets(match: Mapping[str, Any], api: str, known: Mapping[str, frozenset[str]]) -> bool:
    given = {"layer": ("native",), "api": None if api == "any" else (api,)}
    for name, words in known.items():
        wanted = match.get(name, given.get(name))
        if wanted is not None and words.isdisjoint(wanted):
            return False
    families = match.get("family") if "vendor" in known else None
    return families is None or any(FAMILIES.get(family) in known["vendor"] for family in families)


@dataclass(frozen=True, slots=True)
class Review:
    """When an entry is looked at again, and what becomes of it if it is not."""

    IS_OPEN = True

    review_by: Text
    on_expiry: Annotated[str, ("keep", "probe")]


def _limits(limits: Mapping[str, int]) -> Mapping[str, int]:
    for name, most in limits.items():
        if most < LIMITS[name]:
            raise ValueError(f"{name}: {most} is below {LIMITS[name]}")
    return limits


@dataclass(frozen=True, slots=True)
class Action:
    """What an entry forbids, as it stands in a file."""

    disable_backend: bool = False
    disable_levels: frozenset[Text] = frozenset()
    disable_features: frozenset[Text] = frozenset()
    disable_kernels: frozenset[Text] = frozenset()
    disable_storages: frozenset[Text] = frozenset()
    limits: Annotated[dict[Annotated[str, LIMITS], int], _limits] = field(default_factory=dict)
    demote: bool = False

    def restrictions(self, name: str) -> Restrictions:
        """Return what the entry of this id forbids. Raises ValueError where that is nothing."""
        restrictions_ = Restrictions(
            **{kind: getattr(self, f"disable_{kind}") for kind in SETS},
            is_backend_off=self.disable_backend,
            limits=self.limits,
            is_demoted=self.demote,
            entries=(name,),
        )
        if restrictions_.is_empty:
            raise ValueError("its action restricts nothing")
        return restrictions_


@dataclass(frozen=True, slots=True)
class EntryFields:
    """An entry as it stands in a file; ``except``, which Python reserves, is not among these."""

    IS_OPEN = True

    id: Text
    state: Annotated[str, STATES]
    effect: Text
    summary: Text
    match: Annotated[tuple[dict[str, Any], ...], SOME]
    action: Action
    review: Review
    on_unknown: Annotated[str, ("", "apply", "probe", "skip")] = ""
    probe: Probe | None = None


def parse(record: Any, api: str = "any") -> Entry:
    """Read one entry. Raises ValueError for what cannot be understood.

    `api` is the API of its file: what conditions ask that name none. ``any`` asks nothing.
    """
    fields = read(EntryFields, record)
    return Entry(
        id=fields.id,
        state=fields.state,
        effect=fields.effect,
        summary=fields.summary,
        match=tuple(conditions(m, api) for m in fields.match),
        exceptions=tuple(conditions(m, api) for m in fit(record.get("except", []), Conditions)),
        on_unknown=fields.on_unknown or unknown(fields.effect),
        action=fields.action.restrictions(fields.id),
        probe=fields.probe,
        review_by=fields.review.review_by,
        on_expiry=fields.review.on_expiry,
        api=api,
        source=record,
    )


def unknown(effect: str) -> str:
    """Return what an entry does by default where it cannot be told whether it matches."""
    if effect in SEVERE:
        return "apply"
    return "skip" if effect == "slow" else "probe"


def stripped(version: Sequence[int]) -> tuple[int, ...]:
    """Return a version without trailing zeros.

    Versions of different length compare as if the shorter one were padded by zeros; without
    trailing zeros, tuples compare just so.
    """
    end = len(version)
    while end and not version[end - 1]:
        end -= 1
    return tuple(version[:end])


def _range(side: Any) -> Any:
    """Return the type of a range of such values."""

    def made(ends: dict[str, Any]) -> Range:
        if not ends or not {"from", "below"}.issuperset(ends):
            raise ValueError(f"{shown(ends)} is not a range with from, below or both")
        return Range(ends.get("from"), ends.get("below"))

    return Annotated[dict[str, side], made]


def _hex(text: str) -> int:
    if not text.startswith("0x"):
        raise ValueError(f"{shown(text)} is not a hexadecimal number such as '0x1002'")
    return int(text, 16)


Hex: TypeAlias = Annotated[str, _hex]


def _device_ids(ids: tuple[Any, ...]) -> DeviceIds:
    spans, masks = [], []
    for number in ids:
        if not isinstance(number, dict):
            spans.append((number, number))
        elif "mask" in number:
            masks.append((number["value"], number["mask"]))
        else:
            spans.append((number["first"], number["last"]))
    return DeviceIds(tuple(spans), tuple(masks))


_VERSIONS: Final = _range(Annotated[tuple[int, ...], SOME, stripped])


def _driver(asked: dict[str, Any]) -> DriverMatch:
    known = asked.keys() - {"scheme"}
    if not known or not known <= {"intervals", "builds", "built"}:
        raise ValueError(f"driver must ask for intervals, builds or built, not {shown(known)}")
    if asked.get("intervals") == []:
        raise ValueError("intervals must be one at least")
    return DriverMatch(
        fit(asked["scheme"], Text),
        tuple(fit(each, _VERSIONS) for each in fit(asked.get("intervals", []), list)),
        fit(asked["builds"], Lowered) if "builds" in asked else frozenset(),
        fit(asked["built"], _range(Text)) if "built" in asked else None,
    )


Conditions: TypeAlias = tuple[dict[str, Any], ...]

CONDITIONS: Final[Mapping[str, Any]] = {
    "api": Texts,
    "level": Texts,
    "os": Texts,
    "android_sdk": _range(int),
    "security_patch": _range(Text),
    "layer": Texts,
    "soc": Lowered,
    "brand": Lowered,
    "device": Lowered,
    "vendor": Texts,
    "driver_id": Annotated[frozenset[int], SOME],
    "mesa": bool,
    "family": Texts,
    "model": _range(int),
    "device_ids": Annotated[tuple[Hex | dict[str, Hex], ...], SOME, _device_ids],
    "name": Annotated[dict[str, Any], NameMatch.of],
    "driver": Annotated[dict[str, Any], _driver],
    "process_bits": Annotated[frozenset[int], SOME],
}
"""Conditions in the order in which they are judged, and the type of each."""


def conditions(record: dict[str, Any], api: str) -> Match:
    """Return the conditions of a record, ready to be judged. Raises ValueError."""
    if not record or not CONDITIONS.keys() >= record.keys():
        unknown_name = next((name for name in record if name not in CONDITIONS), "")
        raise ValueError(f"there is no condition {shown(unknown_name)}" if record else "empty")
    asked = {"layer": ["native"], **({} if api == "any" else {"api": [api]}), **record}
    return {name: fit(asked[name], hint) for name, hint in CONDITIONS.items() if name in asked}
