"""What single texts of a record about a device tell: API, operating system, versions, builds.

Every function takes anything and raises nothing. Names are compared folded: see `NameMatch`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

from gpuedge.capdb.identity.versions import MAX_TEXT, Version, decode, dotted

MAX_KEYS = 256
"""Keys of a record that are looked at; a saved identity has about twenty."""

MAX_INTEGER = 2**64 - 1
"""Largest number of a record that is looked at; Python cannot print one that is long enough."""

MAX_NAME = 300
"""Characters of a name that are looked at; Vulkan's names have at most 255."""

APIS: Mapping[str, frozenset[str]] = {
    "vulkan": frozenset({"vulkan"}),
    "metal": frozenset({"metal"}),
    "d3d12": frozenset({"d3d12"}),
    "dx12": frozenset({"d3d12"}),
    "direct3d12": frozenset({"d3d12"}),
    **{name: frozenset({"gles"}) for name in ("gles", "gl", "opengl", "opengles", "webgl")},
    **{name: frozenset({"gles"}) for name in ("gles-angle", "gles20", "gles30", "gles31")},
    **{name: frozenset[str]() for name in ("opencl", "cuda", "rocm", "null", "cpu", "webnn")},
}
"""APIs of records, in the words of entries."""

HOMES = {
    "vulkan": None, "gles": None, "metal": ("macos", "ios"), "d3d12": ("windows",),
}  # fmt: skip
"""APIs that WebGPU may run on, and the only systems that have them."""

LEVELS = {
    "vulkan": "vulkan", "wgpu": "wgpu", "webgpu": "wgpu",
    "gles20": "gles20", "gles30": "gles30", "gles31": "gles31",
}  # fmt: skip
"""APIs of records that are one level. ``gles`` is none: a driver of OpenGL ES 3.2 has three."""

SYSTEMS = {
    "android": "android", "linux": "linux", "win": "windows", "cygwin": "windows",
    "darwin": "macos", "macos": "macos", "ios": "ios", "ipados": "ios",
    "chromeos": "chromeos", "cros": "chromeos",
}  # fmt: skip
"""How names of operating systems begin, and what entries call them."""

GL_SCHEMES = (
    "gl-adreno", "gl-mali", "gl-img", "gl-nvidia", "gl-tegra", "gl-vivante", "gl-xclipse",
    "gl-apple", "gl-mesa",
)  # fmt: skip
"""Schemes of drivers' versions in ``GL_VERSION``."""

BUILDS = (
    r"\b(?:GIT|CL)@(\w+)(?:, *(I[0-9a-f]{6,40}))?(?:, *(\d{9,11})\b)?",  # Adreno
    r"\bDriver Build: *(\w+)(?:, *(I[0-9a-f]{6,40}))?(?:, *(\d{9,11})\b)?",
    r"\bgit-([0-9a-f]{6,40})\b",  # Mesa
    r"\bgit hash: *([0-9a-f]{6,40})\b",  # Xclipse, ANGLE
    r"\.([0-9a-f]{32})(?![0-9a-z])",  # Mali
    r"\b\d{1,4}\.\d{1,4}@(\d{4,10})(?!\d)",  # PowerVR
    r"\(Build (\w{3,12})\)",  # macOS
)
"""Marks of builds in texts of drivers."""

_FLAGS = (re.ASCII | re.IGNORECASE).value  # a plain number is looked up sooner
_MARKS = re.compile(r"\((?:r|tm|c)\)", re.IGNORECASE)
_BETWEEN = re.compile(r"[^a-z0-9]+")


def unmarked(name: str) -> str:
    """Return a name with spaces for trade marks."""
    return _MARKS.sub(" ", name)


@lru_cache(maxsize=64)  # every condition on names asks for that of the same device
def folded(name: str) -> str:
    """Return a name as names are compared: words and numbers with single spaces between them.

    >>> folded("Mali-G52 MC2"), folded("adreno_(tm)_505")
    ('mali g52 mc2', 'adreno 505')
    """
    return _BETWEEN.sub(" ", unmarked(name[:MAX_NAME]).casefold()).strip()


@dataclass(frozen=True, slots=True)
class NameMatch:
    """Conditions on a folded name. Those that are given must all hold.

    It is one of `exact`, begins with one of `prefix`, has one of `contains` and all of
    `contains_all` somewhere in it, and one of `words` as whole words.
    """

    exact: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    contains_all: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Mapping[str, list[str]]) -> NameMatch:
        """Read the conditions in a record. Raises ValueError or TypeError for anything else."""
        if not record or not all(isinstance(texts, list) and texts for texts in record.values()):
            raise ValueError(f"{record!r:.60} does not list conditions on a name")
        every = [text for texts in record.values() for text in texts]
        if any(not isinstance(t, str) or t.strip(" ") != folded(t) for t in every):
            raise ValueError(f"{record!r:.60} holds more than lower-case words and numbers")
        return cls(**{name: tuple(map(str, texts)) for name, texts in record.items()})

    def holds(self, name: str) -> bool:
        """Say whether a folded name is one of these."""
        return (
            (not self.exact or name in self.exact)
            and (not self.prefix or name.startswith(self.prefix))
            and (not self.contains or any(text in name for text in self.contains))
            and all(text in name for text in self.contains_all)
            and (not self.words or any(f" {word} " in f" {name} " for word in self.words))
        )


