"""Rules about one entry by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from capdb.covering import is_void
from capdb.rules import Folder, Problem
from gpuedge.capdb.entries import FAMILIES, Entry, Match, Range
from gpuedge.capdb.identity.texts import day

SPOKEN_BY: Final = {
    "vk-adreno": {"qualcomm"},
    "vk-arm": {"arm"},
    "vk-nvidia": {"nvidia"},
    "vk-intel-win": {"intel"},
    "vk-amd": {"amd"},
    "vk-img-build": {"imagination"},
    "vk-samsung": {"samsung"},
    "gl-adreno": {"qualcomm"},
    "gl-mali": {"arm"},
    "gl-img": {"imagination"},
    "gl-nvidia": {"nvidia"},
    "gl-tegra": {"nvidia"},
    "gl-vivante": {"vivante"},
    "gl-xclipse": {"samsung"},
    "gl-apple": {"apple", "amd", "intel", "nvidia"},
    "adreno-compiler": {"qualcomm"},
    "linux-nvidia": {"nvidia"},
    "vk-moltenvk": {"apple", "amd", "intel", "nvidia"},
}
"""Makers whose drivers speak a scheme; schemes that are not here belong to no maker."""

ONLY_ON: Final = {
    "vk-intel-win": {"windows"},
    "win-wddm": {"windows"},
    "linux-nvidia": {"linux"},
    "linux-kernel": {"linux", "android", "chromeos"},
    "macos": {"macos"},
    "gl-apple": {"macos", "ios"},
    "vk-moltenvk": {"macos", "ios"},
}
"""Systems that a scheme exists on; schemes that are not here exist on any."""

MODELS: Final = re.compile(
    r"\b(?:Adreno|Mali-[GT]|Immortalis-G|Xclipse|Maleoon|PowerVR (?:Rogue )?[A-Z]{1,3}-?)"
    r" ?\(?([0-9]{2,4})(?![0-9x])((?:,? (?:and|or|to) [0-9]{2,4}\b|, [0-9]{2,4}\b)*)"
)
"""Names of GPUs in prose; more numbers may follow, as in ``Adreno 630, 640 and 650``."""

_HEX = re.compile(r"\b0x[0-9a-fA-F]{3,8}\b")
_BARE_NUMBER = re.compile(r"[0-9]{2,4}")

Rule = Callable[[Entry, Folder], Iterator[tuple[str, str]]]


def check(folder: Folder) -> Iterator[Problem]:
    """Yield what is wrong with single entries."""
    for file, entry in folder.entries:
        for rule in _RULES:
            for name, text in rule(entry, folder):
                yield Problem(name, entry.id, file, text)


def _conditions(entry: Entry) -> Iterator[tuple[str, Match]]:
    for what, matches in (("match", entry.match), ("except", entry.exceptions)):
        yield from ((f"{what}[{i}]", match) for i, match in enumerate(matches))


def _review(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    if entry.review_by < folder.today:
        yield "expired-review", f"it was to be reviewed by {entry.review_by}"


def _evidence(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    if not entry.source["evidence"]:
        yield "missing-evidence", "there is none"
    for i, one in enumerate(entry.source["evidence"]):
        kind = one["type"]
        needs = _NEEDED[kind]
        missing = [" or ".join(names) for names in needs if not any(one.get(n) for n in names)]
        if missing:
            yield "missing-evidence", f"evidence[{i}] ({kind}) lacks {', '.join(missing)}"
    kinds = {one["type"] for one in entry.source["evidence"]}
    if entry.source["assurance"] == "reproduced" and not kinds & {"conformance_case", "farm_run"}:
        yield "missing-evidence", "it is called reproduced, and no case or run says where"


_NEEDED: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "imported_rule": (("project",), ("path", "rule", "bugs"), ("commit", "seen", "fact", "bugs")),
    "issue": (("project",), ("bugs", "path")),
    "conformance_case": (("case",), ("seen",)),
    "farm_run": (("case",), ("seen",)),
    "vendor_note": (("project",), ("path", "bugs", "rule")),
}
"""Per type of evidence what it must say; of a group one is enough."""


def _intervals(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    for place, match in _conditions(entry):
        spans = match.get("driver").intervals if match.get("driver") else ()
        for one, other in pairwise(spans):
            if one.below is None or other.low is None or other.low <= one.below:
                yield "overlapping-intervals", f"{place}.driver: {_span(one)} and {_span(other)}"


def _ranges(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    for place, match in _conditions(entry):
        for name, wanted in match.items():
            spans = (*wanted.intervals, wanted.built) if name == "driver" else (wanted,)
            for span in spans:
                is_closed = isinstance(span, Range) and None not in (span.low, span.below)
                if is_closed and not span.low < span.below:
                    yield "schema", f"{place}.{name}: from must be less than below"


def _dates(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    seen = [one["seen"] for one in entry.source["evidence"] if "seen" in one]
    told = [entry.source["review"].get(name) for name in ("added", "review_by", "last_reproduced")]
    spans = [m.get(name) for _, m in _conditions(entry) for name in ("security_patch",)]
    spans += [m.get("driver").built for _, m in _conditions(entry) if m.get("driver")]
    for text in (*seen, *told, *(side for s in spans if s for side in (s.low, s.below))):
        if text is not None and day(text) != text:
            yield "schema", f"there is no day {text}"


def _span(span: Any) -> str:
    sides = (
        ".".join(map(str, side)) if side is not None else "" for side in (span.low, span.below)
    )
    return "[{}, {})".format(*sides)


def _schemes(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    for place, match in _conditions(entry):
        if match.get("driver") is None:
            continue
        scheme = match.get("driver").scheme
        makers, asked = SPOKEN_BY.get(scheme), _vendors(match)
        if makers is not None and not (asked and asked <= makers):
            who = ", ".join(sorted(asked - makers)) if asked else "whoever made it"
            yield "vendor-scheme", f"{place}: no driver of {who} is known to speak {scheme}"
        systems = ONLY_ON.get(scheme)
        if systems and match.get("os") and not match.get("os") <= systems:
            others = ", ".join(sorted(match.get("os") - systems))
            yield "vendor-scheme", f"{place}: {scheme} does not exist on {others}"
        is_compared = bool(match.get("driver").intervals) and match.get("layer") == {"native"}
        if is_compared and match.get("api") and _is_other_api(scheme, match.get("api")):
            text = f"{place}: {scheme} is not told through {', '.join(sorted(match.get('api')))}"
            yield "vendor-scheme", text


def _is_other_api(scheme: str, apis: frozenset[str]) -> bool:
    # Windows' number of a driver is told by Direct3D, and by ANGLE over it: by nothing else.
    homes = {"vk": {"vulkan", "wgpu"}, "gl": {"gles", "wgpu"}, "win": {"d3d12"}}
    home = homes.get(scheme.split("-", maxsplit=1)[0])
    return home is not None and apis.isdisjoint(home)


def _vendors(match: Match) -> set[str]:
    """Return the makers that a condition asks for, by name or by family."""
    if match.get("vendor") is not None:
        return set(match.get("vendor"))
    return {FAMILIES[family] for family in match.get("family") or ()}


def _exclusive(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    if is_void(entry):
        yield "contradictory", "its exceptions take back all that it matches"
    for place, match in _conditions(entry):
        makers = {FAMILIES[family] for family in match.get("family") or ()}
        if match.get("vendor") is not None and makers and makers.isdisjoint(match.get("vendor")):
            yield "contradictory", f"{place}: the families are of {', '.join(sorted(makers))}"
        for name, systems in _TOLD_ON.items():
            is_asked = match.get(name) is not None
            if is_asked and match.get("os") is not None and match.get("os").isdisjoint(systems):
                yield "contradictory", f"{place}: only {' and '.join(systems)} has {name}"


_TOLD_ON: Final = {
    "android_sdk": ("android",),
    "security_patch": ("android",),
    "brand": ("android",),
    "device": ("android", "linux"),  # Linux tells the name of a board
}


def _home(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    row = next(row for row in folder.rows if row.entry is entry)
    vendor = row.file.rpartition("/")[2].removesuffix(".json")
    for i, match in enumerate(entry.match):
        asked = _vendors(match)
        if vendor != "any" and asked and vendor not in asked:
            yield "misplaced", f"match[{i}]: it is about {', '.join(sorted(asked))}"
        if row.api != "any" and match.get("api") is not None and row.api not in match.get("api"):
            yield "misplaced", f"match[{i}]: it is about {', '.join(sorted(match.get('api')))}"


def _kernels(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    for name in sorted(entry.action.kernels - (folder.kernels or frozenset())):
        if folder.kernels is not None:
            yield "unknown-kernel", f"there is no kernel variant {name!r}"


def _summary(entry: Entry, folder: Folder) -> Iterator[tuple[str, str]]:
    """Compare device ids and models that the summary names with those of the conditions."""
    matches = [match for _, match in _conditions(entry)]
    for text in _HEX.findall(entry.summary):
        ids = [m.get("device_ids") for m in matches if m.get("device_ids") is not None]
        if ids and not any(one.holds(int(text, 16)) for one in ids):
            yield "summary-differs", f"it names {text}, which no condition asks for"
    if any(m.get("device_ids") or m.get("device") or m.get("soc") for m in matches):
        return  # which model those are cannot be told here
    for number in _models(entry.summary):
        if not any(_is_about(match, number) for match in matches):
            yield "summary-differs", f"it names model {number}, which no condition asks for"


def _models(summary: str) -> Iterator[int]:
    for found in MODELS.finditer(summary):
        yield int(found[1])
        yield from map(int, _BARE_NUMBER.findall(found[2]))


def _is_about(match: Match, number: int) -> bool:
    """Say whether a condition holds for a model, by its number or by its name."""
    if match.get("model") is not None:
        # "up to 702" may be written as below 703 or below 702
        return match.get("model").holds(number) or number in (
            match.get("model").low,
            match.get("model").below,
        )
    name = match.get("name")
    if name is None:
        return True  # it asks for no model: the name is an example
    texts = [*name.exact, *name.prefix, *name.contains, *name.contains_all, *name.words]
    numbered = [text for text in texts if re.search("[0-9]", text)]
    return not numbered or any(str(number) in text for text in numbered)


_RULES: Final[tuple[Rule, ...]] = (
    _review, _dates, _evidence, _ranges, _intervals, _schemes, _exclusive, _home, _kernels,
    _summary,
)  # fmt: skip
