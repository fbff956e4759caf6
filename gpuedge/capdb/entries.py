"""Entries about drivers: frozen records, and reading them.

What a good entry is, ``entries.schema.json`` says; it is checked where databases are made and where
updates are installed. Reading checks no more than that nothing can be misunderstood: types, and
words that decide what happens. What breaks that is a ValueError, never an entry read in part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gpuedge.capdb.identity.texts import NameMatch
from gpuedge.capdb.restrict import SETS, Restrictions

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

    tests: tuple[str, ...]
    runs: int
    may: str


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
    return families is None or any(FAMILIES.get(one) in known["vendor"] for one in families)


def parse(record: Any, api: str = "any") -> Entry:
    """Read one entry. Raises ValueError for what cannot be understood.

    `api` is the API of its file: what conditions ask that name none. ``any`` asks nothing.
    """
    try:
        return _entry(record, api)
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from None
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"it is not as the schema asks: {error}") from None


def _entry(record: Mapping[str, Any], api: str) -> Entry:
    effect = _text(record["effect"])
    probe = record.get("probe")
    return Entry(
        id=_text(record["id"]),
        state=_word(STATES)(record["state"]),
        effect=effect,
        summary=_text(record["summary"]),
        match=tuple(_match(m, api) for m in _listed(record["match"])),
        exceptions=tuple(_match(m, api) for m in record.get("except", ())),
        on_unknown=_word(("apply", "probe", "skip"))(record.get("on_unknown", unknown(effect))),
        action=_action(record["action"], record["id"]),
        probe=None if probe is None else _probe(probe),
        review_by=_text(record["review"]["review_by"]),
        on_expiry=_word(("keep", "probe"))(record["review"]["on_expiry"]),
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


Reader = Callable[[Any], Any]


def _of(kind: type, what: str) -> Reader:
    """Return a reader of values of one type; a flag is no number, and an empty text is none."""

    def read(value: Any) -> Any:
        if type(value) is not kind or value == "":
            raise ValueError(f"{value!r:.60} is not {what}")
        return value

    return read


_text, _whole, _flag = _of(str, "text"), _of(int, "a whole number"), _of(bool, "true or false")


def _word(words: Collection[str]) -> Reader:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{value!r:.60} is none of {', '.join(sorted(words))}")
        return str(value)

    return read


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{value!r:.60} is not a list of something")
    return value


def _many(read: Reader = _text) -> Reader:
    return lambda value: frozenset(map(read, _listed(value)))


def _range(side: Reader = _whole) -> Reader:
    def read(value: Any) -> Range:
        if not value or not {"from", "below"}.issuperset(value):
            raise ValueError(f"{value!r:.60} is not a range with from, below or both")
        return Range(*(side(value[name]) if name in value else None for name in ("from", "below")))

    return read


def _lower(value: Any) -> str:
    return str(_text(value)).casefold()


def _least(value: Any, least: int) -> int:
    if _whole(value) < least:
        raise ValueError(f"{value} is below {least}")
    return int(value)


def _hex(value: Any) -> int:
    if not _text(value).startswith("0x"):
        raise ValueError(f"{value!r:.60} is not a hexadecimal number such as '0x1002'")
    return int(value, 16)


def _device_ids(value: Any) -> DeviceIds:
    spans, masks = [], []
    for one in _listed(value):
        if isinstance(one, str):
            spans.append((_hex(one), _hex(one)))
        elif "mask" in one:
            masks.append((_hex(one["value"]), _hex(one["mask"])))
        else:
            spans.append((_hex(one["first"]), _hex(one["last"])))
    return DeviceIds(tuple(spans), tuple(masks))


_version = _range(lambda parts: stripped([_whole(part) for part in _listed(parts)]))


def _driver(value: Mapping[str, Any]) -> DriverMatch:
    asked = set(value) - {"scheme"}
    if not asked or not asked <= {"intervals", "builds", "built"}:
        raise ValueError(f"driver must ask for intervals, builds or built, not {sorted(asked)}")
    return DriverMatch(
        scheme=_text(value["scheme"]),
        intervals=tuple(map(_version, value.get("intervals", ()))),
        builds=_many(_lower)(value["builds"]) if "builds" in value else frozenset(),
        built=_range(_text)(value["built"]) if "built" in value else None,
    )


CONDITIONS: Final[Mapping[str, Reader]] = {
    "api": _many(),
    "level": _many(),
    "os": _many(),
    "android_sdk": _range(),
    "security_patch": _range(_text),
    "layer": _many(),
    "soc": _many(_lower),
    "brand": _many(_lower),
    "device": _many(_lower),
    "vendor": _many(),
    "driver_id": _many(_whole),
    "mesa": _flag,
    "family": _many(),
    "model": _range(),
    "device_ids": _device_ids,
    "name": NameMatch.of,
    "driver": _driver,
    "process_bits": _many(_whole),
}
"""Conditions in the order in which they are judged, and what reads each."""


def _match(record: Mapping[str, Any], api: str) -> Match:
    if not record or not CONDITIONS.keys() >= record.keys():
        unknown_name = next((name for name in record if name not in CONDITIONS), "")
        raise ValueError(f"there is no condition {unknown_name!r:.60}" if record else "empty")
    asked = {"layer": ["native"], **({} if api == "any" else {"api": [api]}), **record}
    return {name: read(asked[name]) for name, read in CONDITIONS.items() if name in asked}


ACTIONS: Final = frozenset(
    {"disable_backend", "limits", "demote", *(f"disable_{name}" for name in SETS)}
)
"""What an action may say."""


def _action(record: Mapping[str, Any], name: str) -> Restrictions:
    for word in record:
        _word(ACTIONS)(word)
    listed = {kind: record.get(f"disable_{kind}") for kind in SETS}
    limits = record.get("limits", {})
    made = Restrictions(
        **{kind: _many()(value) if value else frozenset() for kind, value in listed.items()},
        is_backend_off=_flag(record.get("disable_backend", False)),
        limits={_word(LIMITS)(n): _least(most, LIMITS[n]) for n, most in limits.items()},
        is_demoted=_flag(record.get("demote", False)),
        entries=(name,),
    )
    if made.is_empty:
        raise ValueError("its action restricts nothing")
    return made


def _probe(record: Mapping[str, Any]) -> Probe:
    tests = tuple(map(_word(TESTS), _listed(record["tests"])))
    runs = min(_least(record.get("runs", DEFAULT_RUNS), 2), MAX_RUNS)
    return Probe(tests, runs, _word(("confirm", "confirm_and_clear"))(record["may"]))