def reported(record: object) -> dict[str, Any]:
    """Return the texts, numbers and flags of a record; whatever else it holds is left out."""
    kept: dict[str, Any] = {}
    for key, value in _pairs(record):
        if isinstance(value, str):
            if text := str.__getitem__(value, slice(MAX_TEXT)).strip():
                kept[key] = text
        elif isinstance(value, bool):
            kept[key] = value
        elif isinstance(value, int) and abs(number := int.__int__(value)) <= MAX_INTEGER:
            kept[key] = number
    return kept


def _pairs(record: object) -> list[tuple[str, Any]]:
    """Return what a mapping holds by texts; one of a caller's own make may do anything."""
    try:
        pairs = list(record.items()) if isinstance(record, Mapping) else []
    except Exception:
        return []
    return [(str.__str__(key), value) for key, value in pairs[:MAX_KEYS] if isinstance(key, str)]


def text(raw: Mapping[str, Any], *keys: str) -> str | None:
    """Return the first of some keys that holds a text."""
    for key in keys:  # the quicker form of next(): it is asked thirty times of every record
        if isinstance(value := raw.get(key), str):
            return value
    return None


def apis(
    raw: Mapping[str, Any], system: str | None = None
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the APIs of a record, and those that it may be besides.

    WebGPU over Vulkan is two of them; where ``backend`` does not tell, it may run on any that the
    system has.
    """
    word, beneath = (
        (text(raw, key) or "").casefold().replace(" ", "") for key in ("api", "backend")
    )
    if word not in {"wgpu", "webgpu"}:
        return APIS.get(word), frozenset()
    if beneath in APIS:
        return APIS[beneath] | {"wgpu"}, frozenset()
    may_be = (a for a, at in HOMES.items() if at is None or system is None or system in at)
    return frozenset({"wgpu"}), frozenset(may_be)


def system(name: str | None) -> str | None:
    """Return what entries call an operating system; None for one they do not know."""
    word = (name or "").casefold()
    return next((known for start, known in SYSTEMS.items() if word.startswith(start)), None)


def spaced(name: str) -> str:
    """Return a name with spaces where it is one of the keys that lists make: ``adreno_(tm)_505``.

    Such keys are in lower case and have underscores for spaces and hyphens.
    """
    if "_" not in name or " " in name or name != name.lower():
        return name
    return name.replace("_", " ").strip()


def inner_vendor(vendor: str) -> str:
    """Return whom ``Google Inc. (NVIDIA)`` speaks of."""
    inner = re.search(r"\(([^()]+)\)", vendor)
    return inner[1] if inner and vendor.casefold().startswith("google") else vendor


def gl_versions(texts: Iterable[str]) -> dict[str, Version]:
    """Return the versions that texts such as ``GL_VERSION`` hold, by scheme."""
    marked = unplain(texts)
    versions = {scheme: version(scheme, marked) for scheme in ("gl-es", *GL_SCHEMES)}
    return {scheme: v for scheme, v in versions.items() if v is not None}


def unplain(texts: Iterable[str]) -> list[str]:
    """Return the texts that say whose version they hold; of numbers alone nobody can tell."""
    return [text for text in texts if dotted(text) is None]


def version(scheme: str, texts: Iterable[object]) -> Version | None:
    """Return the version in the first of some texts or numbers that holds one."""
    return next((v for t in texts if (v := decode(scheme, t)) is not None), None)


def named_driver(driver: str) -> tuple[str, str | None]:
    """Split ``Intel open-source Mesa driver-20.0.8`` into the driver's name and its version."""
    match = re.fullmatch(r"(.+?)[- ](\d[\d.]*)", driver, re.ASCII)
    return (match[1], match[2]) if match else (driver, None)


def builds(texts: Iterable[str]) -> frozenset[str]:
    """Return every hash and change id of a build in some texts."""
    matches = (m for t in texts for pattern in BUILDS for m in re.finditer(pattern, t, _FLAGS))
    return frozenset(group for m in matches for group in m.groups() if group)


def built(texts: Iterable[str]) -> str | None:
    """Return the date of the build, ``Date:08/25/22`` in a driver's text, as an ISO date."""
    form = r"\bDate: *(\d\d/\d\d/(?:\d\d)?\d\d)(?!\d)"
    dates = (day(match[1]) for t in texts if (match := re.search(form, t, _FLAGS)))
    return next((d for d in dates if d is not None), None)


def day(value: object) -> str | None:
    """Return an ISO date from one, from ``mm/dd/yy`` or ``mm/dd/yyyy``; None for what is none."""
    if not isinstance(value, str):
        return None
    value = value.strip()
    if match := re.fullmatch(r"(\d\d)/(\d\d)/(\d\d)?(\d\d)", value, re.ASCII):
        value = f"{match[3] or 20}{match[4]}-{match[1]}-{match[2]}"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        return None
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        return None


def is_mali_g(texts: Iterable[str]) -> bool:
    """Say whether a text is of Arm's driver with releases g6, g13: another count than r32, r38."""
    return any(re.search(r"\bv\d\.g\d", t, _FLAGS) for t in texts)
