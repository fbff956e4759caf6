"""What single texts and numbers of a record about a device tell: the operating system, builds, API.

Every function takes anything and raises nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from gpuedge.capdb.identity.versions import MAX_TEXT, Version, decode, dotted

MAX_KEYS = 256
"""Keys of a record that are looked at; a saved identity has about twenty."""

MAX_INTEGER = 2**64 - 1
"""Largest number of a record that is looked at; Python cannot print one that is long enough."""

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

BENEATH = ("vulkan", "gles", "metal", "d3d12")
"""APIs that WebGPU may run on."""

LEVELS = {
    "vulkan": "vulkan", "wgpu": "wgpu", "webgpu": "wgpu",
    "gles20": "gles20", "gles30": "gles30", "gles31": "gles31",
}  # fmt: skip
"""APIs of records that are one level. ``gles`` is none: a driver of OpenGL ES 3.2 has three."""

SYSTEMS = (
    ("android", "android"),
    ("linux", "linux"),
    ("win", "windows"),
    ("cygwin", "windows"),
    ("darwin", "macos"),
    ("macos", "macos"),
    ("ios", "ios"),
    ("ipados", "ios"),
    ("chromeos", "chromeos"),
    ("cros", "chromeos"),
)
"""How names of operating systems begin, and what entries call them."""

GL_SCHEMES = (
    "gl-adreno", "gl-mali", "gl-img", "gl-nvidia", "gl-tegra", "gl-vivante", "gl-xclipse",
    "gl-apple", "gl-mesa",
)  # fmt: skip
"""Schemes of drivers' versions in ``GL_VERSION``."""

_BUILDS = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        r"\b(?:GIT|CL)@(\w+)(?:, *(I[0-9a-f]{6,40}))?(?:, *(\d{9,11})\b)?",
        r"\bDriver Build: *(\w+)(?:, *(I[0-9a-f]{6,40}))?(?:, *(\d{9,11})\b)?",
        r"\bgit-([0-9a-f]{6,40})\b",
        r"\bgit hash: *([0-9a-f]{6,40})\b",
        r"\.([0-9a-f]{32})(?![0-9a-z])",
        r"\b\d{1,4}\.\d{1,4}@(\d{4,10})(?!\d)",
        r"\(Build (\w{3,12})\)",
    )
)
"""Marks of builds: Adreno's, Mesa's, Xclipse's and ANGLE's, Mali's, PowerVR's, macOS's."""

_DATE = re.compile(r"\bDate: *(\d\d)/(\d\d)/(\d\d)(?!\d)", re.ASCII | re.IGNORECASE)
_SHORT_DATE = re.compile(r"(\d\d)/(\d\d)/(\d\d)", re.ASCII)
_ISO = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_GL = re.compile(r"(\d{1,2})\.(\d{1,2})(?:[. ]|$)", re.ASCII)
_GROUP = re.compile(r"\(([^()]+)\)")
_TAIL = re.compile(r"(.+?)[- ](\d[\d.]*)", re.ASCII)
_MALI_G = re.compile(r"\bv\d\.g\d", re.ASCII | re.IGNORECASE)


def reported(record: object) -> dict[str, Any]:
    """Return the texts, numbers and flags of a record; whatever else it holds is left out."""
    try:
        pairs = list(record.items()) if isinstance(record, Mapping) else []
    except Exception:  # a mapping of a caller's own make may do anything
        return {}
    kept: dict[str, Any] = {}
    # A text or number of a caller's own make may do anything, too: only what it holds is kept.
    texts = ((str.__str__(k), v) for k, v in pairs[:MAX_KEYS] if isinstance(k, str))
    for key, value in texts:
        if key == "features":
            if isinstance(value, Mapping):
                kept[key] = flags(value)
        elif isinstance(value, str):
            if text := str.__getitem__(value, slice(MAX_TEXT)).strip():
                kept[key] = text
        elif isinstance(value, bool):
            kept[key] = value
        elif isinstance(value, int) and abs(number := int.__int__(value)) <= MAX_INTEGER:
            kept[key] = number
    return kept


def flags(features: Mapping[Any, Any]) -> dict[str, bool]:
    """Return the features that a record says it has or lacks."""
    try:
        pairs = list(features.items())
    except Exception:  # as above
        return {}
    found = ((k, v) for k, v in pairs[:MAX_KEYS] if isinstance(k, str) and isinstance(v, bool))
    return {str.__str__(k): v for k, v in found}


