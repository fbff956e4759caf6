"""Whether an entry is about a device: yes, no, or not known, in Kleene's three-valued logic.

What a device does not report is UNKNOWN, never FALSE and never zero. A conjunction is FALSE if one
part is, whatever the others; so a result that is TRUE or FALSE stays so whatever the unknown turns
out to be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from gpuedge.capdb.classes import family
from gpuedge.capdb.entries import FAMILIES, DeviceIds, DriverMatch, Entry, Match, Range, stripped
from gpuedge.capdb.identity.texts import NameMatch, folded

if TYPE_CHECKING:
    from gpuedge.capdb.identity.subject import Subject


class Truth(Enum):
    """The three values; the text is what findings show."""

    FALSE = "false"
    UNKNOWN = "unknown"
    TRUE = "true"

    def __bool__(self) -> bool:
        raise TypeError("a Truth has three values; compare it with one of them")

    __hash__ = object.__hash__  # members are one object each; this one is quicker


TRUE, FALSE, UNKNOWN = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN

ALL: Final = "all"
"""The word of the setting ``ignore`` that stands for every entry."""

BECOMES: Final = ("applies", "probe", "skipped", "ignored", "none")
"""What an entry can become for a device."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one entry means for one device.

    Attributes
    ----------
    id : str
    result : str
        ``true``, ``false`` or ``unknown``.
    decided_by : str
        The condition that decided, such as ``match[0].driver`` or ``except[1].soc``; of a result
        that is true the condition as a whole, as no single part decides it.
    becomes : str
        One of `BECOMES`: what it comes to.
    effect, summary : str
        As in the entry.
    """

    id: str
    result: str
    decided_by: str
    becomes: str
    effect: str
    summary: str


def every(values: Iterable[Truth]) -> Truth:
    """Return the conjunction of values; of none it is TRUE."""
    result = TRUE
    for value in values:
        if value is FALSE:
            return FALSE
        if value is UNKNOWN:
            result = UNKNOWN
    return result


def some(values: Iterable[Truth]) -> Truth:
    """Return the disjunction of values; of none it is FALSE."""
    result = FALSE
    for value in values:
        if value is TRUE:
            return TRUE
        if value is UNKNOWN:
            result = UNKNOWN
    return result


def opposite(value: Truth) -> Truth:
    """Return the negation of a value."""
    if value is UNKNOWN:
        return UNKNOWN
    return FALSE if value is TRUE else TRUE


Judge = Callable[[Any, Any], Truth]
"""Says of what a condition asks for, and of a subject or one of its fields, what holds."""


def _truth(value: bool) -> Truth:
    return TRUE if value else FALSE


def _among(wanted: frozenset[Any], value: Any) -> Truth:
    return UNKNOWN if value is None else TRUE if value in wanted else FALSE


def _api(wanted: frozenset[str], subject: Subject) -> Truth:
    if subject.apis is None:
        return UNKNOWN
    if not wanted.isdisjoint(subject.apis):
        return TRUE
    return FALSE if wanted.isdisjoint(subject.hidden_apis) else UNKNOWN


def _layer(wanted: frozenset[str], subject: Subject) -> Truth:
    if subject.layers is None:
        return UNKNOWN
    return FALSE if wanted.isdisjoint(subject.layers or ("native",)) else TRUE


def _within(wanted: Range | DeviceIds, value: Any) -> Truth:
    return UNKNOWN if value is None else TRUE if wanted.holds(value) else FALSE


def _text(wanted: frozenset[str], value: str | None) -> Truth:
    return UNKNOWN if not value else _truth(value.strip().casefold() in wanted)


def _field(name: str, judge: Judge = _among) -> Judge:
    """Return what judges one field of a subject."""
    return lambda wanted, subject: judge(wanted, getattr(subject, name))


def _android(name: str, judge: Judge) -> Judge:
    """Return the same for something that only Android has: no other system can have it."""

    def judged(wanted: Any, subject: Subject) -> Truth:
        value = getattr(subject, name)
        if value is None and subject.os is not None and subject.os != "android":
            return FALSE
        return judge(wanted, value)

    return judged


def soc_names(text: str) -> frozenset[str]:
    """Return the names that a system on a chip goes by: its own, and those it is a variant of.

    What follows a part number after a dash or slash, or begins with a letter, tells the variant:
    ``SM8650-AC``, ``MT6769V/CB``. A longer number is another chip, and so is another word.

    >>> sorted(soc_names("MT6769V/CB"))
    ['mt6769', 'mt6769v', 'mt6769v/cb']
    """
    text = text.strip().casefold()
    ends = (match.start() + 1 for match in _VARIANT.finditer(text))
    return frozenset((text, *(text[:end] for end in ends if end >= _SHORTEST_SOC)))


_VARIANT: Final = re.compile(r"[0-9](?=[a-z])|[0-9a-z](?=[-_/])")
_SHORTEST_SOC: Final = 4


def _soc(wanted: frozenset[str], subject: Subject) -> Truth:
    return _truth(not wanted.isdisjoint(soc_names(subject.soc))) if subject.soc else UNKNOWN


def is_stranger(subject: Subject) -> bool:
    """Say whether the vendor is known by its number, and is none that entries can name."""
    return subject.vendor is None and bool(subject.vendor_id)


def _vendor(wanted: frozenset[str], subject: Subject) -> Truth:
    return FALSE if is_stranger(subject) else _among(wanted, subject.vendor)


def _family(wanted: frozenset[str], subject: Subject) -> Truth:
    if subject.family is not None:
        return _truth(subject.family in wanted)
    if is_stranger(subject):
        return FALSE
    # A GPU of another maker is of none of these families, whichever it is of.
    makers = {FAMILIES.get(family) for family in wanted}
    is_other = subject.vendor is not None and subject.vendor not in makers
    return FALSE if is_other else UNKNOWN


def _name(wanted: NameMatch, subject: Subject) -> Truth:
    return UNKNOWN if not subject.name else _truth(wanted.holds(folded(subject.name)))


def _driver(wanted: DriverMatch, subject: Subject) -> Truth:
    """Judge a version: (an interval OR a build) AND the date of the build."""
    built = TRUE if wanted.built is None else _within(wanted.built, subject.built)
    if built is FALSE or not (wanted.intervals or wanted.builds):
        return built
    options = []
    if wanted.intervals:
        version = subject.versions.get(wanted.scheme)
        driver = None if version is None else stripped(version)
        options.append(some(_within(span, driver) for span in wanted.intervals))
    if wanted.builds:
        known = {build.casefold() for build in subject.builds}
        options.append(_truth(not wanted.builds.isdisjoint(known)) if known else UNKNOWN)
    return every((built, some(options)))


_CONDITIONS: Final[Mapping[str, Judge]] = {
    "api": _api,
    "level": _field("level"),
    "os": _field("os"),
    "android_sdk": _android("android_sdk", _within),
    "security_patch": _android("security_patch", _within),
    "layer": _layer,
    "soc": _soc,
    "brand": _android("brand", _text),
    "device": _android("device", _text),
    "vendor": _vendor,
    "driver_id": _field("driver_id"),
    "mesa": lambda wanted, s: UNKNOWN if s.is_mesa is None else _truth(s.is_mesa is wanted),
    "family": _family,
    "model": _field("model", _within),
    "device_ids": _field("device_id", _within),
    "name": _name,
    "driver": _driver,
    "process_bits": _field("process_bits"),
}


Verdict = tuple[Truth, str]
"""A value, and the name of the condition that decided; empty where all hold."""


def holds(match: Match, subject: Subject) -> Verdict:
    """Judge one conjunction."""
    result, by = TRUE, ""
    for name, wanted in match.items():
        value = _CONDITIONS[name](wanted, subject)
        if value is FALSE:
            return FALSE, name
        if value is UNKNOWN and result is TRUE:
            result, by = UNKNOWN, name
    return result, by


def _any(matches: tuple[Match, ...], subject: Subject, what: str) -> Verdict:
    """Judge a disjunction; one that is not TRUE is decided by the first part that made it so."""
    result, number, by = FALSE, 0, ""
    for i, match in enumerate(matches):
        value, name = holds(match, subject)
        if value is TRUE:
            return TRUE, f"{what}[{i}]"
        if (value is UNKNOWN and result is FALSE) or not by:
            result, number, by = value, i, name
    return result, f"{what}[{number}].{by}"


def result(entry: Entry, subject: Subject) -> Verdict:
    """Judge whether an entry is about a device, and name the condition that decided."""
    matched, by = _any(entry.match, subject, "match")
    if matched is FALSE or not entry.exceptions:
        return matched, by
    excepted, why = _any(entry.exceptions, subject, "except")
    value = every((matched, opposite(excepted)))
    return value, why if value is not matched else by


def becomes(entry: Entry, value: Truth, subject: Subject, today: str) -> str:
    """Return what an entry comes to on a device, unless it is ignored: one of `BECOMES`."""
    if value is FALSE:
        return "none"
    if entry.review_by < today and entry.on_expiry == "probe":
        return "probe"
    if value is TRUE:
        return entry.if_true
    if subject.vendor is None and entry.if_unknown == "applies":
        # Of a GPU whose maker is not known every entry might be true. That is no evidence against
        # it, so it is tested, not refused.
        return "probe"
    return entry.if_unknown


def finding(
    entry: Entry, subject: Subject, verdict: Verdict, today: str, ignored: Collection[str]
) -> Finding:
    """Say what an entry comes to, of which `result` says `verdict`."""
    value, by = verdict
    comes_to = becomes(entry, value, subject, today)
    if value is not FALSE and (ALL in ignored or entry.id in ignored):
        comes_to = "ignored"
    is_asked = subject.level is not None and comes_to in {"applies", "probe"}
    if is_asked and entry.action.is_only_about_others(names_of(subject.level or "")):
        comes_to = "none"  # it only takes away other levels than the one that is asked about
    return Finding(entry.id, value.value, by, comes_to, entry.effect, entry.summary)


def names_of(level: str) -> set[str]:
    """Return a level as entries may name it: of a device string, its backend too."""
    return {level, family(level)}