def text(raw: Mapping[str, Any], *keys: str) -> str | None:
    """Return the first of some keys that holds a text."""
    return next((v for key in keys if isinstance(v := raw.get(key), str)), None)


def apis(api: str | None, backend: str | None) -> frozenset[str] | None:
    """Return the APIs of a record; `backend` is the one that WebGPU runs on."""
    word, beneath = (w.casefold().replace(" ", "") for w in (api or "", backend or ""))
    if word in {"wgpu", "webgpu"}:
        return frozenset({"wgpu"}) | APIS.get(beneath, frozenset())
    return APIS.get(word)


def hidden_apis(api: str | None, backend: str | None, system: str | None) -> frozenset[str]:
    """Return the APIs that WebGPU may run on besides, where the record does not tell which.

    Metal is of Apple's systems only, and Direct3D 12 of Windows.
    """
    word, beneath = (w.casefold().replace(" ", "") for w in (api or "", backend or ""))
    if word not in {"wgpu", "webgpu"} or beneath in APIS:
        return frozenset()
    homes = {"metal": {"macos", "ios"}, "d3d12": {"windows"}}
    found = (a for a in BENEATH if system is None or system in homes.get(a, {system}))
    return frozenset(found)


def system(name: str | None) -> str | None:
    """Return what entries call an operating system; None for one they do not know."""
    word = (name or "").casefold()
    return next((known for start, known in SYSTEMS if word.startswith(start)), None)


def canonical(name: str) -> str | None:
    """Return a name with spaces, where it is one of the keys that lists make: ``adreno_(tm)_505``.

    Such keys are in lower case and have underscores for spaces and hyphens; None for other names.
    """
    if "_" not in name or " " in name or name != name.lower():
        return None
    return name.replace("_", " ").strip()


def inner_vendor(vendor: str) -> str:
    """Return whom ``Google Inc. (NVIDIA)`` speaks of."""
    found = _GROUP.search(vendor)
    return found[1] if found and vendor.casefold().startswith("google") else vendor


def gl_versions(texts: Iterable[str]) -> dict[str, Version]:
    """Return the versions that texts such as ``GL_VERSION`` hold, by scheme."""
    # of numbers alone nobody can tell the scheme
    marked = [t for t in texts if dotted(t) is None]
    found = {scheme: version(scheme, marked) for scheme in ("gl-es", *GL_SCHEMES)}
    return {scheme: v for scheme, v in found.items() if v is not None}


def version(scheme: str, texts: Iterable[object]) -> Version | None:
    """Return the version in the first of some texts or numbers that holds one."""
    return next((v for t in texts if (v := decode(scheme, t)) is not None), None)


def gl_api(gl_version: str) -> Version | None:
    """Return the version of desktop OpenGL that ``GL_VERSION`` begins with."""
    found = _GL.match(gl_version)
    return (int(found[1]), int(found[2])) if found else None


def named_driver(driver: str) -> tuple[str, str | None]:
    """Split ``Intel open-source Mesa driver-20.0.8`` into the driver's name and its version."""
    found = _TAIL.fullmatch(driver)
    return (found[1], found[2]) if found else (driver, None)


def builds(texts: Iterable[str]) -> frozenset[str]:
    """Return every hash and change id of a build in some texts."""
    matches = (m for t in texts for pattern in _BUILDS for m in pattern.finditer(t))
    return frozenset(group for m in matches for group in m.groups() if group)


def built(texts: Iterable[str]) -> str | None:
    """Return the date of the build, ``Date:08/25/22`` in a driver's text, as an ISO date."""
    dates = (day(m[0].split(":", 1)[1]) for t in texts if (m := _DATE.search(t)))
    return next((d for d in dates if d is not None), None)


def day(value: object) -> str | None:
    """Return an ISO date from one, or from ``mm/dd/yy``; None for what is no date."""
    if not isinstance(value, str):
        return None
    value = value.strip()
    if found := _SHORT_DATE.fullmatch(value):
        value = f"20{found[3]}-{found[1]}-{found[2]}"
    if not _ISO.fullmatch(value):
        return None
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        return None


def is_mali_g(texts: Iterable[str]) -> bool:
    """Say whether a text is of Arm's driver with releases g6, g13: another count than r32, r38."""
    return any(_MALI_G.search(t) for t in texts)
